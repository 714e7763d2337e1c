"""Admission of AccessPolicy in its three generations and of XBackend, rule by rule (access_policy_admission.yaml)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.resources.admission_cases import (
    an_object,
    check_pair,
    completed,
    messages,
    parameters,
    read_cases,
    rules_without_a_case,
)
from tierwall.resources.admission.admit import admit, with_defaults
from tierwall.resources.kinds.registry import all_kinds

GATEWAY = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "prod-gateway"}
NAMED_RULE = {"name": "r", "source": {"type": "SPIFFE", "spiffe": "spiffe://cluster.local/ns/a/sa/b"}}
DEFAULTS: dict[str, dict[str, Any]] = {
    "agentic.prototype.x-k8s.io/v0alpha0 XAccessPolicy": {"targetRefs": [GATEWAY], "rules": [NAMED_RULE]},
    "agentic.networking.x-k8s.io/v0alpha0 XAccessPolicy": {"targetRefs": [GATEWAY], "rules": [NAMED_RULE]},
    "agentic.networking.x-k8s.io/v1alpha1 XAccessPolicy": {"targetRefs": [GATEWAY], "action": "Allow"},
}
KINDS = [kind for kind in all_kinds() if kind.group.startswith("agentic.")]
CASES = read_cases("access_policy_admission.yaml")
PAIRS = parameters(CASES, "", DEFAULTS)


@pytest.mark.parametrize(("good", "bad", "refusal"), PAIRS)
def test_a_rule_admits_the_good_object_and_refuses_the_bad_one(good: Any, bad: Any, refusal: str) -> None:
    check_pair(good, bad, refusal)


@pytest.mark.parametrize(("good", "bad", "refusal"), [case for case in PAIRS if "Policy" in str(case.id)])
def test_both_spellings_of_the_kind_are_judged_alike(good: Any, bad: Any, refusal: str) -> None:
    check_pair({**good, "kind": "AccessPolicy"}, {**bad, "kind": "AccessPolicy"}, refusal)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.api_version} {kind.kind}")
def test_every_rule_of_the_schema_has_a_case(kind: Any) -> None:
    assert rules_without_a_case(kind.schema, CASES) == set()


def newest(**spec: Any) -> dict[str, Any]:
    key = "agentic.networking.x-k8s.io/v1alpha1 XAccessPolicy"
    api_version, kind = key.split(" ")
    return an_object(api_version, kind, completed(spec, DEFAULTS[key]))


def test_a_tool_name_over_twenty_characters_is_a_portability_warning_only() -> None:
    methods = [{"name": "tools/call", "params": ["a" * 20, "b" * 21]}]
    document = newest(rules=[{"name": "r", "authorization": {"type": "Inline", "mcp": {"methods": methods}}}])
    assert messages(document) == []
    problems = admit(document)
    assert [(problem.path[-1], problem.refuses) for problem in problems] == [(1, False)]
    assert "longer than 20 characters" in problems[0].message


def test_a_policy_that_targets_a_gateway_and_a_backend_at_once_is_not_allowed() -> None:
    both = [GATEWAY, {"group": "agentic.networking.x-k8s.io", "kind": "XBackend", "name": "payment-service"}]
    assert any("All targetRefs must have the same Kind" in message for message in messages(newest(targetRefs=both)))


def test_the_server_fills_in_the_base_methods_option_the_path_type_and_the_backend_path() -> None:
    authorization = {"type": "Inline", "paths": [{"value": "/a"}], "headers": [{"name": "a", "value": "b"}], "mcp": {}}
    stored = with_defaults(newest(rules=[{"name": "r", "authorization": authorization}]))
    filled = stored["spec"]["rules"][0]["authorization"]
    assert filled["mcp"] == {"mcpBaseProtocolMethodsOption": "SKIP_BASE_PROTOCOL_METHODS"}
    assert filled["paths"] == [{"value": "/a", "type": "PathPrefix"}]
    assert filled["headers"][0]["type"] == "Exact"
    backend = an_object("agentic.networking.x-k8s.io/v0alpha0", "XBackend", {"mcp": {"serviceName": "s", "port": 80}})
    assert with_defaults(backend)["spec"]["mcp"]["path"] == "/mcp"


def test_a_kind_of_the_group_in_a_version_that_lacks_it_is_refused_with_the_versions_that_have_it() -> None:
    backend = an_object("agentic.networking.x-k8s.io/v1alpha1", "XBackend", {"mcp": {"serviceName": "s", "port": 80}})
    problems = admit(backend)
    assert messages(backend) == ['no matches for kind "XBackend" in version "agentic.networking.x-k8s.io/v1alpha1"']
    assert "agentic.networking.x-k8s.io/v0alpha0" in problems[0].hint
