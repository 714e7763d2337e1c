"""Checks of network policies: the mistakes that KEP-2091 asks tools to report ("Risks and Mitigation").

They find subjects and peers that select nothing, namespaces outside every trust domain, and policies that disagree,
override or shadow each other. For the last three, every kind of subject is walked through its tiers. The walk uses
classes of endpoints and ranges of ports, on the pods that exist and on stand-ins for future pods, so that a developer
who sees one namespace still learns which admin policy overrides their rule. A finding gives one connection as an
example; `network_shadowed` proves what is said about all connections.
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
MAX_PAIRS = 50
MAX_NAMED = 5
# The most hypothetical pods that rules are tried on. The search for shadowed rules proves the rest.
MAX_STAND_INS = 240

# Rules, each with the bits of the endpoints that it decides.
_Shares: TypeAlias = list[tuple[NetworkRule, int]]


def network_findings(snapshot: Snapshot) -> Iterator[Diagnostic]:
    """Yield all findings of the network plane."""
    yield from shadow_notes(snapshot)
    model = network_model(snapshot)
    if not model.policies:
        return
    # Refused policies have no effect, and nothing is certain about policies with unknown parts.
    refused = {policy.reference for policy in model.policies if not is_understood(snapshot, policy.resource)}
    walk = RuleWalk(with_stand_ins(snapshot, named_ports=True, limit=MAX_STAND_INS))
    findings = chain(_selecting_nothing(model), _without_tenancy_label(model), walk.findings())
    yield from (finding for finding in findings if finding.reference not in refused)


def _selecting_nothing(model: NetworkModel) -> Iterator[Diagnostic]:
    rows = Rows(EndpointClasses(model), False)
    for policy in model.policies:
        selected = rows.membership.subjects(policy.namespaces, policy.pods)
        if not selected:
            path = ("spec", "podSelector" if policy.tier is TierName.NAMESPACE else "subject")
            yield policy.resource.diagnostic("TW204", f"{policy.reference} selects no pod that exists", path)
            continue
        subjects = [member.representative for member in rows.classes.members(selected)]
        for rule in policy.all_rules:
            for number, peer in enumerate(rule.peers or ()):
                if _selects_endpoints(peer) and not any(
                    rows.membership.matching(peer, subject) for subject in subjects
                ):
                    side = rule.direction.peers_key
                    message = f"{side}[{number}] of {rule} selects no pod or node that exists"
                    yield rule.resource.diagnostic("TW205", message, (*rule.path, side, number))


def _selects_endpoints(peer: Peer) -> bool:
    """Whether a peer selects pods or nodes. Addresses and domain names may be outside the cluster."""
    match peer:
        case PodPeer() | NodePeer():
            return True
        case AddressPeer() | DomainPeer():
            return False
        case _:
            assert_never(peer)


def _compared_keys(peer: Peer) -> tuple[str, ...]:
    """Return the labels that `notSameLabels` of a peer compares; none for other peers."""
    match peer:
        case PodPeer(Related(Relation.NOT_SAME_LABELS, keys)):
            return keys
        case PodPeer() | NodePeer() | AddressPeer() | DomainPeer():
            return ()
        case _:
            assert_never(peer)


def _without_tenancy_label(model: NetworkModel) -> Iterator[Diagnostic]:
    """Find namespaces that `notSameLabels` never selects, and those that the KEP's other wording would select."""
    for policy in model.policies:
        for rule in policy.all_rules:
            for number, peer in enumerate(rule.peers or ()):
                keys = _compared_keys(peer)
                lacking = sorted(
                    name for name, labels in model.namespaces.items() if any(key not in labels for key in keys)
                )
                bare = [name for name in lacking if not any(key in model.namespaces[name] for key in keys)]
                if lacking:
                    side = rule.direction.peers_key
                    shown = ", ".join(f"`{key}`" for key in keys)
                    named = join_names(lacking, MAX_NAMED)
                    message = f"notSameLabels of {rule} never selects namespaces without {shown}: {named}"
                    hint = f"label every namespace with {shown}, or add a rule for those that lack it"
                    if bare:
                        bare_named = join_names(bare, MAX_NAMED)
                        hint += f"; by the KEP's other wording (none of the labels) it would select {bare_named}"
                    yield rule.resource.diagnostic("TW206", message, (*rule.path, side, number), hint=hint)


