"""The interfaces and routes of this network namespace, as the kernel lists them (rtnetlink(7))."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from tierwall.engines.nftables.kernel.netlink import (
    NLM_F_DUMP,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    Netlink,
    NetlinkError,
    attribute,
    raise_error,
    read_attributes,
)
from tierwall.engines.nftables.kernel.nflog import address_bytes
from tierwall.values.addresses import IPV6, Address, Span

_GET_LINK, _GET_ADDRESS, _GET_ROUTE = 18, 22, 26
_LINK, _ADDRESS, _ROUTE = struct.Struct("=BxHiII"), struct.Struct("=BBBBI"), struct.Struct("=BBBBBBBBI")
_HEADER, _HOP = struct.Struct("=IHHII"), struct.Struct("=HBBi")
_NAME, _MASTER, _INFO, _EXTENSIONS, _PEER_NAMESPACE = 3, 10, 18, 29, 37
_INFO_KIND = 1
_SKIP_STATISTICS = 8
_LOCAL = 2
_DESTINATION, _OUTPUT, _GATEWAY, _MULTIPATH, _VIA = 1, 4, 5, 9, 18
_UNICAST = 1
# Routes that a router advertisement or an ICMP redirect made: a pod can send both.
_FROM_NEIGHBOURS = (1, 9)
# Changes of links, and of routes of both families.
_GROUPS = 0x1 | 0x40 | 0x400
_FAMILIES = (socket.AF_INET, socket.AF_INET6)


class NetworkLink(NamedTuple):
    """An interface: its number and name, its kind, whether it is a port of another, and where its other end is.

    An uplink leads to a gateway, or has an address of a node: there is more behind it than one pod.
    """

    number: int
    name: str
    kind: str
    is_port: bool
    leads_elsewhere: bool
    is_uplink: bool = False


class NetworkRoute(NamedTuple):
    """A route: the addresses it is for, its interface, and whether a gateway is behind it."""

    span: Span
    interface: int
    has_gateway: bool


class RouteNetlink(Netlink):
    """A socket that asks about interfaces and routes."""

    protocol = socket.NETLINK_ROUTE

    def links(self) -> Iterator[NetworkLink]:
        """Yield all interfaces."""
        body = _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + attribute(_EXTENSIONS, struct.pack("=I", _SKIP_STATISTICS))
        for answer in self._ask(_GET_LINK, body):
            _, _, index, _, _ = _LINK.unpack_from(answer)
            parts = read_attributes(answer[_LINK.size :])
            kind = read_attributes(parts.get(_INFO, b"")).get(_INFO_KIND, b"")
            name, other_end = parts.get(_NAME, b""), _PEER_NAMESPACE in parts
            yield NetworkLink(index, _text(name), _text(kind), _MASTER in parts, other_end)

    def addresses(self) -> Iterator[tuple[int, Address]]:
        """Yield the addresses of this machine, each with the index of its interface."""
        for answer in self._ask(_GET_ADDRESS, _ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0)):
            *_, index = _ADDRESS.unpack_from(answer)
            parts = read_attributes(answer[_ADDRESS.size :])
            value = parts.get(_LOCAL, parts.get(1, b""))
            if len(value) in (4, 16):
                yield index, _address(value)

    def routes(self) -> Iterator[NetworkRoute]:
        """Yield the routes to other machines in all tables, without those that a neighbour can make."""
        for family in _FAMILIES:
            with suppress(NetlinkError):  # a kernel without this family has no routes of it
                yield from self._routes(family)

    def _routes(self, family: int) -> Iterator[NetworkRoute]:
        for answer in self._ask(_GET_ROUTE, _ROUTE.pack(family, 0, 0, 0, 0, 0, 0, 0, 0)):
            answered, bits, _, _, _, protocol, _, kind, _ = _ROUTE.unpack_from(answer)
            if answered == family and kind == _UNICAST and protocol not in _FROM_NEIGHBOURS:
                parts = read_attributes(answer[_ROUTE.size :])
                for interface, has_gateway in _hops(parts):
                    yield NetworkRoute(_span(family, parts.get(_DESTINATION, b""), bits), interface, has_gateway)

    def route_to(self, address: Address) -> tuple[int, bool] | None:
        """Return the interface over which the kernel sends to an address, and whether a gateway is behind it."""
        family, value = _FAMILIES[address >= IPV6], address_bytes(address)
        body = _ROUTE.pack(family, len(value) * 8, 0, 0, 0, 0, 0, 0, 0) + attribute(_DESTINATION, value)
        try:
            (answer,) = self._ask(_GET_ROUTE, body, 0)
        except NetlinkError:
            return None  # no route leads there
        kind = _ROUTE.unpack_from(answer)[7]
        return next(_hops(read_attributes(answer[_ROUTE.size :])), None) if kind == _UNICAST else None

    def _ask(self, kind: int, body: bytes, flags: int = NLM_F_DUMP) -> Iterator[bytes]:
        self._sequence += 1
        wanted = self._sequence
        self._socket.send(_HEADER.pack(len(body) + 16, kind, NLM_F_REQUEST | flags, wanted, 0) + body)
        while True:
            for answered, sequence, answer in self._receive():
                if sequence != wanted:
                    continue
                if answered == NLMSG_DONE:
                    return
                if answered == NLMSG_ERROR:
                    raise_error(answer)
                yield answer
                if not flags:
                    return


class LinkWatcher(Netlink):
    """A socket that hears of changed interfaces and routes."""

    protocol = socket.NETLINK_ROUTE

    def __init__(self) -> None:
        super().__init__(receive_buffer=1 << 20, groups=_GROUPS)

    def has_changes(self) -> bool:
        """Whether anything has changed since the last call."""
        changed = False
        try:
            while self._socket.recv(1 << 16, socket.MSG_DONTWAIT):
                changed = True
        except BlockingIOError:
            return changed
        except OSError:
            return True  # messages were lost
        return changed


def _hops(parts: dict[int, bytes]) -> Iterator[tuple[int, bool]]:
    """Yield the interface of each next hop of a route, and whether the hop is a gateway."""
    if _OUTPUT in parts:
        (interface,) = struct.unpack("=i", parts[_OUTPUT])
        yield interface, _GATEWAY in parts or _VIA in parts
    data = parts.get(_MULTIPATH, b"")
    while len(data) >= _HOP.size:
        length, _, _, interface = _HOP.unpack_from(data)
        if length < _HOP.size:
            return
        inner = read_attributes(data[_HOP.size : length])
        yield interface, _GATEWAY in inner or _VIA in inner
        data = data[length + (-length % 4) :]


def _span(family: int, value: bytes, bits: int) -> Span:
    width = 32 if family == socket.AF_INET else 128
    base = 0 if family == socket.AF_INET else IPV6
    low = base + int.from_bytes(value or b"\0", "big")
    return Span(low, low + (1 << (width - bits)) - 1)


def _address(value: bytes) -> Address:
    return int.from_bytes(value, "big") + (IPV6 if len(value) == 16 else 0)


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode(errors="replace")
