"""The ends of connections in a large cluster as sets, without a model: pods, hypothetical pods, nodes and addresses.

A set is an integer (`spaces`). Every pod has a bit of its own: to find out what a selector selects takes a few
operations on sets, whatever else tells pods apart. Classes of ends (`classes`) are fewer, but to find them takes longer
than anybody waits where thousands of policies look at different labels, ports and blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import assert_never

from tierwall.core.labels import EVERYTHING, Selector
from tierwall.network.model.endpoints import Endpoint, address_endpoint, namespace_labels
from tierwall.network.model.rules import (
    AddressPeer,
    DomainPeer,
    NamedPort,
    NetworkRule,
    NodePeer,
    Peer,
    PodPeer,
    PortRange,
    Related,
    Relation,
    TieredPolicy,
)
from tierwall.network.reach.pod_index import PodIndex
from tierwall.network.reach.spaces import AddressSpace, union
from tierwall.values.addresses import Address, Block


class EndpointSets:
    """The ends that the rules of some policies match."""

    def __init__(self, pods: PodIndex, future: PodIndex, blocks: Iterable[Block]) -> None:
        """`future` has hypothetical pods. `blocks` are all those of the policies that may be asked about."""
        self._indexes = ((0, pods), (pods.size, future)) if future.size else ((0, pods),)
        self._pods, self._future = pods, future
        self._first_node = pods.size + future.size
        self._first_address = self._first_node + len(pods.nodes)
        self._space = AddressSpace(blocks)
        self._pieces = self._space.firsts
        nodes = ((1 << len(pods.nodes)) - 1) << self._first_node
        outside = self._space.everything << self._first_address
        self.everything = union(index.everything << first for first, index in self._indexes) | nodes | outside
        self._selected: dict[tuple[Selector, Selector], int] = {}
        self._peers: dict[Peer, int] = {}
        self._rules: dict[NetworkRule, int | None] = {}
        self._related: dict[tuple[Related, frozenset[str]], int] = {}
        self._matched: dict[tuple[NetworkRule, str], int] = {}
        # The pods whose namespaces have the same values of some labels, by these values.
        self._alike: dict[tuple[str, ...], dict[tuple[str, ...], int]] = {}
        self._named: dict[tuple[str, str, int], int] = {}

    def is_future(self, end: int) -> bool:
        """Whether an end is a hypothetical pod."""
        return self._pods.size <= end < self._first_node

    def endpoint(self, end: int) -> Endpoint:
        """Return an end by its bit; an address stands for all that are alike."""
        if end < self._pods.size:
            return self._pods.endpoint(end)
        if end < self._first_node:
            return self._future.endpoint(end - self._pods.size)
        if end < self._first_address:
            return self._pods.nodes[end - self._first_node]
        return address_endpoint(self._pieces[end - self._first_address])

    def subjects(self, policy: TieredPolicy) -> int:
        """Return the pods that a policy selects."""
        return self._select(policy.namespaces, policy.pods)

    def inside(self, namespaces: Iterable[str]) -> int:
        """Return the pods of some namespaces."""
        return union(index.inside(namespaces) << first for first, index in self._indexes)

    def widest(self, rule: NetworkRule) -> int:
        """Return the ends that a rule matches, or may match for some subject."""
        mask = self._rules.get(rule, -1)
        if mask == -1:
            mask = self._rules[rule] = self._whoever(rule)
        return self.everything if mask is None else mask

    def matched(self, rule: NetworkRule, subject: int) -> int:
        """Return the ends that a rule about a pod certainly matches."""
        mask = self.widest(rule)
        if self._rules[rule] is not None:
            return mask
        home = self.endpoint(subject).namespace
        known = self._matched.get((rule, home))
        if known is None:
            homes = frozenset((home,))
            known = self._matched[rule, home] = union(self.selected_by(peer, homes) for peer in rule.peers or ())
        return known

    def at_port(self, rule: NetworkRule, port: PortRange) -> int | None:
        """Return the destinations for which a rule matches a port; None for all of them."""
        if rule.ports is None:
            return None
        mask = 0
        for entry in rule.ports:
            if isinstance(entry, PortRange):
                if entry.protocol == port.protocol and entry.first <= port.first <= entry.last:
                    return None
            elif entry.protocol in ("", port.protocol):
                mask |= self._named_port(entry, port.protocol, port.first)
        return mask

    def numbers_of(self, name: str) -> Iterator[tuple[str, int]]:
        """Yield the ports, as protocol and number, that pods have by a name."""
        for _, index in self._indexes:
            yield from index.numbers_of(name)

    def _select(self, namespaces: Selector, pods: Selector) -> int:
        mask = self._selected.get((namespaces, pods))
        if mask is None:
            mask = union(index.selected(namespaces, pods) << first for first, index in self._indexes)
            self._selected[namespaces, pods] = mask
        return mask

    def _whoever(self, rule: NetworkRule) -> int | None:
        """Return the ends that a rule matches for every subject; None if that depends on the subject."""
        if rule.peers is None:
            return self.everything
        mask = 0
        for peer in rule.peers:
            if isinstance(peer, PodPeer) and isinstance(peer.namespaces, Related):
                return None
            mask |= self._same_for_all(peer)
        return mask

    def selected_by(self, peer: Peer, homes: frozenset[str]) -> int:
        """Return the ends that a peer of a rule about pods of some namespaces certainly matches."""
        if isinstance(peer, PodPeer) and isinstance(peer.namespaces, Related):
            related = self._related.get((peer.namespaces, homes))
            if related is None:
                related = union(self._in_related(peer.namespaces, home) for home in homes)
                self._related[peer.namespaces, homes] = related
            return self._select(EVERYTHING, peer.pods) & related
        return self._same_for_all(peer)

    def _same_for_all(self, peer: Peer) -> int:
        mask = self._peers.get(peer)
        if mask is None:
            mask = self._peers[peer] = self._find(peer)
        return mask

    def _find(self, peer: Peer) -> int:
        match peer:
            case PodPeer():
                assert isinstance(peer.namespaces, Selector)
                return self._select(peer.namespaces, peer.pods)
            case AddressPeer():
                return union(map(self._in_block, peer.blocks))
            case NodePeer():
                addresses = self._pods.node_addresses.addresses(peer.nodes)
                return self._pods.at(addresses) | self._nodes_with(lambda address: address in addresses)
            case DomainPeer():
                return 0
            case _:
                assert_never(peer)

    def _in_block(self, block: Block) -> int:
        pieces = self._space.mask(block) << self._first_address
        return self._pods.in_block(block) | self._nodes_with(block.contains) | pieces

    def _nodes_with(self, is_wanted: Callable[[Address], bool]) -> int:
        nodes = enumerate(self._pods.nodes, self._first_node)
        return union(1 << bit for bit, node in nodes if any(map(is_wanted, node.addresses)))

    def _in_related(self, related: Related, home: str) -> int:
        if related.relation in (Relation.SELF, Relation.NOT_SELF):
            mask = self.inside((home,))
            return mask if related.relation is Relation.SELF else self.everything & ~mask
        values = _values(self._labels(home), related.keys)
        if values is None:
            return 0
        alike = self._alike.get(related.keys)
        if alike is None:
            alike = self._alike[related.keys] = self._by_labels(related.keys)
        same = alike.get(values, 0)
        return same if related.relation is Relation.SAME_LABELS else union(alike.values()) & ~same

    def _by_labels(self, keys: tuple[str, ...]) -> dict[tuple[str, ...], int]:
        """Return the pods in namespaces that have some labels, by the values of these."""
        names: dict[tuple[str, ...], list[str]] = {}
        alike: dict[tuple[str, ...], int] = {}
        for first, index in self._indexes:
            names.clear()
            for name, labels in index.namespaces.items():
                if (values := _values(labels, keys)) is not None:
                    names.setdefault(values, []).append(name)
            for values, homes in names.items():
                alike[values] = alike.get(values, 0) | index.inside(homes) << first
        return alike

    def _labels(self, namespace: str) -> Mapping[str, str]:
        known = (index.namespaces[namespace] for _, index in self._indexes if namespace in index.namespaces)
        return next(known, namespace_labels(namespace, None))

    def _named_port(self, entry: NamedPort, protocol: str, number: int) -> int:
        key = entry.name, protocol, number
        mask = self._named.get(key)
        if mask is None:
            mask = union(index.having_port(*key) << first for first, index in self._indexes)
            self._named[key] = mask
        return mask


def _values(labels: Mapping[str, str], keys: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the values of some labels; None if one is missing, or without keys, which relate to nothing."""
    return tuple(labels[key] for key in keys) if keys and all(key in labels for key in keys) else None
