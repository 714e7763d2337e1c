"""Finds the interface of each pod (docs/enforce-network.md#interfaces).

Without a lookup of its own, the finder asks the kernel. The interface of a pod is the veth over which the routes of
this machine lead to the pod's address without a gateway. Routes belong to the machine: unlike the addresses in its
namespace, a pod cannot change them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple, Protocol

from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.engines.nftables.kernel.links import LinkWatcher, NetworkLink, RouteNetlink
from tierwall.engines.nftables.table.interfaces import KINDS, KnownInterfaces, PodBinding
from tierwall.network.model.endpoints import Endpoint
from tierwall.values.addresses import Address, Span

# A name that can stand in a table. Others are legal, but nobody uses them; their pods stay unknown.
NAME = re.compile(r"[A-Za-z0-9_.@+-]{1,15}")
_SHOWN = 5


class InterfaceLookup(Protocol):
    """Says which interface belongs to which pod. Only `settle` may take a while."""

    def names(self, pod: Endpoint, links: Mapping[str, NetworkLink]) -> tuple[str, ...]:
        """Return the names of a pod's interfaces; none if they are not known (yet)."""

    def settle(self, pods: Iterable[Endpoint], links: Mapping[str, NetworkLink]) -> None:
        """Wait, within limits, until as much as possible is known about these pods."""

    def problems(self) -> Mapping[str, str]:
        """Return why the interfaces of some pods are not known, by pod."""

    def forget_others(self, pods: Iterable[Endpoint]) -> None:
        """Forget all pods but these."""

    def fileno(self) -> int:
        """Return a file descriptor that becomes readable when more is known, or -1."""

    def close(self) -> None:
        """Stop."""


class _Machine(NamedTuple):
    """This machine as the kernel describes it: interfaces, direct routes over pod interfaces, and other links."""

    links: dict[str, NetworkLink]
    hosts: dict[Address, str]
    networks: list[Span]
    by_number: dict[int, str]
    pod_interfaces: frozenset[str]
    others: frozenset[str]


