"""Refusals read exactly as the API server's; the expectations are what Kubernetes 1.37's own Go code prints."""

from typing import Any

import pytest

from tierwall.resources.admission import admit

SELECTOR: dict[str, Any] = {"matchLabels": {"a": "b"}}


def policy(**spec: Any) -> dict[str, Any]:
    """Return an AdminNetworkPolicy that is valid apart from `spec`."""
    whole = {"priority": 5, "subject": {"namespaces": SELECTOR}} | spec
    return {
        "apiVersion": "policy.networking.k8s.io/v1alpha1",
        "kind": "AdminNetworkPolicy",
        "metadata": {"name": "x"},
        "spec": {name: value for name, value in whole.items() if value is not ...},
    }


def egress(**changes: Any) -> dict[str, Any]:
    """A policy with one egress rule."""
    return policy(egress=[{"action": "Deny", "to": [{"namespaces": SELECTOR}]} | changes])


def messages(document: Any) -> list[str]:
    return [problem.message for problem in admit(document)]


CASES = {
    "too great": (
        policy(priority=1001),
        "spec.priority: Invalid value: 1001: spec.priority in body should be less than or equal to 1000",
    ),
    "too small": (
        policy(priority=-1),
        "spec.priority: Invalid value: -1: spec.priority in body should be greater than or equal to 0",
    ),
    "a text for a number": (
        policy(priority="5"),
        'spec.priority: Invalid value: "string": spec.priority in body must be of type integer: "string"',
    ),
    "a fraction for a whole number": (
        policy(priority=1.5),
        'spec.priority: Invalid value: "float64": spec.priority in body must be of type int32: "float64"',
    ),
    "missing": (policy(priority=...), "spec.priority: Required value"),
    "null is as good as missing": (policy(priority=None), "spec.priority: Required value"),
    "no field of a union": (
        policy(subject={}),
        "spec.subject: Invalid value: 0: spec.subject in body should have at least 1 properties",
    ),
    "two fields of a union": (
        policy(subject={"namespaces": {}, "pods": {"namespaceSelector": {}, "podSelector": {}}}),
        "spec.subject: Too many: 2: must have at most 1 item",
    ),
    "an action that does not exist": (
        egress(action="allow"),
        'spec.egress[0].action: Unsupported value: "allow": supported values: "Allow", "Deny", "Pass"',
    ),
    "an empty list": (
        egress(to=[]),
        "spec.egress[0].to: Invalid value: 0: spec.egress[0].to in body should have at least 1 items",
    ),
    "a long list": (
        egress(to=[{"namespaces": {}}] * 101),
        "spec.egress[0].to: Too many: 101: must have at most 100 items",
    ),
    "a long text": (egress(name="n" * 101), "spec.egress[0].name: Too long: may not be more than 100 bytes"),
    "a repeated item of a set": (
        egress(to=[{"networks": ["10.0.0.0/8", "10.0.0.0/8"]}]),
        'spec.egress[0].to[0].networks[1]: Duplicate value: "10.0.0.0/8"',
    ),
    "a text that does not match": (
        egress(action="Allow", to=[{"domainNames": ["example"]}]),
        'spec.egress[0].to[0].domainNames[0]: Invalid value: "example": spec.egress[0].to[0].domainNames[0] in body '
        r"should match '^(\*\.)?([a-zA-z0-9]([-a-zA-Z0-9_]*[a-zA-Z0-9])?\.)+[a-zA-z0-9]"
        r"([-a-zA-Z0-9_]*[a-zA-Z0-9])?\.?$'",
    ),
    "a null among items": (
        egress(to=[None]),
        'spec.egress[0].to[0]: Invalid value: "null": spec.egress[0].to[0] in body must be of type object: "null"',
    ),
    "a field that does not exist": (egress(form=[]), 'unknown field "spec.egress[0].form"'),
}


@pytest.mark.parametrize("name", CASES)
def test_a_refusal_is_worded_as_by_the_api_server(name: str) -> None:
    document, message = CASES[name]
    assert messages(document) == [message]


def test_all_problems_are_reported_at_once() -> None:
    document = policy(priority=1001, subject={}, foo=1)
    assert len(messages(document)) == 3


def test_the_problem_of_a_misspelled_field_names_the_nearest_one() -> None:
    (problem,) = admit(policy(subject={"namespace": {}}))
    assert problem.hint == "did you mean `namespaces`?"
    assert problem.path == ("spec", "subject", "namespace")


def test_a_wrong_enum_value_names_the_nearest_one() -> None:
    (problem,) = admit(egress(action="deny"))
    assert problem.hint == "did you mean `Deny`?"
    assert problem.expected == "`Allow` or `Deny` or `Pass`"


NAMES = {
    "Capital": (
        'metadata.name: Invalid value: "Capital": a lowercase RFC 1123 subdomain must consist of lower case '
        "alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. "
        "'example.com', regex used for validation is "
        r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
    ),
    "x" * 254: f'metadata.name: Invalid value: "{"x" * 254}": must be no more than 253 characters',
    "": "metadata.name: Required value: name or generateName is required",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_must_be_a_subdomain(name: str) -> None:
    assert messages(policy() | {"metadata": {"name": name}}) == [NAMES[name]]


def test_an_object_without_metadata_lacks_a_name() -> None:
    document = policy()
    del document["metadata"]
    (problem,) = admit(document)
    assert (problem.path, problem.message) == ((), NAMES[""])


def test_labels_are_judged_by_key_and_value() -> None:
    document = policy() | {"metadata": {"name": "x", "labels": {"a/b/c": "ok", "ok": "-no-"}}}
    problems = admit(document)
    assert [problem.path for problem in problems] == [("metadata", "labels", "a/b/c"), ("metadata", "labels", "ok")]
    assert problems[0].message.startswith('metadata.labels: Invalid value: "a/b/c": a valid label key must consist of')
    assert problems[1].message.startswith(
        'metadata.labels: Invalid value: "-no-": a valid label must be an empty string or'
    )


def test_a_value_with_quotes_and_controls_is_shown_as_go_shows_it() -> None:
    (message,) = messages(egress(action='a"\n\x01é'))
    assert message.startswith(r'spec.egress[0].action: Unsupported value: "a\"\n\x01é": supported values')


def test_a_huge_value_is_cut_short_in_its_refusal() -> None:
    assert len(messages(egress(action="x" * 100_000))[0]) < 2000


def test_status_is_not_judged_on_creation() -> None:
    assert messages(policy() | {"status": {"whatever": 1}}) == []
