"""One field of the traffic section on its stage: the Envoy routes of all places that are asked about, and what is seen.

Routes are planned by the code that `run` uses. Only their match is replaced, so that a header chooses the place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from envoy.config.route.v3 import route_components_pb2

from tierwall.attach.place import BACKEND, GRPC_ROUTE
from tierwall.attach.reach import RouteRule
from tierwall.attach.section import rules
from tierwall.attach.target import GATEWAY_POLICIES
from tierwall.core.reference import Reference
from tierwall.engines.envoy.config.agentgateway_backends import backend_target, joined_targets
from tierwall.engines.envoy.config.checkpoints import PolicyFilters
from tierwall.engines.envoy.config.connection_manager import connection_manager, http_filters
from tierwall.engines.envoy.config.listeners import filter_chain, listener
from tierwall.engines.envoy.config.options import EnvoyOptions, SocketAddress
from tierwall.engines.envoy.config.policy_compiler import PolicyCompiler
from tierwall.engines.envoy.config.route_plan import PlannedHost, PlannedRoute, RoutePlan, RoutePlanner
from tierwall.engines.envoy.config.routes import RouteConfigurations, empty_configuration
from tierwall.engines.envoy.config.settings.places import place_of
from tierwall.engines.envoy.config.settings.shared import SharedFilters
from tierwall.engines.envoy.config.settings.unenforceable import Unenforceable
from tierwall.engines.envoy.probe import credentials, items, observations, services
from tierwall.engines.envoy.probe.addresses import NETWORK_RULES, network_rules, with_named_clients
from tierwall.engines.envoy.probe.given_request import GivenRequest
from tierwall.engines.envoy.probe.observations import Explains, ProbeClient, Unobservable
from tierwall.engines.envoy.probe.recorder import RecordingBackend
from tierwall.engines.envoy.probe.recording_service import RecordingService
from tierwall.engines.envoy.probe.staging import MCP_RULES, RECORDER, StagedRule, StagedSnapshot
from tierwall.gateway.decide import MergedField, Merger, merger
from tierwall.gateway.detail import Setting
from tierwall.gateway.model.conditional import ANY_REQUEST, RequestFacts
from tierwall.gateway.model.enforcement import unenforced
from tierwall.gateway.model.fields import Phase, PolicyField, Profile, fields_written_by
from tierwall.gateway.model.places import RequestPlace
from tierwall.gateway.sentence import native_settings
from tierwall.gateway.unenforced import unenforced_in_force
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

# Listeners remove `x-tierwall-` headers of clients, and this one comes from the probing client.
CASE = "tierwall-case"
MAX_PROGRAM_SIZE = 10_000
_ANY_PORT = SocketAddress("127.0.0.1", 0)
_LIMIT = "traffic.rateLimit.local"
# The fields of which requests show the entry of a conditional list that Envoy chooses.
_CHOSEN = frozenset(("traffic.directResponse", _LIMIT, *services.ASKING))

_Observe = Callable[[ProbeClient, Sequence[Any]], Explains]
# The settings that need nothing but requests.
_PLAIN: Mapping[str, _Observe] = {
    "traffic.timeouts": observations.timeouts,
    "traffic.retry": observations.retry,
    "traffic.headerModifiers.request": observations.request_headers,
    "traffic.headerModifiers.response": observations.response_headers,
    "traffic.directResponse": observations.direct_response,
    "traffic.cors": observations.cors,
    "traffic.csrf": observations.csrf,
    "traffic.buffer": observations.buffer,
    "traffic.delay": observations.delay,
    _LIMIT: observations.local_limit,
}
OBSERVED = frozenset(
    (
        *_PLAIN,
        "traffic.jwtAuthentication",
        "traffic.basicAuthentication",
        "traffic.apiKeyAuthentication",
        "traffic.authorization",
        NETWORK_RULES,
        MCP_RULES,
        *services.ASKING,
    )
)


class Services(NamedTuple):
    """The services that policies ask, by `namespace/name`."""

    over_http: Mapping[str, RecordingBackend]
    over_grpc: Mapping[str, RecordingService]


class ObservedSetting(NamedTuple):
    """An observation of a field: its setting (None: not set), or why it was not asked, or what does not fit."""

    field: str
    setting: Setting | None = None
    unasked: str = ""
    error: str = ""


class FieldProbe:
    """The stage of one field under one profile and in one phase; places are added before listeners are made."""

    def __init__(self, snapshot: Snapshot, field: PolicyField, profile: Profile, phase: Phase) -> None:
        self._snapshot = snapshot
        self._stage = StagedSnapshot(snapshot, field, phase)
        self._field = field
        self._profile = profile
        self._phase = phase
        self._rules: dict[int, StagedRule] = {}
        self._planned: dict[int, PlannedRoute] = {}
        self.clusters: dict[str, Any] = {}

    def add(self, case: int, place: RequestPlace) -> None:
        """Add the place of a case."""
        self._rules[case] = self._stage.add(place)

    def port(self, case: int) -> str:
        """Return the name of the listener for a case. Each counts and takes connections for itself."""
        name = f"{self._field.path}/{self._profile}/{self._phase}"
        return f"{name}/{case}" if self._field.path in (_LIMIT, NETWORK_RULES) else name

    def listeners(self, recorder: SocketAddress, answering: Services) -> dict[str, Any]:
        """Return the listeners with the routes of all places."""
        snapshot = self._stage.snapshot
        is_grpc = self._field.path in services.OVER_GRPC
        asked: Mapping[str, RecordingBackend | RecordingService]
        asked = answering.over_grpc if is_grpc else answering.over_http
        # MCP servers record, too.
        servers = (rule.backend for rule in self._rules.values() if rule.backend is not None)
        addresses = {str(backend.reference): recorder for backend in servers if backend.kind == BACKEND[1]}
        addresses |= {f"Service/{rule.route.namespace}/{RECORDER}": recorder for rule in self._rules.values()}
        options = EnvoyOptions(
            static=True,
            max_program_size=MAX_PROGRAM_SIZE,
            profile=self._profile,
            endpoints={**{f"Service/{name}": service.address for name, service in asked.items()}, **addresses},
        )
        planner, compiler = RoutePlanner(snapshot, options), PolicyCompiler(snapshot, options)
        routes: dict[str, Any] = {}
        for case, rule in self._rules.items():
            route = snapshot.get(*rule.route.identity)
            assert route is not None, "a staged route is in the snapshot"
            chain = (*rule.chain[:-1], RouteRule(route, rule.chain[-1].rule))
            planned_route = planner.planned_chain(rule.gateway, rule.listener, chain)
            self._planned[case] = planned_route
            plan = RoutePlan(rule.gateway, str(case), (PlannedHost(rule.listener, "*", (planned_route,)),))
            made = RouteConfigurations().after([plan], compiler, options).by_route
            configuration = routes.setdefault(self.port(case), empty_configuration(self.port(case)))
            if not configuration.virtual_hosts:
                configuration.request_headers_to_remove.append(CASE)
                configuration.virtual_hosts.add(name="asked", domains=["*"])
            for message in made[planned_route][1] if planned_route in made else [planned_route.message]:
                chosen = configuration.virtual_hosts[0].routes.add()
                chosen.CopyFrom(message)
                chosen.match.CopyFrom(route_components_pb2.RouteMatch(prefix="/"))
                chosen.match.headers.add(name=CASE, string_match={"exact": str(case)})
        self.clusters = planner.clusters
        policies = {**PolicyFilters.of({}).messages, **planner.settings.shared.configs(SharedFilters())}
        filters = list(http_filters(options, policies))
        out = {}
        for name, configuration in routes.items():
            manager = connection_manager(name, configuration, options, filters)
            out[name] = listener(name, _ANY_PORT, [filter_chain(name, manager, None, "")])
        for case, rule in self._rules.items() if self._field.path == NETWORK_RULES else ():
            frontend, _ = planner.settings.frontend(rule.gateway, rule.listener)
            message = out[self.port(case)]
            with_named_clients(frontend).change_listener(message)
            frontend.change_chain(message.filter_chains[0])
        return out

    def observe(
        self,
        case: int,
        expected: Setting | None,
        client: ProbeClient,
        answering: Services,
        facts: RequestFacts,
    ) -> ObservedSetting:
        """Send requests to the place of a case; `expected` is the model's setting for a request with these facts."""
        path = self._field.path
        try:
            merged, is_list = self._merged(case, expected, facts)
            if is_list:
                return self._chosen(expected, GivenRequest(client, facts.variables), answering)
            return self._explained(case, merged, expected, client, answering)
        except (Unobservable, Unenforceable) as error:
            return ObservedSetting(path, unasked=str(error))

    def _merged(self, case: int, expected: Setting | None, facts: RequestFacts) -> tuple[MergedField | None, bool]:
        """Return the merge of the field at the place, and whether lists have a part in it.

        Unobservable if requests cannot show it.
        """
        rule, planned = self._rules[case], self._planned[case]
        if (planned.route.group, planned.route.kind) == GRPC_ROUTE:
            raise Unobservable("a test sends plain HTTP, not gRPC")
        if planned.unsupported:
            raise Unobservable(f"Envoy answers with 500 there: {planned.unsupported}")
        for where, each in zip(("the rule", *["a parent"] * len(rule.chain)), reversed(rule.chain), strict=False):
            native = native_settings(rules(each.route)[each.rule])
            if self._field.path in native:
                raise Unobservable(f"{where} has its own {native[self._field.path]}")
        place = place_of(rule.gateway, rule.listener, rule.chain)
        if self._field.path == MCP_RULES:
            place = place._replace(backend=self._server(rule), section=rule.section)
        merging = merger(self._stage.snapshot, self._profile, self._phase, ANY_REQUEST)
        merged = merging.merge_at(place).get(self._field.path)
        is_list = merged is not None and any(each.written.entries is not None for each in merged.in_force)
        if merged is not None and is_list:
            self._check_choice(merged, facts)
            merged = (
                Merger(self._stage.snapshot, self._profile, self._phase, facts).merge_at(place).get(self._field.path)
            )
        in_force = [each for each in merged.in_force if each.has_value] if merged is not None else []
        for part in (part for candidate in in_force for part in unenforced(self._field.path, candidate.value)):
            raise Unobservable(part.words)
        sources = tuple(candidate.source for candidate in in_force)
        if sources != (expected.sources if expected is not None else ()):
            raise Unobservable("a request there meets levels that the question does not name")
        return merged, is_list

    def _check_choice(self, merged: MergedField, facts: RequestFacts) -> None:
        """Unobservable if Envoy does not choose among the entries in force, or the facts do not say which it is."""
        for _, part in unenforced_in_force(merged):
            raise Unobservable(part.words)
        if self._field.path not in _CHOSEN:
            raise Unobservable(f"a test does not tell the entries of a list of `{self._field.path}` apart")
        for entry in (entry for candidate in merged.in_force for entry in candidate.written.entries or ()):
            missing = facts.missing_from(entry["condition"]) if "condition" in entry else ()
            if missing:
                raise Unobservable(f"the question does not give {', '.join(missing)}, which a condition asks for")

    def _chosen(self, expected: Setting | None, client: ProbeClient, answering: Services) -> ObservedSetting:
        """Send the request of the question, and see which entry of which policy answers."""
        path = self._field.path
        offered: list[tuple[Resource, Any]] = []
        for policy in policies_of(self._stage.snapshot):
            for written in fields_written_by(policy, self._field.section, self._phase):
                entries = written.entries
                if written.field.path == path:
                    chosen = [written.entry_value(entry.get("policy")) for entry in entries or ()]
                    every = [written.value] if entries is None else [value for value in chosen if value is not None]
                    offered += [(policy, value) for value in every if not any(unenforced(path, value))]
        policies, values = [policy for policy, _ in offered], [value for _, value in offered]
        explains = self._observation(client, answering, policies, values)
        if explains(expected.value if expected is not None else None):
            return ObservedSetting(path, expected)
        for policy, value in offered:
            if explains(value):
                return ObservedSetting(path, Setting(value, (policy.reference,)))
        if explains(None):
            return ObservedSetting(path)
        return ObservedSetting(path, error=f"{path}: Envoy does what no policy sets")

    def _server(self, rule: StagedRule) -> Resource:
        """Return the MCP server of a place; Unobservable if it names none, or another part of it."""
        backend = rule.backend
        if backend is None or (backend.group, backend.kind) != BACKEND or "mcp" not in backend.spec:
            raise Unobservable("the question names no MCP server")
        known = backend_target(backend)
        names = {known.section} if not isinstance(known, str) else set[str]()
        names |= {target.section for target in joined_targets(backend)}
        if rule.section not in names:
            raise Unobservable("the question names no MCP server that Envoy serves, with its target")
        return self._stage.snapshot.get(*backend.identity) or backend

    def _explained(
        self,
        case: int,
        merged: MergedField | None,
        expected: Setting | None,
        client: ProbeClient,
        answering: Services,
    ) -> ObservedSetting:
        path = self._field.path
        offered = self._offered(merged)
        if self._field.union:
            in_force = [candidate.value for candidate in merged.in_force] if merged is not None else []
            every = list(offered.values())
            if path == MCP_RULES:
                explains = items.item_rules(client, [in_force, every], self._rules[case].section)
            elif path == NETWORK_RULES:
                explains = network_rules(client, [in_force, every])
            else:
                explains = credentials.authorization(client, [in_force, every])
            if explains(in_force):
                return ObservedSetting(path, expected)
            if explains(every):
                return ObservedSetting(path, Setting(every, tuple(offered), union=True))
        else:
            policies = [self._policy(reference) for reference in offered]
            values = list(offered.values())
            explains = self._observation(client, answering, policies, values)
            winner = offered[expected.sources[0]] if expected is not None else None
            if explains(winner):
                return ObservedSetting(path, expected)
            for reference, value in offered.items():
                if explains(value):
                    return ObservedSetting(path, Setting(self._original(reference), (reference,)))
        if explains(None):
            return ObservedSetting(path)
        return ObservedSetting(path, error=f"{path}: Envoy does what no policy sets")

    def _observation(
        self,
        client: ProbeClient,
        answering: Services,
        policies: Sequence[Resource],
        values: Sequence[Any],
    ) -> Explains:
        match self._field.path:
            case "traffic.jwtAuthentication":
                return credentials.tokens(client, self._stage, values)
            case "traffic.basicAuthentication":
                return credentials.passwords(client, policies, values)
            case "traffic.apiKeyAuthentication":
                return credentials.api_keys(client, self._stage, policies, values)
            case "traffic.extAuth":
                return services.external_service(client, answering.over_http, policies, values)
            case "traffic.extProc":
                return services.processing(client, answering.over_grpc, policies, values)
            case "traffic.rateLimit.global":
                return services.counting(client, answering.over_grpc, policies, values)
        return _PLAIN[self._field.path](client, values)

    def _offered(self, merged: MergedField | None) -> dict[Reference, Any]:
        """Return the values that policies set: those at the place first, then those elsewhere that can be enforced."""
        out: dict[Reference, Any] = {}
        for tier in merged.stack if merged is not None else ():
            out |= {candidate.source: candidate.value for candidate in tier.policies}
        for policy in policies_of(self._stage.snapshot):
            for written in fields_written_by(policy, self._field.section, self._phase):
                out.setdefault(policy.reference, written.value)
        path = self._field.path
        in_force = {candidate.source for candidate in merged.in_force} if merged is not None else set()
        return {
            reference: value
            for reference, value in out.items()
            if isinstance(value, dict | list) and (reference in in_force or not any(unenforced(path, value)))
        }

    def _policy(self, reference: Reference) -> Resource:
        policy = self._stage.snapshot.find(reference)
        assert policy is not None, "a policy that sets a value is in the snapshot"
        return policy

    def _original(self, reference: Reference) -> Any:
        """Return the value of a policy as it is written, with its own keys."""
        policy = self._snapshot.find(reference)
        written = fields_written_by(policy, self._field.section, self._phase) if policy is not None else ()
        return next(item.value for item in written if item.field is self._field)


def policies_of(snapshot: Snapshot) -> list[Resource]:
    """Return the AgentgatewayPolicies."""
    return [policy for key in GATEWAY_POLICIES for policy in snapshot.of_kind(*key)]
