"""Every sort of subject walked through its tiers: which policies disagree, override or shadow each other.

Everything is asked of classes of ends and pieces of ports, on the pods that exist and on stand-ins for pods that may
come, so that a developer who sees one namespace still learns which admin policy overrides a rule of theirs. Each
finding about a connection names one as a witness; what is said of all connections, `network_shadowed` has proved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tierwall.analyze.network_shadowed import Settler, Shadows
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.outcome import Claim
from tierwall.core.stack import Stack, Tier, fall
from tierwall.core.words import listed
from tierwall.network.hypothetical import Hypothetical
from tierwall.network.model.ends import End
from tierwall.network.model.model import model
from tierwall.network.model.rules import Action, Direction, Policy, Rule, TierName, isolates
from tierwall.network.reach.claims import Claims, Matched, cells
from tierwall.network.reach.classes import Classes, bits
from tierwall.network.reach.rows import Rows

# Findings about pairs of policies are capped: a thousand policies of one priority are one mistake, not half a million.
MOST_PAIRS = 50
MOST_NAMED = 5


class Witness(NamedTuple):
    """A connection that shows a finding."""

    subject: End
    other: End
    direction: Direction
    port: str


class _Taken:
    """What the rules of first-match tiers take of one cell of ports, as the walk tells it."""

    def __init__(self, claims: Mapping[str, Claims]) -> None:
        self.rules: set[Rule] = set()
        self._claims = claims
        self._taken: list[tuple[Rule, int]] = []

    def ask(self, tier: Tier[Policy], policy: Policy) -> list[Claim]:
        """The claims of one policy."""
        return self._claims[tier.name](tier, policy)

    def watch(self, tier: Tier[Policy], claim: Claim, surely: int, maybe: int) -> None:
        """Note a claim; the default's and those of isolation are nobody's rule."""
        if claim.by is not None and not isolates(tier):
            self.rules.add(claim.by)
            if surely:
                self._taken.append((claim.by, surely))

    def of(self, action: Action) -> list[tuple[Rule, int]]:
        """What rules with this action take."""
        return [(rule, mask) for rule, mask in self._taken if rule.action is action]


class Walk:
    """Every sort of subject, both directions, all ports: which rules ever count, and which undo which."""

    def __init__(self, hypothetical: Hypothetical) -> None:
        self.sorts = hypothetical.sorts
        self.model = model(hypothetical.snapshot)
        self.classes = Classes(self.model)
        self.rows = Rows(self.classes, True)
        self.priorities = {policy: policy.priority for policy in self.model.policies}
        self.shadows = Shadows(self.model)
        self.counted: set[Rule] = set()
        self.clashes: dict[tuple[Rule, Rule], Witness] = {}
        self.allowing: set[Rule] = set()
        self.undone: dict[Rule, dict[Rule, Witness]] = {}
        self.opened: dict[tuple[Policy, Rule], Witness] = {}

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

    def _subject(self, subject: End, direction: Direction, stack: Stack[Policy]) -> None:
        matched = {tier.name: self.rows.matched(tier, subject, direction) for tier in stack}
        everybody = self.classes.everybody & ~(1 << self.classes.of(subject).bit if self._alone(subject) else 0)
        rules = [rule for tier in matched.values() for policy in tier.values() for rule in policy]
        for ports in cells(self.rows.ports.everything, rules):
            taken = _Taken({name: Claims(policies, ports) for name, policies in matched.items()})
            fall(stack, everybody, taken.ask, True, taken.watch)
            self.counted |= taken.rules
            for tier in stack:
                if tier.name == TierName.ADMIN:
                    self._clash(matched[tier.name], ports, everybody, subject, direction)
                if isolates(tier):
                    self._union(tier, matched[tier.name], ports, everybody, taken, subject, direction)

    def _alone(self, subject: End) -> bool:
        return len(self.classes.of(subject).members) == 1

    def _clash(
        self,
        policies: Mapping[Policy, list[Matched]],
        ports: int,
        everybody: int,
        subject: End,
        direction: Direction,
    ) -> None:
        """Policies of one priority that would treat the same connection differently."""
        by_priority: dict[int, list[list[Matched]]] = {}
        for policy, rules in policies.items():
            by_priority.setdefault(self.priorities[policy], []).append(rules)
        above = 0
        for priority in sorted(by_priority):
            members = by_priority[priority]
            shares = [self._own_shares(rules, ports, everybody & ~above) for rules in members]
            for number, (later, _) in enumerate(shares):
                for earlier, _ in shares[:number]:
                    self._compare(earlier, later, ports, subject, direction)
                if len(self.clashes) >= MOST_PAIRS:
                    break
            for _, settled in shares:
                above |= settled

    def _own_shares(self, rules: list[Matched], ports: int, start: int) -> tuple[list[tuple[Rule, int]], int]:
        rest, out = start, []
        for matched in rules:
            hit = matched.on(ports)[0] & rest
            if hit:
                out.append((matched.rule, hit))
                rest &= ~hit
        return out, start & ~rest

    def _compare(
        self,
        earlier: list[tuple[Rule, int]],
        later: list[tuple[Rule, int]],
        ports: int,
        subject: End,
        direction: Direction,
    ) -> None:
        for first, mask in earlier:
            for second, other in later:
                both = mask & other
                if both and first.action is not second.action and (first, second) not in self.clashes:
                    self.clashes[first, second] = self._witness(subject, both, direction, ports)

    def _union(
        self,
        tier: Tier[Policy],
        policies: Mapping[Policy, list[Matched]],
        ports: int,
        everybody: int,
        taken: _Taken,
        subject: End,
        direction: Direction,
    ) -> None:
        """What tiers above deny of what these policies allow, and allow of what they would drop."""
        permitted = 0
        for matched in (rule for rules in policies.values() for rule in rules):
            mine = matched.on(ports)[0] & everybody
            permitted |= mine
            for rule, mask in taken.of(Action.DENY):
                if mask & mine:
                    undone = self.undone.setdefault(matched.rule, {})
                    if rule not in undone:
                        undone[rule] = self._witness(subject, mask & mine, direction, ports)
                    mine &= ~mask
            if mine:
                self.allowing.add(matched.rule)
        for rule, mask in taken.of(Action.ALLOW):
            opened = mask & everybody & ~permitted
            if opened:
                for policy in tier.policies:
                    if (policy, rule) not in self.opened:
                        self.opened[policy, rule] = self._witness(subject, opened, direction, ports)

    def _witness(self, subject: End, others: int, direction: Direction, ports: int) -> Witness:
        (bit,) = bits(others & -others)
        members = self.classes.all[bit].members
        other = next((member for member in members if member is not subject), members[0])
        first = next(self.rows.ports.ranges(ports & -ports))
        return Witness(subject, other, direction, f"{first.protocol} {first.first}")

    def _words(self, witness: Witness) -> str:
        subject, other = self._end(witness.subject), self._end(witness.other)
        source, destination = witness.direction.connection(subject, other)
        return f"{source} to {destination} on {witness.port}"

    def _end(self, end: End) -> str:
        sort = self.sorts.get((end.namespace, end.name))
        return str(sort if sort is not None else end)

    def _equal_priorities(self) -> Iterator[Diagnostic]:
        for (first, second), witness in list(self.clashes.items())[:MOST_PAIRS]:
            yield Diagnostic(
                "TW201",
                f"{second} ({second.action}) and {first} ({first.action}) have the same priority and both match "
                f"{self._words(witness)}; {first.policy.name} goes first by name",
                second.resource.position(second.path),
                hint="give one of the two policies another priority",
                reference=second.policy,
                related=(("the other rule", first.resource.position(first.path)),),
            )

    def _overridden(self) -> Iterator[Diagnostic]:
        for rule, undone in self.undone.items():
            whole = rule not in self.allowing and bool(self.shadows.denied_before(rule))
            by = ", ".join(str(denying) for denying in list(undone)[:MOST_NAMED])
            witness = next(iter(undone.values()))
            extent = "everything" if whole else "some of what"
            yield Diagnostic(
                "TW202" if whole else "TW203",
                f"{by} denies {extent} {rule} allows, such as {self._words(witness)}",
                rule.resource.position(rule.path),
                reference=rule.policy,
                related=tuple(("overridden here", denying.resource.position(denying.path)) for denying in undone),
            )
        for (policy, rule), witness in self.opened.items():
            yield Diagnostic(
                "TW203",
                f"{rule} allows what {policy.reference} would drop, such as {self._words(witness)}",
                policy.resource.position(("spec",)),
                reference=policy.reference,
                related=(("overridden here", rule.resource.position(rule.path)),),
            )

    def _shadowed(self) -> Iterator[Diagnostic]:
        first_match = (tier for tier in self.model.tiers if not isolates(tier))
        for policy in (policy for tier in first_match for policy in tier.policies):
            for rule in (*(policy.egress or ()), *(policy.ingress or ())):
                settlers = [] if rule in self.counted else self.shadows.settled_before(rule)
                if settlers:
                    yield self._in_vain(rule, settlers)

    def _in_vain(self, rule: Rule, settlers: list[Settler]) -> Diagnostic:
        names = [settler.decider.short for settler in settlers]
        return Diagnostic(
            "TW207",
            f"{rule} can never count: whatever it matches is settled before by {listed(names, MOST_NAMED)}",
            rule.resource.position(rule.path),
            reference=rule.policy,
            related=tuple(
                ("settled here", settler.resource.position(settler.path)) for settler in settlers[:MOST_NAMED]
            ),
        )
