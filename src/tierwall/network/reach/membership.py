"""Finds the classes and ports that each rule matches, for all classes at once.

Indexes of labels and address blocks turn peers into sets of classes; ports become pieces of the port space. Rules take
effect cell by cell, where a cell is a set of ports that no rule distinguishes. The loop over the tiers is the one of
`core.stack`, with classes of endpoints as its cases.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias, assert_never

from msgspec import Struct

from tierwall.core.labels import Requirement, Selector
from tierwall.core.outcome import RuleEffect
from tierwall.core.stack import Tier
from tierwall.network.model.endpoints import NAMESPACE_NAME, Endpoint
from tierwall.network.model.matching import domain_names, is_covered_domain
from tierwall.network.model.rules import (
    INGRESS,
    AddressPeer,
    Direction,
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
    action_verdict,
)
from tierwall.network.reach.classes import EndpointClasses
from tierwall.network.reach.spaces import PortSpace, bits, cut, mask_of, transposed, union


class MatchedRule(Struct, frozen=True):
    """The matches of a rule about one subject: certain and possible classes, and ports for all or only some classes."""

    rule: NetworkRule
    ports: int
    named: tuple[tuple[int, int], ...]
    surely: int
    maybe: int
    # The rule's effect on the ports that it matches for all classes, unless it has domain names.
    effect: RuleEffect | None

    @classmethod
    def of(
        cls, rule: NetworkRule, ports: int, named: tuple[tuple[int, int], ...], surely: int, maybe: int
    ) -> MatchedRule:
        """Return the matches of a rule."""
        effect = RuleEffect(rule, action_verdict(rule.action), surely) if surely and not maybe else None
        return cls(rule, ports, named, surely, maybe, effect)

    def on(self, ports: int) -> tuple[int, int]:
        """Return the classes that the rule certainly matches and may match on a cell of ports."""
        if ports & self.ports:
            return self.surely, self.maybe
        where = 0
        for named, classes in self.named:
            if ports & named:
                where |= classes
        return self.surely & where, self.maybe & where


class _LabelIndex:
    """An index of classes by label; it turns a selector into unions, complements and intersections of sets."""

    def __init__(self, base: int, entries: Iterable[tuple[int, Iterable[tuple[str, str | None]]]]) -> None:
        self._base = base
        # The classes that have a label, or that have a key with any value.
        self._numbers: dict[tuple[str, str | None] | str, list[int]] = {}
        for number, seen in entries:
            for label in seen:
                self._numbers.setdefault(label, []).append(number)
                self._numbers.setdefault(label[0], []).append(number)
        self._masks: dict[tuple[str, str | None] | str, int] = {}
        self._selected: dict[Selector, int] = {}

    def classes_with(self, label: tuple[str, str | None] | str) -> int:
        """Return the classes that have a label, or that have a key with any value."""
        mask = self._masks.get(label)
        if mask is None:
            mask = self._masks[label] = mask_of(self._numbers.get(label, ()))
        return mask

    def selected(self, selector: Selector) -> int:
        """Return the classes that a selector selects."""
        mask = self._selected.get(selector)
        if mask is None:
            mask = self._base
            for requirement in selector.requirements:
                mask &= self._fulfilling(requirement)
            self._selected[selector] = mask
        return mask

    def _fulfilling(self, requirement: Requirement) -> int:
        key, operator, values = requirement
        if operator in ("Exists", "DoesNotExist"):
            mask = self.classes_with(key)
        else:
            mask = union(self.classes_with((key, value)) for value in values)
        return mask if operator in ("In", "Exists") else self._base & ~mask


class Membership:
    """Finds the classes that each peer and each rule matches or may match."""

    def __init__(self, classes: EndpointClasses) -> None:
        self.classes = classes
        named = {
            pair
            for endpoint_class in classes.all
            for name, pairs in endpoint_class.representative.named_ports.items()
            if name in classes.attributes.named_ports
            for pair in pairs
        }
        named_ranges = {PortRange(protocol, number, number) for protocol, number in named}
        self.ports = PortSpace(classes.attributes.port_ranges | named_ranges)
        pods = [endpoint_class for endpoint_class in classes.all if endpoint_class.representative.under_policy]
        base = classes.under_policy
        self._namespaces = _LabelIndex(base, ((pod_class.bit, pod_class.key[0]) for pod_class in pods))
        self._pods = _LabelIndex(base, ((pod_class.bit, pod_class.key[1]) for pod_class in pods))
        by_address: dict[int, set[int]] = {}
        nodes = {address for node in classes.model.nodes for address in node.addresses}
        blocks = [0] * len(classes.all)
        for endpoint_class in classes.all:
            for address in endpoint_class.representative.addresses:
                blocks[endpoint_class.bit] |= classes.space.signature(address)
                if address in nodes and not endpoint_class.spans:
                    by_address.setdefault(address, set()).add(endpoint_class.bit)
        # The classes with an address in a block, by the block's bit.
        self._by_block = {1 << block: numbers for block, numbers in enumerate(transposed(blocks))}
        self._by_address = {address: mask_of(numbers) for address, numbers in by_address.items()}
        self._peers: dict[Peer, int] = {}
        self._named_ports: dict[str, dict[tuple[tuple[str, int], ...], int]] = {}

    def matching(self, peer: Peer, subject: Endpoint) -> int:
        """Return the classes that a peer of a rule about `subject` certainly matches; none for domain names."""
        if isinstance(peer, PodPeer) and isinstance(peer.namespaces, Related):
            return self._pods.selected(peer.pods) & self._related(peer.namespaces, subject)
        mask = self._peers.get(peer)
        if mask is None:
            mask = self._peers[peer] = self._matching_any_subject(peer)
        return mask

    def pods(self, selector: Selector) -> int:
        """Return the classes of pods that a pod selector selects, in any namespace."""
        return self._pods.selected(selector)

    def subjects(self, namespaces: Selector, pods: Selector) -> int:
        """Return the classes of pods that are subjects of a policy."""
        return self._namespaces.selected(namespaces) & self._pods.selected(pods)

    def matched(
        self, tier: Tier[TieredPolicy], subject: Endpoint, direction: Direction
    ) -> dict[TieredPolicy, list[MatchedRule]]:
        """Return the matches of a tier's rules about a subject, by policy, in order."""
        return {
            policy: [self._match(rule, subject) for rule in policy.rules(direction) or ()] for policy in tier.policies
        }

    def _matching_any_subject(self, peer: Peer) -> int:
        """Return the classes that a peer matches, whichever the subject is."""
        match peer:
            case PodPeer():
                assert isinstance(peer.namespaces, Selector)
                return self.subjects(peer.namespaces, peer.pods)
            case AddressPeer():
                return union(self._by_block.get(self.classes.space.blocks[block], 0) for block in peer.blocks)
            case NodePeer():
                addresses = self.classes.model.node_addresses.addresses(peer.nodes)
                return union(self._by_address.get(address, 0) for address in addresses)
            case DomainPeer():
                return 0
            case _:
                assert_never(peer)

    def _related(self, wanted: Related, subject: Endpoint) -> int:
        match wanted.relation:
            case Relation.SELF:
                return self._namespaces.classes_with((NAMESPACE_NAME, subject.namespace))
            case Relation.NOT_SELF:
                return self.classes.under_policy & ~self._namespaces.classes_with((NAMESPACE_NAME, subject.namespace))
            case Relation.SAME_LABELS:
                same, _ = self._compared(wanted.keys, subject)
                return same
            case Relation.NOT_SAME_LABELS:
                same, having = self._compared(wanted.keys, subject)
                return having & ~same
            case _:
                assert_never(wanted.relation)

    def _compared(self, keys: tuple[str, ...], subject: Endpoint) -> tuple[int, int]:
        """Return the classes whose namespaces agree with the subject's in these keys, and those that have the keys.

        Both are empty if the subject's namespace lacks a key, or if there are no keys.
        """
        if not keys or any(key not in subject.namespace_labels for key in keys):
            return 0, 0
        same = having = self.classes.under_policy
        for key in keys:
            same &= self._namespaces.classes_with((key, subject.namespace_labels[key]))
            having &= self._namespaces.classes_with(key)
        return same, having

    def _match(self, rule: NetworkRule, subject: Endpoint) -> MatchedRule:
        surely, maybe = 0, 0
        if rule.peers is None:
            surely = self.classes.everybody
        for peer in rule.peers or ():
            match peer:
                case PodPeer() | AddressPeer() | NodePeer():
                    surely |= self.matching(peer, subject)
                case DomainPeer():
                    maybe = self.classes.addressed
                case _:
                    assert_never(peer)
        ports, named = (self.ports.everything, ()) if rule.ports is None else self._ports(rule, subject)
        return MatchedRule.of(rule, ports, named, surely, maybe & ~surely)

    def _ports(self, rule: NetworkRule, subject: Endpoint) -> tuple[int, tuple[tuple[int, int], ...]]:
        ports = 0
        named: list[tuple[int, int]] = []
        for entry in rule.ports or ():
            match entry:
                case PortRange():
                    ports |= self.ports.mask(entry)
                case NamedPort() if rule.direction is INGRESS:
                    ports |= self._resolved(entry, subject.named_ports.get(entry.name, ()))
                case NamedPort():
                    named += self._named(entry)
                case _:
                    assert_never(entry)
        return ports, tuple(named)

    def _named(self, entry: NamedPort) -> Iterator[tuple[int, int]]:
        """Yield the ports that a name means, each with the classes of destinations that have it."""
        known = self._named_ports.get(entry.name)
        if known is None:
            by_pairs: dict[tuple[tuple[str, int], ...], list[int]] = {}
            for endpoint_class in self.classes.all:
                if pairs := endpoint_class.representative.named_ports.get(entry.name):
                    by_pairs.setdefault(pairs, []).append(endpoint_class.bit)
            known = self._named_ports[entry.name] = {pairs: mask_of(numbers) for pairs, numbers in by_pairs.items()}
        for pairs, classes in known.items():
            if resolved := self._resolved(entry, pairs):
                yield resolved, classes

    def _resolved(self, entry: NamedPort, pairs: Iterable[tuple[str, int]]) -> int:
        return union(
            self.ports.mask(PortRange(protocol, number, number))
            for protocol, number in pairs
            if entry.protocol in ("", protocol)
        )


