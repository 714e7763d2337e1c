"""Test the loop of tiers: many cases at once get the outcome of each case alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from tierwall.core.outcome import ALLOW, DENY, PASS, Outcome, RuleEffect
from tierwall.core.stack import DEFAULT_ALLOW, AskPolicy, CombiningRule, Tier, evaluate, most_specific
from tierwall.core.verdict import StepVerdict

CASES = 6
EVERY = (1 << CASES) - 1


class Rule(NamedTuple):
    """A rule of a test: its verdict, and the cases that it surely or possibly matches."""

    number: int
    verdict: StepVerdict
    surely: int
    maybe: int


@st.composite
def tiers(draw: st.DrawFn, name: str, combining: CombiningRule) -> Tier[tuple[Rule, ...]]:
    union = combining is CombiningRule.UNION_WITH_ISOLATION
    verdicts = [ALLOW] if union else [ALLOW, DENY, PASS]
    masks = st.integers(0, EVERY)
    rule = st.tuples(st.sampled_from(verdicts), masks, st.just(0) if union else masks)
    policies = draw(st.lists(st.lists(rule, max_size=3), max_size=3))
    numbered = iter(range(100))
    return Tier(
        name,
        tuple(
            tuple(Rule(next(numbered), verdict, sure, maybe) for verdict, sure, maybe in rules) for rules in policies
        ),
        combining,
    )


stacks = st.tuples(
    tiers("Admin", CombiningRule.FIRST_MATCH),
    tiers("Namespace", CombiningRule.UNION_WITH_ISOLATION),
    tiers("Baseline", CombiningRule.FIRST_MATCH),
)


def asked_about(cases: int) -> AskPolicy[tuple[Rule, ...]]:
    """Return a function that asks policies about some of the cases."""

    def ask(tier: Tier[tuple[Rule, ...]], policy: tuple[Rule, ...]) -> Iterable[RuleEffect]:
        for rule in policy:
            name = (f"{tier.name} {rule.number}",)
            yield RuleEffect((tier.name, rule.number), rule.verdict, rule.surely & cases, rule.maybe & cases, name)

    return ask


def applicable(stack: Iterable[Tier[tuple[Rule, ...]]]) -> list[Tier[tuple[Rule, ...]]]:
    """Leave out tiers without a policy, as models do."""
    return [tier for tier in stack if tier.policies]


@given(stacks)
def test_many_cases_at_once_get_the_outcome_of_each_alone(stack: tuple[Tier[tuple[Rule, ...]], ...]) -> None:
    together = evaluate(applicable(stack), EVERY, asked_about(EVERY))
    for number in range(CASES):
        case = 1 << number
        ((alone, _),) = evaluate(applicable(stack), case, asked_about(case))
        assert [outcome for outcome, those in together if those & case] == [alone]


@given(stacks)
def test_without_names_outcomes_differ_only_in_verdict_and_conditions(
    stack: tuple[Tier[tuple[Rule, ...]], ...],
) -> None:
    named: dict[Outcome, int] = {}
    for outcome, those in evaluate(applicable(stack), EVERY, asked_about(EVERY)):
        plain = Outcome(outcome.verdict, None, (), outcome.conditions)
        named[plain] = named.get(plain, 0) | those
    assert dict(evaluate(applicable(stack), EVERY, asked_about(EVERY), False)) == named


@given(stacks)
def test_every_case_gets_exactly_one_outcome(stack: tuple[Tier[tuple[Rule, ...]], ...]) -> None:
    parts = evaluate(applicable(stack), EVERY, asked_about(EVERY))
    assert sum(those.bit_count() for _, those in parts) == CASES
    assert sum(those for _, those in parts) == EVERY


def test_a_question_that_no_tier_settles_is_allowed_by_the_default() -> None:
    assert evaluate((), 1, asked_about(1)) == ((DEFAULT_ALLOW, 1),)


def test_a_lock_keeps_more_specific_tiers_out() -> None:
    stack: tuple[Tier[object], ...] = tuple(
        Tier(name, (), CombiningRule.MOST_SPECIFIC) for name in ("Gateway", "Route", "Rule")
    )
    assert most_specific(stack, lambda tier: False) == (2, False)
    assert most_specific(stack, lambda tier: tier.name == "Route") == (1, True)
