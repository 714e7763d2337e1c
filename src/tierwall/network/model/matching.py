"""Whether a rule matches a connection: its peers and its ports, asked directly.

docs/semantics.md#blocks-and-nodes-match-by-address, docs/semantics.md#same-labels-need-every-key,
docs/semantics.md#named-ports-resolve-on-the-destination. A peer by domain name is three-valued: whether an address
belongs to a domain is known only when DNS answers (docs/semantics.md#domain-rules-make-answers-conditional).
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from tierwall.core.labels import Selector
from tierwall.network.model.addresses import Address
from tierwall.network.model.ends import End
from tierwall.network.model.rules import (
    AddressPeer,
    DomainPeer,
    NamedPort,
    NodePeer,
    Peer,
    PodPeer,
    Port,
    Related,
    Relation,
    Rule,
)


class Match(Enum):
    """Three values: a domain peer may match."""

    NO = 0
    MAYBE = 1
    YES = 2


# Looking up a member of an enum takes longer than comparing with it, and every decision does so many times.
_NO, _MAYBE, _YES = Match.NO, Match.MAYBE, Match.YES


class Nodes:
    """The addresses of the nodes that a selector selects, each selector looked up once."""

    def __init__(self, nodes: Collection[End]) -> None:
        self._nodes = nodes
        self._known: dict[Selector, frozenset[Address]] = {}

    def addresses(self, selector: Selector) -> frozenset[Address]:
        """All addresses of the selected nodes."""
        found = self._known.get(selector)
        if found is None:
            selected = (node for node in self._nodes if selector.matches(node.labels))
            found = self._known[selector] = frozenset(address for node in selected for address in node.addresses)
        return found


def rule_matches(
    rule: Rule, subject: End, other: End, destination: End, protocol: str, port: int, nodes: Nodes
) -> Match:
    """Whether a rule matches a connection of its subject with another end."""
    if rule.ports is not None:
        for entry in rule.ports:
            if port_matches(entry, destination, protocol, port):
                break
        else:
            return _NO
    if rule.peers is None:
        return _YES
    best = _NO
    for peer in rule.peers:
        found = peer_matches(peer, subject, other, nodes)
        if found is _YES:
            return found
        if found is _MAYBE:
            best = found
    return best


def peer_matches(peer: Peer, subject: End, other: End, nodes: Nodes) -> Match:
    """Whether one peer of a rule about `subject` is the other end."""
    if isinstance(peer, PodPeer):
        if not other.under_policy or not peer.pods.matches(other.labels):
            return _NO
        wanted = peer.namespaces
        found = (
            related(wanted, subject, other) if isinstance(wanted, Related) else wanted.matches(other.namespace_labels)
        )
        return _YES if found else _NO
    if isinstance(peer, AddressPeer):
        found = any(block.holds(address) for block in peer.blocks for address in other.addresses)
    elif isinstance(peer, NodePeer):
        found = not nodes.addresses(peer.nodes).isdisjoint(other.addresses)
    else:
        return _MAYBE if other.addresses else _NO
    return _YES if found else _NO


def related(wanted: Related, subject: End, other: End) -> bool:
    """Whether the other end's namespace stands in a relation to the subject's."""
    if wanted.relation is Relation.SELF:
        return other.namespace == subject.namespace
    if wanted.relation is Relation.NOT_SELF:
        return other.namespace != subject.namespace
    mine, theirs = subject.namespace_labels, other.namespace_labels
    if not wanted.keys or not all(key in mine and key in theirs for key in wanted.keys):
        return False
    same = all(mine[key] == theirs[key] for key in wanted.keys)
    return same is (wanted.relation is Relation.SAME_LABELS)


def port_matches(entry: Port, destination: End, protocol: str, port: int) -> bool:
    """Whether one port entry holds for a destination port."""
    if isinstance(entry, NamedPort):
        if entry.protocol not in ("", protocol):
            return False
        return (protocol, port) in destination.named_ports.get(entry.name, ())
    return entry.protocol == protocol and entry.first <= port <= entry.last


def domains(rule: Rule) -> tuple[str, ...]:
    """The domain names a rule has as peers."""
    return tuple(name for peer in rule.peers or () if isinstance(peer, DomainPeer) for name in peer.names)


def covered(name: str, by: Collection[str]) -> bool:
    """Whether every address of a domain pattern is also one of a pattern in `by`; `*` is one label or more."""
    if name in by:
        return True
    parts = name.removeprefix("*.").split(".")
    start = 0 if name.startswith("*.") else 1
    return any("*." + ".".join(parts[index:]) in by for index in range(start, len(parts)))
