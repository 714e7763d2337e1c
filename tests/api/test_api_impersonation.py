"""The stages of impersonation: without the request, with it, and on its object (KEP-5681)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.labs.authorizer_server import Served, access, admission, claim, conditions, readable
from tierwall.api.algebra.chain import Chain
from tierwall.api.algebra.condition import CEL_TYPE, Condition, ConditionSet, Effect, FailureMode, conditional
from tierwall.api.algebra.decision import Decision
from tierwall.api.algebra.request import Attributes, ConditionData
from tierwall.api.authorizers.expression import evaluate_conditions
from tierwall.api.authorizers.impersonation import EXTRA, MAX_CHARACTERS, narrowed
from tierwall.api.wire.review import WireShape
from tierwall.cli.main import root

LUCAS = (
    'request.userInfo.username == "lucas" && request.verb == "impersonate" && request.resource == "users" && '
    'impersonatedRequest.verb in ["create", "update"] && "marked" in object.metadata.labels'
)
NOT_IN_PROD = 'request.verb == "impersonate" && impersonatedRequest.namespace == "prod"'
NOT_LOCKED = 'request.verb == "impersonate" && impersonatedRequest.verb == "update" && object.locked == true'
POLICIES = [("lucas", "Allow", LUCAS), ("prod", "Deny", NOT_IN_PROD), ("locked", "Deny", NOT_LOCKED)]
ASKED = {"verb": "impersonate", "resource": "users", "name": "alice", "namespace": "", "version": "v1"}


# the second stage


class FixedAuthorizer:
    """Returns one set of CEL conditions."""

    condition_types = frozenset((CEL_TYPE,))

    def __init__(self, name: str, decision: Decision) -> None:
        self.name, self.decision = name, decision

    def authorize(self, attributes: Attributes) -> Decision:
        return self.decision

    def evaluate(self, conditions: ConditionSet, data: ConditionData) -> Decision:
        return evaluate_conditions(conditions, data.variables())


TEXTS = (
    "impersonatedRequest.verb == 'create'",
    "impersonatedRequest.missing",
    "object.a == 1",
    "impersonatedRequest.verb == 'create' && object.a == 1",
    "impersonatedRequest.verb == 'create' || object.a == 1",
    "impersonatedRequest.verb != 'create' ? object.a == 1 : object.b",
    "impersonatedRequest.missing || object.a == 1",
    "true",
    "false",
)
SETS = st.tuples(
    st.lists(st.tuples(st.sampled_from(list(Effect)), st.sampled_from(TEXTS)), min_size=1, max_size=4),
    st.sampled_from(list(FailureMode)),
)


@given(
    sets=st.lists(SETS, min_size=1, max_size=3),
    verb=st.sampled_from(("create", "get")),
    object_=st.dictionaries(st.sampled_from("ab"), st.sampled_from((1, True))),
)
def test_what_is_left_decides_as_everything_at_once(sets: Any, verb: str, object_: dict[str, Any]) -> None:
    members = [
        FixedAuthorizer(
            f"a{index}",
            conditional(
                f"a{index}",
                [Condition(f"c{number}", effect, text) for number, (effect, text) in enumerate(given)],
                mode,
            ),
        )
        for index, (given, mode) in enumerate(sets)
    ]
    attributes, request = Attributes(verb="impersonate"), {"verb": verb}
    first = Chain(members).authorize(attributes)
    if not first.is_conditional:
        return
    whole = first.evaluate(ConditionData(impersonated_request=request, object=object_))
    left = narrowed(first, attributes, request)
    assert left.evaluate(ConditionData(object=object_)).verdict is whole.verdict
    assert not any("impersonatedRequest" in str(entry) for entry in left.entries if entry.decision.is_conditional) or (
        "missing" in str(sets)
    )


def review(served: Served, **data: Any) -> dict[str, Any]:
    status = served.post("/authorize", access("lucas", attributes=ASKED, **readable())).json["status"]
    key = "conditionSetChain"
    response: dict[str, Any] = served.post("/conditions", conditions(**{key: status[key]}, **data)).json["response"]
    return response


def test_an_evaluation_without_the_object_returns_what_is_left(tmp_path: Path) -> None:
    served = Served(tmp_path, POLICIES, shape=WireShape.KEP)
    left = review(served, impersonatedRequest={"verb": "create", "namespace": "dev"})
    assert left["allowed"] is False
    [rest] = left["conditionSetChain"]
    assert [condition["condition"] for condition in rest["conditions"]] == ['"marked" in object.metadata.labels']
    # The conditions that are left are sealed as well, and can be evaluated.
    for labels, allowed in (({"marked": "true"}, True), ({}, False)):
        object_ = {"metadata": {"labels": labels}}
        given = conditions(
            conditionSetChain=left["conditionSetChain"],
            impersonatedRequest={"verb": "create"},
            operation="CREATE",
            object=object_,
        )
        assert served.post("/conditions", given).json["response"]["allowed"] is allowed
    rest["conditions"][0]["condition"] = "true"
    forged = conditions(conditionSetChain=[rest], impersonatedRequest={"verb": "create"}, object={})
    assert served.post("/conditions", forged).json["response"]["allowed"] is False


def test_a_deny_of_the_second_stage_is_final(tmp_path: Path) -> None:
    served = Served(tmp_path, POLICIES, shape=WireShape.KEP)
    denied = review(served, impersonatedRequest={"verb": "create", "namespace": "prod"})
    assert denied["denied"] is True
    assert review(served, impersonatedRequest={"verb": "get", "namespace": "dev"})["allowed"] is False
    kept = review(served, impersonatedRequest={"verb": "update", "namespace": "dev"})["conditionSetChain"]
    assert {condition["effect"] for condition in kept[0]["conditions"]} == {"Allow", "Deny"}


def test_a_shape_without_words_for_it_fails_closed(tmp_path: Path) -> None:
    served = Served(tmp_path, POLICIES)
    status = served.post("/authorize", access("lucas", attributes=ASKED, **readable())).json["status"]
    for verb, denied in (("create", None), ("update", True)):
        request = {"verb": verb, "namespace": "dev"}
        given = conditions(conditionSets=status["conditionsChain"], impersonatedRequest=request)
        response = served.post("/conditions", given).json["response"]
        assert (response["allowed"], response.get("denied")) == (False, denied)


# the third stage


def cel(effect: str, text: str) -> dict[str, str]:
    return {"id": "x", "effect": effect, "condition": text, "type": CEL_TYPE}


def named(*given: dict[str, str]) -> list[dict[str, Any]]:
    return [{"authorizerName": "policies", "conditions": list(given)}]


GOOD, BAD = {"ok": True, "locked": False}, {"ok": False, "locked": True}
CARRIED: dict[str, tuple[Any, bool, bool]] = {
    # What is carried, and whether the good object and the bad one pass.
    "a Deny": (named(cel("Deny", "object.locked == true")), True, False),
    "an Allow": (named(cel("Allow", "object.ok == true")), True, False),
    "on the request": (named(cel("Allow", 'impersonatedRequest.verb == "create" && object.ok')), True, False),
    "another request": (named(cel("Allow", 'impersonatedRequest.verb == "get"')), False, False),
    "NoOpinion": (named(cel("NoOpinion", "object.locked"), cel("Allow", "true") | {"id": "y"}), True, False),
    "denied": ([{"authorizerName": "policies", "denied": True}], False, False),
    "allowed": ([{"authorizerName": "policies", "allowed": True}], True, True),
    "a chain": (
        [*named(cel("Deny", "object.locked")), {"authorizerName": "rbac", "allowed": True}],
        True,
        False,
    ),
    "a failing Deny": (named(cel("Deny", "object.missing.x")), False, False),
    "a whole status": ({"conditionSetChain": named(cel("Deny", "object.locked"))}, True, False),
    "conditions alone": ([cel("Deny", "object.locked")], True, False),
    "a tree": ({"type": "ConditionsMap", "conditionsMap": {"denyConditions": [cel("", "object.locked")]}}, True, False),
    "another type": (named(cel("Deny", "x") | {"type": "example.com/x"}), False, False),
    "not CEL": (named(cel("Deny", "object.(")), False, False),
    "beyond its brackets": (named(cel("Allow", "true) || true ? true : (true")), False, False),
    "nothing": ([], False, False),
    "no JSON": ("object.locked", False, False),
    "too much": ("x" * (MAX_CHARACTERS + 1), False, False),
}


@pytest.mark.parametrize("carried", CARRIED)
def test_conditions_in_the_extra_of_the_user_can_only_deny(tmp_path: Path, carried: str) -> None:
    value, *expected = CARRIED[carried]
    extra = {EXTRA: [value if isinstance(value, str) else json.dumps(value)]}
    served = Served(tmp_path, [("alice", "Allow", 'request.userInfo.username == "alice"')], bridged=True)
    first = served.post("/authorize", access(extra=extra)).json["status"]
    assert first["allowed"] or not any(expected)
    # An API server that knows conditions evaluates them in the second phase.
    native = served.post("/authorize", access(extra=extra, **readable())).json["status"]
    for object_, passes in zip((GOOD, BAD), expected, strict=True):
        info = {"username": "alice", "extra": extra}
        admitted = served.post("/admit", admission(userInfo=info, object=claim() | object_)).json["response"]
        assert admitted["allowed"] is passes
        final = native
        if "conditionsChain" in native:
            given = conditions(conditionSets=native["conditionsChain"], operation="CREATE", object=claim() | object_)
            final = served.post("/conditions", given).json["response"]
        assert final["allowed"] is passes
    stranger = access("mallory", extra=extra)
    assert served.post("/authorize", stranger).json["status"]["allowed"] is False, "they never allow"


def test_each_value_in_the_extra_counts(tmp_path: Path) -> None:
    served = Served(tmp_path, [("alice", "Allow", 'request.userInfo.username == "alice"')], bridged=True)
    extra = {EXTRA: [json.dumps(named(cel("Deny", f"object.{field}"))) for field in ("locked", "hidden")]}
    for hidden in (True, False):
        info = {"username": "alice", "extra": extra}
        review = admission(userInfo=info, object=claim() | {"locked": False, "hidden": hidden})
        assert served.post("/admit", review).json["response"]["allowed"] is not hidden


# explain


def test_both_stages_and_their_conditions_are_explained(tmp_path: Path) -> None:
    policies = [
        {
            "apiVersion": "tierwall.io/v1alpha1",
            "kind": "ClusterAuthorizationPolicy",
            "metadata": {"name": name},
            "spec": {"effect": effect, "expression": text},
        }
        for name, effect, text in POLICIES
    ]
    (tmp_path / "p.yaml").write_text(yaml.safe_dump_all(policies))
    (tmp_path / "r.json").write_text(json.dumps({"verb": "create", "namespace": "dev"}))
    command = ["explain", "api", "--user", "lucas", "--verb", "impersonate", "--resource", "users", "--group", ""]
    command += ["--name", "alice", "-f", str(tmp_path / "p.yaml"), "--impersonated-request", str(tmp_path / "r.json")]
    text = CliRunner().invoke(root, command).stdout
    first, _, second = text.partition("with the impersonated request, before its object is known: Conditional")
    assert 'denies if impersonatedRequest.namespace == "prod"' in first
    assert 'allows if "marked" in object.metadata.labels' in second
    assert "denies if" not in second
    document = json.loads(CliRunner().invoke(root, [*command, "-o", "json"]).stdout)
    assert document["verdict"] == "Conditional"
    stage = document["impersonation"]
    assert (stage["verdict"], stage["conditionSets"]) == (
        "Conditional",
        [{"authorizer": "policies", "effects": {"Allow": 1}}],
    )
    (tmp_path / "r.json").write_text(json.dumps({"verb": "create", "namespace": "prod"}))
    denied = json.loads(CliRunner().invoke(root, [*command, "-o", "json"]).stdout)
    assert denied["final"] == denied["impersonation"]["verdict"] == "Deny"
