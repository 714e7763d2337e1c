"""Seals: an answer is taken back only as it was given, in time, and for the request that it was given to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tierwall.api.algebra.chain import ChainEntry
from tierwall.api.algebra.condition import (
    PACKED_CEL_TYPE,
    Condition,
    ConditionalDecision,
    Effect,
    FailureMode,
    conditional,
)
from tierwall.api.algebra.decision import ALLOW, DENY, Decision
from tierwall.api.algebra.request import Attributes, ConditionData
from tierwall.api.wire.seal import MAX_PREFIX, ReviewFacts, Sealer, SealError, sealed_content, unsealed
from tierwall.serve.authorizer.review_facts import facts_of_data

SEALER = Sealer(b"k" * 32)
ALICE = Attributes(user="alice", verb="update", version="v1", resource="configmaps", namespace="dev", name="c")
NOTHING_TOLD = ReviewFacts()
EXPIRY = 2_000_000_000

CONDITIONS = st.builds(
    Condition,
    st.sampled_from(("a", "b", "dev/c", "x.example.com/d")),
    st.sampled_from(Effect),
    st.sampled_from(("object.x == 1", "true", "")),
)


def _is_conditional(decision: Decision) -> bool:
    return decision.is_conditional


SETS = st.builds(
    lambda conditions, mode: conditional("x", conditions, mode),
    st.lists(CONDITIONS, min_size=1, max_size=3, unique_by=lambda condition: condition.id),
    st.sampled_from(FailureMode),
).filter(_is_conditional)
ENTRIES = st.lists(
    st.builds(ChainEntry, st.sampled_from(("policies", "guard", "hook.a")), SETS | st.just(Decision(ALLOW))),
    min_size=1,
    max_size=4,
).filter(lambda entries: any(decision.is_conditional for _, decision in entries))


def meaning(entries: Any) -> list[Any]:
    """Return the parts of an answer that decide: the order of entries counts, that of conditions does not."""
    return [
        (
            name,
            str(decision.conditions.failure_mode),
            frozenset((each.id, each.effect, each.type, each.text) for each in decision.conditions.conditions),
        )
        if isinstance(decision, ConditionalDecision)
        else (name, str(decision.verdict))
        for name, decision in entries
    ]


def is_taken(entries: Any, facts: ReviewFacts = NOTHING_TOLD, now: float = 0.0) -> bool:
    try:
        plain, token = unsealed(entries)
        SEALER.check(token, facts, now)
    except SealError:
        return False
    return SEALER.fits(sealed_content(plain), token)


@given(entries=ENTRIES)
def test_a_sealed_answer_comes_back_whole(entries: list[ChainEntry]) -> None:
    sealed = SEALER.seal(entries, ALICE, "0123456789ab", EXPIRY)
    plain, token = unsealed(sealed)
    assert (list(plain), token.revision) == (entries, "0123456789ab")
    assert SEALER.fits(sealed_content(plain), token)
    for _, decision in sealed:
        assert not isinstance(decision, ConditionalDecision) or not decision.conditions.problems()


@given(entries=ENTRIES, others=ENTRIES, data=st.data())
def test_an_answer_in_any_other_order_or_part_is_refused(
    entries: list[ChainEntry], others: list[ChainEntry], data: st.DataObject
) -> None:
    """Model: an answer made of the parts of two answers is taken if and only if it means the same as one of them."""
    sealed = SEALER.seal(entries, ALICE, "r", EXPIRY)
    foreign = SEALER.seal(others, replace(ALICE, user="bob"), "r", EXPIRY)
    parts = [*sealed, *foreign, ChainEntry("policies", Decision(ALLOW)), ChainEntry("", Decision(DENY))]
    chosen = data.draw(st.lists(st.sampled_from(parts), max_size=5))
    assert is_taken(chosen) is (meaning(chosen) in (meaning(sealed), meaning(foreign)))


@pytest.mark.parametrize(
    "change",
    [{"text": "false"}, {"effect": Effect.NO_OPINION}, {"type": PACKED_CEL_TYPE}, {"id": "b"}, {"id": "dev/é"}],
)
def test_a_changed_condition_is_refused(change: dict[str, Any]) -> None:
    ((name, decision),) = SEALER.seal([ChainEntry("a", deny_or_allow())], ALICE, "r", EXPIRY)
    assert isinstance(decision, ConditionalDecision)
    first, second = decision.conditions.conditions
    bare = replace(
        decision, conditions=replace(decision.conditions, conditions=(replace(first, description=""), second))
    )
    assert is_taken([(name, bare)]), "descriptions may be left out"
    for conditions in ((replace(first, **change), second), (first,), (second,), (first, second, second)):
        changed = replace(decision, conditions=replace(decision.conditions, conditions=conditions))
        assert not is_taken([(name, changed)])
    softer = replace(decision, conditions=replace(decision.conditions, failure_mode=FailureMode.NO_OPINION))
    assert not is_taken([(name, softer)])


def deny_or_allow() -> Decision:
    return conditional(
        "a", (Condition("dev/a", Effect.DENY, "true"), Condition("b", Effect.ALLOW, "false", description="d"))
    )


def test_another_key_and_a_later_time_are_refused() -> None:
    sealed = SEALER.seal([ChainEntry("a", deny_or_allow())], ALICE, "r", EXPIRY)
    assert is_taken(sealed, now=EXPIRY)
    assert not is_taken(sealed, now=EXPIRY + 1)
    plain, token = unsealed(sealed)
    assert not Sealer(b"x" * 32).fits(sealed_content(plain), token)


def test_the_longest_prefix_of_an_id_still_fits() -> None:
    prefix = ".".join(["p" * 60] * 4)[:MAX_PREFIX].rstrip(".")
    long = conditional("a", [Condition(f"{prefix}/{'n' * 63}", Effect.ALLOW, "true")])
    ((_, sealed),) = SEALER.seal([ChainEntry("a", long)], ALICE, "0123456789ab", EXPIRY)
    assert isinstance(sealed, ConditionalDecision)
    assert not sealed.conditions.problems()


# The request ----------------------------------------------------------------------------------------------------------

VERBS = ("create", "update", "patch", "delete", "deletecollection", "get", "list", "impersonate")
# By verb: the operations that admission may have for it.
OPERATIONS = {
    "create": {"CREATE", "CONNECT"},
    "update": {"CREATE", "UPDATE", "CONNECT"},
    "patch": {"CREATE", "UPDATE", "CONNECT"},
    "delete": {"DELETE", "CONNECT"},
    "deletecollection": {"DELETE"},
    "get": {"CONNECT"},
    "list": set[str](),
    "impersonate": set[str](),
}


@given(
    verb=st.sampled_from(VERBS),
    operation=st.sampled_from((None, "CREATE", "UPDATE", "DELETE", "CONNECT", "DESTROY")),
    subresource=st.sampled_from(("", "status", "exec")),
)
def test_the_operation_must_be_one_of_the_verb(verb: str, operation: str | None, subresource: str) -> None:
    asked = replace(ALICE, verb=verb, subresource=subresource, resource="pods")
    sealed = SEALER.seal([ChainEntry("a", deny_or_allow())], asked, "r", EXPIRY)
    fits = operation is None or operation in OPERATIONS[verb]
    if operation == "CONNECT" and subresource != "exec":
        fits = False
    assert is_taken(sealed, ReviewFacts(operation=operation)) is fits


FACTS = (
    ("user", ALICE, replace(ALICE, user="bob")),
    ("user", ALICE, replace(ALICE, groups=("admins",))),
    ("user", ALICE, replace(ALICE, extra=(("scope", ("x",)),))),
    ("user", ALICE, replace(ALICE, uid="7")),
    ("resources", (("", "v1", "configmaps", ""),), (("", "v1", "secrets", ""),)),
    ("resources", (("", "v1", "configmaps", ""),), (("", "v1", "configmaps", "status"),)),
    ("group_version", ("", "v1"), ("apps", "v1")),
    ("namespace", "dev", "prod"),
    ("name", "c", "d"),
)


@pytest.mark.parametrize(("field", "same", "other"), FACTS)
def test_each_fact_that_is_told_must_fit(field: str, same: Any, other: Any) -> None:
    sealed = SEALER.seal([ChainEntry("a", deny_or_allow())], ALICE, "r", EXPIRY)
    told = {"operation": "UPDATE", field: same}
    assert is_taken(sealed, ReviewFacts(**told))
    assert not is_taken(sealed, ReviewFacts(**{**told, field: other}))


def test_the_order_of_groups_does_not_matter() -> None:
    asked = replace(ALICE, groups=("a", "b"))
    sealed = SEALER.seal([ChainEntry("a", deny_or_allow())], asked, "r", EXPIRY)
    assert is_taken(sealed, ReviewFacts(user=replace(ALICE, groups=("b", "a"))))


def test_a_create_without_a_name_gets_one_later() -> None:
    sealed = SEALER.seal([ChainEntry("a", deny_or_allow())], replace(ALICE, verb="create", name=""), "r", EXPIRY)
    assert is_taken(sealed, ReviewFacts(operation="CREATE", name="generated-x7"))


@pytest.mark.parametrize(
    ("data", "fits"),
    [
        ({"operation": "UPDATE", "object": {"apiVersion": "v1", "kind": "ConfigMap"}}, True),
        ({"operation": "UPDATE", "object": {"apiVersion": "v1", "kind": "Secret"}}, False),
        ({"operation": "UPDATE", "object": {"apiVersion": "v2", "kind": "ConfigMap"}}, False),
        ({"operation": "UPDATE", "object": {"apiVersion": "v1", "kind": "Odd"}}, True),
        ({"operation": "UPDATE", "object": {"apiVersion": "example.com/v1", "kind": "Odd"}}, False),
        ({"operation": "UPDATE", "object": {"metadata": {"namespace": "dev", "name": "c"}}}, True),
        ({"operation": "UPDATE", "object": {"metadata": {"namespace": "prod"}}}, False),
        ({"operation": "UPDATE", "object": {"metadata": {"name": "d"}}}, False),
        ({"operation": "UPDATE", "oldObject": {"metadata": {"name": "d"}}}, False),
        ({"operation": "DELETE", "oldObject": {"metadata": {"name": "c"}}}, False),
        ({"object": {"metadata": "?", "apiVersion": 3, "kind": []}}, True),
        ({"object": 3}, True),
        ({}, True),
    ],
)
def test_objects_tell_what_a_review_without_a_request_does_not(data: dict[str, Any], fits: bool) -> None:
    sealed = SEALER.seal([ChainEntry("a", deny_or_allow())], ALICE, "r", EXPIRY)
    given_data = ConditionData(
        operation=data.get("operation"), object=data.get("object"), old_object=data.get("oldObject")
    )
    assert is_taken(sealed, facts_of_data(given_data)) is fits


def test_the_object_of_a_subresource_may_be_of_any_kind() -> None:
    asked = replace(ALICE, verb="create", resource="pods", subresource="eviction", name="p")
    sealed = SEALER.seal([ChainEntry("a", deny_or_allow())], asked, "r", EXPIRY)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p", "namespace": "dev"}}
    assert is_taken(sealed, facts_of_data(ConditionData(operation="CREATE", object=eviction)))
    assert not is_taken(sealed, facts_of_data(ConditionData(operation="DELETE", object=eviction)))


def test_conditions_on_impersonation_are_evaluated_on_the_request_that_follows() -> None:
    asked = replace(ALICE, verb="impersonate", resource="users", group="authentication.k8s.io", name="lucas")
    sealed = SEALER.seal([ChainEntry("a", deny_or_allow())], asked, "r", EXPIRY)
    wanted = ConditionData(operation="CREATE", impersonated_request={"verb": "create"}, object={"kind": "Pod"})
    assert is_taken(sealed, facts_of_data(wanted))
    assert not is_taken(sealed, facts_of_data(replace(wanted, impersonated_request=None)))
