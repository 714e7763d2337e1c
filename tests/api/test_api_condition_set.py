"""The rules of one authorizer's conditions (KEP-5681; docs/semantics.md#how-a-condition-set-is-evaluated)."""

from __future__ import annotations

import itertools
import random

import pytest

from tests.worlds.api_fakes import FAKE_TYPE, condition, condition_is_true, data
from tierwall.api.algebra.condition import (
    CEL_TYPE,
    NODE_TYPE,
    Condition,
    ConditionalDecision,
    ConditionError,
    ConditionSet,
    Effect,
    FailureMode,
    conditional,
    label_key_problem,
)
from tierwall.api.algebra.decision import ALLOW, DENY, NO_OPINION, Decision
from tierwall.core.verdict import StepVerdict, Verdict

MODES = (FailureMode.DENY, FailureMode.NO_OPINION)


def evaluated(*conditions: Condition, mode: FailureMode = FailureMode.DENY, **results: object) -> Decision:
    return ConditionSet("a", conditions, mode).evaluate(lambda condition: condition_is_true(condition, data(**results)))


def test_r001_a_decision_is_one_of_four() -> None:
    verdicts = {
        Decision(ALLOW).verdict,
        Decision(DENY).verdict,
        Decision(NO_OPINION).verdict,
        conditional("a", [condition("Allow")]).verdict,
    }
    assert verdicts == {Verdict.ALLOW, Verdict.DENY, Verdict.NO_OPINION, Verdict.CONDITIONAL}


def test_r002_the_empty_decision_is_deny() -> None:
    assert Decision().verdict is DENY


@pytest.mark.parametrize("word", [Verdict.CONDITIONAL, StepVerdict.NOT_APPLICABLE, "Maybe", -100])
def test_r003_a_decision_outside_the_four_cannot_be_made(word: object) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        Decision(word)  # type: ignore[arg-type]


def test_r006_evaluation_is_always_concrete() -> None:
    for effects in itertools.product(("Allow", "Deny", "NoOpinion"), repeat=2):
        for results in itertools.product((True, False, None), repeat=2):
            decision = evaluated(condition(effects[0], "x"), condition(effects[1], "y"), x=results[0], y=results[1])
            assert decision.verdict in (ALLOW, DENY, NO_OPINION)


def test_r009_only_an_allow_condition_can_become_allowed() -> None:
    assert conditional("a", [condition("Allow"), condition("Deny", "y")]).can_become_allowed
    assert not conditional("a", [condition("Deny"), condition("NoOpinion", "y")]).can_become_allowed
    assert Decision(ALLOW).can_become_allowed
    assert not Decision(DENY).can_become_allowed
    assert not Decision(NO_OPINION).can_become_allowed


def test_r010_concrete_decisions_are_not_conditional() -> None:
    assert not any(decision.is_conditional for decision in (Decision(ALLOW), Decision(DENY), Decision(NO_OPINION)))
    assert conditional("a", [condition("Allow")]).is_conditional


@pytest.mark.parametrize(
    "key", ["a", "policy-16", "company.com/no-pod-exec", "a.b-c.d/A_b.c", "x" * 63, f"{'a.' * 126}a/x", "0/0"]
)
def test_r024_an_id_is_a_label_key(key: str) -> None:
    assert label_key_problem(key) is None


@pytest.mark.parametrize(
    "key", ["", "-a", "a-", "a/", "/a", "A.com/x", "a/b/c", "x" * 64, "a b", "é", "a\n", f"{'a' * 254}/x", "a..b/x"]
)
def test_r024_an_id_that_is_not_a_label_key_is_refused(key: str) -> None:
    assert label_key_problem(key) is not None
    assert conditional("a", [condition("Allow", id=key or "")] if key else [Condition("", Effect.ALLOW, "x")]).error


def test_r025_ids_are_unique_in_a_set_across_effects() -> None:
    decision = conditional("a", [condition("Allow", id="same"), condition("Deny", id="same")])
    assert decision.verdict is DENY
    assert "`same` is used twice" in decision.error


def test_r026_ids_under_the_kubernetes_prefix_are_refused() -> None:
    assert "reserved" in conditional("a", [condition("Allow", id="k8s.io/mine")]).error
    assert not conditional("a", [condition("Allow", id="not-k8s.io/mine")]).error


def test_r027_a_text_has_at_most_1024_bytes_counted_as_bytes() -> None:
    assert conditional("a", [Condition("i", Effect.ALLOW, "x" * 1024)]).is_conditional
    assert conditional("a", [Condition("i", Effect.ALLOW, "é" * 512)]).is_conditional
    decision = conditional("a", [Condition("i", Effect.ALLOW, "é" * 513)])
    assert decision.verdict is DENY
    assert "1,026 bytes" in decision.error


@pytest.mark.parametrize(("kind", "good"), [
    (CEL_TYPE, True), (NODE_TYPE, True), ("k8s.io/authorization-cel-v2", True), ("k8s.io/cel", True), (FAKE_TYPE, True),
    ("opaque", True), ("k8s.io/mine", False), ("a/b/c", False), ("", False),
])  # fmt: skip
def test_r028_a_type_is_a_label_key_and_kubernetes_own_are_reserved(kind: str, good: bool) -> None:
    assert conditional("a", [Condition("i", Effect.ALLOW, "x", kind)]).is_conditional is good


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("effect", Effect)
def test_r030_a_broken_condition_is_never_dropped_but_falls_to_the_failure_mode(
    mode: FailureMode, effect: Effect
) -> None:
    decision = conditional("a", [condition("Allow"), Condition("-bad-", effect, "x")], mode)
    assert decision.verdict == str(mode)
    assert "-bad-" in decision.error


