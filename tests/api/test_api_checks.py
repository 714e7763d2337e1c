"""The checks of the api plane: each finding, and no finding where there is nothing to find."""

from __future__ import annotations

import pytest

from tests.worlds.api_fakes import configuration, objects, policy
from tierwall.analyze.api import api_findings
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

ALICE = 'request.userInfo.username == "alice" && request.verb == "create" && request.resource == "pods"'


def codes(*resources: Resource) -> list[str]:
    return sorted(finding.code for finding in api_findings(Snapshot.of(resources)))


def test_a_good_policy_has_no_findings() -> None:
    assert codes(policy("p", "Allow", f'{ALICE} && request.apiGroup == "" && object.spec.nodeName == "x"')) == []


@pytest.mark.parametrize(
    "expression",
    [
        'request.verb == "create" && request.verb == "delete"',
        "false",
        "object.spec.x == 1 && false",
        "request.verb in []",
        "request.apiGroup == '' && object.a == 1 && {}['x'] == 1",
    ],
)
def test_tw502_an_allow_that_is_never_true(expression: str) -> None:
    assert "TW502" in codes(policy("p", "Allow", expression))
    assert "TW502" not in codes(policy("p", "Deny", expression))


@pytest.mark.parametrize(
    ("expression", "field"),
    [
        ('request.verb == "create" && object.spec.x == "y"', "spec"),
        ('request.verb == "create" && has(object.spec) && object.spec.x == "y"', "spec.x"),
        ('request.verb == "delete" && oldObject.metadata.labels["a"] == "b"', "metadata.labels"),
        ('request.verb == "create" && object.spec.containers.exists(c, c.image == "x")', "spec"),
        ('request.verb == "create" && object.spec.replicas > 3', "spec"),
        ('request.resource == "pods" && object.spec.hostNetwork', "spec"),
        ('request.verb == "create" && has(object.spec) && !object.spec.safe', "spec.safe"),
        ("has(object.spec) && (object.spec.on ? true : false)", "spec.on"),
        ("object.enabled", "enabled"),
    ],
)
def test_tw503_a_deny_that_fails_on_a_missing_field_names_it(expression: str, field: str) -> None:
    findings = [
        finding for finding in api_findings(Snapshot.of([policy("p", "Deny", expression)])) if finding.code == "TW503"
    ]
    assert [f"`{field}`" in finding.message for finding in findings] == [True]


@pytest.mark.parametrize(
    "expression",
    [
        'request.verb == "create" && has(object.spec) && has(object.spec.x) && object.spec.x == "y"',
        'request.verb == "create" && object.?spec.?x.orValue("") == "y"',
        'request.userInfo.username == "eve"',
        'request.verb == "create" && object.metadata.name == "x"',
    ],
)
def test_tw503_guarded_denies_are_fine(expression: str) -> None:
    assert "TW503" not in codes(policy("p", "Deny", expression))


def test_tw504_a_condition_over_the_limit() -> None:
    long = " && ".join(f'object.spec.f{n} == "{"x" * 40}"' for n in range(20))
    assert "TW504" in codes(policy("p", "Allow", long))


def test_tw505_reading_fields_of_any_version() -> None:
    apps = 'request.apiGroup == "apps" && object.spec.replicas < 3'
    assert "TW505" in codes(policy("p", "Allow", apps))
    assert "TW505" not in codes(policy("p", "Allow", f'{apps} && request.apiVersion == "v1"'))
    assert "TW505" not in codes(policy("p", "Allow", 'request.apiGroup == "apps" && object.metadata.name == "x"'))
    assert "TW505" not in codes(policy("p", "Allow", 'request.apiGroup == "" && object.spec.x == "x"'))


@pytest.mark.parametrize(
    "expression", ['request.namespace == "b"', 'request.namespace in ["a", ""]', 'request.path == "/x"']
)
def test_tw506_a_namespaced_policy_that_reaches_outside(expression: str) -> None:
    assert "TW506" in codes(policy("p", "Allow", expression, namespace="a"))


def test_tw506_its_own_namespace_is_fine() -> None:
    assert codes(policy("p", "Allow", 'request.namespace == "a" && request.verb == "get"', namespace="a")) == []


def test_tw507_an_allow_beside_a_wider_one() -> None:
    narrow = policy("narrow", "Allow", f'{ALICE} && request.apiGroup == "" && object.spec.nodeName == "x"')
    assert "TW507" in codes(narrow, policy("wide", "Allow", 'request.userInfo.username == "alice"'))
    rbac = objects(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "r"},
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]}],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "b"},
            "roleRef": {"kind": "ClusterRole", "name": "r"},
            "subjects": [{"kind": "User", "name": "alice"}],
        },
    )
    assert "TW507" in codes(narrow, *rbac)
    assert "TW507" not in codes(narrow, policy("other", "Allow", 'request.userInfo.username == "bob"'))


def test_tw508_a_policy_whose_authorizer_is_not_in_the_chain() -> None:
    findings = [
        finding
        for finding in api_findings(Snapshot.of([policy("p", "Allow", "true", "policy")]))
        if finding.code == "TW508"
    ]
    assert findings[0].hint == "did you mean `policies`?"


@pytest.mark.parametrize("expression", ["request.verb ==", "request.nope == 1", "request.verb", "undeclared(1)", ""])
def test_tw509_an_expression_that_cannot_be_used(expression: str) -> None:
    assert "TW509" in codes(policy("p", "Allow", expression))


def test_tw501_a_chain_that_cannot_be_used() -> None:
    assert (
        codes(
            configuration({"type": "CELL", "name": "x"}, {"type": "RBAC", "name": "r"}, {"type": "RBAC", "name": "r"})
        )
        == ["TW501"] * 3
    )


def test_tw501_webhook_settings_that_cannot_be_read() -> None:
    settings = {"timeout": "3", "failurePolicy": "Maybe", "matchConditions": [{"expression": "request.user =="}, {}]}
    findings = api_findings(Snapshot.of([configuration({"type": "Webhook", "name": "w", "webhook": settings})]))
    words = [finding.message for finding in findings if finding.code == "TW501"]
    keys = sorted(message.rpartition(" as ")[2].split(",")[0] for message in words)
    assert keys == ["`expression`", "`expression`", "`failurePolicy`", "`timeout`"]
