"""What is served, whatever policies say: the listeners of Gateways, with TLS, addresses, and plans of their routes.

One Envoy serves the Gateways that options name. Each port of a Gateway is a Listener of Envoy. Each HTTPS listener is a
filter chain with a RouteConfiguration of its own; HTTP listeners on one port share one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec import Struct

from tierwall.attach.listener import Listener, gateway_listeners
from tierwall.attach.place import GATEWAY, HTTP_ROUTE
from tierwall.attach.route import OnListener, attach_route
from tierwall.core.diagnostics import Diagnostic
from tierwall.engines.envoy.listeners import chain, connection_manager, http_filters, listener
from tierwall.engines.envoy.names import listener_name, route_name
from tierwall.engines.envoy.options import Address, Options
from tierwall.engines.envoy.tls import listener_tls, transport_socket
from tierwall.engines.envoy.ways import Plan, Planning
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

UNSUPPORTED_PROTOCOL, PORT_TAKEN = "TW657", "TW658"


class Chain(NamedTuple):
    """What a filter chain is made of."""

    plan: Plan
    socket: Any | None
    hostname: str


class Serving(Struct, frozen=True, eq=False):
    """Everything that does not depend on policies."""

    ports: Mapping[str, tuple[Address, tuple[Chain, ...]]]
    clusters: Mapping[str, Any]
    secrets: Mapping[str, Any]
    diagnostics: tuple[Diagnostic, ...]

    @property
    def plans(self) -> list[Plan]:
        """The plan of every filter chain."""
        return [one.plan for _, chains in self.ports.values() for one in chains]

    def listeners(self, options: Options, policies: Mapping[str, Any], routes: Mapping[str, Any]) -> dict[str, Any]:
        """The Listener messages; without a control plane, policies and routes are inside."""
        filters = list(http_filters(options, policies))
        return {
            name: listener(name, address, [_chain(one, routes[one.plan.name], options, filters) for one in chains])
            for name, (address, chains) in self.ports.items()
        }


def _chain(one: Chain, routes: Any, options: Options, filters: list[Any]) -> Any:
    manager = connection_manager(one.plan.name, routes, options, filters)
    return chain(one.plan.name, manager, one.socket, one.hostname)


def serving(snapshot: Snapshot, options: Options) -> Serving:
    """What an Envoy serves for the Gateways of a snapshot."""
    making = _Making(snapshot, options)
    for gateway in sorted(snapshot.of_kind(*GATEWAY), key=lambda one: (one.namespace, one.name)):
        if options.gateways is None or f"{gateway.namespace}/{gateway.name}" in options.gateways:
            making.gateway(gateway)
    return making.serving()


class _Making:
    def __init__(self, snapshot: Snapshot, options: Options) -> None:
        self._snapshot = snapshot
        self._options = options
        self._planning = Planning(snapshot, options)
        self._attached: dict[tuple[Resource, Resource, int], list[OnListener]] = {}
        for route in snapshot.of_kind(*HTTP_ROUTE):
            for on in attach_route(snapshot, route)[0]:
                key = on.gateway, on.listener.owner, on.listener.number
                self._attached.setdefault(key, []).append(on)
        self._taken: dict[Address, Resource] = {}
        self._diagnostics: list[Diagnostic] = []
        self._ports: dict[str, tuple[Address, tuple[Chain, ...]]] = {}
        self._secrets: dict[str, Any] = {}

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
            kept = self._compatible(gateway, those)
            # Plain HTTP has one chain, in which hosts tell listeners apart; TLS has one for each server name.
            groups = [[one] for one in kept] if kept and kept[0].protocol == "HTTPS" else [kept]
            chains = [made for group in groups if group and (made := self._chain(gateway, group))]
            if chains:
                self._ports[listener_name(gateway, port)] = address, tuple(chains)

    def _address(self, gateway: Resource, port: int) -> Address:
        given = self._options.bind.get(f"{gateway.namespace}/{gateway.name}:{port}")
        return given if given is not None else Address(self._options.address, port)

    def _compatible(self, gateway: Resource, those: list[Listener]) -> list[Listener]:
        """Of the listeners on one port those that can be told apart: of one protocol, one for each host name."""
        kept: list[Listener] = []
        for one in those:
            if one.protocol not in ("HTTP", "HTTPS"):
                self._problem(UNSUPPORTED_PROTOCOL, f"protocol `{one.protocol}` of {one} is not served", one.owner)
                continue
            rival = next((other for other in kept if _alike(other, one)), None)
            if rival is None:
                kept.append(one)
            else:
                self._problem(PORT_TAKEN, f"{one} is not served: {rival} has port {one.port} already", one.owner)
        return kept

    def _chain(self, gateway: Resource, group: list[Listener]) -> Chain | None:
        one, socket = group[0], None
        name = route_name(gateway, one)
        if one.protocol == "HTTPS":
            tls = listener_tls(self._snapshot, gateway, one, self._options, self._diagnostics)
            if tls is None:
                return None
            socket, secrets = transport_socket(tls, name, self._options.static)
            self._secrets |= secrets
        attached = [(each, self._attached.get((gateway, each.owner, each.number), [])) for each in group]
        for _, those in attached:
            those.sort(key=lambda on: (on.route.seniority, on.parent))
        return Chain(self._planning.plan(gateway, name, attached), socket, one.hostname)

    def serving(self) -> Serving:
        """Everything that was found."""
        problems = (*self._diagnostics, *self._planning.diagnostics)
        return Serving(self._ports, self._planning.clusters, self._secrets, problems)

    def _problem(self, code: str, message: str, subject: Resource) -> None:
        self._diagnostics.append(Diagnostic(code, message, subject.position(), reference=subject.reference))


def _alike(one: Listener, other: Listener) -> bool:
    return one.protocol != other.protocol or one.hostname.lower() == other.hostname.lower()
