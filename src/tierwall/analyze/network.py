"""What is wrong with network policies, as KEP-2091 asks tools to say ("Risks and Mitigation").

Subjects and peers that select nothing, namespaces outside every domain of trust; and policies that disagree, override
or shadow each other, for which every sort of subject is walked through its tiers. All is asked of classes of ends and
pieces of ports, on the pods that exist and on stand-ins for pods that may come, so that a developer who sees one
namespace still learns which admin policy overrides a rule of theirs. Each finding about a connection names one as a
witness; what is said of all connections, `network_shadowed` has proved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, TypeAlias, assert_never

from msgspec import Struct

from tierwall.analyze.network_shadowed import SettlingPart, ShadowProver
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.outcome import RuleEffect
from tierwall.core.stack import Stack, Tier, evaluate
from tierwall.core.words import join_names
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.model import NetworkModel, network_model
from tierwall.network.model.policies import shadow_notes
from tierwall.network.model.rules import (
    AddressPeer,
    Direction,
    DomainPeer,
    NetworkRule,
    NodePeer,
    Peer,
    PodPeer,
    Related,
    Relation,
    RuleAction,
    TieredPolicy,
    TierName,
    tier_isolates,
)
from tierwall.network.reach.classes import EndpointClasses
from tierwall.network.reach.exposure import HypotheticalSnapshot, with_stand_ins
from tierwall.network.reach.membership import MatchedRule, RuleEffects, port_cells
from tierwall.network.reach.rows import Rows
from tierwall.network.reach.spaces import bits
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import is_understood

# Findings about pairs of policies are capped: a thousand policies of one priority are one mistake, not half a million.
MOST_PAIRS = 50
MOST_NAMED = 5

# Rules, each with the ends that it takes.
_Shares: TypeAlias = list[tuple[NetworkRule, int]]


def network(snapshot: Snapshot) -> Iterator[Diagnostic]:
    """All findings of the network plane."""
    yield from shadow_notes(snapshot)
    this = network_model(snapshot)
    if not this.policies:
        return
    # What admission refuses never comes to count, and of what is not known nobody can say more.
    refused = {policy.reference for policy in this.policies if not is_understood(snapshot, policy.resource)}
    walk = RuleWalk(with_stand_ins(snapshot, named_ports=True))
    findings = chain(_selecting_nothing(this), _without_tenancy_label(this), walk.findings())
    yield from (finding for finding in findings if finding.reference not in refused)


def _selecting_nothing(this: NetworkModel) -> Iterator[Diagnostic]:
    rows = Rows(EndpointClasses(this), False)
    for policy in this.policies:
        selected = rows.membership.subjects(policy.namespaces, policy.pods)
        if not selected:
            path = ("spec", "podSelector" if policy.tier is TierName.NAMESPACE else "subject")
            yield policy.resource.diagnostic("TW204", f"{policy.reference} selects no pod that exists", path)
            continue
        subjects = [member.one for member in rows.classes.members(selected)]
        for rule in policy.all_rules:
            for number, peer in enumerate(rule.peers or ()):
                if _names_ends(peer) and not any(rows.membership.matching(peer, subject) for subject in subjects):
                    side = rule.direction.peers_key
                    words = f"{side}[{number}] of {rule} selects no pod or node that exists"
                    yield rule.resource.diagnostic("TW205", words, (*rule.path, side, number))


def _names_ends(peer: Peer) -> bool:
    """Whether a peer is about pods or nodes; addresses and domain names may well be outside the cluster."""
    match peer:
        case PodPeer() | NodePeer():
            return True
        case AddressPeer() | DomainPeer():
            return False
        case _:
            assert_never(peer)


def _compared_keys(peer: Peer) -> tuple[str, ...]:
    """The labels that `notSameLabels` of a peer compares; none for other peers."""
    match peer:
        case PodPeer(Related(Relation.NOT_SAME_LABELS, keys)):
            return keys
        case PodPeer() | NodePeer() | AddressPeer() | DomainPeer():
            return ()
        case _:
            assert_never(peer)


def _without_tenancy_label(this: NetworkModel) -> Iterator[Diagnostic]:
    """Domains of trust: whom `notSameLabels` says nothing about, and where the KEP's other wording would differ."""
    for policy in this.policies:
        for rule in policy.all_rules:
            for number, peer in enumerate(rule.peers or ()):
                keys = _compared_keys(peer)
                lacking = sorted(
                    name for name, labels in this.namespaces.items() if any(key not in labels for key in keys)
                )
                bare = [name for name in lacking if not any(key in this.namespaces[name] for key in keys)]
                if lacking:
                    side = rule.direction.peers_key
                    shown = ", ".join(f"`{key}`" for key in keys)
                    named = join_names(lacking, MOST_NAMED)
                    words = f"notSameLabels of {rule} never selects namespaces without {shown}: {named}"
                    hint = f"label every namespace with {shown}, or add a rule for those that lack it"
                    if bare:
                        bare_named = join_names(bare, MOST_NAMED)
                        hint += f"; by the KEP's other wording (none of the labels) it would select {bare_named}"
                    yield rule.resource.diagnostic("TW206", words, (*rule.path, side, number), hint=hint)


