"""One tier on sets: how a list of rules shares out all classes, for every cell of ports they do not tell apart.

What a tier says depends only on its policies and on what they see of the subject, so it is worked out once for all
classes with the same policies; a row then only puts its tiers together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from tierwall.core.verdict import Verdict
from tierwall.network.model.matching import covered, domains
from tierwall.network.model.rules import Action, Policy, Rule, Tier
from tierwall.network.outcome import VERDICTS, Outcome, either

# Disjoint sets of classes by outcome.
Parts: TypeAlias = tuple[tuple[Outcome, int], ...]

ALLOW, DENY = Outcome(Verdict.ALLOW, None), Outcome(Verdict.DENY, None)


class Matched(NamedTuple):
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


class Shares(NamedTuple):
    """A first-match tier on a cell of ports: who is settled how, who goes on, and which domain rules may intervene."""

    settled: Parts
    onward: int
    uncertain: tuple[tuple[Rule, int], ...]


def cells(everything: int, rules: Iterable[Matched]) -> list[int]:
    """All ports, cut into the coarsest pieces that each rule holds whole or not at all."""
    pieces = [everything]
    masks = {mask for one in rules for mask in (one.ports, *(ports for ports, _ in one.named))}
    for mask in sorted(masks):
        if mask not in (0, everything):
            pieces = [part for piece in pieces for part in (piece & mask, piece & ~mask) if part]
    return pieces


def first_match(rules: Sequence[Matched], tier: Tier, ports: int, everybody: int, why: bool) -> Shares:
    """Admin and Baseline: every rule takes its share of the classes that no rule before it has taken."""
    rest, passed = everybody, 0
    settled: dict[Outcome, int] = {}
    uncertain: list[tuple[Rule, int]] = []
    asked: list[tuple[tuple[str, ...], int]] = []
    for one in rules:
        surely, maybe = one.on(ports)
        hit = rest & surely
        if hit:
            rest ^= hit
            if one.rule.action is Action.PASS:
                passed |= hit
            elif why:
                put(settled, Outcome(VERDICTS[one.rule.action], tier, (one.rule,)), hit)
            else:
                put(settled, ALLOW if one.rule.action is Action.ALLOW else DENY, hit)
        # What the rule surely matches is settled whatever DNS says, so only the rest can still be uncertain.
        maybe &= rest
        if maybe and (fresh := maybe & ~_covered(domains(one.rule), asked)):
            uncertain.append((one.rule, fresh))
            asked.append((domains(one.rule), fresh))
        if not rest:
            break
    return Shares(tuple(settled.items()), rest | passed, tuple(uncertain))


def onward(shares: Shares, below: Parts, why: bool) -> Parts:
    """A first-match tier with what lies below it: who goes on gets the outcome there."""
    out = dict(shares.settled)
    for outcome, mask in below:
        if mask & shares.onward:
            put(out, outcome, mask & shares.onward)
    # From the last to the first: each is asked before all that an outcome so far already stands for.
    for rule, mask in reversed(shares.uncertain):
        out = _uncertain(out, rule, mask, below, why)
    return in_order(out)


def union(rules: Sequence[Matched], isolating: tuple[Policy, ...], ports: int, everybody: int, why: bool) -> Parts:
    """NetworkPolicies: who some rule allows, and everybody else."""
    if not why:
        allowed = 0
        for one in rules:
            allowed |= one.on(ports)[0]
        return in_order({ALLOW: allowed, DENY: everybody & ~allowed})
    allowing: dict[tuple[Rule, ...], int] = {(): everybody}
    for one in rules:
        surely, _ = one.on(ports)
        split: dict[tuple[Rule, ...], int] = {}
        for by, mask in allowing.items():
            if mask & surely:
                put(split, (*by, one.rule), mask & surely)
            if mask & ~surely:
                put(split, by, mask & ~surely)
        allowing = split
    return in_order(
        {
            Outcome(Verdict.ALLOW, Tier.NAMESPACE, by) if by else Outcome(Verdict.DENY, Tier.NAMESPACE, isolating): mask
            for by, mask in allowing.items()
        }
    )


def in_order(parts: dict[Outcome, int]) -> Parts:
    """Parts by verdict and first member, so that what is equal is written alike; empty ones are dropped."""
    found = (item for item in parts.items() if item[1])
    return tuple(sorted(found, key=lambda item: (item[0].verdict, item[1] & -item[1])))


def put(into: dict[Any, int], key: Any, mask: int) -> None:
    """Add a set to the one under a key."""
    into[key] = into.get(key, 0) | mask


def _uncertain(found: dict[Outcome, int], rule: Rule, mask: int, below: Parts, why: bool) -> dict[Outcome, int]:
    """The outcomes when a domain rule may match some classes."""
    out: dict[Outcome, int] = {}
    for outcome, those in found.items():
        if those & ~mask:
            put(out, outcome, those & ~mask)
        if rule.action is not Action.PASS:
            if those & mask:
                put(out, _plain(either(outcome, rule, None), why), those & mask)
            continue
        for lower, where in below:
            if those & mask & where:
                put(out, _plain(either(outcome, rule, lower), why), those & mask & where)
    return out


def _plain(outcome: Outcome, why: bool) -> Outcome:
    return outcome if why else Outcome(outcome.verdict, None, (), outcome.domains)


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
