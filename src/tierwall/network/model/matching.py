"""Matches one rule, its peers and its ports, against one connection.

docs/semantics.md#blocks-and-nodes-match-by-address, docs/semantics.md#same-labels-need-every-key,
docs/semantics.md#named-ports-resolve-on-the-destination. A domain name may match: whether an address belongs to a
domain is known only when DNS answers (docs/semantics.md#domain-rules-make-answers-conditional).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from typing import Final, assert_never

from tierwall.core.labels import Requirement, Selector
from tierwall.network.model.endpoints import NAMESPACE_NAME, Endpoint
from tierwall.network.model.rules import (
    AddressPeer,
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
    TieredPolicy,
    peers_by_kind,
)
from tierwall.values.addresses import Address


class PeerMatch(Enum):
    """Whether a peer matches. There are three values, because a domain name may match."""

    NO = 0
    MAYBE = 1
    YES = 2


# Looking up a member of an enum takes longer than comparing with it, and every decision does so many times.
_NO, _MAYBE, _YES = PeerMatch.NO, PeerMatch.MAYBE, PeerMatch.YES
_SELF: Final = Relation.SELF
_NOT_SELF: Final = Relation.NOT_SELF
_SAME_LABELS: Final = Relation.SAME_LABELS
_NOT_SAME_LABELS: Final = Relation.NOT_SAME_LABELS


class NodeAddresses:
    """Finds the addresses of the nodes that a selector selects, and caches them by selector."""

    def __init__(self, nodes: Collection[Endpoint]) -> None:
        self._nodes = nodes
        self._by_selector: dict[Selector, frozenset[Address]] = {}

    def addresses(self, selector: Selector) -> frozenset[Address]:
        """Return all addresses of the selected nodes."""
        addresses = self._by_selector.get(selector)
        if addresses is None:
            selected = (node for node in self._nodes if selector.matches(node.labels))
            addresses = frozenset(address for node in selected for address in node.addresses)
            self._by_selector[selector] = addresses
        return addresses


def rule_matches(
    rule: NetworkRule,
    subject: Endpoint,
    other: Endpoint,
    destination: Endpoint,
    protocol: str,
    port: int,
    nodes: NodeAddresses,
) -> PeerMatch:
    """Whether a rule matches a connection between its subject and another endpoint."""
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
        peer_match = peer_matches(peer, subject, other, nodes)
        if peer_match is _YES:
            return peer_match
        if peer_match is _MAYBE:
            best = peer_match
    return best


def peer_matches(peer: Peer, subject: Endpoint, other: Endpoint, nodes: NodeAddresses) -> PeerMatch:
    """Whether one peer of a rule about `subject` matches the other endpoint."""
    match peer:
        case PodPeer():
            matches = (
                other.under_policy
                and peer.pods.matches(other.labels)
                and _in_namespaces(peer.namespaces, subject, other)
            )
        case AddressPeer():
            matches = any(block.contains(address) for block in peer.blocks for address in other.addresses)
        case NodePeer():
            matches = not nodes.addresses(peer.nodes).isdisjoint(other.addresses)
        case DomainPeer():
            return _MAYBE if other.addresses else _NO
        case _:
            assert_never(peer)
    return _YES if matches else _NO


def _in_namespaces(wanted: Selector | Related, subject: Endpoint, other: Endpoint) -> bool:
    match wanted:
        case Selector():
            return wanted.matches(other.namespace_labels)
        case Related():
            return in_related_namespace(wanted, subject, other)
        case _:
            assert_never(wanted)


def in_related_namespace(wanted: Related, subject: Endpoint, other: Endpoint) -> bool:
    """Whether the other endpoint's namespace has the wanted relation to the subject's."""
    relation = wanted.relation
    if relation is _SELF:
        return other.namespace == subject.namespace
    if relation is _NOT_SELF:
        return other.namespace != subject.namespace
    subject_labels, other_labels = subject.namespace_labels, other.namespace_labels
    if not wanted.keys or not all(key in subject_labels and key in other_labels for key in wanted.keys):
        return False
    same = all(subject_labels[key] == other_labels[key] for key in wanted.keys)
    if relation is _SAME_LABELS:
        return same
    if relation is _NOT_SAME_LABELS:
        return not same
    assert_never(relation)


def port_matches(entry: Port, destination: Endpoint, protocol: str, port: int) -> bool:
    """Whether one port entry matches a destination port."""
    match entry:
        case PortRange():
            return entry.protocol == protocol and entry.first <= port <= entry.last
        case NamedPort():
            if entry.protocol not in ("", protocol):
                return False
            return (protocol, port) in destination.named_ports.get(entry.name, ())
        case _:
            assert_never(entry)


def domain_names(rule: NetworkRule) -> tuple[str, ...]:
    """Return the domain names that a rule has as peers."""
    _pods, _addresses, _nodes, domains = peers_by_kind(rule.peers)
    return tuple(name for peer in domains for name in peer.names)


def is_covered_domain(name: str, by: Collection[str]) -> bool:
    """Whether a pattern in `by` covers every address of a domain pattern; `*` stands for one label or more."""
    if name in by:
        return True
    parts = name.removeprefix("*.").split(".")
    start = 0 if name.startswith("*.") else 1
    return any("*." + ".".join(parts[index:]) in by for index in range(start, len(parts)))


def may_select_an_unknown_pod(policy: TieredPolicy, namespaces: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether a policy could be about a pod of which nothing is known: neither its labels nor its namespace.

    `namespaces` has the labels of all known namespaces; a pod may also be in one that is not known yet.
    """
    if (policy.ingress is None and policy.egress is None) or not _is_satisfiable(policy.pods.requirements):
        return False
    if any(policy.namespaces.matches(labels) for labels in namespaces.values()):
        return True
    new = Requirement(NAMESPACE_NAME, "NotIn", tuple(sorted(namespaces)))
    named = Requirement(NAMESPACE_NAME, "Exists")
    return _is_satisfiable((*policy.namespaces.requirements, new, named))


def _is_satisfiable(requirements: Collection[Requirement]) -> bool:
    """Whether any labels meet all of these requirements."""
    for key in {requirement.key for requirement in requirements}:
        about = [requirement for requirement in requirements if requirement.key == key]
        possible = [set(requirement.values) for requirement in about if requirement.operator == "In"]
        operators = {requirement.operator for requirement in about}
        if "DoesNotExist" in operators and operators & {"In", "Exists"}:
            return False
        excluded = {value for requirement in about if requirement.operator == "NotIn" for value in requirement.values}
        if possible and not set.intersection(*possible) - excluded:
            return False
    return True
