"""Every sort of subject walked through its tiers: which policies disagree, override or shadow each other.

Everything is asked of classes of ends and pieces of ports, on the pods that exist and on stand-ins for pods that may
come, so that a developer who sees one namespace still learns which admin policy overrides a rule of theirs. Each
finding about a connection names one as a witness; what is said of all connections, `network_shadowed` has proved.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tierwall.analyze.network_shadowed import Settler, Shadows
from tierwall.core.diagnostics import Diagnostic
from tierwall.network.hypothetical import Hypothetical
from tierwall.network.model.ends import End
from tierwall.network.model.model import model
from tierwall.network.model.rules import Action, Direction, Policy, Rule
from tierwall.network.reach.classes import Classes, bits
from tierwall.network.reach.rows import Rows
from tierwall.network.reach.tiers import Matched, cells

# Findings about pairs of policies are capped: a thousand policies of one priority are one mistake, not half a million.
MOST_PAIRS = 50
MOST_NAMED = 5


def some(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


class Witness(NamedTuple):
    """A connection that shows a finding."""

    subject: End
    other: End
    direction: Direction
    port: str


class Walk:
    """Every sort of subject, both directions, all ports: which rules ever count, and which undo which."""

    def __init__(self, hypothetical: Hypothetical) -> None:
        self.sorts = hypothetical.sorts
        self.model = model(hypothetical.snapshot)
        self.classes = Classes(self.model)
        self.rows = Rows(self.classes, True)
        self.priorities = {id(policy.resource): policy.priority for policy in self.model.admin}
        self.shadows = Shadows(self.model)
        self.counted: set[Rule] = set()
        self.clashes: dict[tuple[Rule, Rule], Witness] = {}
        self.allowing: set[Rule] = set()
        self.undone: dict[Rule, dict[Rule, Witness]] = {}
        self.opened: dict[tuple[Policy, Rule], Witness] = {}

    def findings(self) -> Iterator[Diagnostic]:
        """Everything that the walk shows."""
        seen: set[Any] = set()
        for one in self.classes.all:
            if not one.one.under_policy:
                continue
            for direction in Direction:
                stack = self.model.stack(one.one, direction)
                lists = stack.admin, stack.namespace, stack.baseline
                key = direction, *((id(found), self.rows.seen(found, one.one, direction)) for found in lists)
                if key not in seen:
                    seen.add(key)
                    self._subject(one.one, direction)
        yield from self._equal_priorities()
        yield from self._overridden()
        yield from self._shadowed()

    def _subject(self, subject: End, direction: Direction) -> None:
        stack = self.model.stack(subject, direction)
        admin = self.rows.matched(stack.admin, subject, direction)
        namespace = self.rows.matched(stack.namespace, subject, direction)
        baseline = self.rows.matched(stack.baseline, subject, direction)
        everybody = self.classes.everybody & ~(1 << self.classes.of(subject).bit if self._alone(subject) else 0)
        for ports in cells(self.rows.ports.everything, [*admin, *namespace, *baseline]):
            rest, denied, allowed = self._first_match(admin, ports, everybody)
            self._clash(admin, ports, everybody, subject, direction)
            if stack.namespace:
                self._union(stack.namespace, namespace, ports, (everybody, denied, allowed), subject, direction)
            else:
                self._first_match(baseline, ports, rest)

    def _alone(self, subject: End) -> bool:
        return len(self.classes.of(subject).members) == 1

    def _first_match(
        self, rules: list[Matched], ports: int, start: int
    ) -> tuple[int, list[tuple[Rule, int]], list[tuple[Rule, int]]]:
        """Who is left, and what each denying and allowing rule took; notes which rules count."""
        rest, passed = start, 0
        taken: list[tuple[Rule, int]] = []
        for matched in rules:
            surely, maybe = matched.on(ports)
            if (surely | maybe) & rest:
                self.counted.add(matched.rule)
            hit = surely & rest
            rest &= ~hit
            if hit:
                taken.append((matched.rule, hit))
                passed |= hit if matched.rule.action is Action.PASS else 0
        denied = [(rule, mask) for rule, mask in taken if rule.action is Action.DENY]
        allowed = [(rule, mask) for rule, mask in taken if rule.action is Action.ALLOW]
        return rest | passed, denied, allowed

    def _clash(self, admin: list[Matched], ports: int, everybody: int, subject: End, direction: Direction) -> None:
        """Policies of one priority that would treat the same connection differently."""
        by_priority: dict[int, dict[int, list[Matched]]] = {}
        for matched in admin:
            priority = self.priorities[id(matched.rule.resource)]
            by_priority.setdefault(priority, {}).setdefault(id(matched.rule.resource), []).append(matched)
        above = 0
        for priority in sorted(by_priority):
            members = list(by_priority[priority].values())
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
        isolating: tuple[Policy, ...],
        rules: list[Matched],
        ports: int,
        admin: tuple[int, list[tuple[Rule, int]], list[tuple[Rule, int]]],
        subject: End,
        direction: Direction,
    ) -> None:
        everybody, denied, allowed = admin
        permitted = 0
        for matched in rules:
            mine = matched.on(ports)[0] & everybody
            permitted |= mine
            for rule, mask in denied:
                if mask & mine:
                    undone = self.undone.setdefault(matched.rule, {})
                    if rule not in undone:
                        undone[rule] = self._witness(subject, mask & mine, direction, ports)
                    mine &= ~mask
            if mine:
                self.allowing.add(matched.rule)
        for rule, mask in allowed:
            opened = mask & everybody & ~permitted
            if opened:
                for policy in isolating:
                    if (policy, rule) not in self.opened:
                        self.opened[policy, rule] = self._witness(subject, opened, direction, ports)

    def _witness(self, subject: End, others: int, direction: Direction, ports: int) -> Witness:
        (bit,) = bits(others & -others)
        members = self.classes.all[bit].members
        other = next((one for one in members if one is not subject), members[0])
        first = next(self.rows.ports.ranges(ports & -ports))
        return Witness(subject, other, direction, f"{first.protocol} {first.first}")

    def _words(self, witness: Witness) -> str:
        subject, other = self._end(witness.subject), self._end(witness.other)
        source, destination = (subject, other) if witness.direction is Direction.EGRESS else (other, subject)
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
                subject=second.policy,
                related=(("the other rule", first.resource.position(first.path)),),
            )

    def _overridden(self) -> Iterator[Diagnostic]:
        for rule, undone in self.undone.items():
            whole = rule not in self.allowing and bool(self.shadows.denied_before(rule))
            by = ", ".join(str(one) for one in list(undone)[:MOST_NAMED])
            witness = next(iter(undone.values()))
            extent = "everything" if whole else "some of what"
            yield Diagnostic(
                "TW202" if whole else "TW203",
                f"{by} denies {extent} {rule} allows, such as {self._words(witness)}",
                rule.resource.position(rule.path),
                subject=rule.policy,
                related=tuple(("overridden here", one.resource.position(one.path)) for one in undone),
            )
        for (policy, rule), witness in self.opened.items():
            yield Diagnostic(
                "TW203",
                f"{rule} allows what {policy.reference} would drop, such as {self._words(witness)}",
                policy.resource.position(("spec",)),
                subject=policy.reference,
                related=(("overridden here", rule.resource.position(rule.path)),),
            )

    def _shadowed(self) -> Iterator[Diagnostic]:
        for policy in (*self.model.admin, *self.model.baseline):
            for rule in (*(policy.egress or ()), *(policy.ingress or ())):
                settlers = [] if rule in self.counted else self.shadows.settled_before(rule)
                if settlers:
                    yield self._in_vain(rule, settlers)

    def _in_vain(self, rule: Rule, settlers: list[Settler]) -> Diagnostic:
        names = [str(one) if isinstance(one, Rule) else str(one.reference) for one in settlers]
        return Diagnostic(
            "TW207",
            f"{rule} can never count: whatever it matches is settled before by {some(names)}",
            rule.resource.position(rule.path),
            subject=rule.policy,
            related=tuple(
                ("settled here", one.resource.position(one.path if isinstance(one, Rule) else ("spec",)))
                for one in settlers[:MOST_NAMED]
            ),
        )