# The matches of a tier's rules about one subject, by policy, in order.
MatchedRules: TypeAlias = Mapping[TieredPolicy, Sequence[MatchedRule]]
# With more different sets of ports than this, cells are found by walking along the ports.
MAX_CUTS = 64


class RuleEffects:
    """Finds the effects of one tier's rules on a cell of ports. Good for one walk through that tier."""

    def __init__(self, matched: MatchedRules, ports: int) -> None:
        self._matched = matched
        self._ports = ports
        # The domain names of earlier rules, and the classes that they may match.
        self._earlier: list[tuple[tuple[str, ...], int]] = []

    def __call__(self, tier: Tier[TieredPolicy], policy: TieredPolicy) -> list[RuleEffect]:
        """Return the effects of one policy, in order."""
        effects = []
        ports = self._ports
        for matched in self._matched[policy]:
            if matched.effect is not None and ports & matched.ports:
                effects.append(matched.effect)
                continue
            surely, maybe = matched.on(ports)
            names: tuple[str, ...] = ()
            if maybe:
                names = domain_names(matched.rule)
                maybe &= ~self._covered(names)
                self._earlier.append((names, maybe))
            if surely or maybe:
                effects.append(RuleEffect(matched.rule, action_verdict(matched.rule.action), surely, maybe, names))
        return effects

    def _covered(self, names: tuple[str, ...]) -> int:
        """Return the classes for which the names of earlier rules cover every name."""
        all_covered = -1
        for name in names:
            covered = 0
            for earlier, classes in self._earlier:
                if is_covered_domain(name, earlier):
                    covered |= classes
            all_covered &= covered
        return all_covered if names else 0