class Witness(Struct, frozen=True):
    """A connection that is an example of a finding."""

    subject: Endpoint
    other: Endpoint
    direction: Direction
    port: str


class _ConnectionCell(Struct, frozen=True):
    """Connections of one subject in one direction, on ports that all its rules treat alike."""

    subject: Endpoint
    direction: Direction
    ports: int
    others: int


class _TakenEndpoints:
    """The endpoints that rules of first-match tiers decide on one cell of ports, as recorded during evaluation."""

    def __init__(self, effects: Mapping[str, RuleEffects]) -> None:
        self.rules: set[NetworkRule] = set()
        self._effects = effects
        self._taken: _Shares = []

    def effects_of(self, tier: Tier[TieredPolicy], policy: TieredPolicy) -> list[RuleEffect]:
        """Return the effects of the rules of a policy."""
        return self._effects[tier.name](tier, policy)

    def record(self, tier: Tier[TieredPolicy], effect: RuleEffect, surely: int, maybe: int) -> None:
        """Record the effect of a rule. Defaults and isolation have no rule."""
        if effect.by is not None and not tier_isolates(tier):
            self.rules.add(effect.by)
            if surely:
                self._taken.append((effect.by, surely))

    def by_action(self, action: RuleAction) -> _Shares:
        """Return the rules with this action and the endpoints that they decide."""
        return [(rule, mask) for rule, mask in self._taken if rule.action is action]


