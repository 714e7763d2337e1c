"""Matches of policy rules: the left side of nftables rules, one match per alternative of peers and ports.

A peer match is a set of the peer's addresses. Ports are those of the destination, in both directions. A named port is a
set of (destination, protocol, number), because each pod has its own numbers.

A rule whose peers do not mention the subject is the same for every subject, and so is everything compiled from it.
Self, NotSelf, sameLabels and notSameLabels (docs/semantics.md#same-labels-need-every-key) become selectors as soon as
the subject's namespace is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, assert_never

from tierwall.core.labels import Requirement, Selector
from tierwall.engines.nftables.table.sets import SetBuilder
from tierwall.network.model.endpoints import LAST_PORT, NAMESPACE_NAME, PROTOCOLS
from tierwall.network.model.rules import (
    AddressPeer,
    Direction,
    DomainPeer,
    NamedPort,
    NetworkRule,
    NodePeer,
    Peer,
    PodPeer,
    Port,
    PortRange,
    Related,
    Relation,
)

_IP = {4: "ip", 6: "ip6"}
# The fields of a packet that hold the address of the judged endpoint and of its peer.
_SUBJECT = {Direction.EGRESS: "saddr", Direction.INGRESS: "daddr"}
_PEER = {Direction.EGRESS: "daddr", Direction.INGRESS: "saddr"}


class LineMatch(NamedTuple):
    """The left side of a rule. `at`: the only (protocol, port) it can match; `always`: it has no condition."""

    condition: str
    at: tuple[str, int] | None = None
    always: bool = False


class RuleLine(NamedTuple):
    """An nftables rule: its match and its ending. `shared`: it is the same for every pod."""

    match: LineMatch
    ending: str
    shared: bool = False

    def __str__(self) -> str:
        return self.ending if self.match.always else f"{self.match.condition} {self.ending}"


class _Piece(NamedTuple):
    """A part of a match and its address family; 0 stands for both families."""

    family: int
    condition: str
    at: tuple[str, int] | None = None


_ANY = (_Piece(0, ""),)


def matches(
    sets: SetBuilder, direction: Direction, peers: tuple[Peer, ...] | None, ports: tuple[Port, ...] | None
) -> Iterator[LineMatch]:
    """Yield every alternative: a connection matches if one of them does."""
    always = peers is None and ports is None
    peer_pieces = tuple(_peer_pieces(sets, direction, peers))
    port_pieces = tuple(_port_pieces(sets, ports))
    for peer in peer_pieces:
        for port in port_pieces:
            if not peer.family or not port.family or peer.family == port.family:
                yield LineMatch(" ".join(piece for piece in (peer.condition, port.condition) if piece), port.at, always)


def subject_field(direction: Direction, family: int) -> str:
    """Return the field with the address of the judged endpoint."""
    return f"{_IP[family]} {_SUBJECT[direction]}"


def _peer_pieces(sets: SetBuilder, direction: Direction, peers: tuple[Peer, ...] | None) -> Iterable[_Piece]:
    if peers is None:
        return _ANY
    return (_Piece(family, f"{_IP[family]} {_PEER[direction]} @{name}") for family, name in sets.of_peers(peers))


def _port_pieces(sets: SetBuilder, ports: tuple[Port, ...] | None) -> Iterator[_Piece]:
    if ports is None:
        yield from _ANY
        return
    for protocol in PROTOCOLS:
        merged = _merge(port for port in ports if isinstance(port, PortRange) and port.protocol == protocol)
        if merged:
            yield _ranges(sets, protocol.lower(), merged)
    for port in sorted({port for port in ports if isinstance(port, NamedPort)}):
        for family, name in sets.of_named_port(port):
            yield _Piece(family, f"{_IP[family]} daddr . meta l4proto . th dport @{name}")


def _ranges(sets: SetBuilder, protocol: str, ranges: tuple[PortRange, ...]) -> _Piece:
    first, last = ranges[0].first, ranges[0].last
    if len(ranges) > 1:
        return _Piece(0, f"{protocol} dport @{sets.of_ports(ranges)}")
    if (first, last) == (1, LAST_PORT):
        return _Piece(0, f"meta l4proto {protocol}")
    if first == last:
        return _Piece(0, f"{protocol} dport {first}", (protocol, first))
    return _Piece(0, f"{protocol} dport {first}-{last}")


def _merge(ranges: Iterable[PortRange]) -> tuple[PortRange, ...]:
    """Merge overlapping ranges of one protocol, and sort them."""
    merged: list[PortRange] = []
    for span in sorted(ranges):
        if merged and span.first <= merged[-1].last + 1:
            merged[-1] = PortRange(span.protocol, merged[-1].first, max(merged[-1].last, span.last))
        else:
            merged.append(span)
    return tuple(merged)


def resolved_peers(rule: NetworkRule, namespace: str, labels: Mapping[str, str]) -> tuple[Peer, ...] | None:
    """Return the peers of a rule for subjects of one namespace, without domain names; None means everybody."""
    if rule.peers is None:
        return None
    peers: dict[Peer, None] = {}
    for peer in rule.peers:
        match peer:
            case PodPeer(Related() as related, pods):
                peers.update((PodPeer(selector, pods), None) for selector in _selectors(related, namespace, labels))
            case PodPeer() | AddressPeer() | NodePeer():
                peers[peer] = None
            case DomainPeer():
                pass
            case _:
                assert_never(peer)
    return tuple(sorted(peers, key=repr))


def _selectors(related: Related, namespace: str, labels: Mapping[str, str]) -> Iterator[Selector]:
    comparable = bool(related.keys) and all(key in labels for key in related.keys)
    match related.relation:
        case Relation.SELF:
            yield Selector((Requirement(NAMESPACE_NAME, "In", (namespace,)),))
        case Relation.NOT_SELF:
            yield Selector((Requirement(NAMESPACE_NAME, "NotIn", (namespace,)),))
        case Relation.SAME_LABELS:
            if comparable:
                yield _selector(Requirement(key, "In", (labels[key],)) for key in related.keys)
        case Relation.NOT_SAME_LABELS:
            having = [Requirement(key, "Exists") for key in related.keys]
            for key in related.keys if comparable else ():
                yield _selector((*having, Requirement(key, "NotIn", (labels[key],))))
        case _:
            assert_never(related.relation)


def _selector(requirements: Iterator[Requirement] | tuple[Requirement, ...]) -> Selector:
    return Selector(tuple(sorted(set(requirements))))