class Witness(Struct, frozen=True):
    """A connection that shows a finding."""

    subject: Endpoint
    other: Endpoint
    direction: Direction
    port: str


class _ConnectionCell(Struct, frozen=True):
    """Connections of one subject in one direction, on ports and with others that all its rules treat alike."""

    subject: Endpoint
    direction: Direction
    ports: int
    others: int


class _TakenEndpoints:
    """What the rules of first-match tiers take of one cell of ports, as the walk tells it."""

    def __init__(self, claims: Mapping[str, RuleEffects]) -> None:
        self.rules: set[NetworkRule] = set()
        self._claims = claims
        self._taken: _Shares = []

    def ask(self, tier: Tier[TieredPolicy], policy: TieredPolicy) -> list[RuleEffect]:
        """The claims of one policy."""
        return self._claims[tier.name](tier, policy)

    def watch(self, tier: Tier[TieredPolicy], claim: RuleEffect, surely: int, maybe: int) -> None:
        """Note a claim; the default's and those of isolation are nobody's rule."""
        if claim.by is not None and not tier_isolates(tier):
            self.rules.add(claim.by)
            if surely:
                self._taken.append((claim.by, surely))

    def of(self, action: RuleAction) -> _Shares:
        """What rules with this action take."""
        return [(rule, mask) for rule, mask in self._taken if rule.action is action]


