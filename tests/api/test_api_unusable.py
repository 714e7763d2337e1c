"""A policy that cannot be used is closed alone (docs/semantics.md#a-policy-that-cannot-be-used-fails-alone)."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.api.test_api_rbac import ALICE, allows, binding, role, rule
from tests.randomness import examples
from tests.worlds.api_fakes import configuration, document, objects, policy
from tests.worlds.cel_expressions import Expressions
from tierwall.analyze.api import api_findings
from tierwall.api.authorizers import expression as expressions
from tierwall.api.permissions import permissions
from tierwall.cel import partial_evaluation
from tierwall.cel.syntax.printer import to_text
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

GROUP, VERSION = "tierwall.io", "v1alpha1"
ALLOW_ALL = policy("all", "Allow", "true")


def request(namespace: str = "a", resource: str = "pods", **more: Any) -> dict[str, Any]:
    return {"user": "alice", "verb": "get", "version": "v1", "resource": resource, "namespace": namespace, **more}


def namespaced(spec: Any, namespace: str = "a", version: str = VERSION, **metadata: Any) -> Resource:
    value = {
        "apiVersion": f"{GROUP}/{version}",
        "kind": "AuthorizationPolicy",
        "metadata": {"name": "p", "namespace": namespace, **metadata},
        "spec": spec,
    }
    return Resource(GROUP, version, "AuthorizationPolicy", namespace, "p", value)


def verdict(resources: list[Resource], **question: Any) -> str:
    return str(document(Snapshot.of(resources), request(**question))["verdict"])


DENY = {"effect": "Deny", "expression": "request.resource == 'secrets'"}
# Specs that were DENY before somebody broke them.
BROKEN: dict[str, Any] = {
    "no spec": None,
    "a list": [],
    "a text": "x",
    "empty": {},
    "no effect": {"expression": "request.resource == 'secrets'"},
    "effect in lower case": {**DENY, "effect": "deny"},
    "effect of a wrong type": {**DENY, "effect": ["Deny"]},
    "no expression": {"effect": "Deny"},
    "expression of a wrong type": {**DENY, "expression": ["request.resource == 'secrets'"]},
    "expression cut short": {**DENY, "expression": "request.resource == "},
    "expression far too deep": {**DENY, "expression": "(" * 4000 + "true" + ")" * 4000},
    "expression too long": {**DENY, "expression": "true || " * 4000 + "true"},
    "unknown field": {**DENY, "scope": "all"},
    "authorizer of a wrong type": {**DENY, "authorizer": 5},
    "empty authorizer": {**DENY, "authorizer": ""},
    "description of a wrong type": {**DENY, "description": {}},
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_deny_closes_what_it_closed_and_nothing_outside_its_namespace(what: str) -> None:
    broken = [namespaced(BROKEN[what]), ALLOW_ALL]
    assert verdict(broken, resource="secrets") == "Deny"
    assert verdict(broken, namespace="b", resource="secrets") == "Allow"
    assert verdict(broken, namespace="") == "Allow"
    path = {"user": "alice", "verb": "get", "path": "/healthz"}
    assert document(Snapshot.of(broken), path)["verdict"] == "Allow"


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_allow_allows_nothing(what: str) -> None:
    spec = BROKEN[what]
    if isinstance(spec, dict) and spec.get("effect") == "Deny":
        spec = {**spec, "effect": "Allow"}
    assert verdict([namespaced(spec)], resource="secrets") != "Allow"
    assert not [
        entry
        for entry in permissions(Snapshot.of([namespaced(spec)]), "alice", namespace="a").listed
        if entry.effect == "Allow"
    ]


def test_a_readable_expression_says_what_a_broken_deny_could_match() -> None:
    broken = [namespaced({**DENY, "effect": "Never"}), ALLOW_ALL]
    assert verdict(broken, resource="secrets") == "Deny"
    assert verdict(broken, resource="pods") == "Allow"
    [listed] = [entry for entry in permissions(Snapshot.of(broken), "alice", namespace="a").listed if entry.error]
    assert listed.resources == ("secrets",)


def test_a_policy_whose_authorizer_cannot_be_read_counts_in_all_of_them() -> None:
    chain = configuration({"type": "CEL", "name": "guardrails"}, {"type": "CEL", "name": "grants"})
    grant = policy("all", "Allow", "true", authorizer="guardrails")
    unreadable: list[Any] = [5, "", []]
    for authorizer in unreadable:
        broken = namespaced({**DENY, "authorizer": authorizer})
        assert verdict([chain, grant, broken], resource="secrets") == "Deny"
        assert verdict([chain, grant, broken], resource="pods") == "Allow"


def test_a_namespaced_policy_of_an_unknown_version_without_a_namespace_stays_in_one() -> None:
    value = {"apiVersion": "tierwall.io/v9", "kind": "AuthorizationPolicy", "metadata": {"name": "p"}, "spec": DENY}
    broken = [Resource(GROUP, "v9", "AuthorizationPolicy", "", "p", value), ALLOW_ALL]
    assert verdict(broken, namespace="b", resource="secrets") == "Allow"
    assert verdict(broken, namespace="", resource="secrets") == "Allow"
    assert verdict(broken, namespace="default", resource="secrets") == "Deny"


def test_metadata_that_an_api_server_refuses_counts_too() -> None:
    refused: list[dict[str, Any]] = [{"labels": {"a": 5}}, {"labels": "x"}, {"name": "P\n"}, {"annotations": []}]
    for metadata in refused:
        assert verdict([namespaced(DENY, **metadata), ALLOW_ALL], resource="secrets") == "Deny"
        assert verdict([namespaced({**DENY, "effect": "Allow"}, **metadata)], resource="secrets") == "NoOpinion"


def test_an_unexpected_error_closes_one_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    def specialise(tree: Any, *arguments: Any, **more: Any) -> Any:
        if "magic" in to_text(tree):
            raise MemoryError("too much")
        return partial_evaluation.specialise(tree, *arguments, **more)

    monkeypatch.setattr(expressions, "specialise", specialise)
    broken = [namespaced({"effect": "Deny", "expression": "request.verb == 'magic'  ||  false"}), ALLOW_ALL]
    assert verdict(broken) == "Deny"
    assert "MemoryError: too much" in str(document(Snapshot.of(broken), request()))
    assert verdict(broken, namespace="b") == "Allow"


def test_check_reports_each_reason_once() -> None:
    codes = [finding.code for finding in api_findings(Snapshot.of([namespaced({**DENY, "x": 1})]))]
    assert "TW509" not in codes, "admission reports it"
    [(code, message)] = [
        (finding.code, finding.message) for finding in api_findings(Snapshot.of([namespaced(BROKEN["no effect"])]))
    ]
    assert (code, "unknown effect" in message) == ("TW509", True)


# RBAC

GET_ONE = rule("secrets", resourceNames=["one"])


@pytest.mark.parametrize(
    "change",
    [{"resourceNames": value} for value in ({}, "", 0, False, "one", {"one": 1}, [1], [["one"]])]
    + [{"verbs": "*"}, {"verbs": ["get", 1]}, {"apiGroups": "*"}, {"resources": {"secrets": 1}}, {"nonsense": 1}],
)
def test_a_rule_that_cannot_be_read_grants_nothing(change: dict[str, Any]) -> None:
    snapshot = objects(role("r", {**GET_ONE, **change}), binding("r", ALICE))
    assert not allows(snapshot, resource="secrets", name="two")
    assert not allows(snapshot, resource="secrets", name="one")
    assert not permissions(snapshot, "alice").listed


def test_a_refused_binding_or_role_grants_nothing_and_others_do() -> None:
    good = role("r", rule("pods")), binding("r", ALICE)
    assert allows(objects(*good), resource="pods")
    refused_role = {**good[0], "metadata": {"name": "r", "labels": {"a": 5}}}
    refused_binding = {**good[1], "roleRef": {**good[1]["roleRef"], "apiGroup": "apps"}}
    for broken in ((refused_role, good[1]), (good[0], refused_binding)):
        assert not allows(objects(*broken), resource="pods")
        others = role("s", rule("secrets")), binding("s", ALICE)
        assert allows(objects(*broken, *others), resource="secrets")


def test_a_refused_role_is_not_aggregated() -> None:
    selects = {"clusterRoleSelectors": [{"matchLabels": {"to": "x"}}]}
    part = role("part", rule("pods"), metadata={"labels": {"to": "x"}})
    whole = role("whole", aggregationRule=selects)
    assert allows(objects(part, whole, binding("whole", ALICE)), resource="pods")
    refused = {**part, "nonsense": 1}
    assert not allows(objects(refused, whole, binding("whole", ALICE)), resource="pods")
    assert not allows(objects(part, {**whole, "nonsense": 1}, binding("whole", ALICE)), resource="pods")
    above = role("above", aggregationRule={"clusterRoleSelectors": [{"matchLabels": {"to": "y"}}]})
    between = {**whole, "metadata": {"name": "whole", "labels": {"to": "y"}}}
    assert allows(objects(part, between, above, binding("above", ALICE)), resource="pods")
    assert not allows(objects(part, {**between, "nonsense": 1}, above, binding("above", ALICE)), resource="pods")


def test_items_of_a_typed_list_need_not_repeat_their_type() -> None:
    untyped = {key: value for key, value in role("r", rule("pods")).items() if key not in ("apiVersion", "kind")}
    bare = Resource("rbac.authorization.k8s.io", "v1", "ClusterRole", "", "r", untyped)
    assert allows(Snapshot.of([bare, *objects(binding("r", ALICE))]), resource="pods")


# any text


NINE = "[1, 2, 3, 4, 5, 6, 7, 8, 9]"


@pytest.mark.parametrize("inner", ["1u" + ".x" * 200, "(1u" + ".x" * 200 + ") || e > 10"])
def test_errors_that_are_absorbed_by_the_thousand_end_in_time(inner: str) -> None:
    text = f"{NINE}.all(e, " * 6 + inner + ")" * 6
    start = time.process_time()
    answer = document(Snapshot.of([policy("p", "Deny", text)]), request())
    assert "cost limit exceeded" in str(answer)
    assert time.process_time() - start < 8, "it took 14 s for each evaluation"


WRAPPERS = (
    lambda text, times: "(" * times + text + ")" * times,
    lambda text, times: "!" * times + f"({text})",
    lambda text, times: f"request.verb == 'x' ? {text} : " * times + "false",
    lambda text, times: " && ".join([f"({text})"] * times),
    lambda text, times: " || ".join([f"({text})"] * times),
    lambda text, times: "[1, 2, 3].all(e, " * (times % 12) + text + ")" * (times % 12),
    lambda text, times: f"[{', '.join([f'({text})'] * times)}].exists(e, e == object.x)",
    lambda text, times: f"object.a.matches('{'(a|b)*' * times}') && ({text})",
    lambda text, times: f"({text}){'.x' * times}",
)
VARIABLES = {"object": "map", "request": "map", "oldObject": "map", "operation": "string", "options": "map"}


@st.composite
def texts(draw: st.DrawFn) -> str:
    if draw(st.integers(0, 9)) == 0:
        return draw(st.text(max_size=40))
    text = Expressions(lambda n: draw(st.integers(0, n - 1)), loose=True, variables=VARIABLES).of("bool", 3)
    for _ in range(draw(st.integers(0, 2))):
        text = WRAPPERS[draw(st.integers(0, len(WRAPPERS) - 1))](text, draw(st.integers(1, 300)))
    cut = draw(st.integers(0, 4))
    return text[: draw(st.integers(0, min(len(text), 200)))] if cut == 0 else text[:20_000]


@settings(max_examples=examples(60), deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(texts(), st.sampled_from(["Allow", "Deny", "NoOpinion"]))
def test_whatever_the_expression_others_are_answered_as_without_it_and_in_time(text: str, effect: str) -> None:
    mine = namespaced({"effect": effect, "expression": text})
    others = [policy("get", "Allow", "request.verb == 'get'"), policy("own", "Deny", "object.x == 1", namespace="b")]
    start = time.process_time()
    with_mine, without = Snapshot.of([mine, *others]), Snapshot.of(others)
    for question in (request("b"), request("b", verb="create", object={"x": 1}), request(""), request("c")):
        assert document(with_mine, question) == document(without, question)
    for question in (request(), request(verb="create", object={"x": 1})):
        answer = document(with_mine, question)
        assert answer["verdict"] in ("Allow", "Deny", "NoOpinion", "Conditional")
    assert time.process_time() - start < 10, "bounded, on the slowest machine"
