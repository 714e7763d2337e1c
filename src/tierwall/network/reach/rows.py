"""One row of the matrix: what a class may send (egress) or take (ingress), for all other classes and all ports at once.

The same fall through the tiers as `decide`, on sets: the ports are first cut into cells that the rules about this
class do not tell apart; in each cell every rule takes its share of the classes that no rule before it has taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from tierwall.core.verdict import Verdict
from tierwall.network.model.ends import End
from tierwall.network.model.matching import covered, domains
from tierwall.network.model.model import Stack
from tierwall.network.model.rules import (
    Action,
    Direction,
    DomainPeer,
    NamedPort,
    PodPeer,
    Policy,
    PortRange,
    Related,
    Relation,
    Rule,
    Tier,
)
from tierwall.network.outcome import DEFAULT_ALLOW, NOT_APPLICABLE, VERDICTS, Outcome, either
from tierwall.network.reach.classes import Classes, EndClass
from tierwall.network.reach.membership import Membership
from tierwall.network.reach.portspace import PortSpace

# Disjoint sets of classes by outcome.
Parts: TypeAlias = tuple[tuple[Outcome, int], ...]


class Cell(NamedTuple):
    """Ports that are treated alike, and how each class fares on them; together the parts are everybody."""

    ports: int
    parts: Parts


# Cells with disjoint ports that together are all ports.
Row: TypeAlias = tuple[Cell, ...]

ALLOW, DENY = Outcome(Verdict.ALLOW, None), Outcome(Verdict.DENY, None)


class _Matched(NamedTuple):
    """What a rule about one subject matches: ports outright, or ports on some classes only; classes surely or maybe."""

    rule: Rule
    ports: int
    named: tuple[tuple[int, int], ...]
    surely: int
    maybe: int

    def on(self, ports: int) -> tuple[int, int]:
        """The classes it matches, and may match, on a cell of ports."""
        if ports & self.ports:
            return self.surely, self.maybe
        where = 0
        for named, classes in self.named:
            if ports & named:
                where |= classes
        return self.surely & where, self.maybe & where


class Rows:
    """All rows of a model; classes about which the same rules say the same share one.

    With `why`, outcomes name the deciding rules; without, only verdicts (and domain names) are told apart.
    """

    def __init__(self, classes: Classes, why: bool) -> None:
        self.classes = classes
        self.membership = Membership(classes)
        self.why = why
        attention = classes.attention
        named = {
            PortRange(protocol, number, number)
            for one in classes.all
            for name, pairs in one.one.named_ports.items()
            if name in attention.named_ports
            for protocol, number in pairs
        }
        self.ports = PortSpace(attention.port_ranges | named)
        self._named_ports: dict[str, list[tuple[tuple[tuple[str, int], ...], int]]] = {}
        self._rows: dict[Any, Row] = {}
        self._own: dict[Row, Row] = {}
        outcome = NOT_APPLICABLE if why else ALLOW
        self._free: Row = (Cell(self.ports.everything, ((outcome, classes.everybody),)),)

    def row(self, one: EndClass, direction: Direction) -> Row:
        """The row of one class in one direction; equal rows are the same object."""
        subject = one.one
        if not subject.under_policy:
            return self._free
        stack = self.classes.model.stack(subject, direction)
        key = direction, stack.admin, stack.namespace, stack.baseline, self._context(stack, subject, direction)
        found = self._rows.get(key)
        if found is None:
            row = self._compute(stack, subject, direction)
            found = self._rows[key] = self._own.setdefault(row, row)
        return found

    def _context(self, stack: Stack, subject: End, direction: Direction) -> Any:
        """What of the subject its rules look at: its namespace, namespace labels, and (as destination) port names."""
        out: dict[Any, Any] = {}
        for policy in (*stack.admin, *stack.namespace, *stack.baseline):
            for rule in policy.rules(direction) or ():
                for peer in rule.peers or ():
                    if isinstance(peer, PodPeer) and isinstance(peer.namespaces, Related):
                        if peer.namespaces.relation in (Relation.SELF, Relation.NOT_SELF):
                            out[""] = subject.namespace
                        for key in peer.namespaces.keys:
                            out[key] = subject.namespace_labels.get(key)
                for port in rule.ports or ():
                    if isinstance(port, NamedPort) and direction is Direction.INGRESS:
                        out[port.name,] = subject.named_ports.get(port.name)
        return tuple(sorted(out.items(), key=str))

    def _compute(self, stack: Stack, subject: End, direction: Direction) -> Row:
        tiers = [
            [self._matched(rule, subject, direction) for policy in policies for rule in policy.rules(direction) or ()]
            for policies in (stack.admin, stack.namespace, stack.baseline)
        ]
        masks = {mask for tier in tiers for one in tier for mask in (one.ports, *(ports for ports, _ in one.named))}
        cells: dict[Parts, int] = {}
        for ports in _cut(self.ports.everything, masks):
            parts = _Cell(self, ports, tiers, stack.namespace).parts()
            cells[parts] = cells.get(parts, 0) | ports
        return tuple(sorted(Cell(ports, parts) for parts, ports in cells.items()))

    def _matched(self, rule: Rule, subject: End, direction: Direction) -> _Matched:
        surely, maybe = 0, 0
        if rule.peers is None:
            surely = self.classes.everybody
        for peer in rule.peers or ():
            if isinstance(peer, DomainPeer):
                maybe = self.classes.addressed
            else:
                surely |= self.membership.matching(peer, subject)
        ports, named = (self.ports.everything, ()) if rule.ports is None else self._ports(rule, subject, direction)
        return _Matched(rule, ports, named, surely, maybe & ~surely)

    def _ports(self, rule: Rule, subject: End, direction: Direction) -> tuple[int, tuple[tuple[int, int], ...]]:
        ports, named = 0, []
        for entry in rule.ports or ():
            if not isinstance(entry, NamedPort):
                ports |= self.ports.mask(entry)
            elif direction is Direction.INGRESS:
                ports |= self._resolved(entry, subject.named_ports.get(entry.name, ()))
            else:
                if entry.name not in self._named_ports:
                    self._named_ports[entry.name] = list(self.membership.named_ports(entry.name).items())
                for pairs, classes in self._named_ports[entry.name]:
                    if resolved := self._resolved(entry, pairs):
                        named.append((resolved, classes))
        return ports, tuple(named)

    def _resolved(self, entry: NamedPort, pairs: Iterable[tuple[str, int]]) -> int:
        out = 0
        for protocol, number in pairs:
            if entry.protocol in ("", protocol):
                out |= self.ports.mask(PortRange(protocol, number, number))
        return out


class _Cell:
    """One cell of ports: all classes fall through the tiers together."""

    def __init__(self, rows: Rows, ports: int, tiers: list[list[_Matched]], isolating: tuple[Policy, ...]) -> None:
        self.ports = ports
        self.why = rows.why
        self.everybody = rows.classes.everybody
        self.admin, self.namespace, self.baseline = tiers
        self.isolating = isolating

    def parts(self) -> Parts:
        found = self._first_match(self.admin, Tier.ADMIN, self.everybody, self._below_admin)
        # By verdict and first member, so that equal rows are written alike.
        return tuple(sorted(found.items(), key=lambda item: (item[0].verdict, item[1] & -item[1])))

    def _below_admin(self, those: int) -> dict[Outcome, int]:
        if self.isolating:
            return self._union(those)
        return self._first_match(self.baseline, Tier.BASELINE, those, self._default)

    def _default(self, those: int) -> dict[Outcome, int]:
        return {DEFAULT_ALLOW if self.why else ALLOW: those}

    def _first_match(
        self, tier: list[_Matched], name: Tier, those: int, next_tier: Callable[[int], dict[Outcome, int]]
    ) -> dict[Outcome, int]:
        rest, passed, may_pass = those, 0, 0
        out: dict[Outcome, int] = {}
        uncertain: list[tuple[Rule, int]] = []
        asked: list[tuple[tuple[str, ...], int]] = []
        for one in tier:
            surely, maybe = one.on(self.ports)
            hit = rest & surely
            if hit:
                rest ^= hit
                if one.rule.action is Action.PASS:
                    passed |= hit
                else:
                    _put(out, self._outcome(one.rule, name), hit)
            # What the rule surely matches is settled whatever DNS says, so only the rest can still be uncertain.
            maybe &= rest
            if maybe and (fresh := maybe & ~_covered(domains(one.rule), asked)):
                uncertain.append((one.rule, fresh))
                asked.append((domains(one.rule), fresh))
                if one.rule.action is Action.PASS:
                    may_pass |= fresh
            if not rest:
                break
        below = next_tier(rest | passed | may_pass) if rest | passed | may_pass else {}
        for outcome, mask in below.items():
            if mask & (rest | passed):
                _put(out, outcome, mask & (rest | passed))
        for rule, mask in reversed(uncertain):
            out = self._uncertain(out, rule, mask, below)
        return out

    def _uncertain(
        self, found: dict[Outcome, int], rule: Rule, mask: int, below: dict[Outcome, int]
    ) -> dict[Outcome, int]:
        out: dict[Outcome, int] = {}
        for outcome, those in found.items():
            if those & ~mask:
                _put(out, outcome, those & ~mask)
            if rule.action is not Action.PASS:
                if those & mask:
                    _put(out, self._plain(either(outcome, rule, None)), those & mask)
                continue
            for lower, where in below.items():
                if those & mask & where:
                    _put(out, self._plain(either(outcome, rule, lower)), those & mask & where)
        return out

    def _union(self, those: int) -> dict[Outcome, int]:
        """NetworkPolicies: who some rule allows, and everybody else."""
        allowing: dict[tuple[Rule, ...], int] = {(): those}
        for one in self.namespace:
            surely, _ = one.on(self.ports)
            split: dict[tuple[Rule, ...], int] = {}
            for rules, mask in allowing.items():
                if mask & surely:
                    _put(split, (*rules, one.rule) if self.why else (one.rule,), mask & surely)
                if mask & ~surely:
                    _put(split, rules, mask & ~surely)
            allowing = split if self.why else _two(split)
        out: dict[Outcome, int] = {}
        for rules, mask in allowing.items():
            if rules:
                _put(out, Outcome(Verdict.ALLOW, Tier.NAMESPACE, rules) if self.why else ALLOW, mask)
            else:
                _put(out, Outcome(Verdict.DENY, Tier.NAMESPACE, self.isolating) if self.why else DENY, mask)
        return out

    def _outcome(self, rule: Rule, tier: Tier) -> Outcome:
        if self.why:
            return Outcome(VERDICTS[rule.action], tier, (rule,))
        return ALLOW if rule.action is Action.ALLOW else DENY

    def _plain(self, outcome: Outcome) -> Outcome:
        return outcome if self.why else Outcome(outcome.verdict, None, (), outcome.domains)


def _put(into: dict[Any, int], key: Any, mask: int) -> None:
    into[key] = into.get(key, 0) | mask


def _two(allowing: dict[tuple[Rule, ...], int]) -> dict[tuple[Rule, ...], int]:
    """Without the reasons only two sets matter: who is allowed by some rule (any stands for all), and who is not."""
    allowed = 0
    some: tuple[Rule, ...] = ()
    for rules, mask in allowing.items():
        if rules:
            some, allowed = rules, allowed | mask
    return {key: mask for key, mask in (((), allowing.get((), 0)), (some, allowed)) if mask}


def _covered(names: tuple[str, ...], asked: list[tuple[tuple[str, ...], int]]) -> int:
    """The classes for which every name is covered by a name that an earlier rule asked about."""
    out = -1
    for name in names:
        found = 0
        for earlier, mask in asked:
            if covered(name, earlier):
                found |= mask
        out &= found
    return out if names else 0


def _cut(everything: int, masks: Iterable[int]) -> list[int]:
    """All ports, cut into the coarsest pieces that each mask holds whole or not at all."""
    pieces = [everything]
    for mask in sorted(set(masks)):
        if mask not in (0, everything):
            pieces = [part for piece in pieces for part in (piece & mask, piece & ~mask) if part]
    return pieces