class RuleWalk:
    """Walks every kind of subject through its tiers, to see which rules ever count and which override which."""

    def __init__(self, hypothetical: HypotheticalSnapshot) -> None:
        self.stand_ins = hypothetical.pods
        self.model = network_model(hypothetical.snapshot)
        self.classes = EndpointClasses(self.model)
        self.rows = Rows(self.classes, True)
        self.shadows = ShadowProver(self.model)
        self.counted: set[NetworkRule] = set()
        self.clashes: dict[tuple[NetworkRule, NetworkRule], Witness] = {}
        self.allowing: set[NetworkRule] = set()
        self.overridden: dict[NetworkRule, dict[NetworkRule, Witness]] = {}
        self.opened: dict[tuple[TieredPolicy, NetworkRule], Witness] = {}

    def findings(self) -> Iterator[Diagnostic]:
        """Yield everything that the walk finds."""
        seen: set[Any] = set()
        for endpoint_class in self.classes.all:
            subject = endpoint_class.representative
            if not subject.under_policy:
                continue
            for direction in Direction:
                stack = self.model.stack(subject, direction)
                key = direction, *((tier, self.rows.seen_by(tier.policies, subject, direction)) for tier in stack)
                if key not in seen:
                    seen.add(key)
                    self._walk(subject, direction, stack)
        yield from self._equal_priorities()
        yield from self._overridden()
        yield from self._shadowed()

    def _walk(self, subject: Endpoint, direction: Direction, stack: Stack[TieredPolicy]) -> None:
        matched = {tier.name: self.rows.membership.matched(tier, subject, direction) for tier in stack}
        alone = len(self.classes.of(subject).members) == 1
        others = self.classes.everybody & ~(1 << self.classes.of(subject).bit if alone else 0)
        rules = [rule for tier in matched.values() for policy in tier.values() for rule in policy]
        for ports in port_cells(self.rows.ports.everything, rules):
            cell = _ConnectionCell(subject, direction, ports, others)
            taken = _TakenEndpoints({name: RuleEffects(policies, ports) for name, policies in matched.items()})
            evaluate(stack, others, taken.effects_of, True, taken.record)
            self.counted |= taken.rules
            for tier in stack:
                if tier.name == TierName.ADMIN:
                    self._clash(cell, matched[tier.name])
                if tier_isolates(tier):
                    self._union(cell, tier, matched[tier.name], taken)

    def _clash(self, cell: _ConnectionCell, policies: Mapping[TieredPolicy, list[MatchedRule]]) -> None:
        """Find policies of equal priority that decide the same connection differently."""
        by_priority: dict[int, list[list[MatchedRule]]] = {}
        for policy, rules in policies.items():
            by_priority.setdefault(policy.priority, []).append(rules)
        above = 0
        for priority in sorted(by_priority):
            shares = [_shares(rules, cell.ports, cell.others & ~above) for rules in by_priority[priority]]
            for number, later in enumerate(shares):
                for earlier in shares[:number]:
                    self._compare(cell, earlier, later)
                if len(self.clashes) >= MAX_PAIRS:
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
        """Find connections that these policies allow and tiers above deny, and those that only tiers above allow."""
        permitted = 0
        for matched in (rule for rules in policies.values() for rule in rules):
            allowed = matched.on(cell.ports)[0] & cell.others
            permitted |= allowed
            for rule, mask in taken.by_action(RuleAction.DENY):
                if mask & allowed:
                    overriding = self.overridden.setdefault(matched.rule, {})
                    if rule not in overriding:
                        overriding[rule] = self._witness(cell, mask & allowed)
                    allowed &= ~mask
            if allowed:
                self.allowing.add(matched.rule)
        for rule, mask in taken.by_action(RuleAction.ALLOW):
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

    def _connection(self, witness: Witness) -> str:
        subject, other = self._name(witness.subject), self._name(witness.other)
        source, destination = witness.direction.connection(subject, other)
        return f"{source} to {destination} on {witness.port}"

    def _name(self, endpoint: Endpoint) -> str:
        stand_in = self.stand_ins.get((endpoint.namespace, endpoint.name))
        return str(endpoint if stand_in is None else stand_in)

    def _equal_priorities(self) -> Iterator[Diagnostic]:
        for (first, second), witness in list(self.clashes.items())[:MAX_PAIRS]:
            yield second.resource.diagnostic(
                "TW201",
                f"{second} ({second.action}) and {first} ({first.action}) have the same priority and both match "
                f"{self._connection(witness)}; {first.policy.name} goes first by name",
                second.path,
                hint="give one of the two policies another priority",
                related=(("the other rule", first.resource.position(first.path)),),
            )

    def _overridden(self) -> Iterator[Diagnostic]:
        for rule, overriding in self.overridden.items():
            whole = rule not in self.allowing and bool(self.shadows.denied_before(rule))
            by = ", ".join(str(denying) for denying in list(overriding)[:MAX_NAMED])
            witness = next(iter(overriding.values()))
            extent = "everything" if whole else "some of what"
            yield rule.resource.diagnostic(
                "TW202" if whole else "TW203",
                f"{by} denies {extent} {rule} allows, such as {self._connection(witness)}",
                rule.path,
                related=tuple(("overridden here", denying.resource.position(denying.path)) for denying in overriding),
            )
        for (policy, rule), witness in self.opened.items():
            yield policy.resource.diagnostic(
                "TW203",
                f"{rule} allows what {policy.reference} would drop, such as {self._connection(witness)}",
                ("spec",),
                related=(("overridden here", rule.resource.position(rule.path)),),
            )

    def _shadowed(self) -> Iterator[Diagnostic]:
        first_match = (tier for tier in self.model.tiers if not tier_isolates(tier))
        for policy in (policy for tier in first_match for policy in tier.policies):
            for rule in policy.all_rules:
                settlers = [] if rule in self.counted else self.shadows.settled_before(rule)
                if settlers:
                    yield self._shadowed_finding(rule, settlers)

    def _shadowed_finding(self, rule: NetworkRule, settlers: list[SettlingPart]) -> Diagnostic:
        names = [settler.decider.short for settler in settlers]
        return rule.resource.diagnostic(
            "TW207",
            f"{rule} can never count: whatever it matches is settled before by {join_names(names, MAX_NAMED)}",
            rule.path,
            related=tuple(
                ("settled here", settler.resource.position(settler.path)) for settler in settlers[:MAX_NAMED]
            ),
        )


def _shares(rules: list[MatchedRule], ports: int, others: int) -> _Shares:
    """Return the endpoints that each rule of a policy would decide if it were the only policy."""
    shares: _Shares = []
    for matched in rules:
        hit = matched.on(ports)[0] & others
        if hit:
            shares.append((matched.rule, hit))
            others &= ~hit
    return shares
