"""Everything that policies and regions can tell apart: label values, ports, addresses, port names, domain names.

Two connections that agree in all of this are decided alike, so these are the atoms of a proof
(docs/prove.md#how-it-works). A label has one of the named values, another value, or is absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import assert_never

from tierwall.core.labels import Selector
from tierwall.network.model.endpoints import NAMESPACE_NAME
from tierwall.network.model.rules import (
    AddressPeer,
    DomainPeer,
    NamedPort,
    NetworkRule,
    NodePeer,
    PodPeer,
    PortRange,
    Related,
    TieredPolicy,
)
from tierwall.network.reach.spaces import AddressSpace, PortSpace
from tierwall.values.addresses import IPV6, Address, Block, Span, merge_ranges

# Not valid as values of labels, so they cannot be mistaken for one.
OTHER, ABSENT = "\0other", "\0absent"


class LabelAtoms:
    """The keys and values of labels of one family: those of namespaces, pods or nodes."""

    def __init__(self) -> None:
        self._values: dict[str, set[str]] = {}

    def add_selector(self, selector: Selector) -> None:
        """Add the keys and values of a selector."""
        for requirement in selector.requirements:
            self.add(requirement.key, *requirement.values)

    def add(self, key: str, *values: str) -> None:
        """Add a key and some of its values."""
        self._values.setdefault(key, set()).update(values)

    @property
    def keys(self) -> list[str]:
        """The keys, in order."""
        return sorted(self._values)

    def values(self, key: str) -> list[str]:
        """Return the named values of a key: the shortest first."""
        return sorted(self._values[key], key=lambda value: (len(value), value))

    def atom(self, key: str, labels: Mapping[str, str]) -> str:
        """Return what is known of a key of some labels: a named value, OTHER or ABSENT."""
        value = labels.get(key)
        return ABSENT if value is None else value if value in self._values[key] else OTHER


class Vocabulary:
    """The atoms of some policies, to which those of regions are added. Call `settle` when all are."""

    def __init__(self) -> None:
        self.namespaces, self.pods, self.nodes = LabelAtoms(), LabelAtoms(), LabelAtoms()
        self.namespaces.add(NAMESPACE_NAME)
        # The keys of namespaces that relations compare.
        self.compared: set[str] = set()
        self.port_names: set[str] = set()
        self.domains: set[str] = set()
        self.node_selectors: set[Selector] = set()
        self._ranges: set[PortRange] = set()
        self._spans: set[Span] = set()
        self.ports = PortSpace(())
        self.addresses = AddressPieces((), ())

    def add_policy(self, policy: TieredPolicy) -> None:
        """Add what a policy looks at."""
        self.namespaces.add_selector(policy.namespaces)
        self.pods.add_selector(policy.pods)
        for rule in policy.all_rules:
            self._add_rule(rule)

    def _add_rule(self, rule: NetworkRule) -> None:
        for port in rule.ports or ():
            match port:
                case PortRange():
                    self._ranges.add(port)
                case NamedPort():
                    self.port_names.add(port.name)
                case _:
                    assert_never(port)
        for peer in rule.peers or ():
            match peer:
                case PodPeer():
                    self.pods.add_selector(peer.pods)
                    match peer.namespaces:
                        case Selector():
                            self.namespaces.add_selector(peer.namespaces)
                        case Related():
                            self.compared.update(peer.namespaces.keys)
                            for key in peer.namespaces.keys:
                                self.namespaces.add(key)
                        case _:
                            assert_never(peer.namespaces)
                case AddressPeer():
                    for block in peer.blocks:
                        self._spans.update(block.ranges())
                case NodePeer():
                    self.nodes.add_selector(peer.nodes)
                    self.node_selectors.add(peer.nodes)
                case DomainPeer():
                    self.domains.update(peer.names)
                case _:
                    assert_never(peer)

    def add_ports(self, ranges: Iterable[PortRange]) -> None:
        """Add ranges of ports that must be told apart."""
        self._ranges.update(ranges)

    def add_spans(self, spans: Iterable[Span]) -> None:
        """Add ranges of addresses that must be told apart."""
        self._spans.update(spans)

    def settle(self, taken: Iterable[Address]) -> None:
        """Divide ports and addresses into pieces; `taken` are the addresses that ends have which exist."""
        self.ports = PortSpace(self._ranges)
        self.addresses = AddressPieces(self._spans, taken)


class AddressPieces:
    """All addresses in pieces that nothing tells apart: those that the same ranges contain, of one family."""

    def __init__(self, spans: Iterable[Span], taken: Iterable[Address]) -> None:
        # Many ranges share their bounds: the pieces of a line of numbers are joined by the ranges that have them.
        blocks = [Block(span) for span in sorted(set(spans))]
        space = AddressSpace(blocks)
        self._bits = {block.span: bit for block, bit in space.blocks.items()}
        self._signatures: list[int] = []
        self.spans: list[list[Span]] = []
        self.is_ipv6: list[bool] = []
        for signature, is_ipv6, pieces in space.pieces():
            self._signatures.append(signature)
            self.is_ipv6.append(is_ipv6)
            self.spans.append(merge_ranges(pieces))
        self._space = space
        self._numbers = {
            (signature, is_ipv6): number
            for number, (signature, is_ipv6) in enumerate(zip(self._signatures, self.is_ipv6, strict=True))
        }
        self._within: dict[Span, list[int]] = {}
        self.taken = frozenset(taken)
        # How many addresses of each piece are free.
        self.free = [sum(high - low + 1 for low, high in spans) for spans in self.spans]
        for address in self.taken:
            self.free[self.number(address)] -= 1

    def number(self, address: Address) -> int:
        """Return the number of the piece that has an address."""
        return self._numbers[self._space.signature(address), address >= IPV6]

    def inside(self, span: Span) -> list[int]:
        """Return the numbers of the pieces of a range, which must be one of those that divide the addresses."""
        inside = self._within.get(span)
        if inside is None:
            bit = self._bits[span]
            inside = [number for number, signature in enumerate(self._signatures) if signature & bit]
            self._within[span] = inside
        return inside
