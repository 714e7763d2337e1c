"""Rules of NetworkPolicies about connections from outside the cluster, as sets of ports and addresses.

Rules of other policies never match a connection from outside to a pod.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from msgspec import Struct

from tierwall.network.model.endpoints import PROTOCOLS, Endpoint
from tierwall.network.model.rules import AddressPeer, NamedPort, Port, PortRange, TieredPolicy
from tierwall.network.reach.spaces import AddressSpace, PortSpace, union
from tierwall.values.addresses import LAST, Block, Span, merge_ranges

# Ports and addresses, every one of these with every one of those.
Box: TypeAlias = tuple[int, int]


class OutsideRule(Struct, frozen=True, eq=False):
    """A rule that lets something in from addresses; None for all of them, and for all ports."""

    blocks: tuple[Block, ...] | None = None
    ports: tuple[Port, ...] | None = None

    @property
    def facts(self) -> tuple[object, ...]:
        """The content of the rule; equal for rules that say the same."""
        return self.blocks, self.ports


def outside_rules(policy: TieredPolicy) -> tuple[OutsideRule, ...]:
    """Return what a NetworkPolicy lets in from outside."""
    rules = []
    for rule in policy.ingress or ():
        peers = (peer for peer in rule.peers or () if isinstance(peer, AddressPeer))
        blocks = None if rule.peers is None else tuple(block for peer in peers for block in peer.blocks)
        if blocks is None or blocks:
            rules.append(OutsideRule(blocks, rule.ports))
    return tuple(rules)


class OutsideRange:
    """The ports and addresses of some rules, each taken by itself: a quick look at what others can have in common."""

    def __init__(self, rules: Sequence[OutsideRule]) -> None:
        self._ports: dict[str, list[Span]] | None = None
        self._addresses: list[Span] | None = None
        if all(rule.ports is not None for rule in rules):
            entries = [port for rule in rules for port in rule.ports or ()]
            if all(isinstance(port, PortRange) for port in entries):
                self._ports = {protocol: [] for protocol in PROTOCOLS}
                for port in entries:
                    assert isinstance(port, PortRange)
                    self._ports[port.protocol].append(Span(port.first, port.last))
                self._ports = {protocol: merge_ranges(spans) for protocol, spans in self._ports.items()}
        if all(rule.blocks is not None for rule in rules):
            self._addresses = merge_ranges(block.span for rule in rules for block in rule.blocks or ())

    def meets(self, rule: OutsideRule) -> bool:
        """Whether a rule may have something in common with these."""
        if rule.ports is not None and self._ports is not None:
            ports = self._ports
            if not any(
                isinstance(port, NamedPort) or _overlaps(ports[port.protocol], port.first, port.last)
                for port in rule.ports
            ):
                return False
        if rule.blocks is None or self._addresses is None:
            return True
        return any(_overlaps(self._addresses, *block.span) for block in rule.blocks)


def _overlaps(spans: Sequence[Span], low: int, high: int) -> bool:
    """Whether one of some spans, which are in order and do not overlap, overlaps another one."""
    # The last one that begins before the end.
    place = bisect_right(spans, (high, LAST))
    return place > 0 and spans[place - 1].high >= low


class OutsideSpace:
    """All ports and addresses, divided by some rules; `numbers` are the ports behind names that these mention."""

    def __init__(self, rules: Iterable[OutsideRule], numbers: Iterable[PortRange]) -> None:
        listed = list(rules)
        ranges = {port for rule in listed for port in rule.ports or () if isinstance(port, PortRange)}
        self.ports = PortSpace(ranges.union(numbers))
        self.addresses = AddressSpace(dict.fromkeys(block for rule in listed for block in rule.blocks or ()))
        self._known: dict[OutsideRule, Box] = {}

    def box(self, rule: OutsideRule, pod: Endpoint) -> Box:
        """Return what a rule lets in to a pod."""
        known = self._known.get(rule)
        if known is None:
            addresses = self.addresses.everything
            if rule.blocks is not None:
                addresses = union(map(self.addresses.mask, rule.blocks))
            ports = self.ports.everything
            if rule.ports is not None:
                ports = union(self.ports.mask(port) for port in rule.ports if isinstance(port, PortRange))
            known = self._known[rule] = ports, addresses
        if rule.ports is None:
            return known
        named = union(self.ports.mask(port) for entry in rule.ports for port in _numbers(entry, pod))
        return (known[0] | named, known[1]) if named else known


def _numbers(entry: Port, pod: Endpoint) -> Iterator[PortRange]:
    """Yield the ports that a name means for a pod; nothing for numbers."""
    if isinstance(entry, NamedPort):
        for protocol, number in pod.named_ports.get(entry.name, ()):
            if entry.protocol in ("", protocol):
                yield PortRange(protocol, number, number)


def without(boxes: Iterable[Box], taken: Box) -> Iterator[Box]:
    """Yield boxes without what another one has."""
    ports, addresses = taken
    for mine, whom in boxes:
        shared = mine & ports
        if not shared or not whom & addresses:
            yield mine, whom
            continue
        if mine != shared:
            yield mine ^ shared, whom
        if left := whom & ~addresses:
            yield shared, left