class RuleWalk:
    """Every sort of subject, both directions, all ports: which rules ever count, and which undo which."""

    def __init__(self, hypothetical: HypotheticalSnapshot) -> None:
        self.sorts = hypothetical.sorts
        self.model = network_model(hypothetical.snapshot)
        self.classes = EndpointClasses(self.model)
        self.rows = Rows(self.classes, True)
        self.shadows = ShadowProver(self.model)
        self.counted: set[NetworkRule] = set()
        self.clashes: dict[tuple[NetworkRule, NetworkRule], Witness] = {}
        self.allowing: set[NetworkRule] = set()
        self.undone: dict[NetworkRule, dict[NetworkRule, Witness]] = {}
        self.opened: dict[tuple[TieredPolicy, NetworkRule], Witness] = {}

    def findings(self) -> Iterator[Diagnostic]:
        """Everything that the walk shows."""
        seen: set[Any] = set()
        for end_class in self.classes.all:
            subject = end_class.one
            if not subject.under_policy:
                continue
            for direction in Direction:
                stack = self.model.stack(subject, direction)
                key = direction, *((tier, self.rows.seen(tier.policies, subject, direction)) for tier in stack)
                if key not in seen:
                    seen.add(key)
                    self._subject(subject, direction, stack)
        yield from self._equal_priorities()
        yield from self._overridden()
        yield from self._shadowed()

    def _subject(self, subject: Endpoint, direction: Direction, stack: Stack[TieredPolicy]) -> None:
        matched = {tier.name: self.rows.membership.matched(tier, subject, direction) for tier in stack}
        alone = len(self.classes.of(subject).members) == 1
        others = self.classes.everybody & ~(1 << self.classes.of(subject).bit if alone else 0)
        rules = [rule for tier in matched.values() for policy in tier.values() for rule in policy]
        for ports in port_cells(self.rows.ports.everything, rules):
            cell = _ConnectionCell(subject, direction, ports, others)
            taken = _TakenEndpoints({name: RuleEffects(policies, ports) for name, policies in matched.items()})
            evaluate(stack, others, taken.ask, True, taken.watch)
            self.counted |= taken.rules
            for tier in stack:
                if tier.name == TierName.ADMIN:
                    self._clash(cell, matched[tier.name])
                if tier_isolates(tier):
                    self._union(cell, tier, matched[tier.name], taken)

    def _clash(self, cell: _ConnectionCell, policies: Mapping[TieredPolicy, list[MatchedRule]]) -> None:
        """Policies of one priority that would treat the same connection differently."""
        by_priority: dict[int, list[list[MatchedRule]]] = {}
        for policy, rules in policies.items():
            by_priority.setdefault(policy.priority, []).append(rules)
        above = 0
        for priority in sorted(by_priority):
            shares = [_shares(rules, cell.ports, cell.others & ~above) for rules in by_priority[priority]]
            for number, later in enumerate(shares):
                for earlier in shares[:number]:
                    self._compare(cell, earlier, later)
                if len(self.clashes) >= MOST_PAIRS:
                    break
            for share in shares:
                for _, mask in share:
                    above |= mask

    def _compare(self, cell: _ConnectionCell, earlier: _Shares, later: _Shares) -> None:
        for first, mask in earlier:
            for second, other in later:
                both = mask & other
                if both and first.action is not second.action and (first, second) not in self.clashes:
                    self.clashes[first, second] = self._witness(cell, both)

    def _union(
        self,
        cell: _ConnectionCell,
        tier: Tier[TieredPolicy],
        policies: Mapping[TieredPolicy, list[MatchedRule]],
        taken: _TakenEndpoints,
    ) -> None:
        """What tiers above deny of what these policies allow, and allow of what they would drop."""
        permitted = 0
        for matched in (rule for rules in policies.values() for rule in rules):
            mine = matched.on(cell.ports)[0] & cell.others
            permitted |= mine
            for rule, mask in taken.of(RuleAction.DENY):
                if mask & mine:
                    undone = self.undone.setdefault(matched.rule, {})
                    if rule not in undone:
                        undone[rule] = self._witness(cell, mask & mine)
                    mine &= ~mask
            if mine:
                self.allowing.add(matched.rule)
        for rule, mask in taken.of(RuleAction.ALLOW):
            opened = mask & cell.others & ~permitted
            if opened:
                for policy in tier.policies:
                    if (policy, rule) not in self.opened:
                        self.opened[policy, rule] = self._witness(cell, opened)

    def _witness(self, cell: _ConnectionCell, others: int) -> Witness:
        (bit,) = bits(others & -others)
        members = self.classes.all[bit].members
        other = next((member for member in members if member is not cell.subject), members[0])
        first = next(self.rows.ports.ranges(cell.ports & -cell.ports))
        return Witness(cell.subject, other, cell.direction, f"{first.protocol} {first.first}")

    def _words(self, witness: Witness) -> str:
        subject, other = self._end(witness.subject), self._end(witness.other)
        source, destination = witness.direction.connection(subject, other)
        return f"{source} to {destination} on {witness.port}"

    def _end(self, end: Endpoint) -> str:
        sort = self.sorts.get((end.namespace, end.name))
        return str(sort if sort is not None else end)

    def _equal_priorities(self) -> Iterator[Diagnostic]:
        for (first, second), witness in list(self.clashes.items())[:MOST_PAIRS]:
            yield second.resource.diagnostic(
                "TW201",
                f"{second} ({second.action}) and {first} ({first.action}) have the same priority and both match "
                f"{self._words(witness)}; {first.policy.name} goes first by name",
                second.path,
                hint="give one of the two policies another priority",
                related=(("the other rule", first.resource.position(first.path)),),
            )

    def _overridden(self) -> Iterator[Diagnostic]:
        for rule, undone in self.undone.items():
            whole = rule not in self.allowing and bool(self.shadows.denied_before(rule))
            by = ", ".join(str(denying) for denying in list(undone)[:MOST_NAMED])
            witness = next(iter(undone.values()))
            extent = "everything" if whole else "some of what"
            yield rule.resource.diagnostic(
                "TW202" if whole else "TW203",
                f"{by} denies {extent} {rule} allows, such as {self._words(witness)}",
                rule.path,
                related=tuple(("overridden here", denying.resource.position(denying.path)) for denying in undone),
            )
        for (policy, rule), witness in self.opened.items():
            yield policy.resource.diagnostic(
                "TW203",
                f"{rule} allows what {policy.reference} would drop, such as {self._words(witness)}",
                ("spec",),
                related=(("overridden here", rule.resource.position(rule.path)),),
            )

    def _shadowed(self) -> Iterator[Diagnostic]:
        first_match = (tier for tier in self.model.tiers if not tier_isolates(tier))
        for policy in (policy for tier in first_match for policy in tier.policies):
            for rule in policy.all_rules:
                settlers = [] if rule in self.counted else self.shadows.settled_before(rule)
                if settlers:
                    yield self._in_vain(rule, settlers)

    def _in_vain(self, rule: NetworkRule, settlers: list[SettlingPart]) -> Diagnostic:
        names = [settler.decider.short for settler in settlers]
        return rule.resource.diagnostic(
            "TW207",
            f"{rule} can never count: whatever it matches is settled before by {join_names(names, MOST_NAMED)}",
            rule.path,
            related=tuple(
                ("settled here", settler.resource.position(settler.path)) for settler in settlers[:MOST_NAMED]
            ),
        )


def _shares(rules: list[MatchedRule], ports: int, others: int) -> _Shares:
    """What each rule of a policy takes where the policy is asked alone."""
    shares: _Shares = []
    for matched in rules:
        hit = matched.on(ports)[0] & others
        if hit:
            shares.append((matched.rule, hit))
            others &= ~hit
    return shares
