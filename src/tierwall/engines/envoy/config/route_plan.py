"""Route plans: HTTPRoutes and GRPCRoutes as Envoy routes with their backends, before policies are applied.

A plan does not depend on policies, so it stays the same while policies change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from operator import itemgetter
from typing import Any, NamedTuple

from envoy.config.core.v3 import base_pb2
from envoy.config.route.v3 import route_components_pb2
from msgspec import Struct
from msgspec.structs import replace

from tierwall.attach.backend import BackendRef, backend_refs, is_permitted
from tierwall.attach.listener import Listener
from tierwall.attach.place import BACKEND, SERVICE
from tierwall.attach.route import RouteOnListener
from tierwall.attach.section import rules
from tierwall.core.diagnostics import Diagnostic
from tierwall.engines.envoy.config import (
    app_protocol,
    backend_ref_filters,
    backend_tls,
    clusters,
    mirrors,
    rule_settings,
)
from tierwall.engines.envoy.config.agentgateway_backends import HINT, backend_target
from tierwall.engines.envoy.config.fence import ObjectFence
from tierwall.engines.envoy.config.grpc_routes import grpc_precedence, http_match, is_grpc
from tierwall.engines.envoy.config.host_names import most_specific, wider_names
from tierwall.engines.envoy.config.names import PLACE, backend_of_cluster
from tierwall.engines.envoy.config.options import EnvoyOptions
from tierwall.engines.envoy.config.route_rules import apply_filters, plain_match, precedence, replace_path, route_match
from tierwall.engines.envoy.config.settings.compiler import RouteSettings, SettingsCompiler
from tierwall.engines.envoy.config.settings.mcp_rules import MessageFilters
from tierwall.engines.envoy.config.settings.repeated_headers import refuse_repeats
from tierwall.engines.envoy.config.settings.unenforceable import Unenforceable
from tierwall.resources.resource import Identity, Resource, list_of_maps
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.model import BACKENDS

UNSUPPORTED, NO_BACKEND = "TW655", "TW656"
CLOSED = "its rules answer 500"


class RouteBackend(Struct, frozen=True, eq=False):
    """A share of the requests of a route on a listener, and its backend; None if the backend is missing."""

    gateway: Resource
    listener: Listener
    weight: int
    backend: Resource | None = None
    cluster: str | None = None
    # The host that replaces the client's, if any.
    host: str = ""
    # What filters of the reference change for its requests (`backend_ref_filters`).
    changes: Any | None = None
    # What settings make filters do with its requests alone.
    messages: MessageFilters = MessageFilters()
    # The path of an MCP server, whatever the client asks for.
    path: str = ""
    # A part of the reference that is not supported: its requests are answered with 500.
    unsupported: str = ""
    # The policies whose settings it has.
    settings: frozenset[Identity] = frozenset()


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
    # The policies whose settings the route has.
    settings: frozenset[Identity] = frozenset()


class UnresolvedRef(NamedTuple):
    """A backendRef that leads nowhere: the reason that the status of the route has (Gateway API, `ResolvedRefs`)."""

    reason: str
    message: str


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
        self._clusters: dict[str, Any] = {}
        self._diagnostics: list[Diagnostic] = []

    @property
    def clusters(self) -> dict[str, Any]:
        """The clusters of backends, and of services that settings refer to."""
        return {**self._clusters, **self.settings.clusters}

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """The problems of all plans so far."""
        return *self._diagnostics, *self.settings.diagnostics, *self._fence.diagnostics

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

    def _hosts(self, gateway: Resource, listener: Listener, attached: list[RouteOnListener]) -> Iterator[PlannedHost]:
        hosts: dict[str, list[tuple[tuple[Any, ...], PlannedRoute]]] = {listener.hostname.lower() or "*": []}
        senior: dict[str, Resource] = {}
        for attached_route in attached:
            route = attached_route.route
            routes = self._planned(gateway, listener, route)
            for host in attached_route.hostnames or ("*",):
                # A host name has HTTPRoutes or GRPCRoutes, as its most senior route does (Gateway API, GRPCRoute).
                first = senior.setdefault(host, route)
                if first.kind == route.kind:
                    hosts.setdefault(host, []).extend(routes)
                else:
                    message = f"{route.reference} is not served at {listener} for `{host}`: {first.reference} has it"
                    hint = "give HTTPRoutes and GRPCRoutes different host names"
                    self._diagnostics.append(route.diagnostic(UNSUPPORTED, message, ("spec", "hostnames"), hint=hint))
        by_host = {host: [route for _, route in sorted(routes, key=itemgetter(0))] for host, routes in hosts.items()}
        # Envoy searches one virtual host only. So a host has its own routes first, then those for wider host names.
        for host in hosts:
            yield PlannedHost(
                listener, host, tuple(route for name in wider_names(host, hosts) for route in by_host[name])
            )

    def _planned(
        self, gateway: Resource, listener: Listener, route: Resource
    ) -> list[tuple[tuple[Any, ...], PlannedRoute]]:
        """Return the routes of a route object; those that answer 500 if it is closed or cannot be compiled."""
        if route.identity in self._closed:
            message = f"{route.reference} is refused: {CLOSED}"
            self._diagnostics.append(route.diagnostic(UNSUPPORTED, message, ("spec", "rules")))
        else:
            routes = self._fence.guard(route, CLOSED, lambda: list(self._routes(gateway, listener, route)))
            if routes is not None:
                return routes
        return self._fence.guard(route, "it is not served", lambda: list(_closed_routes(route))) or []

    def _routes(
        self, gateway: Resource, listener: Listener, route: Resource
    ) -> Iterator[tuple[tuple[Any, ...], PlannedRoute]]:
        by_rule: dict[int, list[BackendRef]] = {}
        for ref in backend_refs(route):
            by_rule.setdefault(ref.rule, []).append(ref)
        for number, rule in enumerate(rules(route)):
            backends = tuple(self._backend(gateway, listener, ref) for ref in by_rule.get(number, ()) if ref.weight)
            copies = tuple(self._mirrors(gateway, listener, route, number))
            settings = self.settings.route(gateway, listener, route, number)
            for index, written in enumerate(list(list_of_maps(rule.get("matches"))) or [{}]):
                match = http_match(written) if is_grpc(route) else written
                message = route_components_pb2.Route(
                    name=route_message_name(route, number, index),
                    match=route_match(match, self._options.max_program_size),
                )
                if is_grpc(route):
                    message.match.grpc.SetInParent()
                message.metadata.CopyFrom(place(gateway, listener, backends))
                filters = rule.get("filters")
                unsupported = apply_filters(message, match, filters, listener, self._options.max_program_size)
                planned = self._route(message, unsupported, route, number, match, backends, copies)
                refuse_repeats(message, settings.messages, *(backend.messages for backend in backends))
                with_settings = _with_settings(planned, settings)
                if with_settings.unsupported and not planned.unsupported and not settings.closed:
                    problem = f"{with_settings.unsupported}: the rule answers 500"
                    self._diagnostics.append(route.diagnostic(UNSUPPORTED, problem, ("spec", "rules", number)))
                yield _precedence(route, number, index, written), with_settings

    def _mirrors(
        self, gateway: Resource, listener: Listener, route: Resource, number: int
    ) -> Iterator[tuple[RouteBackend, Fraction]]:
        """Yield the backends that get copies of a rule's requests; a copy that leads nowhere is not made."""
        for ref in mirrors.mirror_refs(route, number, rules(route)[number]):
            yield self._backend(gateway, listener, ref), mirrors.share(ref.value)

    def _route(
        self,
        message: Any,
        unsupported: str,
        route: Resource,
        number: int,
        match: Mapping[str, Any],
        backends: tuple[RouteBackend, ...],
        copies: tuple[tuple[RouteBackend, Fraction], ...],
    ) -> PlannedRoute:
        has_backend = any(backend.cluster is not None for backend in backends)
        if has_backend and not message.HasField("redirect"):
            unsupported = unsupported or rule_settings.apply_settings(message, rules(route)[number])
        paths = {backend.path for backend in backends if backend.cluster is not None}
        if len(paths) > 1:
            unsupported = unsupported or "a rule whose backends have different paths"
        elif has_backend and not message.HasField("redirect") and (path := next(iter(paths))):
            replace_path(message.route, path)
        # A copy that cannot be made as it should be is not left out: somebody counts on it.
        unsupported = unsupported or next((copy.unsupported for copy, _ in copies if copy.unsupported), "")
        if any(copy.messages.of_messages for copy, _ in copies):
            # Copies are made behind all filters.
            unsupported = unsupported or "a copy to a backend whose settings judge requests"
        unsupported_parts = dict.fromkeys(filter(None, (unsupported, *(backend.unsupported for backend in backends))))
        parts = ", ".join(unsupported_parts)
        if unsupported:
            problem = f"{unsupported} is not supported: the rule answers 500"
            hint = rule_settings.HINTS.get(unsupported, "")
            self._diagnostics.append(route.diagnostic(UNSUPPORTED, problem, ("spec", "rules"), hint=hint))
        if unsupported or (not has_backend and not message.HasField("redirect")):
            message.ClearField("action")
            message.direct_response.status = 500
        if message.HasField("redirect") or message.HasField("direct_response"):
            return PlannedRoute(message, route, rule=number, unsupported=parts)
        for copy, share in copies:
            if copy.cluster is not None:
                mirrors.add_mirror(message, copy.cluster, copy.host, share)
        made = tuple(copy for copy, _ in copies if copy.cluster is not None)
        return PlannedRoute(message, route, backends, made, match.get("method"), number, parts)

    def _backend(self, gateway: Resource, listener: Listener, ref: BackendRef) -> RouteBackend:
        resource = ref.place.resource(self._snapshot) if unresolved(self._snapshot, ref) is None else None
        path = ""
        if resource is not None and ref.place.key == BACKEND:
            target = backend_target(resource)
            if isinstance(target, str):
                return self._closed_backend(gateway, listener, ref, target, HINT)
            path = target.path
        cluster = self._cluster(resource, ref.port) if resource is not None else None
        if resource is None or cluster is None:
            effect = "are not made" if isinstance(ref, mirrors.MirrorRef) else "are answered with 500"
            message = f"backend {ref.place} of {ref.route.reference} leads nowhere: requests to it {effect}"
            self._diagnostics.append(ref.route.diagnostic(NO_BACKEND, message, ref.path))
            return RouteBackend(gateway, listener, ref.weight)
        changes, unsupported = backend_ref_filters.backend_changes(ref.value.get("filters"))
        if unsupported:
            return self._closed_backend(gateway, listener, ref, unsupported, backend_ref_filters.HINT)
        settings = self.settings.backend(gateway, listener, ref.route, ref.rule, resource, ref.port)
        if settings.closed:
            return RouteBackend(gateway, listener, ref.weight, unsupported=settings.closed)
        protocol = app_protocol.app_protocol(self._snapshot, resource, ref.port)
        by_protocol = list(app_protocol.protocol_changes(protocol, is_grpc(ref.route)))
        secured = backend_tls.policy_of(self._snapshot, resource, ref.port)
        if secured is not None:
            try:
                by_protocol.append(backend_tls.tls_change(self._snapshot, secured, http2=bool(by_protocol)))
            except Unenforceable as error:
                part, problem = f"{secured.reference} with a mistake", f"{secured.reference} cannot be used ({error})"
                return self._closed_backend(gateway, listener, ref, part, backend_tls.HINT, problem)
        policies = settings.policies | ({secured.identity} if secured is not None else set())
        settings._replace(changes=(*by_protocol, *settings.changes)).apply_to_cluster(cluster)
        if unsupported := app_protocol.missing_tls(protocol, cluster):
            return self._closed_backend(gateway, listener, ref, unsupported, app_protocol.HINT)
        self._clusters[cluster.name] = cluster
        return RouteBackend(
            gateway,
            listener,
            ref.weight,
            resource,
            cluster.name,
            clusters.external_host(resource),
            changes,
            settings.messages,
            path,
            settings=policies,
        )

    def _closed_backend(
        self,
        gateway: Resource,
        listener: Listener,
        ref: BackendRef,
        unsupported: str,
        hint: str,
        problem: str = "",
    ) -> RouteBackend:
        """Return a backend whose requests are answered with 500, because a part of what it needs is not supported."""
        problem = problem or f"{unsupported} is not supported"
        message = f"{problem}: requests to {ref.place} are answered with 500"
        self._diagnostics.append(ref.route.diagnostic(UNSUPPORTED, message, ref.path, hint=hint))
        return RouteBackend(gateway, listener, ref.weight, unsupported=unsupported)

    def _cluster(self, backend: Resource, port: int) -> Any | None:
        words = "requests to it are answered with 500"
        service, _ = app_protocol.service_port(self._snapshot, backend, port) or (None, 0)
        return self._fence.guard(
            backend, words, lambda: clusters.backend_cluster(backend, port, self._options, service)
        )


