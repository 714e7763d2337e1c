"""Pods by label, namespace, port name and address, kept up to date from one snapshot to the next.

Building a network model of a large cluster takes longer than a user waits at `kubectl apply`. A question about one
policy needs few of its pods: two of each sort that the policies in question tell apart. The index finds these by
operations on sets of pods (`spaces`: a set is an integer), whatever the number of pods.

A model of these pods decides every connection as the model of all pods does: the pods of a sort agree in everything
that the policies look at (`classes`), and a pod that has others of its sort beside it keeps one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, assert_never

from tierwall.core.labels import Requirement, Selector
from tierwall.network.model.endpoints import NAMESPACE_NAME, Endpoint, namespace_labels, node_endpoint, pod_endpoint
from tierwall.network.model.matching import NodeAddresses
from tierwall.network.model.policies import NETWORK_POLICY
from tierwall.network.model.rules import (
    AddressPeer,
    DomainPeer,
    NamedPort,
    NodePeer,
    PodPeer,
    Related,
    TieredPolicy,
)
from tierwall.network.reach.spaces import bits, mask_of, union
from tierwall.resources.resource import Resource, nested_map
from tierwall.resources.snapshot import Snapshot
from tierwall.values.addresses import Address, Block, Span

# So many addresses in order share a set of their pods.
_CHUNK = 128
_POD, _NAMESPACE, _NODE = ("", "Pod"), ("", "Namespace"), ("", "Node")


class PodIndex:
    """An index of the pods, namespaces and nodes of a snapshot. One thread at a time may use it."""

    def __init__(self) -> None:
        self._snapshot = Snapshot({})
        # Each pod has a number, which another pod gets when it is gone.
        self._numbers: dict[Resource, int] = {}
        self._pods: list[tuple[Resource, Endpoint] | None] = []
        self._free: list[int] = []
        self.everything = 0
        self.under_policy = 0
        # The pods that have a label, a key with any value, or are in a namespace; and the marks of `_marks`.
        self._having: dict[Any, int] = {}
        self._ports: dict[str, dict[tuple[tuple[str, int], ...], int]] = {}
        self._blocks: dict[Block, int] = {}
        self._names: dict[Selector, frozenset[str]] = {}
        # The pods in the namespaces that a selector selects.
        self._inside: dict[Selector, int] = {}
        self.namespaces: dict[str, Mapping[str, str]] = {}
        self.nodes: tuple[Endpoint, ...] = ()
        self.node_addresses = NodeAddresses(())
        # All addresses of pods in order, each with the number of its pod; and the pods of each `_CHUNK` of them, empty
        # if pods changed.
        self._in_order: list[tuple[Address, int]] = []
        self._chunks: list[int] = []

    @property
    def size(self) -> int:
        """One more than the highest number of a pod."""
        return len(self._pods)

    def endpoint(self, number: int) -> Endpoint:
        """Return a pod by its number. It knows nothing of the labels of its namespace."""
        entry = self._pods[number]
        assert entry is not None
        return entry[1]

    def update(self, snapshot: Snapshot) -> None:
        """Take over what has changed since the last snapshot."""
        kinds = set()
        for old, new in snapshot.changes(self._snapshot):
            either = new or old
            assert either is not None
            kinds.add((either.group, either.kind))
            if (either.group, either.kind) == _POD:
                if old is not None:
                    self._remove(old)
                if new is not None:
                    self._add(new)
            if new is not None and new.namespace and new.namespace not in self.namespaces:
                kinds.add(_NAMESPACE)
        self._snapshot = snapshot
        if _NAMESPACE in kinds:
            self._names.clear()
            self._inside.clear()
            self.namespaces = {
                namespace.name: namespace_labels(namespace.name, namespace)
                for namespace in snapshot.of_kind(*_NAMESPACE)
            }
            for kind in (_POD, NETWORK_POLICY):
                for resource in snapshot.of_kind(*kind):
                    if resource.namespace not in self.namespaces:
                        self.namespaces[resource.namespace] = namespace_labels(resource.namespace, None)
        if _NODE in kinds:
            self.nodes = tuple(node_endpoint(node) for node in snapshot.of_kind(*_NODE))
            self.node_addresses = NodeAddresses(self.nodes)

    def _add(self, resource: Resource) -> None:
        status = nested_map(resource.value, "status")
        pod = pod_endpoint(resource.namespace, resource.name, {}, resource.metadata, resource.spec, status, None)
        if pod.ended:
            return
        number = self._free.pop() if self._free else len(self._pods)
        if number == len(self._pods):
            self._pods.append(None)
        self._pods[number], self._numbers[resource] = (resource, pod), number
        bit = 1 << number
        for address in pod.addresses:
            insort(self._in_order, (address, number))
        self._chunks = []
        self.everything |= bit
        if pod.under_policy:
            self.under_policy |= bit
        for mark in _marks(pod):
            self._having[mark] = self._having.get(mark, 0) | bit
        for name, pairs in pod.named_ports.items():
            by_pairs = self._ports.setdefault(name, {})
            by_pairs[pairs] = by_pairs.get(pairs, 0) | bit
        for block, mask in self._blocks.items():
            if any(map(block.contains, pod.addresses)):
                self._blocks[block] = mask | bit
        for selector, mask in self._inside.items():
            if pod.namespace in self.names(selector):
                self._inside[selector] = mask | bit

    def _remove(self, resource: Resource) -> None:
        number = self._numbers.pop(resource, None)
        entry = None if number is None else self._pods[number]
        if number is None or entry is None:
            return
        self._pods[number] = None
        self._free.append(number)
        bit, pod = 1 << number, entry[1]
        for address in pod.addresses:
            del self._in_order[bisect_left(self._in_order, (address, number))]
        self._chunks = []
        self.everything &= ~bit
        self.under_policy &= ~bit
        for mark in _marks(pod):
            self._having[mark] &= ~bit
            if not self._having[mark]:
                del self._having[mark]
        for name, pairs in pod.named_ports.items():
            self._ports[name][pairs] &= ~bit
        for block, mask in self._blocks.items():
            self._blocks[block] = mask & ~bit
        for selector, mask in self._inside.items():
            self._inside[selector] = mask & ~bit

    def names(self, selector: Selector) -> frozenset[str]:
        """Return the names of the namespaces that a selector selects."""
        names = self._names.get(selector)
        if names is None:
            if len(self._names) > 10_000:
                self._names.clear()
            named = next((wanted for wanted in selector.requirements if _is_name(wanted)), None)
            candidates = self.namespaces if named is None else self.namespaces.keys() & set(named.values)
            names = frozenset(name for name in candidates if selector.matches(self.namespaces[name]))
            self._names[selector] = names
        return names

    def selected(self, namespaces: Selector, pods: Selector) -> int:
        """Return the pods under policy that two selectors select."""
        mask = self.labelled(pods)
        return mask & self._in_selected(namespaces) if namespaces.requirements else mask

    def labelled(self, selector: Selector) -> int:
        """Return the pods under policy, of any namespace, whose labels a selector selects."""
        mask = self.under_policy
        for requirement in selector.requirements:
            mask &= self._fulfilling(requirement)
        return mask

    def _in_selected(self, namespaces: Selector) -> int:
        mask = self._inside.get(namespaces)
        if mask is None:
            if len(self._inside) > 10_000:
                self._inside.clear()
            mask = self._inside[namespaces] = self.inside(self.names(namespaces))
        return mask

    def inside(self, namespaces: Iterable[str]) -> int:
        """Return the pods of some namespaces."""
        return union(self._having.get(("namespace", name), 0) for name in namespaces)

    def _fulfilling(self, requirement: Requirement) -> int:
        key, operator, values = requirement
        if operator in ("Exists", "DoesNotExist"):
            mask = self._having.get(("key", key), 0)
        elif len(values) == 1:
            mask = self._having.get(("label", key, values[0]), 0)
        else:
            mask = union(self._having.get(("label", key, value), 0) for value in values)
        return mask if operator in ("In", "Exists") else self.everything & ~mask

    def examples(self, policies: Iterable[TieredPolicy], namespaces: Collection[str]) -> list[Resource]:
        """Return two pods of each sort that policies tell apart, if they are asked about pods of these namespaces."""
        telling: dict[int, None] = dict.fromkeys([self._having.get("hostNetwork", 0), self._having.get("address", 0)])
        telling |= dict.fromkeys(self.inside((name,)) for name in namespaces)
        for policy in policies:
            telling[self.selected(policy.namespaces, policy.pods)] = None
            for rule in policy.all_rules:
                for peer in rule.peers or ():
                    telling |= dict.fromkeys(self._peer_masks(peer, namespaces))
                for port in rule.ports or ():
                    if isinstance(port, NamedPort):
                        telling |= dict.fromkeys(self._ports.get(port.name, {}).values())
        pieces = [self.everything] if self.everything else []
        # Of one or two pods: all of them are taken, so nothing needs to tell them apart.
        small: list[int] = []
        for mask in telling:
            parts: list[int] = []
            for piece in pieces:
                inside = piece & mask
                if not inside or inside == piece:
                    parts.append(piece)
                    continue
                for part in (inside, piece ^ inside):
                    (parts if part.bit_count() > 2 else small).append(part)
            pieces = parts
        return [pod for piece in (*small, *pieces) for pod in self._first_two(piece)]

    def _first_two(self, piece: int) -> Iterator[Resource]:
        for _ in range(2):
            low = piece & -piece
            entry = self._pods[low.bit_length() - 1] if low else None
            if entry is not None:
                yield entry[0]
            piece ^= low

    def numbers_of(self, name: str) -> Iterator[tuple[str, int]]:
        """Yield the ports, as protocol and number, that pods have by a name."""
        for pairs, mask in self._ports.get(name, {}).items():
            if mask:
                yield from pairs

    def names_of(self, mask: int) -> Iterator[tuple[str, str]]:
        """Yield namespace and name of some pods."""
        for number in bits(mask):
            entry = self._pods[number]
            if entry is not None:
                yield entry[0].namespace, entry[0].name

    def _peer_masks(self, peer: Any, namespaces: Collection[str]) -> Iterator[int]:
        """Yield the sets by which a peer tells pods apart."""
        match peer:
            case PodPeer(namespaces=Related() as related):
                yield self.selected(Selector(), peer.pods)
                for key in related.keys:
                    values = {labels[key] for name in namespaces if key in (labels := self.namespaces.get(name, {}))}
                    having = [(name, labels[key]) for name, labels in self.namespaces.items() if key in labels]
                    yield self.inside(name for name, _ in having)
                    for value in values:
                        yield self.inside(name for name, other in having if other == value)
            case PodPeer(namespaces=Selector() as selector):
                yield self.selected(selector, peer.pods)
            case AddressPeer():
                yield from map(self.in_block, peer.blocks)
            case NodePeer():
                yield self.at(self.node_addresses.addresses(peer.nodes))
            case DomainPeer():
                pass
            case _:
                assert_never(peer)

    def at(self, addresses: Iterable[Address]) -> int:
        """Return the pods that have one of some addresses."""
        return union(self._having.get(("address", address), 0) for address in addresses)

    def having_port(self, name: str, protocol: str, number: int) -> int:
        """Return the pods that have a port by a name."""
        by_pairs = self._ports.get(name, {})
        return union(mask for pairs, mask in by_pairs.items() if (protocol, number) in pairs)

    def having_named_port(self, name: str, protocol: str) -> int:
        """Return the pods that have a port by a name, for one protocol or (empty) any."""
        by_pairs = self._ports.get(name, {})
        return union(mask for pairs, mask in by_pairs.items() if any(protocol in ("", each) for each, _ in pairs))

    def port_names(self, pods: int) -> frozenset[str]:
        """Return the names of all ports of some pods."""
        return frozenset(name for name, masks in self._ports.items() if any(pods & mask for mask in masks.values()))

    def alike_by_port(self, name: str, pod: int) -> int:
        """Return the pods for which the name of a port means the same as for one of them."""
        by_pairs = self._ports.get(name, {})
        pairs = self.endpoint(pod).named_ports.get(name)
        return by_pairs[pairs] if pairs else self.everything & ~union(by_pairs.values())

    @property
    def populated(self) -> frozenset[str]:
        """The namespaces that have pods."""
        return frozenset(name for name in self.namespaces if ("namespace", name) in self._having)

    def in_block(self, block: Block) -> int:
        """Return the pods that have an address in a block."""
        mask = self._blocks.get(block)
        if mask is None:
            if len(self._blocks) > 10_000:
                self._blocks.clear()
            mask = self._blocks[block] = union(map(self._between, block.ranges()))
        return mask

    def _between(self, span: Span) -> int:
        """Return the pods that have an address of a span."""
        if not self._chunks:
            numbers = [number for _, number in self._in_order]
            self._chunks = [mask_of(numbers[begin : begin + _CHUNK]) for begin in range(0, len(numbers), _CHUNK)]
        begin, end = bisect_left(self._in_order, (span.low, -1)), bisect_left(self._in_order, (span.high + 1, -1))
        first, last = -(-begin // _CHUNK), end // _CHUNK
        if first > last:
            return mask_of(number for _, number in self._in_order[begin:end])
        edges = self._in_order[begin : first * _CHUNK] + self._in_order[last * _CHUNK : end]
        return union(self._chunks[first:last]) | mask_of(number for _, number in edges)


def _is_name(requirement: Requirement) -> bool:
    return requirement.key == NAMESPACE_NAME and requirement.operator == "In"


def _marks(pod: Endpoint) -> Iterator[Any]:
    """Yield what a pod is found by."""
    yield "namespace", pod.namespace
    for key, value in pod.labels.items():
        yield "key", key
        yield "label", key, value
    if not pod.under_policy:
        yield "hostNetwork"
    if pod.addresses:
        yield "address"
        for address in pod.addresses:
            yield "address", address
