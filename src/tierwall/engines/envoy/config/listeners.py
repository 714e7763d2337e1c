"""The part of the configuration that does not depend on policies: listeners with TLS, addresses and route plans.

One Envoy serves the Gateways that the options name. Each port of a Gateway is an Envoy Listener. Each HTTPS listener of
the Gateway is a filter chain with its own RouteConfiguration; HTTP listeners on one port share one. All listeners have
the same filters, whatever the policies are, so that a policy never needs a new listener: open connections keep the
filters that they were opened with.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

from envoy.config.listener.v3 import listener_components_pb2, listener_pb2
from envoy.extensions.filters.listener.tls_inspector.v3 import tls_inspector_pb2
from msgspec import Struct

from tierwall.attach.listener import Listener, gateway_listeners
from tierwall.attach.place import GATEWAY, ROUTES, STREAM_ROUTES
from tierwall.attach.route import RouteOnListener, attach_route
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.source import Path
from tierwall.engines.envoy.config.connection_manager import connection_manager, http_filters
from tierwall.engines.envoy.config.connections import limit_silence
from tierwall.engines.envoy.config.fence import ObjectFence
from tierwall.engines.envoy.config.listener_problem import (
    CONFLICTS,
    PORT_UNAVAILABLE,
    PROTOCOL_HINTS,
    ListenerKey,
    ListenerProblem,
    is_stream,
    listener_key,
    separate_conflicts,
    served_kinds,
)
from tierwall.engines.envoy.config.matchers import packed
from tierwall.engines.envoy.config.names import PLACE, listener_name, route_name
from tierwall.engines.envoy.config.options import EnvoyOptions, SocketAddress
from tierwall.engines.envoy.config.passthrough import StreamChain, StreamPlanner
from tierwall.engines.envoy.config.route_plan import RoutePlan, RoutePlanner
from tierwall.engines.envoy.config.settings.frontend import FrontendSettings
from tierwall.engines.envoy.config.settings.item_rules import ItemRules
from tierwall.engines.envoy.config.settings.shared import SharedFilters
from tierwall.engines.envoy.config.tls import ListenerTls, listener_tls, transport_socket
from tierwall.resources.resource import Identity, Resource
from tierwall.resources.snapshot import Snapshot

NOT_SERVED, PORT_TAKEN = "TW657", "TW658"
CLOSED = "its listeners are not opened"


def listener(name: str, address: SocketAddress, chains: list[Any], waits: bool = True) -> Any:
    """Return a Listener: a port with its filter chains. `waits` says that clients speak first."""
    out = listener_pb2.Listener(name=name)
    out.address.socket_address.address, out.address.socket_address.port_value = address
    out.filter_chains.extend(chains)
    if waits:
        # It waits for the first bytes, and tells the server name. Listeners without TLS have it, too, because another
        # one than before would end the connections of all filter chains.
        inspector = packed(tls_inspector_pb2.TlsInspector())
        out.listener_filters.add(name="envoy.filters.listener.tls_inspector", typed_config=inspector)
    out.per_connection_buffer_limit_bytes.value = 1 << 20
    limit_silence(out, any(chain.HasField("transport_socket") for chain in chains))
    return out


def filter_chain(name: str, manager: Any, socket: Any | None, hostname: str, digest: str = "") -> Any:
    """Return the filter chain of a Gateway listener; with TLS, the client's server name selects it.

    Secrets change without their filter chain, so `digest` stands for them: Envoy drains the connections of a chain that
    is not the same any more.
    """
    out = listener_components_pb2.FilterChain(name=name)
    if socket is not None:
        out.transport_socket.name = "envoy.transport_sockets.tls"
        out.transport_socket.typed_config.CopyFrom(socket)
        if hostname:
            out.filter_chain_match.server_names.append(hostname)
        if digest:
            out.metadata.filter_metadata[PLACE].update({"tls": digest})
    out.filters.add(name="envoy.filters.network.http_connection_manager", typed_config=packed(manager))
    return out


class FilterChain(NamedTuple):
    """The parts of a filter chain."""

    plan: RoutePlan
    tls: ListenerTls | None
    socket: Any | None
    hostname: str
    # The listeners of the Gateway and its ListenerSets that it serves.
    listeners: tuple[Listener, ...]
    frontend: FrontendSettings = FrontendSettings()
    # The policies that set these.
    settings: frozenset[Identity] = frozenset()


class ServedGateways(Struct, frozen=True, eq=False):
    """Everything served that does not depend on policies."""

    ports: Mapping[str, tuple[SocketAddress, tuple[FilterChain, ...]]]
    clusters: Mapping[str, Any]
    secrets: Mapping[str, Any]
    diagnostics: tuple[Diagnostic, ...]
    # The Gateway that has each address.
    holders: Mapping[SocketAddress, Identity]
    # Why listeners are not served.
    unserved: Mapping[ListenerKey, ListenerProblem] = {}
    # What settings put into filters, those filters as ECDS sends them, and the policies that need each cluster.
    shared: SharedFilters = SharedFilters()
    settings_configs: Mapping[str, Any] = {}
    users: Mapping[str, Collection[Identity]] = {}
    # By port: the filter chains whose bytes go on as they come.
    streams: Mapping[str, tuple[StreamChain, ...]] = {}

    @property
    def plans(self) -> list[RoutePlan]:
        """The plan of every filter chain."""
        return [chain.plan for _, chains in self.ports.values() for chain in chains]

    @property
    def item_rules(self) -> dict[str, ItemRules]:
        """The rules about items that routes name."""
        routes = (route for plan in self.plans for host in plan.hosts for route in host.routes)
        rules = (backend.messages.items for route in routes for backend in route.backends)
        return {each.name: each for each in rules if each is not None}

    def listeners(
        self, options: EnvoyOptions, policies: Mapping[str, Any], routes: Mapping[str, Any], fence: ObjectFence
    ) -> dict[str, Any]:
        """Return the Listener messages; without a control plane they contain policies and routes."""
        filters = list(http_filters(options, policies)) if self.plans else []
        out: dict[str, Any] = {}
        for name in self.ports:
            chains, streams = self.ports[name][1], self.streams.get(name, ())
            gateway = chains[0].plan.gateway if chains else streams[0].gateway
            made = fence.guard(gateway, CLOSED, partial(self._listener, name, options, routes, filters))
            if made is not None:
                out[name] = made
        return out

    def _listener(self, name: str, options: EnvoyOptions, routes: Mapping[str, Any], filters: list[Any]) -> Any:
        address, chains = self.ports[name]
        messages = [_chain(parts, routes[parts.plan.name], options, filters) for parts in chains]
        streams = [stream.message(name) for stream in self.streams.get(name, ())]
        waits = not any(stream.listener.protocol == "TCP" for stream in self.streams.get(name, ()))
        out = listener(name, address, [*messages, *streams], waits)
        for parts, chain in zip(chains, out.filter_chains, strict=False):
            parts.frontend.change_chain(chain)
        if chains:
            chains[0].frontend.change_listener(out)
        return out

    @property
    def listeners_in_force(self) -> frozenset[ListenerKey]:
        """The listeners that are served."""
        served = (listener for _, chains in self.ports.values() for chain in chains for listener in chain.listeners)
        streams = (stream.listener for streams in self.streams.values() for stream in streams)
        return frozenset(map(listener_key, (*served, *streams)))


def _chain(parts: FilterChain, routes: Any, options: EnvoyOptions, filters: list[Any]) -> Any:
    tls = parts.tls
    identifies = tls is not None and tls.identifies
    manager = connection_manager(parts.plan.name, routes, options, filters, identifies)
    parts.frontend.change_manager(manager, options.max_connection_seconds if identifies else 0)
    digest = tls.digest if tls is not None else ""
    return filter_chain(parts.plan.name, manager, parts.socket, parts.hostname, digest)


def served_gateways(
    snapshot: Snapshot,
    options: EnvoyOptions,
    before: ServedGateways | None = None,
    declared: Snapshot | None = None,
    closed: Collection[Identity] = (),
    refused: Mapping[Identity, str] | None = None,
) -> ServedGateways:
    """Return what an Envoy serves for the Gateways of a snapshot of usable objects.

    Where two of them want the same, the one that has it in `before` keeps it; otherwise the more senior one gets it.
    `declared` has the unusable objects, too: a Gateway with an error keeps its ports. `closed` are the routes that
    answer 500, and `refused` the objects that Envoy refuses, with its words.
    """
    builder = _ServedBuilder(snapshot, options, before, closed, refused)
    builder.claim(before.holders if before is not None else {}, declared if declared is not None else snapshot)
    for gateway in builder.gateways:
        builder.add(gateway)
    return builder.serving()


class _ServedBuilder:
    def __init__(
        self,
        snapshot: Snapshot,
        options: EnvoyOptions,
        before: ServedGateways | None,
        closed: Collection[Identity],
        refused: Mapping[Identity, str] | None,
    ) -> None:
        self._snapshot = snapshot
        self._options = options
        self._planning = RoutePlanner(snapshot, options, closed, refused)
        self._streaming = StreamPlanner(snapshot, options)
        self._fence = ObjectFence()
        self._attached: dict[tuple[Resource, Resource, int], list[RouteOnListener]] = {}
        for route in (route for kind in (*ROUTES, *STREAM_ROUTES) for route in snapshot.of_kind(*kind)):
            result = self._fence.guard(route, "it is not served", partial(attach_route, snapshot, route))
            for attached_route in result[0] if result is not None else ():
                key = attached_route.gateway, attached_route.listener.owner, attached_route.listener.number
                self._attached.setdefault(key, []).append(attached_route)
        # While Envoy refuses something, nothing of it is kept.
        self._shared_before = before.shared if before is not None and not refused else SharedFilters()
        self._in_force = before.listeners_in_force if before is not None else frozenset()
        gateways = [
            gateway
            for gateway in snapshot.of_kind(*GATEWAY)
            if options.gateways is None or f"{gateway.namespace}/{gateway.name}" in options.gateways
        ]
        self._listeners = {
            gateway: self._fence.guard(gateway, CLOSED, partial(gateway_listeners, snapshot, gateway)) or ()
            for gateway in sorted(gateways, key=lambda gateway: gateway.seniority)
        }
        self._holders: dict[SocketAddress, Resource] = {}
        self._diagnostics: list[Diagnostic] = []
        self._ports: dict[str, tuple[SocketAddress, tuple[FilterChain, ...]]] = {}
        self._streams: dict[str, tuple[StreamChain, ...]] = {}
        self._secrets: dict[str, Any] = {}
        self._unserved: dict[ListenerKey, ListenerProblem] = {}

    @property
    def gateways(self) -> list[Resource]:
        """The Gateways to serve, by name."""
        return sorted(self._listeners, key=lambda gateway: (gateway.namespace, gateway.name))

    def claim(self, before: Mapping[SocketAddress, Identity], declared: Snapshot) -> None:
        """Decide which Gateway gets each address.

        The one that has it keeps it while it declares it: a Gateway with a well chosen name must not take a port from
        another that serves there. Otherwise one that the options bind there gets it, then the most senior.
        """
        for identity in set(before.values()):
            gateway = declared.get(*identity)
            if gateway is not None:
                listeners = self._fence.guard(gateway, CLOSED, partial(gateway_listeners, declared, gateway)) or ()
                for address in {self._address(gateway, listener.port) for listener in listeners}:
                    if before.get(address) == identity:
                        self._holders[address] = gateway
        for is_bound in (True, False):
            for gateway, served in self._listeners.items():
                for port in {listener.port for listener in served}:
                    if is_bound == (_bind_key(gateway, port) in self._options.bind):
                        self._holders.setdefault(self._address(gateway, port), gateway)

    def add(self, gateway: Resource) -> None:
        """Add all listeners of a Gateway, port by port."""
        by_port: dict[int, list[Listener]] = {}
        for listener in self._listeners[gateway]:
            by_port.setdefault(listener.port, []).append(listener)
        for port, listeners in sorted(by_port.items()):
            address = self._address(gateway, port)
            owner, where = self._holders[address], f"{address.host}:{address.port}"
            if owner.identity != gateway.identity:
                message = f"{gateway.reference} is not served on port {port}: {owner.reference} has {where} already"
                self._diagnostics.append(listeners[0].owner.diagnostic(PORT_TAKEN, message, _path(listeners[0])))
                problem = ListenerProblem(PORT_UNAVAILABLE, message)
                self._unserved |= {listener_key(listener): problem for listener in listeners}
                continue
            kept = self._compatible(gateway, listeners)
            http = [listener for listener in kept if not is_stream(listener)]
            chains = self._fence.guard(gateway, CLOSED, partial(self._chains, gateway, http)) or ()
            streams = self._fence.guard(gateway, CLOSED, partial(self._stream_chains, gateway, kept)) or ()
            if chains or streams:
                name = listener_name(gateway, port)
                self._ports[name] = address, chains
                # On other ports, policies change nothing but filters and routes.
                self._streams |= {name: streams} if streams else {}

    def _stream_chains(self, gateway: Resource, listeners: list[Listener]) -> tuple[StreamChain, ...]:
        """Return the filter chains of those listeners on one port whose bytes go on as they come."""
        made = (
            self._streaming.chains(gateway, listener, self._routes_on(gateway, listener), listeners)
            for listener in listeners
            if is_stream(listener)
        )
        return tuple(chain for chains in made for chain in chains)

    def _routes_on(self, gateway: Resource, listener: Listener) -> list[RouteOnListener]:
        attached = self._attached.get((gateway, listener.owner, listener.number), [])
        routes = (each for each in attached if (each.route.group, each.route.kind) in served_kinds(listener))
        return sorted(routes, key=lambda attached_route: (attached_route.route.seniority, attached_route.parent))

    def _chains(self, gateway: Resource, kept: list[Listener]) -> tuple[FilterChain, ...]:
        """Return the filter chains of the listeners of HTTP on one port."""
        # Plain HTTP has one chain, where the host selects the listener; TLS has one for each server name.
        groups = [[listener] for listener in kept] if kept and kept[0].protocol == "HTTPS" else [kept]
        chains = [
            self._fence.guard(group[0].owner, CLOSED, partial(self._chain, gateway, group)) for group in groups if group
        ]
        return tuple(chain for chain in chains if chain is not None)

    def _address(self, gateway: Resource, port: int) -> SocketAddress:
        default = SocketAddress(self._options.address, port)
        return self._options.bind.get(_bind_key(gateway, port), default)

    def _compatible(self, gateway: Resource, listeners: list[Listener]) -> list[Listener]:
        """Return the listeners on one port that do not conflict: one protocol, and one listener per host name."""
        in_order = sorted(listeners, key=lambda listener: self._standing(gateway, listener))
        kept, others = separate_conflicts(in_order)
        for listener, problem in others:
            code = PORT_TAKEN if problem.reason in CONFLICTS else NOT_SERVED
            hint = PROTOCOL_HINTS.get(listener.protocol, "") if code == NOT_SERVED else ""
            self._diagnostics.append(listener.owner.diagnostic(code, problem.message, _path(listener), hint=hint))
            self._unserved[listener_key(listener)] = problem
        return kept

    def _standing(self, gateway: Resource, listener: Listener) -> tuple[bool, bool]:
        """Return the sort key of listeners that compete: the Gateway's own come first, then those in force."""
        return listener.owner is not gateway, listener_key(listener) not in self._in_force

    def _chain(self, gateway: Resource, group: list[Listener]) -> FilterChain | None:
        first, tls, socket = group[0], None, None
        frontend, policies = self._planning.settings.frontend(gateway, first)
        name = route_name(gateway, first)
        if first.protocol == "HTTPS":
            tls_or_problem = listener_tls(self._snapshot, gateway, first, self._options, self._diagnostics)
            if isinstance(tls_or_problem, ListenerProblem):
                self._unserved[listener_key(first)] = tls_or_problem
                return None
            tls = tls_or_problem
            socket, secrets = transport_socket(tls, name, self._options.static, frontend.change_socket)
            self._secrets |= secrets
        attached = [(listener, self._routes_on(gateway, listener)) for listener in group]
        plan = self._planning.plan(gateway, name, attached)
        return FilterChain(plan, tls, socket, first.hostname, tuple(group), frontend, policies)

    def serving(self) -> ServedGateways:
        """Return everything added so far."""
        problems = (*self._diagnostics, *self._fence.diagnostics, *self._planning.diagnostics)
        problems += tuple(self._streaming.diagnostics)
        holders = {address: gateway.identity for address, gateway in self._holders.items()}
        settings = self._planning.settings
        return ServedGateways(
            self._ports,
            {**self._planning.clusters, **self._streaming.clusters},
            self._secrets,
            problems,
            holders,
            self._unserved,
            settings.shared,
            settings.shared.configs(self._shared_before),
            settings.users,
            self._streams,
        )


def _bind_key(gateway: Resource, port: int) -> str:
    return f"{gateway.namespace}/{gateway.name}:{port}"


def _path(listener: Listener) -> Path:
    return "spec", "listeners", listener.number
