"""The one idea: a question falls through a stack of tiers, and the first final answer stands (docs/concepts.md).

A tier is an ordered list of policies and a rule for combining what they say. A stack is an ordered list of tiers.

The loop works on sets of cases. A set is an integer with one bit per case, and a single question is the set `1`: one
connection, all classes of pods at once, and one tool call fall through the same code. Rules have effects, and cases get
outcomes (`core.outcome`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar, assert_never

from tierwall.core.outcome import (
    ALLOW,
    DENY,
    PASS,
    UNNAMED,
    ChainResult,
    OpinionT,
    Outcome,
    OutcomeSets,
    RuleEffect,
    TierResult,
    merge_equal_outcomes,
    with_tier_below,
)
from tierwall.core.verdict import Verdict

PolicyT = TypeVar("PolicyT")


class CombiningRule(StrEnum):
    """How the policies of one tier combine."""

    # The first effect on a case settles it; a Pass hands the case to the next tier.
    FIRST_MATCH = "first match"
    # What any policy allows is allowed; a tier with at least one policy denies everything else.
    UNION_WITH_ISOLATION = "union with isolation"
    # The first policy that denies a case settles it; a case that no policy denies goes on.
    EVERY_ONE_MUST_ALLOW = "every one must allow"
    # The last level that sets a field wins, unless an earlier level locks the field (`most_specific`).
    MOST_SPECIFIC = "most specific"
    # The first opinion stands; a conditional opinion is remembered (`authorizer_chain`).
    AUTHORIZER_CHAIN = "authorizer chain"


# Looked up once, because every decision compares with them.
_FIRST_MATCH: Final = CombiningRule.FIRST_MATCH
_UNION: Final = CombiningRule.UNION_WITH_ISOLATION
_EVERY_ONE: Final = CombiningRule.EVERY_ONE_MUST_ALLOW
_MOST_SPECIFIC: Final = CombiningRule.MOST_SPECIFIC
_CHAIN: Final = CombiningRule.AUTHORIZER_CHAIN
_NO_OPINION, _CONDITIONAL, _DENY = Verdict.NO_OPINION, Verdict.CONDITIONAL, Verdict.DENY


class Tier(NamedTuple, Generic[PolicyT]):
    """A name, the policies in the order in which they are asked, and the rule that combines them."""

    name: str
    policies: tuple[PolicyT, ...]
    combining: CombiningRule


Stack: TypeAlias = tuple[Tier[PolicyT], ...]


# The tier for questions that no other tier settles.
DEFAULT: Tier[Any] = Tier("Default", (), CombiningRule.FIRST_MATCH)
DEFAULT_ALLOW = Outcome(ALLOW, DEFAULT.name)
# Returns the effects of one policy of a tier, in order. They may be lazy: none is computed after all is settled.
AskPolicy: TypeAlias = Callable[[Tier[PolicyT], PolicyT], Iterable[RuleEffect]]
# Called for each effect with the cases that it settles and those that it may settle. Isolation is an effect of all
# policies of a tier together; the default is an effect without a policy.
EffectObserver: TypeAlias = Callable[[Tier[Any], RuleEffect, int, int], None]


def evaluate(
    stack: Iterable[Tier[PolicyT]],
    cases: int,
    ask: AskPolicy[PolicyT],
    named: bool = True,
    watch: EffectObserver | None = None,
) -> OutcomeSets:
    """Let cases fall through a stack. With `named`, outcomes name the policies that settled them."""
    walked: list[TierResult] = []
    for tier in stack:
        result = combine_tier(tier, cases, ask, named, watch)
        if result.settled or result.uncertain:
            walked.append(result)
        cases = result.cases_for_next_tier if result.uncertain else result.passed_on
        if not cases:
            break
    parts: OutcomeSets = ()
    if cases:
        parts = ((DEFAULT_ALLOW if named else UNNAMED[ALLOW], cases),)
        if watch is not None:
            watch(DEFAULT, RuleEffect(None, ALLOW, cases), cases, 0)
    for result in reversed(walked):
        parts = with_tier_below(result, parts, named)
    return parts


def combine_tier(
    tier: Tier[PolicyT], cases: int, ask: AskPolicy[PolicyT], named: bool = True, watch: EffectObserver | None = None
) -> TierResult:
    """Evaluate one tier by its combining rule."""
    rule = tier.combining
    if rule is _UNION:
        return union_with_isolation(tier, cases, ask, named, watch)
    if rule is _FIRST_MATCH or rule is _EVERY_ONE:
        return first_match(tier, cases, ask, named, watch)
    if rule is _MOST_SPECIFIC or rule is _CHAIN:
        raise ValueError(f"policies that combine by {rule} are not asked about sets of cases")
    assert_never(rule)


def first_match(
    tier: Tier[PolicyT], cases: int, ask: AskPolicy[PolicyT], named: bool, watch: EffectObserver | None
) -> TierResult:
    """Settle each case by the first effect on it. If all effects are denials, every policy must allow."""
    rest, passed = cases, 0
    settled: list[tuple[Outcome, int]] = []
    uncertain: list[RuleEffect] = []
    for policy in tier.policies:
        for effect in ask(tier, policy):
            by, verdict, surely, maybe, _ = effect
            hit = rest & surely
            rest ^= hit
            # A sure match is settled whatever the conditions evaluate to; only the rest is uncertain.
            maybe &= rest
            if watch is not None and (hit or maybe):
                watch(tier, effect, hit, maybe)
            if verdict is PASS:
                passed |= hit
            elif hit:
                settled.append((Outcome(verdict, tier.name, (by,)) if named else UNNAMED[verdict], hit))
            if maybe:
                uncertain.append(effect._replace(cases=0, maybe=maybe))
            if not rest:
                return TierResult(tier.name, merge_equal_outcomes(settled, named), passed, tuple(uncertain))
    if rest == cases and not uncertain:
        return TierResult(tier.name, (), rest)
    return TierResult(tier.name, merge_equal_outcomes(settled, named), rest | passed, tuple(uncertain))


def union_with_isolation(
    tier: Tier[PolicyT], cases: int, ask: AskPolicy[PolicyT], named: bool, watch: EffectObserver | None
) -> TierResult:
    """Allow what some effect allows; all policies of the tier together deny everything else."""
    isolated = cases
    # Disjoint sets of cases by the rules that allow them.
    allowing: list[tuple[tuple[Any, ...], int]] = []
    for policy in tier.policies:
        for effect in ask(tier, policy):
            allowed = effect.cases & cases
            if watch is not None and allowed:
                watch(tier, effect, allowed, 0)
            if named and allowing:
                split = ((((*by, effect.by), share & allowed), (by, share & ~allowed)) for by, share in allowing)
                allowing = [part for parts in split for part in parts if part[1]]
            if fresh := allowed & isolated:
                allowing.append(((effect.by,), fresh))
                isolated ^= fresh
    settled = [(Outcome(ALLOW, tier.name, by) if named else UNNAMED[ALLOW], share) for by, share in allowing]
    if isolated:
        settled.append((Outcome(DENY, tier.name, tier.policies) if named else UNNAMED[DENY], isolated))
        if watch is not None:
            watch(tier, RuleEffect(tier.policies, DENY, isolated), isolated, 0)
    return TierResult(tier.name, merge_equal_outcomes(settled, named), 0)


def most_specific(stack: Stack[PolicyT], locks: Callable[[Tier[PolicyT]], bool]) -> tuple[int, bool]:
    """Return the number of the tier that settles a field, and whether it does so by a lock.

    The stack is ordered from the least specific tier to the most specific. `locks` says whether a tier keeps more
    specific tiers from setting the field. A union field takes every tier up to the returned one.
    """
    for number, tier in enumerate(stack):
        if locks(tier):
            return number, True
    return len(stack) - 1, False


def authorizer_chain(
    members: Sequence[PolicyT], ask: Callable[[PolicyT], OpinionT], *, eager: bool = False
) -> ChainResult[PolicyT, OpinionT]:
    """Ask authorizers in order. The first Allow or Deny ends the walk; so does an opinion that can become Allow.

    After a conditional Deny the next authorizer is asked. An eager walk continues to the first unconditional opinion.
    """
    all_opinions: list[OpinionT] = []
    opinions: list[tuple[PolicyT, OpinionT]] = []
    can_become_allowed = False
    for member in members:
        opinion = ask(member)
        all_opinions.append(opinion)
        verdict = opinion.verdict
        if verdict is _NO_OPINION:
            continue
        opinions.append((member, opinion))
        if verdict is not _CONDITIONAL:
            alone = len(opinions) == 1 or (verdict is _DENY and not can_become_allowed)
            return ChainResult(all_opinions, tuple(opinions), alone)
        can_become_allowed = can_become_allowed or opinion.can_become_allowed
        if can_become_allowed and not eager:
            return ChainResult(all_opinions, tuple(opinions), False)
    return ChainResult(all_opinions, tuple(opinions), not opinions)