def _with_settings(planned: PlannedRoute, settings: RouteSettings) -> PlannedRoute:
    """Return a planned route with the settings of policies, or closed if Envoy cannot enforce one that restricts."""
    if settings.closed:
        planned.message.ClearField("action")
        planned.message.direct_response.status = 500
        unsupported = ", ".join(filter(None, (planned.unsupported, settings.closed)))
        return PlannedRoute(
            planned.message, planned.route, rule=planned.rule, unsupported=unsupported, settings=settings.policies
        )
    unsupported = settings.apply(planned.message)
    if unsupported:
        return _with_settings(planned, RouteSettings(unsupported, settings.policies))
    if planned.backends and not planned.message.HasField("route"):
        return PlannedRoute(planned.message, planned.route, rule=planned.rule, settings=settings.policies)
    return replace(planned, settings=settings.policies)


def unresolved(snapshot: Snapshot, ref: BackendRef) -> UnresolvedRef | None:
    """Return why a backendRef does not lead to a Service or XBackend, or None if it does."""
    if ref.place.key not in (*BACKENDS, SERVICE, BACKEND):
        words = "a backend must be a Service, an XBackend or an AgentgatewayBackend"
        return UnresolvedRef("InvalidKind", f"{ref.place}: {words}")
    if not is_permitted(snapshot, ref.route, ref.place):
        words = f"no ReferenceGrant in namespace {ref.place.namespace} permits {ref.place}"
        return UnresolvedRef("RefNotPermitted", words)
    if ref.place.resource(snapshot) is None:
        return UnresolvedRef("BackendNotFound", f"{ref.place} does not exist")
    return None


