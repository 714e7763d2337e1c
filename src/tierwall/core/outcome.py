"""The effects of rules, the outcomes of cases, and how a tier combines with the tiers below it.

An effect may be uncertain: nobody knows the addresses of a domain before DNS answers. The outcome is then Conditional,
if it makes a difference. Sets of cases are integers with one bit per case (`core.stack`).
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from tierwall.core.verdict import StepVerdict, Verdict

ALLOW, DENY, PASS, CONDITIONAL = StepVerdict.ALLOW, StepVerdict.DENY, StepVerdict.PASS, StepVerdict.CONDITIONAL

PolicyT = TypeVar("PolicyT")


class RuleEffect(NamedTuple):
    """The effect of one rule or policy, Allow, Deny or Pass, on the cases that it surely matches or may match."""

    by: Any
    verdict: StepVerdict
    cases: int
    maybe: int = 0
    # The conditions of an uncertain effect.
    conditions: tuple[str, ...] = ()


class Outcome(msgspec.Struct, frozen=True):
    """How a case is settled: the verdict, the tier, and the policies that settled it. Empty or None is the default."""

    verdict: StepVerdict
    tier: str | None
    by: tuple[Any, ...] = ()
    conditions: tuple[str, ...] = ()


# Outcomes that do not name the policies that settled them.
UNNAMED = {verdict: Outcome(verdict, None) for verdict in (ALLOW, DENY)}
# Disjoint sets of cases by outcome.
OutcomeSets: TypeAlias = tuple[tuple[Outcome, int], ...]


class TierResult(msgspec.Struct, frozen=True):
    """The result of one tier: the cases it settles, the cases it passes on, and the effects that may intervene."""

    tier: str
    settled: OutcomeSets
    passed_on: int
    uncertain: tuple[RuleEffect, ...] = ()

    @property
    def cases_for_next_tier(self) -> int:
        """The cases that the next tier is asked about: an uncertain Pass may lead there, too."""
        asked = self.passed_on
        for effect in self.uncertain:
            if effect.verdict is PASS:
                asked |= effect.maybe
        return asked


def merge_equal_outcomes(settled: list[tuple[Outcome, int]], named: bool) -> OutcomeSets:
    """Merge the cases of equal outcomes. Outcomes that name their policies always differ."""
    if named or len(settled) < 2:
        return tuple(settled)
    parts: dict[Outcome, int] = {}
    for outcome, cases in settled:
        parts[outcome] = parts.get(outcome, 0) | cases
    return tuple(parts.items())


def with_tier_below(result: TierResult, below: OutcomeSets, named: bool = True) -> OutcomeSets:
    """Combine a tier with the outcomes below it: cases that it passes on get the outcome there."""
    if not result.uncertain:
        if not result.settled:
            return below
        if not result.passed_on:
            return result.settled
    parts = dict(result.settled)
    passed_on = result.passed_on
    for outcome, cases_below in below:
        if cases := cases_below & passed_on:
            parts[outcome] = parts.get(outcome, 0) | cases
    # From the last to the first, because each effect comes before those that are already part of the outcomes.
    for effect in reversed(result.uncertain):
        parts = _intervening(parts, result.tier, effect, below, named)
    return tuple(parts.items())


def _intervening(
    parts: dict[Outcome, int], tier: str, effect: RuleEffect, below: OutcomeSets, named: bool
) -> dict[Outcome, int]:
    """Return the outcomes if an effect may match some cases."""
    out: dict[Outcome, int] = {}

    def put(outcome: Outcome, cases: int) -> None:
        plain = outcome if named else Outcome(outcome.verdict, None, (), outcome.conditions)
        out[plain] = out.get(plain, 0) | cases

    for outcome, cases in parts.items():
        if cases & ~effect.maybe:
            put(outcome, cases & ~effect.maybe)
        uncertain = cases & effect.maybe
        if effect.verdict is not PASS:
            if uncertain:
                put(_either(outcome, tier, effect, None), uncertain)
            continue
        for lower, cases_below in below:
            if uncertain & cases_below:
                put(_either(outcome, tier, effect, lower), uncertain & cases_below)
    return out


def _either(otherwise: Outcome, tier: str, effect: RuleEffect, below: Outcome | None) -> Outcome:
    """Return the outcome if an effect may match: the conditional choice between its outcome and `otherwise`.

    If both have the same verdict, the conditions do not matter.
    """
    matched = effect.verdict if below is None else below.verdict
    if matched is otherwise.verdict and matched is not CONDITIONAL:
        return otherwise
    by = () if effect.verdict is PASS else (effect.by,)
    lower = () if below is None else below.by or (None,)
    conditions = {*effect.conditions, *(below.conditions if below is not None else ()), *otherwise.conditions}
    everyone = dict.fromkeys((*by, *lower, *(otherwise.by or (None,))))
    return Outcome(CONDITIONAL, tier, tuple(everyone), tuple(sorted(conditions)))


class Opinion(Protocol):
    """The answer of one authorizer."""

    @property
    def verdict(self) -> Verdict: ...
    @property
    def can_become_allowed(self) -> bool: ...


OpinionT = TypeVar("OpinionT", bound=Opinion)


class ChainResult(NamedTuple, Generic[PolicyT, OpinionT]):
    """The answers of the members of a chain that were asked, and those among them that are opinions."""

    all_opinions: list[OpinionT]
    opinions: tuple[tuple[PolicyT, OpinionT], ...]
    # Whether the last opinion settles the question, whatever the conditions evaluate to.
    final: bool
