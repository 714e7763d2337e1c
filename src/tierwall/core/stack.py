"""The one idea: a question falls through a stack of tiers, and the first final answer stands (docs/concepts.md).

A tier is an ordered list of policies and a rule for combining what they say. A stack is an ordered list of tiers.

The loop works on sets of cases. A set is a whole number with one bit a case, and a single question is the set `1`: one
connection, all classes of pods at once, and one tool call fall through the same code. What policies say are claims,
what comes of them are outcomes (`core.outcome`).
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
    O,
    Outcome,
    OutcomeSets,
    RuleEffect,
    TierResult,
    merge_equal_outcomes,
    with_tier_below,
)
from tierwall.core.verdict import Verdict

P = TypeVar("P")


class CombiningRule(StrEnum):
    """How the policies of one tier combine."""

    # The first claim on a case settles it; a claim that passes hands the case to the next tier.
    FIRST_MATCH = "first match"
    # What any policy allows is allowed; a tier that has a policy denies everything else.
    UNION_WITH_ISOLATION = "union with isolation"
    # The first policy that denies settles the case; what no policy denies goes on.
    EVERY_ONE_MUST_ALLOW = "every one must allow"
    # The last level that sets a field settles it, unless a level before it locks the field (`most_specific`).
    MOST_SPECIFIC = "most specific"
    # The first opinion stands; a conditional one is remembered (`authorizer_chain`).
    AUTHORIZER_CHAIN = "authorizer chain"


# Looked up here once, because every decision compares with them.
_FIRST_MATCH: Final = CombiningRule.FIRST_MATCH
_UNION: Final = CombiningRule.UNION_WITH_ISOLATION
_EVERY_ONE: Final = CombiningRule.EVERY_ONE_MUST_ALLOW
_MOST_SPECIFIC: Final = CombiningRule.MOST_SPECIFIC
_CHAIN: Final = CombiningRule.AUTHORIZER_CHAIN
_NO_OPINION, _CONDITIONAL, _DENY = Verdict.NO_OPINION, Verdict.CONDITIONAL, Verdict.DENY


class Tier(NamedTuple, Generic[P]):
    """A name, the policies in the order they are asked, and the rule that combines them."""

    name: str
    policies: tuple[P, ...]
    combining: CombiningRule


Stack: TypeAlias = tuple[Tier[P], ...]


# Where a question ends that no tier settles.
DEFAULT: Tier[Any] = Tier("Default", (), CombiningRule.FIRST_MATCH)
DEFAULT_ALLOW = Outcome(ALLOW, DEFAULT.name)
# Asks one policy of a tier: its claims, in order. Claims may be found lazily: nothing is asked for that is settled.
AskPolicy: TypeAlias = Callable[[Tier[P], P], Iterable[RuleEffect]]
# Told of each claim as it is met, with the cases that it takes and those that it may take. Isolation is a claim of all
# policies of a tier together, and the default one of nobody.
EffectObserver: TypeAlias = Callable[[Tier[Any], RuleEffect, int, int], None]


def evaluate(
    stack: Iterable[Tier[P]], cases: int, ask: AskPolicy[P], named: bool = True, watch: EffectObserver | None = None
) -> OutcomeSets:
    """Let cases fall through a stack. `named` says whether outcomes name who settled them."""
    walked: list[TierResult] = []
    for tier in stack:
        shares = combine_tier(tier, cases, ask, named, watch)
        if shares.settled or shares.uncertain:
            walked.append(shares)
        cases = shares.cases_for_next_tier if shares.uncertain else shares.passed_on
        if not cases:
            break
    parts: OutcomeSets = ()
    if cases:
        parts = ((DEFAULT_ALLOW if named else UNNAMED[ALLOW], cases),)
        if watch is not None:
            watch(DEFAULT, RuleEffect(None, ALLOW, cases), cases, 0)
    for shares in reversed(walked):
        parts = with_tier_below(shares, parts, named)
    return parts


def combine_tier(
    tier: Tier[P], cases: int, ask: AskPolicy[P], named: bool = True, watch: EffectObserver | None = None
) -> TierResult:
    """One tier, by its combining rule."""
    rule = tier.combining
    if rule is _UNION:
        return union_with_isolation(tier, cases, ask, named, watch)
    if rule is _FIRST_MATCH or rule is _EVERY_ONE:
        return first_match(tier, cases, ask, named, watch)
    if rule is _MOST_SPECIFIC or rule is _CHAIN:
        raise ValueError(f"policies that combine by {rule} are not asked about sets of cases")
    assert_never(rule)


def first_match(tier: Tier[P], cases: int, ask: AskPolicy[P], named: bool, watch: EffectObserver | None) -> TierResult:
    """Each claim takes what no claim before it has taken. Where only denials are claims, every one must allow."""
    rest, passed = cases, 0
    settled: list[tuple[Outcome, int]] = []
    uncertain: list[RuleEffect] = []
    for policy in tier.policies:
        for claim in ask(tier, policy):
            by, verdict, surely, maybe, _ = claim
            hit = rest & surely
            rest ^= hit
            # What a rule surely matches is settled whatever its conditions come to; only the rest is uncertain.
            maybe &= rest
            if watch is not None and (hit or maybe):
                watch(tier, claim, hit, maybe)
            if verdict is PASS:
                passed |= hit
            elif hit:
                settled.append((Outcome(verdict, tier.name, (by,)) if named else UNNAMED[verdict], hit))
            if maybe:
                uncertain.append(claim._replace(cases=0, maybe=maybe))
            if not rest:
                return TierResult(tier.name, merge_equal_outcomes(settled, named), passed, tuple(uncertain))
    if rest == cases and not uncertain:
        return TierResult(tier.name, (), rest)
    return TierResult(tier.name, merge_equal_outcomes(settled, named), rest | passed, tuple(uncertain))


def union_with_isolation(
    tier: Tier[P], cases: int, ask: AskPolicy[P], named: bool, watch: EffectObserver | None
) -> TierResult:
    """Everything that some claim allows; all else is denied by every policy of the tier together."""
    isolated = cases
    # Disjoint sets of cases by who allows them.
    allowing: list[tuple[tuple[Any, ...], int]] = []
    for policy in tier.policies:
        for claim in ask(tier, policy):
            allowed = claim.cases & cases
            if watch is not None and allowed:
                watch(tier, claim, allowed, 0)
            if named and allowing:
                split = ((((*by, claim.by), those & allowed), (by, those & ~allowed)) for by, those in allowing)
                allowing = [part for parts in split for part in parts if part[1]]
            if fresh := allowed & isolated:
                allowing.append(((claim.by,), fresh))
                isolated ^= fresh
    settled = [(Outcome(ALLOW, tier.name, by) if named else UNNAMED[ALLOW], those) for by, those in allowing]
    if isolated:
        settled.append((Outcome(DENY, tier.name, tier.policies) if named else UNNAMED[DENY], isolated))
        if watch is not None:
            watch(tier, RuleEffect(tier.policies, DENY, isolated), isolated, 0)
    return TierResult(tier.name, merge_equal_outcomes(settled, named), 0)


def most_specific(stack: Stack[P], locks: Callable[[Tier[P]], bool]) -> tuple[int, bool]:
    """Which tier of a field's stack, least specific first, settles it, and whether a lock ended the walk there.

    `locks` says whether a tier keeps more specific ones from the field. A field that adds up takes every tier so far.
    """
    for number, tier in enumerate(stack):
        if locks(tier):
            return number, True
    return len(stack) - 1, False


def authorizer_chain(members: Sequence[P], ask: Callable[[P], O], *, eager: bool = False) -> ChainResult[P, O]:
    """Ask authorizers in order. The first Allow or Deny ends the walk, and so does a conditional way to Allow.

    A conditional Deny is remembered and the next is asked. An eager walk goes on to the first unconditional opinion.
    """
    said: list[O] = []
    opinions: list[tuple[P, O]] = []
    can_become_allowed = False
    for member in members:
        opinion = ask(member)
        said.append(opinion)
        verdict = opinion.verdict
        if verdict is _NO_OPINION:
            continue
        opinions.append((member, opinion))
        if verdict is not _CONDITIONAL:
            alone = len(opinions) == 1 or (verdict is _DENY and not can_become_allowed)
            return ChainResult(said, tuple(opinions), alone)
        can_become_allowed = can_become_allowed or opinion.can_become_allowed
        if can_become_allowed and not eager:
            return ChainResult(said, tuple(opinions), False)
    return ChainResult(said, tuple(opinions), not opinions)