class InterfaceFinder:
    """Finds the interfaces of pods, and the pod interfaces without a known pod.

    The kernel is asked in the network namespace in which a method is called.
    """

    def __init__(self, lookup: InterfaceLookup | None = None, patterns: Iterable[str] = ()) -> None:
        self._lookup, self._patterns = lookup, tuple(patterns)
        self._watcher: LinkWatcher | None = None
        self._machine: _Machine | None = None
        self._node_addresses: set[Address] = set()
        self._routed: dict[Address, str] = {}
        # The pod interfaces without a known pod, as of the last call of `find`.
        self.unknown: tuple[str, ...] = ()

    def watch(self) -> None:
        """Hear of changes from now on, and ask the kernel only after one."""
        if self._watcher is None:
            self._watcher = LinkWatcher()
            self._machine = None

    def find(self, pods: Iterable[Endpoint], nodes: Iterable[Endpoint], wait: bool = False) -> KnownInterfaces | None:
        """Return the interfaces of these pods; None if there is nothing to guard. `wait` for slow lookups."""
        machine = self._look({address for node in nodes for address in node.addresses})
        if self._lookup is None and not self._patterns and not machine.pod_interfaces:
            self.unknown = ()
            return None
        pods = list(pods)
        if self._lookup is not None:
            self._lookup.forget_others(pods)
            if wait:
                self._lookup.settle(pods, machine.links)
        bindings = frozenset(binding for pod in pods for binding in self._bindings(pod, machine))
        known = {binding.interface for binding in bindings}
        self.unknown = tuple(sorted(machine.pod_interfaces - known))
        return KnownInterfaces(bindings, machine.others - known)

    def diagnostics(self, closed: bool) -> Iterator[Diagnostic]:
        """Report the pods whose interface was not found, and the interfaces that are closed."""
        problems = self._lookup.problems() if self._lookup is not None else {}
        for pod, problem in sorted(problems.items()):
            yield Diagnostic("TW608", f"the interface of pod `{pod}` is not known: {problem}")
        if closed and self.unknown:
            names = ", ".join(f"`{name}`" for name in self.unknown[:_SHOWN])
            shown = names + (", …" if len(self.unknown) > _SHOWN else "")
            message = "1 pod interface has no known pod and stays closed"
            if len(self.unknown) > 1:
                message = f"{len(self.unknown)} pod interfaces have no known pod and stay closed"
            yield Diagnostic("TW609", f"{message}: {shown}")

    @property
    def is_incomplete(self) -> bool:
        """Whether it is worth looking again soon: some pod interface or some pod is not known."""
        return self._lookup is not None and bool(self._lookup.problems() or self.unknown)

    def filenos(self) -> list[int]:
        """Return the file descriptors that become readable when it is time to look again."""
        watched = [self._watcher.fileno()] if self._watcher is not None else []
        return [*watched, *([self._lookup.fileno()] if self._lookup is not None else [])]

    def close(self) -> None:
        """Release the sockets, and end what is under way."""
        for part in (self._watcher, self._lookup):
            if part is not None:
                part.close()
        self._watcher = self._machine = None

    def _bindings(self, pod: Endpoint, machine: _Machine) -> Iterator[PodBinding]:
        if self._lookup is None:
            for address in pod.addresses:
                if interface := self._route(address, machine):
                    yield PodBinding(interface, address, str(pod))
            return
        for name in self._lookup.names(pod, machine.links):
            yield from (PodBinding(name, address, str(pod)) for address in pod.addresses)

    def _route(self, address: Address, machine: _Machine) -> str:
        """Return the pod interface over which the machine reaches an address; empty if it is another one."""
        if address in machine.hosts:
            return machine.hosts[address]
        if address not in self._routed:
            self._routed[address] = ""
            if any(low <= address <= high for low, high in machine.networks):
                with RouteNetlink() as netlink:
                    route = netlink.route_to(address)
                name = machine.by_number.get(route[0], "") if route is not None and not route[1] else ""
                self._routed[address] = name if name in machine.pod_interfaces else ""
        return self._routed[address]

    def _look(self, node_addresses: set[Address]) -> _Machine:
        """Return what the kernel says, asking it again only after a change."""
        changed = self._watcher is None or self._watcher.has_changes() or node_addresses != self._node_addresses
        if self._machine is None or changed:
            try:
                with RouteNetlink() as netlink:
                    self._machine = _machine(netlink, self._patterns, node_addresses)
            except OSError as error:
                message = f"the kernel does not list its interfaces: {str(error.strerror).lower()}"
                raise InputError([Diagnostic("TW603", message)]) from None
            self._node_addresses = node_addresses
            self._routed.clear()
        return self._machine


def _machine(netlink: RouteNetlink, patterns: tuple[str, ...], node_addresses: set[Address]) -> _Machine:
    routes = list(netlink.routes())
    # A gateway, or an address of a node, makes an interface a link of this machine, even if the machine is itself a
    # container.
    uplinks = {route.interface for route in routes if route.has_gateway}
    uplinks |= {number for number, address in netlink.addresses() if address in node_addresses}
    links = {link.name: link._replace(is_uplink=link.number in uplinks) for link in netlink.links()}
    by_number = {link.number: name for name, link in links.items()}
    if patterns:
        pod_interfaces = {name for name in links if any(fnmatchcase(name, pattern) for pattern in patterns)}
        others: set[str] = set()
    else:
        # A port of a bridge hands its packets to the bridge.
        candidates = {
            name for name, link in links.items() if link.kind in KINDS and not link.is_port and NAME.fullmatch(name)
        }
        others = {name for name in candidates if links[name].is_uplink or not links[name].leads_elsewhere}
        pod_interfaces = candidates - others
    hosts: dict[Address, str] = {}
    networks: list[Span] = []
    for route in routes:
        name = by_number.get(route.interface, "")
        if name in pod_interfaces and not route.has_gateway:
            if route.span.low == route.span.high:
                hosts[route.span.low] = name
            else:
                networks.append(route.span)
    return _Machine(links, hosts, networks, by_number, frozenset(pod_interfaces), frozenset(others))
