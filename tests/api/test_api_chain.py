"""Chains of authorizers (KEP-5681; docs/semantics.md#how-a-chain-is-walked to docs/semantics.md#the-final-decision)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.worlds.api_fakes import CREATE, LIST, Fake, condition, condition_sets, data
from tierwall.api.algebra.authorizer import Authorizer
from tierwall.api.algebra.chain import Chain, ChainDecision, ask_the_rest
from tierwall.api.algebra.condition import ConditionSet, FailureMode
from tierwall.api.algebra.decision import ALLOW, DENY, NO_OPINION, Decision
from tierwall.api.algebra.request import Attributes, ConditionData, ConditionsMode
from tierwall.core.verdict import Verdict

CONDITIONAL = Verdict.CONDITIONAL
CA = [condition("Allow", "a")]
CD = [condition("Deny", "d")]


def chain(*answers: object, eager: bool = False) -> Chain:
    return Chain([Fake(f"a{n}", answer) for n, answer in enumerate(answers)], eager=eager)  # type: ignore[arg-type]


def first(*answers: object) -> ChainDecision:
    return chain(*answers).authorize(CREATE)


def shown(decision: ChainDecision) -> list[tuple[str, str]]:
    return [(name, str(opinion.verdict)) for name, opinion in ask_the_rest(decision).entries]


def test_r048_no_opinion_passes_the_request_on_even_with_an_error() -> None:
    assert first("Error", "Allow").verdict is ALLOW
    assert first("Error", "Deny").verdict is DENY
    assert first("Error", "NoOpinion").error == "a0 failed"


def test_r049_the_first_opinion_stands() -> None:
    assert (first("NoOpinion", "NoOpinion", "Allow", "Deny").verdict, first("NoOpinion", "Deny", "Allow").verdict) == (
        ALLOW,
        DENY,
    )
    assert first("NoOpinion", "Deny", "Allow").decided_by == "a1"


def test_r050_an_authorizer_that_breaks_is_a_deny() -> None:
    class Broken(Fake):
        def authorize(self, attributes: Attributes) -> Decision:
            raise RuntimeError("lost")

    decision = Chain([Broken("b", "Allow"), Fake("c", "Allow")]).authorize(CREATE)
    assert (decision.verdict, decision.decided_by) == (DENY, "b")
    assert "lost" in decision.error


def test_r051_a_conditional_allow_stops_the_first_phase_and_remembers_the_rest() -> None:
    members = [Fake("a", CA), Fake("b", "Allow")]
    decision = Chain(members).authorize(CREATE)
    assert (decision.verdict, decision.asked, [member.calls for member in members]) == (CONDITIONAL, ("a",), [1, 0])


@pytest.mark.parametrize(("a", "calls"), [(True, 0), (False, 1)])
def test_r052_the_rest_is_asked_only_if_all_before_came_to_no_opinion(a: bool, calls: int) -> None:
    members = [Fake("a", CA), Fake("b", "Deny")]
    decision = Chain(members).authorize(CREATE).evaluate(data(a=a))
    assert decision.verdict is (ALLOW if a else DENY)
    assert (members[1].calls, decision.asked) == (calls, ("a", "b")[: 1 + calls])


def test_r053_an_authorizer_asked_late_may_be_conditional_and_is_evaluated_at_once() -> None:
    decision = first(CA, [condition("Allow", "b")], "Deny").evaluate(data(a=False, b=True))
    assert (decision.verdict, decision.decided_by, decision.asked) == (ALLOW, "a1", ("a0", "a1"))


def test_r054_conditional_deny_then_deny_is_deny_by_the_later() -> None:
    decision = first(CD, "NoOpinion", "Deny", "Allow")
    assert (decision.verdict, decision.decided_by, decision.asked) == (DENY, "a2", ("a0", "a1", "a2"))


@pytest.mark.parametrize(("d", "verdict"), [(True, DENY), (False, ALLOW), (None, DENY)])
def test_r055_conditional_deny_then_allow_is_allowed_iff_no_deny_condition_holds(d: bool, verdict: Verdict) -> None:
    decision = first(CD, "Allow", "Deny")
    assert (decision.verdict, decision.can_become_allowed) == (CONDITIONAL, True)
    assert shown(decision) == [("a0", "Conditional"), ("a1", "Allow")]
    final = decision.evaluate(data(d=d))
    assert (final.verdict, final.asked) == (verdict, ("a0", "a1"))


def test_r056_conditional_deny_then_no_opinions_cannot_become_allowed() -> None:
    decision = first(CD, "NoOpinion")
    assert (decision.verdict, decision.can_become_allowed, shown(decision)) == (
        CONDITIONAL,
        False,
        [("a0", "Conditional")],
    )
    assert decision.evaluate(data(d=True)).verdict is DENY
    assert decision.evaluate(data(d=False)).verdict is NO_OPINION


def test_r057_conditional_deny_then_conditional_allow_is_conditional() -> None:
    decision = first(CD, CA, "Allow")
    assert (decision.verdict, decision.can_become_allowed, decision.asked) == (CONDITIONAL, True, ("a0", "a1"))


def test_r058_the_order_is_kept_and_sets_are_never_merged() -> None:
    decision = first([condition("Allow", "x")], [condition("Allow", "x")], [condition("Deny", "x")])
    assert [conditions.authorizer for conditions in condition_sets(decision)] == ["a0", "a1", "a2"]


def test_r061_nothing_behind_a_concrete_answer_matters() -> None:
    members = [Fake("a", "Allow"), Fake("b", "Deny")]
    assert Chain(members).authorize(CREATE).verdict is ALLOW
    assert members[1].calls == 0


def test_r062_a_failing_set_concerns_only_its_own_authorizer() -> None:
    lenient = Fake("a", [condition("Deny", "bad"), condition("Allow", "bad")], FailureMode.NO_OPINION)
    strict = Fake("b", CA, FailureMode.DENY)
    assert Chain([lenient, strict]).authorize(CREATE).evaluate(data(a=True)).verdict is ALLOW


def test_r062_an_answer_that_the_conditions_cannot_give_fails_closed() -> None:
    class Liar(Fake):
        def evaluate(self, conditions: ConditionSet, data: ConditionData) -> Decision:
            return Decision(ALLOW)

    decision = Chain([Liar("liar", CD), Fake("b", "Allow")]).authorize(CREATE).evaluate(data(d=True))
    assert (decision.verdict, decision.decided_by) == (DENY, "liar")
    assert "cannot give" in decision.error


def test_r073_a_caller_without_conditions_never_sees_one() -> None:
    old = replace(CREATE, conditions_mode=ConditionsMode.NONE)
    for answers in itertools.product((CA, CD, "Allow", "Deny", "NoOpinion"), repeat=2):
        assert chain(*answers).authorize(old).verdict is not CONDITIONAL


def test_r074_folding_is_deny_with_a_deny_condition_else_no_opinion_and_goes_on() -> None:
    old = replace(CREATE, conditions_mode=ConditionsMode.NONE)
    assert chain(CD, "Allow").authorize(old).verdict is DENY
    assert chain([*CD, *CA], "Allow").authorize(old).verdict is DENY
    assert chain(CA, "Allow").authorize(old).verdict is ALLOW
    assert chain(CA).authorize(old).verdict is NO_OPINION


def test_r084_showing_all_sets_asks_the_rest_but_does_not_count_as_asking() -> None:
    decision = first(CA, "NoOpinion", CD, "Allow", "Deny")
    assert shown(decision) == [("a0", "Conditional"), ("a2", "Conditional"), ("a3", "Allow")]
    assert decision.asked == ("a0",)


def test_conditional_allow_is_not_folded_into_a_later_allow() -> None:
    assert first(CA, "Allow").verdict is CONDITIONAL
    assert first(CA, "Deny").verdict is CONDITIONAL
    assert ask_the_rest(first(CA, "Deny")).failure is DENY
    assert ask_the_rest(first(CA, "Allow")).failure is NO_OPINION


def test_names_in_a_chain_are_unique_nested_ones_included() -> None:
    with pytest.raises(ValueError, match="`a` is in the chain twice"):
        Chain([Fake("a", "Allow"), Chain([Fake("a", "Deny")])])


def test_a_recalled_answer_is_evaluated_by_name_and_a_stranger_fails_closed() -> None:
    members = chain(CD, "Allow")
    entries = ask_the_rest(members.authorize(CREATE)).entries
    assert members.recall(entries).evaluate(data(d=False)).verdict is ALLOW
    strange = [("somebody", entries[0].decision), entries[1]]
    decision = members.recall(strange).evaluate(data(d=False))
    assert decision.verdict is DENY
    assert "somebody" in decision.error


# Random chains --------------------------------------------------------------------------------------------------------

RESULTS = st.sampled_from((True, False, None))
SETS = st.lists(
    st.tuples(st.sampled_from(("Allow", "Deny", "NoOpinion")), st.sampled_from("xyz")),
    min_size=1,
    max_size=4,
    unique=True,
)
ANSWERS = st.one_of(
    st.sampled_from(("Allow", "Deny", "NoOpinion", "Error")), st.tuples(SETS, st.sampled_from(FailureMode))
)
DATA = st.fixed_dictionaries(dict.fromkeys("xyz", RESULTS))


def fake(name: str, answer: object) -> Fake:
    if isinstance(answer, tuple):
        return Fake(name, [condition(effect, text) for effect, text in answer[0]], answer[1])
    return Fake(name, str(answer))


def reference_set(answer: object, results: dict[str, object]) -> str:
    """One authorizer, judged with the data at hand, as the text says it."""
    if not isinstance(answer, tuple):
        return "NoOpinion" if answer == "Error" else str(answer)
    outcomes = {(effect, results[text]) for effect, text in answer[0]}
    if ("Deny", True) in outcomes:
        return "Deny"
    if ("Deny", None) in outcomes:
        return str(answer[1])
    if ("NoOpinion", True) in outcomes or ("NoOpinion", None) in outcomes:
        return "NoOpinion"
    return "Allow" if ("Allow", True) in outcomes else "NoOpinion"


def reference_chain(answers: list[object], results: dict[str, object]) -> str:
    """One phase: the first answer that is an opinion."""
    said = (reference_set(answer, results) for answer in answers)
    return next((verdict for verdict in said if verdict != "NoOpinion"), "NoOpinion")


@given(st.lists(ANSWERS, max_size=5), DATA)
def test_r008_two_phases_give_what_one_phase_gives(answers: list[object], results: dict[str, object]) -> None:
    decision = Chain([fake(f"a{n}", answer) for n, answer in enumerate(answers)]).authorize(CREATE)
    assert decision.evaluate(data(**results)).verdict == reference_chain(answers, results)


@given(st.lists(ANSWERS, max_size=5), DATA)
def test_eager_and_lazy_come_to_the_same_answer(answers: list[object], results: dict[str, object]) -> None:
    lazy, eager = (Chain([fake(f"a{n}", answer) for n, answer in enumerate(answers)], eager=e) for e in (False, True))
    first_lazy, first_eager = lazy.authorize(CREATE), eager.authorize(CREATE)
    assert first_lazy.verdict is first_eager.verdict
    assert ask_the_rest(first_lazy).entries == ask_the_rest(first_eager).entries
    final_lazy, final_eager = first_lazy.evaluate(data(**results)), first_eager.evaluate(data(**results))
    assert (final_lazy.verdict, final_lazy.decided_by) == (final_eager.verdict, final_eager.decided_by)


@st.composite
def nested(draw: st.DrawFn) -> tuple[list[object], list[Authorizer]]:
    """Answers, and the same authorizers in some nesting."""
    answers = draw(st.lists(ANSWERS, min_size=1, max_size=6))
    flat: list[Authorizer] = [fake(f"a{n}", answer) for n, answer in enumerate(answers)]
    for depth in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(flat) - 1))
        end = draw(st.integers(start + 1, len(flat)))
        flat[start:end] = [Chain(flat[start:end], f"c{depth}", eager=draw(st.booleans()))]
    return answers, flat


@given(nested(), DATA)
def test_r059_nested_chains_decide_like_flat_ones(
    case: tuple[list[object], list[Authorizer]], results: dict[str, object]
) -> None:
    answers, members = case
    flat = Chain([fake(f"a{n}", answer) for n, answer in enumerate(answers)]).authorize(CREATE)
    deep = Chain(members).authorize(CREATE)
    assert deep.verdict is flat.verdict
    assert shown(deep) == shown(flat)
    assert ask_the_rest(deep).failure is ask_the_rest(flat).failure
    final_deep, final_flat = deep.evaluate(data(**results)), flat.evaluate(data(**results))
    assert (final_deep.verdict, final_deep.decided_by) == (final_flat.verdict, final_flat.decided_by)


@given(nested(), DATA)
def test_lazy_nested_chains_ask_exactly_whom_flat_ones_ask(
    case: tuple[list[object], list[Authorizer]], results: dict[str, object]
) -> None:
    answers, members = case

    def lazy(member: Authorizer) -> Authorizer:
        return Chain(map(lazy, member.authorizers), member.name) if isinstance(member, Chain) else member

    flat = Chain([fake(f"a{n}", answer) for n, answer in enumerate(answers)]).authorize(CREATE)
    deep = Chain(map(lazy, members)).authorize(CREATE)
    assert deep.asked == flat.asked
    assert deep.evaluate(data(**results)).asked == flat.evaluate(data(**results)).asked


def test_a_nested_chain_of_the_rest_is_asked_one_by_one() -> None:
    """Its conditional Deny settles it, so that nobody asks the Allow behind."""
    inner = Chain([fake("b", ([("Deny", "x")], FailureMode.DENY)), fake("c", "Allow")], "inner")
    first = Chain([fake("a", ([("Allow", "y")], FailureMode.DENY)), inner]).authorize(CREATE)
    assert first.asked == ("a",)
    assert first.evaluate(data(x=True, y=False)).asked == ("a", "b")
    assert first.evaluate(data(x=False, y=False)).asked == ("a", "b", "c")


@given(st.lists(ANSWERS, max_size=4), st.integers(0, 4), DATA)
def test_r060_an_authorizer_without_opinion_changes_nothing(
    answers: list[object], place: int, results: dict[str, object]
) -> None:
    members = [fake(f"a{n}", answer) for n, answer in enumerate(answers)]
    more = [*members[:place], Fake("silent", "NoOpinion"), *members[place:]]
    without, with_more = Chain(members).authorize(LIST), Chain(more).authorize(LIST)
    assert (without.verdict, ask_the_rest(without).entries) == (with_more.verdict, ask_the_rest(with_more).entries)
    assert without.evaluate(data(**results)).verdict is with_more.evaluate(data(**results)).verdict


@given(st.lists(ANSWERS, max_size=5))
def test_possible_decisions_are_exactly_those_that_some_data_gives(answers: list[object]) -> None:
    decision = Chain([fake(f"a{n}", answer) for n, answer in enumerate(answers)]).authorize(CREATE)
    seen = {
        decision.evaluate(data(x=x, y=y, z=z)).verdict for x, y, z in itertools.product((True, False, None), repeat=3)
    }
    assert seen <= ask_the_rest(decision).possible <= decision.possible
    assert not (ALLOW in seen and not decision.can_become_allowed)


@given(st.lists(ANSWERS, max_size=5), DATA)
def test_r023_the_same_question_gets_the_same_answer(answers: list[object], results: dict[str, object]) -> None:
    members = Chain([fake(f"a{n}", answer) for n, answer in enumerate(answers)])
    assert members.authorize(CREATE) == members.authorize(CREATE)
    assert members.authorize(CREATE).evaluate(data(**results)) == members.authorize(CREATE).evaluate(data(**results))
