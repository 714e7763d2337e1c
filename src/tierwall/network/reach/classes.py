"""Equivalence classes of ends: ends of one class are treated alike by every policy, as subject, source or destination.

Each class has one bit; sets of ends are whole numbers. The classes of namespaces that no policy tells apart stand
side by side (a unit), so that sets can be named namespace by namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

from msgspec import Struct

from tierwall.network.model.ends import End, address_end
from tierwall.network.model.model import Model
from tierwall.network.model.rules import PortRange
from tierwall.network.reach.addressspace import AddressSpace
from tierwall.network.reach.attention import Attention
from tierwall.values.addresses import Block, Span


class EndClass(Struct, frozen=True, eq=False):
    """Ends that no policy tells apart. A class of addresses outside the cluster has spans instead of members."""

    bit: int
    unit: int
    key: tuple[Any, ...]
    members: tuple[End, ...]
    spans: tuple[Span, ...] = ()

    @property
    def one(self) -> End:
        """Any member stands for all."""
        return self.members[0]


class Classes:
    """All classes of a model, in the order of their first members' names: pods, then nodes, then outside addresses.

    `refine`, `blocks` and `ports` may tell ends, addresses and ports apart that policies do not: classes of two
    models line up if each is refined by the other's keys and blocks, and a question about some ends gets classes
    that do not straddle them.
    """

    def __init__(
        self,
        model: Model,
        refine: Callable[[End], Hashable] | None = None,
        blocks: Iterable[Block] = (),
        ports: Iterable[PortRange] = (),
    ) -> None:
        self.model = model
        self.attention = Attention(model, blocks, ports)
        self.space = AddressSpace(self.attention.blocks)
        self.all: list[EndClass] = []
        self.units: list[tuple[str, ...]] = []
        self._of: dict[End, EndClass] = {}
        self._nodes_at: dict[int, list[End]] = {}
        for node in model.nodes:
            for address in node.addresses:
                self._nodes_at.setdefault(address, []).append(node)
        self._pods(refine or (lambda end: None))
        self._nodes(refine or (lambda end: None))
        self._outside(refine or (lambda end: None))
        self.everybody = mask_of(one.bit for one in self.all)
        self.under_policy = mask_of(one.bit for one in self.all if one.one.under_policy)
        self.addressed = mask_of(one.bit for one in self.all if one.one.addresses)

    def of(self, end: End) -> EndClass:
        """The class of a pod or node of the model."""
        return self._of[end]

    def members(self, mask: int) -> Iterator[EndClass]:
        """The classes of a set, in order."""
        for bit in bits(mask):
            yield self.all[bit]

    def _pods(self, refine: Callable[[End], Hashable]) -> None:
        attention = self.attention
        namespaces = {name: attention.namespaces.seen(labels) for name, labels in self.model.namespaces.items()}
        units: dict[tuple[Any, ...], dict[tuple[Any, ...], list[End]]] = {}
        names: dict[tuple[Any, ...], dict[str, None]] = {}
        for pod in sorted(self.model.pods, key=lambda one: (one.namespace, one.name)):
            namespace = namespaces[pod.namespace]
            key = (
                namespace,
                attention.pods.seen(pod.labels) if pod.under_policy else (),
                pod.under_policy,
                self._ports(pod),
                self._addresses(pod),
                refine(pod),
            )
            units.setdefault(namespace, {}).setdefault(key, []).append(pod)
            names.setdefault(namespace, {})[pod.namespace] = None
        for namespace, classes in units.items():
            self.units.append(tuple(names[namespace]))
            for key, members in classes.items():
                self._add(key, members)

    def _nodes(self, refine: Callable[[End], Hashable]) -> None:
        found: dict[tuple[Any, ...], list[End]] = {}
        for node in sorted(self.model.nodes, key=lambda one: one.name):
            found.setdefault(("node", self._addresses(node), refine(node)), []).append(node)
        self.units.append(())
        for key, members in found.items():
            self._add(key, members)

    def _outside(self, refine: Callable[[End], Hashable]) -> None:
        self.units.append(())
        for signature, is_ipv6, spans in self.space.pieces():
            stand_in = address_end(spans[0].low)
            self._add(("outside", is_ipv6, signature, refine(stand_in)), [stand_in], tuple(spans))

    def _add(self, key: tuple[Any, ...], members: Iterable[End], spans: tuple[Span, ...] = ()) -> None:
        one = EndClass(len(self.all), len(self.units) - 1, key, tuple(members), spans)
        self.all.append(one)
        self._of.update(dict.fromkeys(one.members, one))

    def _ports(self, pod: End) -> tuple[Any, ...]:
        """The named ports that policies ask for."""
        wanted = self.attention.named_ports
        if not wanted or not pod.named_ports:
            return ()
        return tuple(sorted((name, pairs) for name, pairs in pod.named_ports.items() if name in wanted))

    def _addresses(self, end: End) -> tuple[Any, ...]:
        """What policies see of an end's addresses.

        The blocks and nodes they belong to, or that there are any at all.
        """
        attention = self.attention
        out: list[Any] = []
        if attention.blocks:
            out.append(tuple(sorted({found for one in end.addresses if (found := self.space.signature(one))})))
        if attention.by_node:
            nodes = [node for address in end.addresses for node in self._nodes_at.get(address, ())]
            out.append(frozenset(attention.nodes.seen(node.labels) for node in nodes))
        if attention.by_domain:
            out.append(bool(end.addresses))
        return tuple(out)


def mask_of(numbers: Iterable[int]) -> int:
    """A set of class numbers as bits."""
    found = list(numbers)
    if len(found) < 64:
        out = 0
        for number in found:
            out |= 1 << number
        return out
    octets = bytearray(max(found) // 8 + 1)
    for number in found:
        octets[number >> 3] |= 1 << (number & 7)
    return int.from_bytes(octets, "little")


def bits(mask: int) -> Iterator[int]:
    """The numbers in a set, in order."""
    if mask.bit_count() < 64:
        while mask:
            low = mask & -mask
            yield low.bit_length() - 1
            mask ^= low
        return
    for position, octet in enumerate(mask.to_bytes((mask.bit_length() + 7) // 8, "little")):
        if octet:
            for number in _BITS_OF[octet]:
                yield position * 8 + number


_BITS_OF = [tuple(number for number in range(8) if octet >> number & 1) for octet in range(256)]
