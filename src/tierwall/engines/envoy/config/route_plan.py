"""Route plans: HTTPRoutes and GRPCRoutes as Envoy routes with their backends, before policies are applied.

A plan does not depend on policies, so it stays the same while policies change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from operator import attrgetter
from typing import Any, NamedTuple

from envoy.config.route.v3 import route_components_pb2
from msgspec import Struct
from msgspec.structs import replace

from tierwall.attach.listener import Listener, narrower_hostname
from tierwall.attach.reach import RouteRule
from tierwall.attach.route import RouteOnListener
from tierwall.attach.section import rules
from tierwall.core.diagnostics import Diagnostic
from tierwall.engines.envoy.config import joined_backends, mirrors, rule_settings
from tierwall.engines.envoy.config.chain_match import chain_matches
from tierwall.engines.envoy.config.chain_rule import chain_rule, replaces_prefix
from tierwall.engines.envoy.config.delegated_routes import HINTS, REFUSED, ChainEnd, ChainFollower
from tierwall.engines.envoy.config.fence import ObjectFence
from tierwall.engines.envoy.config.grpc_routes import grpc_precedence, http_match, is_grpc
from tierwall.engines.envoy.config.host_names import first_routes, most_specific, wider_names
from tierwall.engines.envoy.config.joined_limits import DIFFERENT_PATHS, JUDGED_COPY, obstacle
from tierwall.engines.envoy.config.model_backends import PathChange, unread_path
from tierwall.engines.envoy.config.options import EnvoyOptions
from tierwall.engines.envoy.config.planned_backends import (
    UNSUPPORTED,
    BackendPlanner,
    Mirror,
    RouteBackend,
    backends_of_routes,
    place,
)
from tierwall.engines.envoy.config.route_matches import is_plain, path_problem, precedence
from tierwall.engines.envoy.config.route_rules import apply_filters, plain_match
from tierwall.engines.envoy.config.rule_problems import hint_about, rule_effect
from tierwall.engines.envoy.config.settings.compiler import SettingsCompiler
from tierwall.engines.envoy.config.settings.filters import MODEL, refuse_repeats
from tierwall.engines.envoy.config.settings.places import place_of
from tierwall.engines.envoy.config.settings.redirects import can_be_limited, limited_redirect
from tierwall.engines.envoy.config.settings.route_settings import RouteSettings
from tierwall.engines.envoy.config.settings.traffic import is_answered
from tierwall.engines.envoy.config.unserved_parts import closed_rule, of_other_kind, refused_rule
from tierwall.resources.resource import Identity, Resource, list_of_maps
from tierwall.resources.snapshot import Snapshot

CLOSED = "its rules answer 500"
NOT_COMPILED = "a route that cannot be compiled"


class PlannedRoute(Struct, frozen=True, eq=False):
    """A match of a rule: the Envoy route without policies, its backends, and its only HTTP method, if limited."""

    message: Any
    route: Resource
    backends: tuple[RouteBackend, ...] = ()
    # The backends that get copies of its requests.
    mirrors: tuple[RouteBackend, ...] = ()
    method: object = None
    # The number of the rule, and the part of it that is not supported: its requests are answered with 500.
    rule: int = 0
    unsupported: str = ""
    # Whether all its requests are, so that no setting may answer them in another way.
    fails: bool = False
    # The policies whose settings the route has, and the routes that delegate to it.
    settings: frozenset[Identity] = frozenset()
    parents: tuple[Resource, ...] = ()


class PlannedHost(NamedTuple):
    """A host name of a listener, and its routes in Gateway API order."""

    listener: Listener
    name: str
    routes: tuple[PlannedRoute, ...]


class RoutePlan(Struct, frozen=True, eq=False):
    """All routes of the listeners that share a filter chain, by host name."""

    gateway: Resource
    name: str
    hosts: tuple[PlannedHost, ...]


class _RouteInOrder(NamedTuple):
    """A planned route with its sort key, and the only host name that it serves of those of its route (empty: all)."""

    key: tuple[Any, ...]
    hostname: str
    planned: PlannedRoute

    def serves(self, host: str) -> bool:
        """Whether it serves a host name, or all names of a pattern."""
        return not self.hostname or narrower_hostname(self.hostname, host) == host


class _RuleParts(NamedTuple):
    """The parts that all matches of a rule have in common."""

    backends: tuple[RouteBackend, ...]
    mirrors: tuple[Mirror, ...]
    settings: RouteSettings


class RoutePlanner:
    """Makes plans. `clusters` collects the clusters of their backends, `diagnostics` the problems."""

    def __init__(
        self,
        snapshot: Snapshot,
        options: EnvoyOptions,
        closed: Collection[Identity] = (),
        refused: Mapping[Identity, str] | None = None,
    ) -> None:
        """`closed` are the routes that answer 500, `refused` the objects that Envoy refuses, with its words."""
        self.settings = SettingsCompiler(snapshot, options, refused or {})
        self._snapshot = snapshot
        self._options = options
        self._closed = closed
        self._fence = ObjectFence()
        self._backends = BackendPlanner(snapshot, options, self.settings, self._fence)
        self._diagnostics: list[Diagnostic] = []

    @property
    def clusters(self) -> dict[str, Any]:
        """The clusters of backends, and of services that settings refer to."""
        return {**self._backends.clusters, **self.settings.clusters}

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """The problems of all plans so far."""
        of_plans = *self._diagnostics, *self._backends.diagnostics
        return *dict.fromkeys(of_plans), *self.settings.diagnostics, *self._fence.diagnostics

    def plan(
        self, gateway: Resource, name: str, listeners: Sequence[tuple[Listener, list[RouteOnListener]]]
    ) -> RoutePlan:
        """Return the plan of listeners that share a filter chain, each with its attached routes.

        A request belongs to the listener with the most specific host name that matches, even if only others have a
        route for it.
        """
        hosts = (
            host
            for listener, attached in listeners
            for host in self._hosts(gateway, listener, attached)
            if len(listeners) == 1 or most_specific(host.name, (other for other, _ in listeners)) is listener
        )
        return RoutePlan(gateway, name, tuple(sorted(hosts, key=lambda host: host.name)))

    def planned_chain(self, gateway: Resource, listener: Listener, chain: Sequence[RouteRule]) -> PlannedRoute:
        """Return the route of the last rule of a chain for every request, whatever the rules match."""
        end = ChainEnd(tuple(chain), ({},) * len(chain), (0,) * len(chain))
        return self._ends(gateway, listener, end, {})[0]

    def _hosts(self, gateway: Resource, listener: Listener, attached: list[RouteOnListener]) -> Iterator[PlannedHost]:
        hosts: dict[str, list[_RouteInOrder]] = {listener.hostname.lower() or "*": []}
        senior = first_routes(attached)
        for attached_route in attached:
            route = attached_route.route
            routes = self._planned(gateway, listener, route)
            for host in attached_route.hostnames or ("*",):
                if senior[host].kind == route.kind:
                    hosts.setdefault(host, []).extend(routes)
                    # Routes that another one delegates to may serve only some of its host names.
                    for name in dict.fromkeys(planned.hostname for planned in routes if planned.hostname):
                        narrower = name if host == "*" else narrower_hostname(host, name)
                        if narrower is not None:
                            hosts.setdefault(narrower, [])
                else:
                    closing = of_other_kind(route, listener, host, senior[host])
                    self._diagnostics.append(closing.diagnostic(UNSUPPORTED))
        by_host = {host: sorted(routes, key=attrgetter("key")) for host, routes in hosts.items()}
        # Envoy searches one virtual host only. So a host has its own routes first, then those for wider host names.
        for host in hosts:
            in_order = (route for name in wider_names(host, hosts) for route in by_host[name])
            yield PlannedHost(listener, host, tuple(route.planned for route in in_order if route.serves(host)))

    def _planned(self, gateway: Resource, listener: Listener, route: Resource) -> list[_RouteInOrder]:
        """Return the routes of a route object; those that answer 500 if it is closed or cannot be compiled."""
        if route.identity in self._closed:
            message = f"{route.reference} is refused: {CLOSED}"
            self._diagnostics.append(route.diagnostic(UNSUPPORTED, message, ("spec", "rules")))
        else:
            routes = self._fence.guard(route, CLOSED, lambda: list(self._routes(gateway, listener, route)))
            if routes is not None:
                return routes
        return self._fence.guard(route, "it is not served", lambda: list(_closed_routes(route))) or []

    def _routes(self, gateway: Resource, listener: Listener, route: Resource) -> Iterator[_RouteInOrder]:
        for number, rule in enumerate(rules(route)):
            follower = ChainFollower(self._snapshot, self._closed)
            parts: dict[tuple[RouteRule, ...], _RuleParts] = {}
            for index, match in enumerate(list(list_of_maps(rule.get("matches"))) or [{}]):
                key = _precedence(route, number, index, match)
                start = ChainEnd((RouteRule(route, number),), (match,), (index,))
                for end in follower.ends(start):
                    make = partial(self._ends, gateway, listener, end, parts)
                    # Whatever is wrong with a child concerns that child alone.
                    made = list(make()) if len(end.chain) == 1 else self._fence.guard(end.last.route, CLOSED, make)
                    for planned in made if made is not None else _failing(end, self._options):
                        yield _RouteInOrder(key, end.hostname, planned)

    def _ends(
        self, gateway: Resource, listener: Listener, end: ChainEnd, parts: dict[tuple[RouteRule, ...], _RuleParts]
    ) -> list[PlannedRoute]:
        """Return the routes at the end of a chain; `parts` has what is known of its rules."""
        if end.problem:
            if end.problem != REFUSED:
                self._diagnostics.append(_not_supported(end, end.problem))
            return _answering(end, self._options, 500, end.problem)
        if end.is_unmatched:
            # Children have what is wrong with the rule, too; it must not look as if only they were at fault.
            scratch, value = route_components_pb2.Route(), rules(end.last.route)[end.last.rule]
            size = self._options.max_program_size
            if problem := apply_filters(scratch, end.matches[-1], value.get("filters"), listener, size):
                return self._ends(gateway, listener, end._replace(problem=problem), parts)
            return _answering(end, self._options, 404)
        if end.chain not in parts:
            parts[end.chain] = _RuleParts(
                self._backends.backends(gateway, listener, end.chain),
                self._backends.mirrors(gateway, listener, end.chain),
                self.settings.route(place_of(gateway, listener, end.chain)),
            )
        return list(self._planned_end(gateway, listener, end, parts[end.chain]))

    def _planned_end(
        self, gateway: Resource, listener: Listener, end: ChainEnd, parts: _RuleParts
    ) -> Iterator[PlannedRoute]:
        route = end.last.route
        settings, size = parts.settings, self._options.max_program_size
        rule = chain_rule(end.chain, settings.overruling)
        matches = [http_match(match) if is_grpc(route) else match for match in end.matches]
        replaces = replaces_prefix(rule)
        for path, (backends, change) in product(
            chain_matches(matches, size, replaces), backends_of_routes(parts.backends)
        ):
            message = route_components_pb2.Route(name=_message_name(end), match=path)
            if change.suffix:
                message.match.headers.add(name=":path", string_match={"safe_regex": {"regex": change.pattern}})
            if is_grpc(route):
                message.match.grpc.SetInParent()
            message.metadata.CopyFrom(place(gateway, listener, backends))
            if change.passes:
                message.metadata.filter_metadata[MODEL].update({"passes": True})
            unsupported = path_problem(matches, size, replaces) if len(matches) > 1 else ""
            unsupported = unsupported or apply_filters(message, matches[-1], rule.get("filters"), listener, size)
            parts_here = parts._replace(backends=backends)
            planned = self._route(message, unsupported, end, matches, rule, parts_here, change)
            refuse_repeats(message, settings.messages.judging.union(*(to.messages.judging for to in backends)))
            with_settings = _with_settings(planned, settings, rule)
            if with_settings.unsupported and not planned.unsupported and not settings.closed:
                closing = closed_rule(end.last, with_settings.unsupported)
                self._diagnostics.append(closing.diagnostic(UNSUPPORTED))
            yield with_settings

    def _route(
        self,
        message: Any,
        unsupported: str,
        end: ChainEnd,
        matches: Sequence[Mapping[str, Any]],
        rule: Mapping[str, Any],
        parts: _RuleParts,
        change: PathChange,
    ) -> PlannedRoute:
        backends, copies = parts.backends, parts.mirrors
        has_backend = any(backend.cluster is not None for backend in backends)
        if has_backend and not message.HasField("redirect"):
            unsupported = unsupported or rule_settings.apply_settings(message, rule)
        paths = {backend.paths for backend in backends if backend.cluster is not None}
        if len(paths) > 1:
            unsupported = unsupported or DIFFERENT_PATHS
        elif has_backend and not message.HasField("redirect"):
            unsupported = unsupported or change.problem or unread_path(rule, next(iter(paths)))
            change.apply(message.route)
        # A copy that cannot be made as it should be is not left out: somebody counts on it.
        unsupported = unsupported or next((copy.unsupported for copy, _ in copies if copy.unsupported), "")
        if any(copy.judges_requests for copy, _ in copies):
            unsupported = unsupported or JUDGED_COPY
        of_backends = (backend.unsupported for backend in backends if not backend.has_policy_mistake)
        problems = dict.fromkeys(filter(None, (unsupported, *of_backends)))
        if unsupported:
            self._diagnostics.append(_not_supported(end, unsupported))
        if unsupported or (not has_backend and not message.HasField("redirect")):
            message.ClearField("action")
            message.direct_response.status = 500
        planned = replace(_planned_route(message, end, ", ".join(problems)), fails=bool(unsupported))
        if message.HasField("redirect") or message.HasField("direct_response"):
            return planned
        for copy, share in copies:
            if copy.cluster is not None:
                mirrors.add_mirror(message, copy.cluster, copy.host, share)
        made = tuple(copy for copy, _ in copies if copy.cluster is not None)
        method = next((match["method"] for match in matches if "method" in match), None)
        if backends[0].target:
            joined_backends.lead_to(message, backends[0].target)
            method = method or "POST"
        return replace(planned, backends=backends, mirrors=made, method=method)


def _planned_route(message: Any, end: ChainEnd, unsupported: str = "") -> PlannedRoute:
    """Return a planned route without backends."""
    parents = tuple(parent.route for parent in end.chain[:-1])
    return PlannedRoute(message, end.last.route, rule=end.last.rule, unsupported=unsupported, parents=parents)


def _answering(end: ChainEnd, options: EnvoyOptions, status: int, problem: str = "") -> list[PlannedRoute]:
    """Return the routes at the end of a chain that answer by themselves."""
    out = []
    for match in chain_matches(end.matches, options.max_program_size, replaces_prefix=False):
        message = route_components_pb2.Route(name=_message_name(end), match=match)
        message.direct_response.status = status
        out.append(_planned_route(message, end, problem))
    return out


def _failing(end: ChainEnd, options: EnvoyOptions) -> list[PlannedRoute]:
    """Return the routes of a child that cannot be compiled: they answer 500, with nothing that Envoy could refuse."""
    return _answering(end, options, 500, NOT_COMPILED) if is_plain(end.matches[-1]) else []


def _not_supported(end: ChainEnd, problem: str) -> Diagnostic:
    """Return the diagnostic of a rule that answers 500."""
    hint = HINTS.get(problem) or hint_about(problem)
    return refused_rule(end.last.route, problem, hint, rule_effect(problem)).diagnostic(UNSUPPORTED)


def _with_settings(planned: PlannedRoute, settings: RouteSettings, rule: Mapping[str, Any]) -> PlannedRoute:
    """Return a planned route with the settings of policies, or closed if Envoy cannot enforce one that restricts."""
    if planned.fails and not settings.closed:
        return replace(planned, settings=settings.policies)
    if settings.closed:
        planned.message.ClearField("action")
        planned.message.direct_response.status = 500
        unsupported = ", ".join(filter(None, (planned.unsupported, settings.closed)))
        return replace(_unserved(planned), unsupported=unsupported, settings=settings.policies)
    if settings.is_filtered and can_be_limited(planned.message):
        limited_redirect(planned.message, str(planned.route.reference))(planned.message)
    unsupported = settings.apply(planned.message)
    is_answering = bool(planned.backends) and is_answered(planned.message)
    if not is_answering and any(to.target or to.targets for to in planned.backends):
        is_copied = bool(planned.message.route.request_mirror_policies)
        unsupported = unsupported or obstacle(rule, settings.fields, is_copied)
    if unsupported:
        return _with_settings(planned, RouteSettings(unsupported, settings.policies), rule)
    if is_answering:
        return replace(_unserved(planned), unsupported="", settings=settings.policies)
    backends = planned.backends
    if settings.keeps_host:
        backends = tuple(replace(to, host="") for to in backends)
    return replace(planned, backends=backends, settings=settings.policies)


def _unserved(planned: PlannedRoute) -> PlannedRoute:
    return replace(planned, backends=(), mirrors=(), method=None)


def _closed_routes(route: Resource) -> Iterator[_RouteInOrder]:
    """Yield routes that answer 500, with nothing that Envoy could refuse."""
    for number, rule in enumerate(rules(route)):
        matches = rule.get("matches", [{}])
        for index, match in enumerate(matches if isinstance(matches, list) else ()):
            if isinstance(match, dict):
                end = ChainEnd((RouteRule(route, number),), (match,), (index,))
                plain = plain_match(http_match(match) if is_grpc(route) else match)
                message = route_components_pb2.Route(name=_message_name(end), match=plain)
                message.direct_response.status = 500
                yield _RouteInOrder(
                    _precedence(route, number, index, match), "", _planned_route(message, end, NOT_COMPILED)
                )


def route_message_name(route: Resource, rule: int, match: int) -> str:
    """Return the name of an Envoy route; routes of the two kinds may have the same name."""
    kind = "grpc/" if is_grpc(route) else ""
    return f"{kind}{route.namespace}/{route.name}/{rule}/{match}"


def _message_name(end: ChainEnd) -> str:
    return " ".join(
        route_message_name(route, rule, match) for (route, rule), match in zip(end.chain, end.numbers, strict=True)
    )


def _precedence(route: Resource, rule: int, number: int, match: Mapping[str, Any]) -> tuple[Any, ...]:
    order = grpc_precedence if is_grpc(route) else precedence
    return order(route, rule, number, match)
