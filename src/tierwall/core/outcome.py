"""What policies say and what comes of it: claims, outcomes, and how a tier joins what lies below it.

A claim may be uncertain: nobody knows the addresses of a domain before DNS answers. Then the outcome is Conditional
where it makes a difference. Sets of cases are whole numbers, one bit a case (`core.stack`).
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from tierwall.core.verdict import StepVerdict, Verdict

ALLOW, DENY, PASS, CONDITIONAL = StepVerdict.ALLOW, StepVerdict.DENY, StepVerdict.PASS, StepVerdict.CONDITIONAL

P = TypeVar("P")


class RuleEffect(NamedTuple):
    """What one rule or policy says: Allow, Deny or Pass, for the cases that it surely matches or may match."""

    by: Any
    verdict: StepVerdict
    cases: int
    maybe: int = 0
    # What an uncertain claim hangs on.
    conditions: tuple[str, ...] = ()


class Outcome(msgspec.Struct, frozen=True):
    """How a case is settled: the verdict, the tier, and who settled it. Nobody in `by`, or None, is the default."""

    verdict: StepVerdict
    tier: str | None
    by: tuple[Any, ...] = ()
    conditions: tuple[str, ...] = ()


# Outcomes that do not say who settled them.
UNNAMED = {verdict: Outcome(verdict, None) for verdict in (ALLOW, DENY)}
# Disjoint sets of cases by outcome.
OutcomeSets: TypeAlias = tuple[tuple[Outcome, int], ...]


class TierResult(msgspec.Struct, frozen=True):
    """What a tier makes of a set of cases: those it settles, those that go on, and the claims that may intervene."""

    tier: str
    settled: OutcomeSets
    passed_on: int
    uncertain: tuple[RuleEffect, ...] = ()

    @property
    def cases_for_next_tier(self) -> int:
        """The cases that the tiers below are asked about: an uncertain Pass may lead there, too."""
        asked = self.passed_on
        for claim in self.uncertain:
            if claim.verdict is PASS:
                asked |= claim.maybe
        return asked


def merge_equal_outcomes(settled: list[tuple[Outcome, int]], named: bool) -> OutcomeSets:
    """Each outcome once. Outcomes that name who settled them differ anyway."""
    if named or len(settled) < 2:
        return tuple(settled)
    parts: dict[Outcome, int] = {}
    for outcome, those in settled:
        parts[outcome] = parts.get(outcome, 0) | those
    return tuple(parts.items())


def with_tier_below(shares: TierResult, below: OutcomeSets, named: bool = True) -> OutcomeSets:
    """A tier with what lies below it: cases that go on get the outcome there."""
    if not shares.uncertain:
        if not shares.settled:
            return below
        if not shares.passed_on:
            return shares.settled
    parts = dict(shares.settled)
    passed_on = shares.passed_on
    for outcome, where in below:
        if those := where & passed_on:
            parts[outcome] = parts.get(outcome, 0) | those
    # From the last to the first: each is asked before all that an outcome so far already stands for.
    for claim in reversed(shares.uncertain):
        parts = _intervening(parts, shares.tier, claim, below, named)
    return tuple(parts.items())


def _intervening(
    parts: dict[Outcome, int], tier: str, claim: RuleEffect, below: OutcomeSets, named: bool
) -> dict[Outcome, int]:
    """The outcomes when a claim may match some cases."""
    out: dict[Outcome, int] = {}

    def put(outcome: Outcome, those: int) -> None:
        plain = outcome if named else Outcome(outcome.verdict, None, (), outcome.conditions)
        out[plain] = out.get(plain, 0) | those

    for outcome, those in parts.items():
        if those & ~claim.maybe:
            put(outcome, those & ~claim.maybe)
        uncertain = those & claim.maybe
        if claim.verdict is not PASS:
            if uncertain:
                put(_either(outcome, tier, claim, None), uncertain)
            continue
        for lower, where in below:
            if uncertain & where:
                put(_either(outcome, tier, claim, lower), uncertain & where)
    return out


def _either(otherwise: Outcome, tier: str, claim: RuleEffect, below: Outcome | None) -> Outcome:
    """The outcome when a claim may match: what it leads to, or `otherwise`.

    Where both come to the same verdict, what the claim hangs on does not matter.
    """
    matched = claim.verdict if below is None else below.verdict
    if matched is otherwise.verdict and matched is not CONDITIONAL:
        return otherwise
    by = () if claim.verdict is PASS else (claim.by,)
    lower = () if below is None else below.by or (None,)
    conditions = {*claim.conditions, *(below.conditions if below is not None else ()), *otherwise.conditions}
    everyone = dict.fromkeys((*by, *lower, *(otherwise.by or (None,))))
    return Outcome(CONDITIONAL, tier, tuple(everyone), tuple(sorted(conditions)))


class Opinion(Protocol):
    """What an authorizer says."""

    @property
    def verdict(self) -> Verdict: ...
    @property
    def can_become_allowed(self) -> bool: ...


O = TypeVar("O", bound=Opinion)  # noqa: E741


class ChainResult(NamedTuple, Generic[P, O]):
    """How far a chain was asked: what each member that was asked says, and the opinions among that, which count."""

    said: list[O]
    opinions: tuple[tuple[P, O], ...]
    # Whether the last opinion alone settles the question, whatever conditions come to.
    final: bool
