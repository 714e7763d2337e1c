"""Parts of routes that answer 500 because of settings and backends, found without compiling anything.

`run` closes these requests (`TW655`), and says so in the same words as `check` and `effective`: all three ask the
functions here and in `joined_limits`. Envoy's own packages are not needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain as chain_of
from operator import attrgetter
from typing import Any, NamedTuple

from tierwall.attach.backend import BackendRef, backend_refs
from tierwall.attach.place import BACKEND, HTTP_ROUTE, ROUTES
from tierwall.attach.reach import RouteRule
from tierwall.attach.route import RouteOnListener, attach_route
from tierwall.attach.section import rules
from tierwall.attach.target import GATEWAY_POLICIES, attachments
from tierwall.engines.envoy.config.agentgateway_backends import HINT, backend_paths, backend_target, joined_targets
from tierwall.engines.envoy.config.backend_addresses import backend_address, unresolved
from tierwall.engines.envoy.config.chain_rule import chain_rule, mirroring_rule
from tierwall.engines.envoy.config.delegated_routes import HINTS as DELEGATION_HINTS
from tierwall.engines.envoy.config.delegated_routes import (
    REFUSED,
    ChainEnd,
    ChainFollower,
    matches_of,
    rule_matches,
)
from tierwall.engines.envoy.config.grpc_routes import HINT as NOT_MCP_HINT
from tierwall.engines.envoy.config.grpc_routes import is_grpc, not_mcp
from tierwall.engines.envoy.config.header_changes import (
    REFERENCE_HINT,
    RETYPING,
    RETYPING_HINT,
    changes_requests,
    reference_problem,
    retyped,
    retyping,
)
from tierwall.engines.envoy.config.host_names import first_routes
from tierwall.engines.envoy.config.joined_limits import (
    COPIES,
    DIFFERENT,
    DIFFERENT_PATHS,
    FILTERS,
    HINTS,
    JUDGED_COPY,
    SEVERAL,
    differ,
    judges_requests,
    obstacle,
)
from tierwall.engines.envoy.config.mirrors import MirrorRef, mirror_refs
from tierwall.engines.envoy.config.model_backends import PathChange, provider_of, unread_path, unusable_routes
from tierwall.engines.envoy.config.options import MAX_PROGRAM_SIZE, EnvoyOptions
from tierwall.engines.envoy.config.rule_problems import (
    filter_problem,
    hint_about,
    redirects,
    rule_effect,
    rule_problem,
)
from tierwall.engines.envoy.config.settings.places import SettingsReader, counting, overruling
from tierwall.engines.envoy.config.settings.unenforceable import NOTHING_TO_LIMIT
from tierwall.engines.envoy.config.unserved_parts import (
    NOT_SERVED,
    OF_ENVOY,
    UnservedPart,
    closed_rule,
    not_served,
    of_other_kind,
    refused_backend,
    refused_rule,
)
from tierwall.gateway.model.fields import Profile
from tierwall.gateway.model.places import RequestPlace, reachable_places
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Identity, Resource, nested_map
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import is_valid
from tierwall.tool.model import model

_LIMITS = ("traffic.rateLimit.local", "traffic.rateLimit.global")
_HEADERS, _OF_MESSAGES = "traffic.headerModifiers.request", ("backend.mcp.authorization",)
_OPTIONS = EnvoyOptions()


class _Backend(NamedTuple):
    """A backend of a rule, or of its copies, as far as it is served."""

    # Why requests are answered with 500, and the closing that says it, unless that is said of a setting.
    unsupported: str = ""
    closing: UnservedPart | None = None
    # Whether requests get there.
    is_served: bool = False
    is_joined: bool = False
    paths: tuple[PathChange, ...] = ()
    judges_requests: bool = False
    # Whether policies or settings judge messages to it.
    reads_messages: bool = False


class _StoppedChain(NamedTuple):
    """A chain of rules that cannot be followed, and why."""

    chain: tuple[RouteRule, ...]
    problem: str

    @property
    def closing(self) -> UnservedPart:
        """What is said of it."""
        return refused_rule(self.chain[-1].route, self.problem, DELEGATION_HINTS.get(self.problem, ""))


class UnservedPartFinder:
    """Finds the closings of rules in one snapshot, under a profile."""

    def __init__(self, snapshot: Snapshot, profile: Profile) -> None:
        self._snapshot = snapshot
        self._reader = SettingsReader(snapshot, profile, {})
        self._stops: dict[RouteRule, list[_StoppedChain]] = {}
        self._invalid: set[Identity] | None = None
        # The first route of each host name of each listener.
        self._first: dict[object, dict[str, Resource]] | None = None
        policies = attachments(snapshot, GATEWAY_POLICIES, admitted=True).policies
        self._changes_headers = any("headerModifiers" in nested_map(each.spec, "traffic") for each in policies)

    def at(self, place: RequestPlace) -> Iterator[UnservedPart]:
        """Yield the closings of the rule of a place; nothing if it has none, or delegates."""
        last = place.route_rule
        if last is None:
            return
        taken = list(self._taken_names(place))
        yield from (closing for closing in taken if closing is not None)
        if taken and None not in taken:
            return
        place = place._replace(backend=None, section="")
        chain = (*place.parents, last)
        if not is_valid(self._snapshot, last.route):
            return
        refs = [ref for ref in backend_refs(last.route) if ref.rule == last.rule and ref.weight]
        delegates = any(ref.delegates for ref in refs)
        if place.parents or delegates:
            stopped = self._stopped(chain[0])
            here = {stop: None for stop in stopped if stop.chain == chain[: len(stop.chain)]}
            below = {stop: None for stop in stopped if stop.chain[:-1] == chain} if delegates else {}
            yield from (stop.closing for stop in (*here, *below))
            if here:
                return
        if delegates:
            yield from _unmatched(last)
            return
        copied = mirroring_rule(chain)
        copies = list(mirror_refs(*chain[copied], rules(chain[copied].route)[chain[copied].rule]))
        # What policies beat can only make a rule better.
        written = chain_rule(chain, ())
        matches = list(rule_matches(chain))
        is_usable = not any(rule_problem(each, written, MAX_PROGRAM_SIZE, forwards=True) for each in matches)
        is_plain = is_usable and refs and not copies and not is_grpc(last.route) and not self._changes_headers
        if not matches or (is_plain and not any(map(self._concerns, refs)) and not retyped(written.get("filters"))):
            return
        backends = [self._backend(place, ref) for ref in refs]
        yield from (backend.closing for backend in backends if backend.closing is not None)
        if len(refs) > 1 and any(backend.is_joined for backend in backends):
            yield from (refused_backend(ref, SEVERAL, HINTS[SEVERAL]) for ref in refs)
            backends = [_Backend(SEVERAL)] * len(refs)
        above = place._replace(route=chain[copied].route, rule=chain[copied].rule, parents=chain[:copied])
        copying = [self._backend(above, ref) for ref in copies]
        yield from (copy.closing for copy in copying if copy.closing is not None)
        read = self._reader.of_rule(place)
        rule = chain_rule(chain, overruling(read, place))
        forwards = any(backend.is_served for backend in backends)
        unusable = [rule_problem(each, rule, MAX_PROGRAM_SIZE, forwards=forwards) for each in matches]
        problems = [list(_problems(problem, rule, backends, copying)) for problem in dict.fromkeys(unusable)]
        for problem in dict.fromkeys(chain_of.from_iterable(problems)):
            yield refused_rule(last.route, problem, HINTS.get(problem) or hint_about(problem), rule_effect(problem))
        if all(problems) or redirects(rule) or any(settings.closed for _, settings in read):
            return
        fields = [field for phase, settings in read for field in counting(phase, settings, place)]
        if any(field.path == "traffic.directResponse" and not field.is_chosen for field in fields):
            return
        problem = ""
        if any(backend.is_joined for backend in backends):
            problem = obstacle(rule, fields, any(copy.is_served for copy in copying))
        elif not any(each.is_served or each.unsupported for each in backends) and any(
            f.path in _LIMITS for f in fields
        ):
            problem = NOTHING_TO_LIMIT
        if problem:
            yield closed_rule(last, problem)
            return
        if any(backend.reads_messages for backend in backends if backend.is_served):
            changes = (field.value for field in fields if field.path == _HEADERS and not field.is_chosen)
            of_refs = (ref.value.get("filters") for ref, to in zip(refs, backends, strict=True) if to.is_served)
            if is_grpc(last.route):
                yield UnservedPart(last.route, ("spec", "rules", last.rule), not_mcp(last.route), NOT_MCP_HINT)
            if any(map(retyped, (rule.get("filters"), *of_refs))) or any(map(retyping, changes)):
                yield closed_rule(last, f"{RETYPING} is not supported")._replace(hint=RETYPING_HINT)

    def _taken_names(self, place: RequestPlace) -> Iterator[UnservedPart | None]:
        """Yield what is said of each host name of a route on a listener; None where the route is served."""
        outermost = place.parents[0].route if place.parents else place.route
        listener = place.listener
        if listener is None or outermost is None or not all(any(self._snapshot.of_kind(*kind)) for kind in ROUTES):
            return
        if self._first is None:
            attached: dict[object, list[RouteOnListener]] = {}
            for route in (route for kind in ROUTES for route in self._snapshot.of_kind(*kind)):
                for each in attach_route(self._snapshot, route)[0]:
                    attached.setdefault(_listener_of(each), []).append(each)
            by_age = attrgetter("route.seniority", "parent")
            self._first = {key: first_routes(sorted(there, key=by_age)) for key, there in attached.items()}
        first = self._first.get((place.gateway, listener.owner, listener.number), {})
        for each in attach_route(self._snapshot, outermost)[0]:
            if _listener_of(each) == (place.gateway, listener.owner, listener.number):
                for host in each.hostnames or ("*",):
                    is_first = first[host].kind == outermost.kind
                    yield None if is_first else of_other_kind(outermost, listener, host, first[host])

    def _stopped(self, outermost: RouteRule) -> list[_StoppedChain]:
        """Return the chains below a rule that cannot be followed."""
        if outermost not in self._stops:
            if self._invalid is None:
                routes = self._snapshot.of_kind(*HTTP_ROUTE)
                self._invalid = {route.identity for route in routes if not is_valid(self._snapshot, route)}
            follower = ChainFollower(self._snapshot, self._invalid)
            starts = (ChainEnd((outermost,), (match,), (number,)) for number, match in enumerate(matches_of(outermost)))
            ends = (end for start in starts for end in follower.ends(start))
            stops = (_StoppedChain(end.chain, end.problem) for end in ends if end.problem not in ("", REFUSED))
            self._stops[outermost] = list(dict.fromkeys(stops))
        return self._stops[outermost]

    def _concerns(self, ref: BackendRef) -> bool:
        """Whether there may be anything to say of a backendRef: most lead to Services, and say nothing else."""
        is_plain = ref.place.key not in (BACKEND, *NOT_SERVED) and not ref.value.get("filters")
        return not is_plain or ref.place.resource(self._snapshot) is None

    def _backend(self, place: RequestPlace, ref: BackendRef) -> _Backend:
        resource = ref.place.resource(self._snapshot) if unresolved(self._snapshot, ref) is None else None
        if resource is None or not is_valid(self._snapshot, resource):
            return _Backend(closing=self._unserved(ref))
        servers: Sequence[str] = ()
        if ref.place.key == BACKEND:
            target = backend_target(resource)
            if isinstance(target, str):
                return _Backend(target, refused_backend(ref, target, HINT)._replace(is_of_backend=True))
            servers = [server.section for server in joined_targets(resource)]
            if servers and isinstance(ref, MirrorRef):
                return _refused(ref, COPIES, HINTS[COPIES])
        filters = ref.value.get("filters")
        problem = reference_problem(filters)
        if servers and changes_requests(filters) and not problem:
            return _refused(ref, FILTERS, HINTS[FILTERS])
        if not (servers and problem) and backend_address(resource, ref.port, _OPTIONS) is None:
            return _Backend(closing=not_served(resource) if not isinstance(ref, MirrorRef) else None)
        if problem:
            return _refused(ref, problem, REFERENCE_HINT)
        read = [self._reader.of_backend(place, resource, ref.port, server)[1] for server in servers or ("",)]
        if closed := next((settings.closed for settings in read if settings.closed), ""):
            return _Backend(closed)
        if servers and differ(read):
            return _refused(ref, DIFFERENT, HINTS[DIFFERENT])
        if servers:
            return _Backend(is_served=True, is_joined=True, reads_messages=True)
        paths = backend_paths(resource, read[0].of_models)
        if provider_of(resource) is not None and (problem := unusable_routes(paths, MAX_PROGRAM_SIZE)):
            return _refused(ref, problem, HINT)
        reads = any(path in read[0].fields for path in _OF_MESSAGES)
        if place.gateway is not None:
            stack = model(self._snapshot).stack(place.gateway, place.listener, resource)
            reads = reads or any(tier.policies for tier in stack)
        return _Backend(
            is_served=True,
            paths=paths,
            judges_requests=judges_requests(read[0], resource),
            reads_messages=reads,
        )

    def _unserved(self, ref: BackendRef) -> UnservedPart | None:
        """Return what is said of a backend of a kind that Envoy does not serve; None of other kinds."""
        backend = ref.place.resource(self._snapshot) if ref.place.key in NOT_SERVED else None
        if backend is None or not isinstance(ref, MirrorRef):
            return not_served(backend) if backend is not None else None
        message = f"{OF_ENVOY} {ref.place}: copies for it are not made"
        return UnservedPart(ref.route, ref.path, message, NOT_SERVED[ref.place.key])


def _refused(ref: BackendRef, unsupported: str, hint: str) -> _Backend:
    return _Backend(unsupported, refused_backend(ref, unsupported, hint))


def _listener_of(attached: RouteOnListener) -> object:
    return attached.gateway, attached.listener.owner, attached.listener.number


def _unmatched(rule: RouteRule) -> Iterator[UnservedPart]:
    """Yield why a rule that leads to other routes answers 500 to what none of them has a match for."""
    filters = rules(rule.route)[rule.rule].get("filters")
    problems = (filter_problem(match, filters, MAX_PROGRAM_SIZE) for match in matches_of(rule))
    for problem in dict.fromkeys(filter(None, problems)):
        yield refused_rule(rule.route, problem, hint_about(problem), rule_effect(problem))


def _problems(
    unusable: str, rule: Mapping[str, Any], backends: Sequence[_Backend], copies: Sequence[_Backend]
) -> Iterator[str]:
    """Yield what of a rule is not supported: an `unusable` part, or what backends and copies forbid."""
    paths = {backend.paths for backend in backends if backend.is_served and not backend.is_joined}
    if unusable or len(paths) > 1:
        yield unusable or DIFFERENT_PATHS
        return
    changes = next(iter(paths), ()) if not redirects(rule) else ()
    is_judged = any(copy.judges_requests for copy in copies)
    of_copies = next((copy.unsupported for copy in copies if copy.unsupported), JUDGED_COPY if is_judged else "")
    for change in changes or (PathChange(),):
        if problem := change.problem or unread_path(rule, changes) or of_copies:
            yield problem


@per_snapshot
def rule_closings(snapshot: Snapshot, profile: Profile) -> UnservedPartFinder:
    """Return what finds the closings of a snapshot."""
    return UnservedPartFinder(snapshot, profile)


def every_closing(snapshot: Snapshot) -> Iterator[UnservedPart]:
    """Yield the closings of all rules that requests can reach, each once, without those of unserved backends."""
    finder = rule_closings(snapshot, "docs")
    seen: set[object] = set()
    for place in (each for reached in reachable_places(snapshot) for each in (*_above(reached), reached)):
        listener = place.listener
        key = listener and (place.gateway, listener.owner, listener.number), place.parents, place.route, place.rule
        for closing in finder.at(place) if key not in seen else ():
            said = closing.owner, closing.path, closing.message
            if not closing.is_of_backend and said not in seen:
                seen.add(said)
                yield closing
        seen.add(key)


def _above(place: RequestPlace) -> Iterator[RequestPlace]:
    """Yield the places of the rules that lead to the rule of a place."""
    for number, (route, rule) in enumerate(place.parents):
        yield place._replace(route=route, rule=rule, parents=place.parents[:number], backend=None, section="")


def closed_at(snapshot: Snapshot, profile: Profile, place: RequestPlace) -> Iterator[str]:
    """Yield why requests are answered with 500 at a place, as notes, where that is not said of a single setting."""
    closings = rule_closings(snapshot, profile).at(place)
    yield from dict.fromkeys(each.note for each in closings if place.backend is None or not each.is_of_backend)
    if place.backend is not None and (unserved := not_served(place.backend)) is not None:
        yield unserved.note
