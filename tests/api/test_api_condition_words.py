"""Reasons and messages tell people what would be allowed, in one bounded line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.labs.authorizer_server import Served, access, admission, claim, conditions, readable
from tierwall.api.algebra.condition import CEL_TYPE, Condition, Effect, conditional
from tierwall.api.algebra.condition_fit import pack_condition
from tierwall.api.algebra.condition_words import MAX_REASON, MAX_WORDS, condition_words, one_condition, one_line
from tierwall.api.algebra.decision import ALLOW, Decision

CLAIMS = 'request.resource == "persistentvolumeclaims"'


def condition(effect: str, text: str, description: str = "", number: int = 0, type: str = CEL_TYPE) -> Condition:
    return Condition(f"c{number}", Effect(effect), text, type, description)


def words(*given: Condition, is_complete: bool = True) -> str:
    return condition_words([("a", conditional("a", given))], is_complete)


def test_each_effect_has_its_words() -> None:
    allow, deny = condition("Allow", "x", "dev claims"), condition("Deny", "y", number=1)
    assert words(allow) == "allowed only if x (dev claims)"
    assert words(allow, is_complete=False) == "allowed if x (dev claims)"
    assert words(deny, allow) == "allowed only if x (dev claims); denied if y"
    other = condition("NoOpinion", "z", number=2)
    assert words(allow, other, condition("Allow", "w", number=3)) == (
        "allowed only if x (dev claims), or if w; left to others if z"
    )


def test_an_allow_that_always_holds_is_what_is_otherwise_allowed() -> None:
    assert words(condition("Deny", "y"), condition("Allow", "true", "all of it", 1)) == (
        "denied if y; otherwise allowed (all of it)"
    )


def test_an_authorizer_that_allows_anyway_is_named() -> None:
    opinions = [("a", conditional("a", [condition("Deny", "y")])), ("rbac", Decision(ALLOW))]
    assert condition_words(opinions) == "denied if y; otherwise allowed by authorizer `rbac`"


def test_long_and_opaque_conditions_can_be_read() -> None:
    packed = pack_condition(condition("Allow", "object.a == 1"))
    assert one_condition(packed) == "object.a == 1"
    assert one_condition(condition("Deny", "opaque", type="example.com/x")) == "opaque (example.com/x)"


def test_many_conditions_are_counted() -> None:
    many = [condition("Allow", f"x{number}", number=number) for number in range(10)]
    assert words(*many) == "allowed only if x0, or if x1, or if x2, or if x3, or if one of 6 more conditions holds"


@given(st.lists(st.tuples(st.sampled_from(list(Effect)), st.text(max_size=300), st.text(max_size=300)), max_size=12))
def test_words_are_one_bounded_line_whatever_a_policy_says(given: list[tuple[Effect, str, str]]) -> None:
    made = [condition(effect, text, about, number) for number, (effect, text, about) in enumerate(given)]
    text = words(*made)
    assert len(text) <= MAX_WORDS
    assert text.isprintable()
    assert one_line(text * 10).isprintable()
    assert len(one_line(text * 10)) <= MAX_REASON


# through the authorizer


def policy(name: str, effect: str, expression: str, description: str = "") -> dict[str, Any]:
    spec = {"effect": effect, "expression": expression, "description": description}
    return {
        "apiVersion": "tierwall.io/v1alpha1",
        "kind": "ClusterAuthorizationPolicy",
        "metadata": {"name": name},
        "spec": spec,
    }


DEV = policy(
    "dev-claims",
    "Allow",
    f'{CLAIMS} && (request.userInfo.username == "alice" && object.spec.storageClassName == "dev" || '
    'request.userInfo.username == "bob" && object.spec.storageClassName == "secret")',
    "developers use\n\x1b[31mdev storage",
)


@pytest.fixture
def served(tmp_path: Path) -> Served:
    served = Served(tmp_path, bridged=True)
    served.write([], DEV, policy("locked", "Deny", f"{CLAIMS} && object.spec.locked == true", "locked"))
    assert served.reload()
    return served


def reason(served: Served, review: dict[str, Any]) -> str:
    return str(served.post("/authorize", review).json["status"]["reason"])


def test_a_grant_and_a_refusal_tell_the_conditions(served: Served) -> None:
    told = 'allowed if object.spec.storageClassName == "dev" (developers use \\x1b[31mdev storage)'
    assert (
        reason(served, access())
        == f"conditional: {told}; denied if object.spec.locked == true (locked); admission decides"
    )
    any_version = reason(served, access(attributes={"version": "*"}))
    assert any_version.startswith('conditional: allowed only if object.spec.storageClassName == "dev" (')
    refused = served.post("/admit", admission(object=claim("prod") | {"spec": {"locked": False}})).json["response"]
    assert refused["status"]["message"].startswith(
        "`alice` may not create persistentvolumeclaims in namespace `dev`: conditions do not hold: "
        'allowed only if object.spec.storageClassName == "dev" (developers use \\x1b[31mdev storage)'
    )


def test_nobody_reads_the_conditions_of_others(served: Served) -> None:
    for user, storage_class, hidden in (("alice", "dev", "secret"), ("bob", "secret", "dev")):
        texts = [reason(served, access(user)), str(served.post("/admit", admission(user, object=claim("x"))).json)]
        for text in texts:
            assert f'"{storage_class}"' in text.replace("\\", "")
            assert f'== "{hidden}"' not in text.replace("\\", "")


def test_no_grant_at_all_reads_differently(tmp_path: Path) -> None:
    for bridged in (True, False):
        served = Served(tmp_path, bridged=bridged)
        served.write([], DEV)
        served.reload()
        assert reason(served, access("eve")) == "no authorizer has an opinion"
        assert "conditional" in reason(served, access(attributes={"version": "*"}))
        assert 'allowed only if object.spec.storageClassName == "dev"' in reason(
            served, access(attributes={"version": "*"})
        )


def test_the_second_phase_tells_them_too(served: Served) -> None:
    status = served.post("/authorize", access(**readable())).json["status"]
    spec = {"locked": False, "storageClassName": "prod"}
    review = conditions(
        conditionSets=status["conditionsChain"], operation="CREATE", object=claim("prod") | {"spec": spec}
    )
    answer = served.post("/conditions", review).json["response"]
    assert answer["allowed"] is False
    assert 'allowed only if object.spec.storageClassName == "dev"' in answer["reason"]


def test_audit_annotations_tell_the_final_decision_in_the_words_of_the_log(served: Served) -> None:
    cases = (
        ("alice", {"storageClassName": "dev", "locked": False}, "Allow", "dev-claims"),
        ("alice", {"storageClassName": "prod", "locked": False}, "NoOpinion", "dev-claims"),
        ("alice", {"storageClassName": "dev", "locked": True}, "Deny", "locked"),
        ("eve", {"storageClassName": "dev", "locked": True}, "Deny", "locked"),
    )
    for user, spec, decision, policy_name in cases:
        response = served.post("/admit", admission(user, object=claim() | {"spec": spec})).json["response"]
        annotations = response["auditAnnotations"]
        assert annotations["decision"] == decision
        assert annotations["decidedBy"].startswith("policies ClusterAuthorizationPolicy/")
        assert policy_name in annotations["decidedBy"]
        assert "denied if object.spec.locked == true (locked)" in annotations["conditions"]
        assert all(value.isprintable() for value in annotations.values())
        record = served.records()[-1]
        assert {key: record[key] for key in annotations} == annotations


def test_what_no_condition_is_about_is_decided_by_default(served: Served) -> None:
    resource = {"group": "", "version": "v1", "resource": "pods"}
    review = admission(resource=resource, requestResource=resource)
    annotations = served.post("/admit", review).json["response"]["auditAnnotations"]
    assert annotations == {"decision": "NoOpinion", "decidedBy": "Default"}
