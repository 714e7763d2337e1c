"""From objects to Envoy's configuration: Gateways, HTTPRoutes, backends and AccessPolicies (pure, no I/O).

One Envoy serves the Gateways that options name. Each port of a Gateway is a Listener; each listener of the Gateway is a
filter chain with a RouteConfiguration of its own. Policies are configurations of filters (`checkpoints`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from tierwall.attach.listener import Listener, gateway_listeners
from tierwall.attach.place import GATEWAY, HTTP_ROUTE
from tierwall.attach.route import OnListener, attach_route
from tierwall.core.diagnostics import Diagnostic, in_order
from tierwall.engines.envoy import clusters
from tierwall.engines.envoy.cache import Cache
from tierwall.engines.envoy.guards import Guards
from tierwall.engines.envoy.listeners import chain, connection_manager, http_filters, listener
from tierwall.engines.envoy.names import listener_name, route_name
from tierwall.engines.envoy.options import Address, Options
from tierwall.engines.envoy.routes import NOWHERE, Routes
from tierwall.engines.envoy.tls import listener_tls, transport_socket
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

UNSUPPORTED_PROTOCOL, PORT_TAKEN = "TW657", "TW658"
__all__ = ["Cache", "Options", "Resources", "compile"]


class Resources(Struct, frozen=True, eq=False):
    """What an Envoy is given, by type and then by name, as protobuf messages; names in order.

    A message that has not changed since the last compilation with the same cache is the same object.
    """

    listeners: Mapping[str, Any]
    routes: Mapping[str, Any]
    clusters: Mapping[str, Any]
    endpoints: Mapping[str, Any]
    secrets: Mapping[str, Any]
    extension_configs: Mapping[str, Any]
    diagnostics: tuple[Diagnostic, ...] = ()


def compile(snapshot: Snapshot, options: Options, cache: Cache | None = None) -> Resources:
    """The configuration of an Envoy that serves the Gateways of a snapshot."""
    cache = Cache() if cache is None else cache
    revised = cache.begin(snapshot)
    last, cache.last = cache.last, None
    if revised is not None and last is not None and last.options is options:
        again = _again(snapshot, cache, last, *revised)
        if again is not None:
            return again
    making = _Making(snapshot, options, cache)
    for gateway in sorted(snapshot.of_kind(*GATEWAY), key=lambda one: (one.namespace, one.name)):
        if options.gateways is None or f"{gateway.namespace}/{gateway.name}" in options.gateways:
            making.gateway(gateway)
    return making.resources()


class _Last(NamedTuple):
    """A compilation: what it was told, made, and found to be wrong besides policies."""

    options: Options
    guards: Guards
    resources: Resources
    problems: tuple[Diagnostic, ...]


def _again(snapshot: Snapshot, cache: Cache, last: _Last, before: Resource, after: Resource) -> Resources | None:
    """The last compilation with another text of one policy: only its filters are made; None if more would change."""
    guards = last.guards.revised(snapshot, before, after)
    if guards is None:
        return None
    problems = in_order((*last.problems, *guards.diagnostics.values()))
    resources = replace(last.resources, extension_configs=guards.filters(), diagnostics=problems)
    cache.last = _Last(last.options, guards, resources, last.problems)
    return resources


class _Making:
    def __init__(self, snapshot: Snapshot, options: Options, cache: Cache) -> None:
        self._snapshot = snapshot
        self._options = options
        self._cache = cache
        self._guards = Guards(snapshot, options, cache)
        self._routes = Routes(snapshot, options, self._guards)
        self._attached: dict[tuple[int, int, int], list[OnListener]] = {}
        for route in snapshot.of_kind(*HTTP_ROUTE):
            for on in attach_route(snapshot, route)[0]:
                key = id(on.gateway), id(on.listener.owner), on.listener.number
                self._attached.setdefault(key, []).append(on)
        self._taken: dict[Address, Resource] = {}
        self._diagnostics: list[Diagnostic] = []
        self._listeners: dict[str, tuple[Address, list[_Chain]]] = {}
        self._found: dict[str, dict[str, Any]] = {"routes": {}, "secrets": {}}

    def gateway(self, gateway: Resource) -> None:
        """All listeners of a Gateway, port by port."""
        by_port: dict[int, list[Listener]] = {}
        for one in gateway_listeners(self._snapshot, gateway):
            by_port.setdefault(one.port, []).append(one)
        for port, those in sorted(by_port.items()):
            address = self._address(gateway, port)
            owner = self._taken.setdefault(address, gateway)
            if owner is not gateway:
                words = (
                    f"{gateway.reference} is not served: {owner.reference} has {address.host}:{address.port} already"
                )
                self._problem(PORT_TAKEN, words, gateway)
                continue
            chains = [made for one in self._compatible(gateway, those) if (made := self._chain(gateway, one))]
            if chains:
                name = listener_name(gateway, port)
                self._listeners[name] = address, chains

    def _address(self, gateway: Resource, port: int) -> Address:
        given = self._options.bind.get(f"{gateway.namespace}/{gateway.name}:{port}")
        return given if given is not None else Address(self._options.address, port)

    def _compatible(self, gateway: Resource, those: list[Listener]) -> list[Listener]:
        """Of the listeners on one port those that can be told apart: of HTTP one, of HTTPS one for each host name."""
        kept: list[Listener] = []
        for one in those:
            if one.protocol not in ("HTTP", "HTTPS"):
                self._problem(UNSUPPORTED_PROTOCOL, f"protocol `{one.protocol}` of {one} is not served", one.owner)
                continue
            rival = next((other for other in kept if other.protocol != one.protocol or _alike(other, one)), None)
            if rival is None:
                kept.append(one)
            else:
                self._problem(PORT_TAKEN, f"{one} is not served: {rival} has port {one.port} already", one.owner)
        return kept

    def _chain(self, gateway: Resource, one: Listener) -> _Chain | None:
        socket = None
        name = route_name(gateway, one)
        if one.protocol == "HTTPS":
            tls = listener_tls(self._snapshot, gateway, one, self._options, self._diagnostics)
            if tls is None:
                return None
            socket, secrets = transport_socket(tls, name, self._options.static)
            self._found["secrets"].update(secrets)
        attached = self._attached.get((id(gateway), id(one.owner), one.number), [])
        attached.sort(key=lambda on: (on.route.seniority, on.parent))
        routes = self._routes.configuration(gateway, one, attached)
        if not self._options.static:
            self._found["routes"][name] = routes
        return _Chain(name, routes, socket, one.hostname)

    def resources(self) -> Resources:
        """Everything, each message that has not changed as it was."""
        found = dict(self._routes.clusters)
        for name, one in self._guards.authorizers.items():
            found[name] = clusters.authorizer(name, one.service, one.port, one.is_grpc, self._options)
        found[NOWHERE] = clusters.nowhere(NOWHERE)
        found |= {one.name: one for one in self._options.clusters}
        policies = self._guards.filters()
        kinds = {**self._found, "clusters": found, "listeners": self._made(policies)}
        kept = {
            kind: {name: self._cache.same(kind, name, those[name]) for name in sorted(those)}
            for kind, those in kinds.items()
        }
        self._cache.forget(self._guards.used, {(kind, name) for kind, those in kept.items() for name in those})
        problems = (*self._diagnostics, *self._routes.diagnostics)
        resources = Resources(
            kept["listeners"],
            kept["routes"],
            kept["clusters"],
            {},
            kept["secrets"],
            {} if self._options.static else policies,
            in_order((*problems, *self._guards.diagnostics.values())),
        )
        if not self._options.static:
            self._cache.last = _Last(self._options, self._guards, resources, problems)
        return resources

    def _made(self, policies: Mapping[str, Any]) -> dict[str, Any]:
        """The listeners; without a control plane, the policies of all of them are in their filters."""
        filters = list(http_filters(self._options, policies))
        return {
            name: listener(name, address, [one.made(self._options, filters) for one in chains])
            for name, (address, chains) in self._listeners.items()
        }

    def _problem(self, code: str, message: str, subject: Resource) -> None:
        self._diagnostics.append(Diagnostic(code, message, subject.position(), subject=subject.reference))


class _Chain(NamedTuple):
    """What a filter chain is made of."""

    name: str
    routes: Any
    socket: Any | None
    hostname: str

    def made(self, options: Options, filters: list[Any]) -> Any:
        return chain(
            self.name, connection_manager(self.name, self.routes, options, filters), self.socket, self.hostname
        )


def _alike(one: Listener, other: Listener) -> bool:
    return one.protocol == "HTTP" or one.hostname == other.hostname
