"""What a rule matches, as the left side of nftables rules: its peers and its ports, each alternative one match.

Peers are a set of the other end's addresses; ports are looked at on the destination, in both directions. Named ports
are a set of (destination, protocol, number), because each pod has its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tierwall.engines.nftables.sets import Sets
from tierwall.network.model.ends import LAST_PORT, PROTOCOLS
from tierwall.network.model.rules import Direction, NamedPort, Peer, Port, PortRange

_IP = {4: "ip", 6: "ip6"}


class Match(NamedTuple):
    """The left side of a rule. `at`: the one (protocol, port) it can be about; `always`: it has no condition."""

    text: str
    at: tuple[str, int] | None = None
    always: bool = False


class Line(NamedTuple):
    """An nftables rule: what it matches and how it ends. `shared`: it is the same for every pod."""

    match: Match
    ending: str
    shared: bool = False

    def __str__(self) -> str:
        return self.ending if self.match.always else f"{self.match.text} {self.ending}"


class _Piece(NamedTuple):
    """A part of a match and the address family it is for; 0 is both."""

    family: int
    text: str
    at: tuple[str, int] | None = None


_ANY = (_Piece(0, ""),)


def matches(
    sets: Sets, direction: Direction, peers: tuple[Peer, ...] | None, ports: tuple[Port, ...] | None
) -> Iterator[Match]:
    """Every alternative: a connection is matched if one of them holds."""
    always = peers is None and ports is None
    others = tuple(_peer_pieces(sets, direction, peers))
    numbers = tuple(_port_pieces(sets, ports))
    for peer in others:
        for port in numbers:
            if not peer.family or not port.family or peer.family == port.family:
                yield Match(" ".join(piece for piece in (peer.text, port.text) if piece), port.at, always)


def address_field(direction: Direction, family: int) -> str:
    """The field with the other end's address."""
    return f"{_IP[family]} {'daddr' if direction is Direction.EGRESS else 'saddr'}"


def _peer_pieces(sets: Sets, direction: Direction, peers: tuple[Peer, ...] | None) -> Iterable[_Piece]:
    if peers is None:
        return _ANY
    found = sets.of_peers(peers)
    return (_Piece(family, f"{address_field(direction, family)} @{name}") for family, name in found)


def _port_pieces(sets: Sets, ports: tuple[Port, ...] | None) -> Iterator[_Piece]:
    if ports is None:
        yield from _ANY
        return
    for protocol in PROTOCOLS:
        ranges = _joined(one for one in ports if isinstance(one, PortRange) and one.protocol == protocol)
        if ranges:
            yield _ranges(sets, protocol.lower(), ranges)
    for port in sorted({one for one in ports if isinstance(one, NamedPort)}):
        for family, name in sets.of_named_port(port):
            yield _Piece(family, f"{_IP[family]} daddr . meta l4proto . th dport @{name}")


def _ranges(sets: Sets, protocol: str, ranges: tuple[PortRange, ...]) -> _Piece:
    first, last = ranges[0].first, ranges[0].last
    if len(ranges) > 1:
        return _Piece(0, f"{protocol} dport @{sets.of_ports(ranges)}")
    if (first, last) == (1, LAST_PORT):
        return _Piece(0, f"meta l4proto {protocol}")
    if first == last:
        return _Piece(0, f"{protocol} dport {first}", (protocol, first))
    return _Piece(0, f"{protocol} dport {first}-{last}")


def _joined(ranges: Iterable[PortRange]) -> tuple[PortRange, ...]:
    """Ranges of one protocol without overlaps, in order."""
    out: list[PortRange] = []
    for one in sorted(ranges):
        if out and one.first <= out[-1].last + 1:
            out[-1] = PortRange(one.protocol, out[-1].first, max(out[-1].last, one.last))
        else:
            out.append(one)
    return tuple(out)