def joined_rules(rules: Sequence[MatchedRule]) -> list[MatchedRule]:
    """Join rules on the same ports. Only for a tier in which whatever any rule allows is allowed."""
    joined: dict[tuple[int, tuple[tuple[int, int], ...]], MatchedRule] = {}
    for rule in rules:
        key = rule.ports, rule.named
        known = joined.get(key, rule)
        joined[key] = MatchedRule.of(known.rule, *key, known.surely | rule.surely, known.maybe | rule.maybe)
    return list(joined.values())


def rule_cells(everything: int, matched: MatchedRules) -> Iterator[tuple[int, MatchedRules]]:
    """Divide all ports into the largest pieces of which each rule matches all ports or none; add the rules that do.

    Rules that match nobody are left out: they would only divide ports.
    """
    matched = {policy: [rule for rule in rules if rule.surely or rule.maybe] for policy, rules in matched.items()}
    in_order = [(policy, rule) for policy, rules in matched.items() for rule in rules]
    if len({mask for _, rule in in_order for mask in (rule.ports, *dict(rule.named))}) <= MAX_CUTS:
        yield from ((piece, matched) for piece in port_cells(everything, (rule for _, rule in in_order)))
        return
    for ports, numbers in _sweep(everything, [rule for _, rule in in_order]):
        active: dict[TieredPolicy, list[MatchedRule]] = {policy: [] for policy in matched}
        for policy, rule in map(in_order.__getitem__, numbers):
            active[policy].append(rule)
        yield ports, active


def port_cells(everything: int, rules: Iterable[MatchedRule]) -> list[int]:
    """Divide all ports into the largest pieces of which each rule matches all ports or none."""
    pieces = [everything]
    masks = {mask for matched in rules for mask in (matched.ports, *dict(matched.named))}
    for mask in sorted(masks - {0, everything}):
        pieces = cut(pieces, mask)
    return pieces


def _sweep(everything: int, rules: Sequence[MatchedRule]) -> Iterator[tuple[int, list[int]]]:
    """Walk along the line of ports, from bound to bound; yield each cell with the numbers of the rules that match it.

    The work grows with the matches, not with the number of rules times the number of cells.
    """
    # At each bound, the masks of rules that begin or end there. A rule has several masks if it has named ports.
    bounds: dict[int, list[tuple[int, int]]] = {0: []}
    for number, rule in enumerate(rules):
        for part, mask in enumerate((rule.ports, *dict(rule.named))):
            for bound in (*bits(mask & ~(mask << 1)), *bits((mask & ~(mask >> 1)) << 1)):
                bounds.setdefault(bound, []).append((number, part))
    ends = [*sorted(bounds)[1:], everything.bit_length()]
    active: set[tuple[int, int]] = set()
    cells: dict[tuple[tuple[int, int], ...], int] = {}
    for begin, end in zip(sorted(bounds), ends, strict=True):
        active.symmetric_difference_update(bounds[begin])
        key = tuple(sorted(active))
        if end > begin:
            cells[key] = cells.get(key, 0) | (1 << end) - (1 << begin)
    for key, ports in cells.items():
        yield ports, sorted({number for number, _ in key})