def _closed_routes(route: Resource) -> Iterator[tuple[tuple[Any, ...], PlannedRoute]]:
    """Yield routes that answer 500, with nothing that Envoy could refuse."""
    for number, rule in enumerate(rules(route)):
        matches = rule.get("matches", [{}])
        for index, match in enumerate(matches if isinstance(matches, list) else ()):
            if isinstance(match, dict):
                name = route_message_name(route, number, index)
                plain = plain_match(http_match(match) if is_grpc(route) else match)
                message = route_components_pb2.Route(name=name, match=plain)
                message.direct_response.status = 500
                planned = PlannedRoute(message, route, rule=number, unsupported="a route that cannot be compiled")
                yield _precedence(route, number, index, match), planned


def route_message_name(route: Resource, rule: int, match: int) -> str:
    """Return the name of an Envoy route; routes of the two kinds may have the same name."""
    kind = "grpc/" if is_grpc(route) else ""
    return f"{kind}{route.namespace}/{route.name}/{rule}/{match}"


def _precedence(route: Resource, rule: int, number: int, match: Mapping[str, Any]) -> tuple[Any, ...]:
    order = grpc_precedence if is_grpc(route) else precedence
    return order(route, rule, number, match)


def place(gateway: Resource, listener: Listener, backends: tuple[RouteBackend, ...]) -> Any:
    """Return route metadata for the decision log: the Gateway, the listener and the backend of a request."""
    out = base_pb2.Metadata()
    about = {"gateway": f"{gateway.namespace}/{gateway.name}", "listener": listener.name}
    # If a route has several backends, the log learns the backend from the cluster that Envoy chose.
    backend = backend_of_cluster(backends[0].cluster or "") if len(backends) == 1 else None
    out.filter_metadata[PLACE].update(about if backend is None else {**about, "backend": backend})
    return out