def test_r031_a_set_is_conditions_or_a_concrete_decision() -> None:
    with pytest.raises(ValueError, match="cannot be"):
        ConditionalDecision(conditions=ConditionSet("a", ()), verdict=Verdict.ALLOW)


def test_r032_the_description_is_shown_in_the_reason() -> None:
    decision = ConditionSet("a", (Condition("i", Effect.DENY, "x", FAKE_TYPE, "no exec here"),)).evaluate(
        lambda _: True
    )
    assert decision.reason == "condition `i` (no exec here) denied the request"


def test_r033_errors_name_the_condition() -> None:
    assert "condition `deny-x` failed" in evaluated(condition("Deny")).error


def test_r034_the_order_of_conditions_does_not_matter() -> None:
    conditions = [condition(effect, text) for effect in ("Allow", "Deny", "NoOpinion") for text in "xy"]
    for x, y, mode in itertools.product((True, False, None), (True, False, None), MODES):
        outcomes = {
            (decision.verdict, bool(decision.error))
            for seed in range(12)
            for decision in [evaluated(*random.Random(seed).sample(conditions, len(conditions)), mode=mode, x=x, y=y)]
        }
        assert len(outcomes) == 1


def test_r035_a_set_has_at_most_128_conditions() -> None:
    assert conditional("a", [condition("Allow", f"x{n}") for n in range(128)]).is_conditional
    assert "129 conditions" in conditional("a", [condition("Allow", f"x{n}") for n in range(129)]).error


def test_an_empty_set_is_no_opinion_with_an_error_and_only_no_opinions_is_no_opinion() -> None:
    assert (conditional("a", []).verdict, bool(conditional("a", []).error)) == (NO_OPINION, True)
    assert conditional("a", [condition("NoOpinion")]).verdict is NO_OPINION


def test_r036_a_true_deny_denies() -> None:
    assert evaluated(condition("Deny"), condition("Allow", "y"), x=True, y=True).verdict is DENY


@pytest.mark.parametrize("mode", MODES)
def test_r037_a_failing_deny_falls_to_the_failure_mode_with_an_error(mode: FailureMode) -> None:
    decision = evaluated(condition("Deny"), condition("Allow", "y"), mode=mode, y=True)
    assert decision.verdict == str(mode)
    assert decision.error


@pytest.mark.parametrize("mode", MODES)
def test_r038_a_true_deny_beats_a_failing_one(mode: FailureMode) -> None:
    decision = evaluated(condition("Deny", "bad"), condition("Deny", "x"), mode=mode, x=True)
    assert (decision.verdict, decision.error) == (DENY, "")


def test_r039_a_true_no_opinion_beats_a_true_allow() -> None:
    assert evaluated(condition("NoOpinion"), condition("Allow", "y"), x=True, y=True).verdict is NO_OPINION


def test_r040_a_failing_no_opinion_withholds_and_surfaces_the_error() -> None:
    decision = evaluated(condition("NoOpinion"), condition("Allow", "y"), y=True)
    assert decision.verdict is NO_OPINION
    assert decision.error


def test_r041_a_true_no_opinion_beats_a_failing_one() -> None:
    decision = evaluated(condition("NoOpinion", "bad"), condition("NoOpinion", "x"), x=True)
    assert (decision.verdict, decision.error) == (NO_OPINION, "")


def test_r042_a_true_allow_allows_if_nothing_is_in_the_way() -> None:
    decision = evaluated(condition("Deny", "x"), condition("NoOpinion", "x"), condition("Allow", "y"), x=False, y=True)
    assert decision.verdict is ALLOW


def test_r043_failing_allows_are_ignored() -> None:
    assert evaluated(condition("Allow", "bad"), condition("Allow", "x"), x=True).verdict is ALLOW


def test_r044_only_failing_or_false_allows_is_no_opinion() -> None:
    assert evaluated(condition("Allow", "bad"), condition("Allow", "x"), x=False).verdict is NO_OPINION


def test_r045_without_allow_conditions_only_deny_or_no_opinion_comes_out() -> None:
    assert conditional("a", [condition("Deny"), condition("NoOpinion")]).possible == {DENY, NO_OPINION}
    for x in (True, False, None):
        assert evaluated(condition("Deny"), condition("NoOpinion"), x=x).verdict is not ALLOW


def test_r046_deny_beats_no_opinion_beats_allow_in_any_order() -> None:
    for order in itertools.permutations([condition("Allow"), condition("NoOpinion"), condition("Deny")]):
        assert evaluated(*order, x=True).verdict is DENY
        assert (
            evaluated(*(condition for condition in order if condition.effect is not Effect.DENY), x=True).verdict
            is NO_OPINION
        )


def test_r047_only_allow_conditions_never_deny() -> None:
    assert conditional("a", [condition("Allow")]).possible == {ALLOW, NO_OPINION}
    assert conditional("a", [condition("Allow")]).failure is NO_OPINION
    assert conditional("a", [condition("Allow"), condition("Deny", "y")]).failure is DENY


def test_a_condition_that_cannot_matter_is_not_evaluated() -> None:
    seen: list[str] = []

    def test(condition: Condition) -> bool:
        seen.append(condition.id)
        if condition.effect is Effect.DENY:
            raise ConditionError("broken")
        return True

    ConditionSet("a", (condition("Allow"), condition("NoOpinion"), condition("Deny"))).evaluate(test)
    assert seen == ["deny-x"]
