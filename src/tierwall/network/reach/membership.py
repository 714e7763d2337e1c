"""Which classes and ports each rule matches, and what it claims of them, for all classes at once.

Peers become sets of classes by indexes of labels and address blocks, ports become pieces of the port space. Claims are
made cell by cell: for ports that no rule tells apart. The walk through the tiers is the loop of `core.stack`, whose
cases are classes of ends here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import assert_never

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
from tierwall.network.reach.spaces import PortSpace, cut, mask_of, union


class MatchedRule(Struct, frozen=True):
    """What a rule about one subject matches: ports outright, or ports on some classes only; classes surely or maybe."""

    rule: NetworkRule
    ports: int
    named: tuple[tuple[int, int], ...]
    surely: int
    maybe: int
    # The rule's claim on ports that it matches outright, if no name has a say in it.
    claim: RuleEffect | None

    @classmethod
    def of(
        cls, rule: NetworkRule, ports: int, named: tuple[tuple[int, int], ...], surely: int, maybe: int
    ) -> MatchedRule:
        """What a rule matches."""
        claim = RuleEffect(rule, action_verdict(rule.action), surely) if surely and not maybe else None
        return cls(rule, ports, named, surely, maybe, claim)

    def on(self, ports: int) -> tuple[int, int]:
        """The classes it matches, and may match, on a cell of ports."""
        if ports & self.ports:
            return self.surely, self.maybe
        where = 0
        for named, classes in self.named:
            if ports & named:
                where |= classes
        return self.surely & where, self.maybe & where


class _LabelIndex:
    """The classes by label; a selector becomes unions, complements and intersections of sets."""

    def __init__(self, base: int, entries: Iterable[tuple[int, Iterable[tuple[str, str | None]]]]) -> None:
        self._base = base
        # The classes with a label, and with a key whatever its value.
        self._numbers: dict[tuple[str, str | None] | str, list[int]] = {}
        for number, seen in entries:
            for label in seen:
                self._numbers.setdefault(label, []).append(number)
                self._numbers.setdefault(label[0], []).append(number)
        self._masks: dict[tuple[str, str | None] | str, int] = {}
        self._selected: dict[Selector, int] = {}

    def having(self, label: tuple[str, str | None] | str) -> int:
        """The classes with a label, or with a key whatever its value."""
        found = self._masks.get(label)
        if found is None:
            found = self._masks[label] = mask_of(self._numbers.get(label, ()))
        return found

    def selected(self, selector: Selector) -> int:
        """The classes that a selector selects."""
        found = self._selected.get(selector)
        if found is None:
            found = self._base
            for requirement in selector.requirements:
                found &= self._meeting(requirement)
            self._selected[selector] = found
        return found

    def _meeting(self, requirement: Requirement) -> int:
        key, operator, values = requirement
        if operator in ("Exists", "DoesNotExist"):
            found = self.having(key)
        else:
            found = union(self.having((key, value)) for value in values)
        return found if operator in ("In", "Exists") else self._base & ~found


class Membership:
    """The classes that each peer and each rule matches, and those it may match."""

    def __init__(self, classes: EndpointClasses) -> None:
        self.classes = classes
        named = {
            PortRange(protocol, number, number)
            for one in classes.all
            for name, pairs in one.one.named_ports.items()
            if name in classes.attention.named_ports
            for protocol, number in pairs
        }
        self.ports = PortSpace(classes.attention.port_ranges | named)
        pods = [one for one in classes.all if one.one.under_policy]
        base = classes.under_policy
        self._namespaces = _LabelIndex(base, ((one.bit, one.key[0]) for one in pods))
        self._pods = _LabelIndex(base, ((one.bit, one.key[1]) for one in pods))
        by_signature: dict[int, set[int]] = {}
        by_address: dict[int, set[int]] = {}
        nodes = {address for node in classes.model.nodes for address in node.addresses}
        for one in classes.all:
            for address in one.one.addresses:
                by_signature.setdefault(classes.space.signature(address), set()).add(one.bit)
                if address in nodes and not one.spans:
                    by_address.setdefault(address, set()).add(one.bit)
        self._by_signature = {signature: mask_of(numbers) for signature, numbers in by_signature.items()}
        self._by_address = {address: mask_of(numbers) for address, numbers in by_address.items()}
        self._peers: dict[Peer, int] = {}
        self._named_ports: dict[str, dict[tuple[tuple[str, int], ...], int]] = {}

    def matching(self, peer: Peer, subject: Endpoint) -> int:
        """The classes a peer of a rule about `subject` surely matches; none for domain names."""
        if isinstance(peer, PodPeer) and isinstance(peer.namespaces, Related):
            return self._pods.selected(peer.pods) & self._related(peer.namespaces, subject)
        found = self._peers.get(peer)
        if found is None:
            found = self._peers[peer] = self._unrelated(peer)
        return found

    def pods(self, selector: Selector) -> int:
        """The classes of pods that a pod selector selects, in any namespace."""
        return self._pods.selected(selector)

    def subjects(self, namespaces: Selector, pods: Selector) -> int:
        """The classes of pods that a policy is about."""
        return self._namespaces.selected(namespaces) & self._pods.selected(pods)

    def matched(
        self, tier: Tier[TieredPolicy], subject: Endpoint, direction: Direction
    ) -> dict[TieredPolicy, list[MatchedRule]]:
        """What the rules of a tier about a subject match, policy by policy, in order."""
        return {
            policy: [self._match(rule, subject) for rule in policy.rules(direction) or ()] for policy in tier.policies
        }

    def _unrelated(self, peer: Peer) -> int:
        """The classes that a peer matches whoever the rule is about."""
        match peer:
            case PodPeer():
                assert isinstance(peer.namespaces, Selector)
                return self.subjects(peer.namespaces, peer.pods)
            case AddressPeer():
                wanted = union(self.classes.space.blocks[block] for block in peer.blocks)
                return union(mask for signature, mask in self._by_signature.items() if signature & wanted)
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
                return self._namespaces.having((NAMESPACE_NAME, subject.namespace))
            case Relation.NOT_SELF:
                return self.classes.under_policy & ~self._namespaces.having((NAMESPACE_NAME, subject.namespace))
            case Relation.SAME_LABELS:
                same, _ = self._compared(wanted.keys, subject)
                return same
            case Relation.NOT_SAME_LABELS:
                same, having = self._compared(wanted.keys, subject)
                return having & ~same
            case _:
                assert_never(wanted.relation)

    def _compared(self, keys: tuple[str, ...], subject: Endpoint) -> tuple[int, int]:
        """The classes whose namespaces have the subject's values of these keys, and those that have the keys.

        Nobody where the subject's own namespace lacks a key, and where there is none.
        """
        if not keys or any(key not in subject.namespace_labels for key in keys):
            return 0, 0
        same = having = self.classes.under_policy
        for key in keys:
            same &= self._namespaces.having((key, subject.namespace_labels[key]))
            having &= self._namespaces.having(key)
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
        """The ports that a name stands for, and on which classes of destinations."""
        known = self._named_ports.get(entry.name)
        if known is None:
            found: dict[tuple[tuple[str, int], ...], list[int]] = {}
            for one in self.classes.all:
                if pairs := one.one.named_ports.get(entry.name):
                    found.setdefault(pairs, []).append(one.bit)
            known = self._named_ports[entry.name] = {pairs: mask_of(numbers) for pairs, numbers in found.items()}
        for pairs, classes in known.items():
            if resolved := self._resolved(entry, pairs):
                yield resolved, classes

    def _resolved(self, entry: NamedPort, pairs: Iterable[tuple[str, int]]) -> int:
        return union(
            self.ports.mask(PortRange(protocol, number, number))
            for protocol, number in pairs
            if entry.protocol in ("", protocol)
        )


class RuleEffects:
    """The claims that the rules of one tier make on a cell of ports; for one walk through that tier."""

    def __init__(self, matched: Mapping[TieredPolicy, Sequence[MatchedRule]], ports: int) -> None:
        self._matched = matched
        self._ports = ports
        # Which domain names were asked about, for which classes.
        self._asked: list[tuple[tuple[str, ...], int]] = []

    def __call__(self, tier: Tier[TieredPolicy], policy: TieredPolicy) -> list[RuleEffect]:
        """The claims of one policy, in order."""
        claims = []
        ports = self._ports
        for matched in self._matched[policy]:
            if matched.claim is not None and ports & matched.ports:
                claims.append(matched.claim)
                continue
            surely, maybe = matched.on(ports)
            names: tuple[str, ...] = ()
            if maybe:
                names = domain_names(matched.rule)
                maybe &= ~self._covered(names)
                self._asked.append((names, maybe))
            if surely or maybe:
                claims.append(RuleEffect(matched.rule, action_verdict(matched.rule.action), surely, maybe, names))
        return claims

    def _covered(self, names: tuple[str, ...]) -> int:
        """The classes for which every name is covered by a name that an earlier rule asked about."""
        everywhere = -1
        for name in names:
            asked = 0
            for earlier, classes in self._asked:
                if is_covered_domain(name, earlier):
                    asked |= classes
            everywhere &= asked
        return everywhere if names else 0


def port_cells(everything: int, rules: Iterable[MatchedRule]) -> list[int]:
    """All ports, cut into the coarsest pieces that each rule holds whole or not at all."""
    pieces = [everything]
    masks = {mask for matched in rules for mask in (matched.ports, *(ports for ports, _ in matched.named))}
    for mask in sorted(masks - {0, everything}):
        pieces = cut(pieces, mask)
    return pieces
