"""Admission of the Gateway API kinds, rule by rule (gateway_api_admission.yaml), in every version that exists."""

from __future__ import annotations

from typing import Any

import pytest

from tests.resources.admission_cases import (
    an_object,
    check_pair,
    messages,
    parameters,
    read_cases,
    rules_without_a_case,
)
from tierwall.resources.admission.admit import admit, with_defaults
from tierwall.resources.kinds.registry import all_kinds

GROUP = "gateway.networking.k8s.io"
DEFAULTS = {
    "Gateway": {"gatewayClassName": "agentgateway", "listeners": [{"name": "web", "port": 80, "protocol": "HTTP"}]}
}
KINDS = [kind for kind in all_kinds() if kind.group.startswith("gateway.networking.")]
CASES = read_cases("gateway_api_admission.yaml")
PAIRS = parameters(CASES, f"{GROUP}/v1", DEFAULTS)


@pytest.mark.parametrize(("good", "bad", "refusal"), PAIRS)
def test_a_rule_admits_the_good_object_and_refuses_the_bad_one(good: Any, bad: Any, refusal: str) -> None:
    check_pair(good, bad, refusal)


FILTERS = {
    "RequestHeaderModifier": ("requestHeaderModifier", {}),
    "ResponseHeaderModifier": ("responseHeaderModifier", {}),
    "RequestMirror": ("requestMirror", {"backendRef": {"name": "s", "port": 80}}),
    "RequestRedirect": ("requestRedirect", {}),
    "URLRewrite": ("urlRewrite", {}),
    "ExtensionRef": ("extensionRef", {"group": "a.b", "kind": "C", "name": "d"}),
    "CORS": ("cors", {}),
    "ExternalAuth": ("externalAuth", {"protocol": "GRPC", "grpc": {}, "backendRef": {"name": "s", "port": 80}}),
}


@pytest.mark.parametrize("named", FILTERS)
def test_a_filter_has_the_member_that_its_type_names_and_no_other(named: str) -> None:
    for type_name, (member, value) in FILTERS.items():
        entry = {"type": named, member: value}
        document = an_object(f"{GROUP}/v1", "HTTPRoute", {"rules": [{"filters": [entry]}]})
        refusals = messages(document)
        if type_name == named:
            assert refusals == []
        else:
            assert any(
                f"filter.{member} must be nil if the filter.type is not {type_name}" in refusal for refusal in refusals
            )
            wanted = f"filter.{FILTERS[named][0]} must be specified for {named} filter.type"
            assert any(wanted in refusal for refusal in refusals)


def test_the_rules_of_a_route_have_at_most_128_matches_together() -> None:
    def route(kind: str, counts: list[int]) -> dict[str, Any]:
        match = {"headers": [{"name": "a", "value": "b"}]}
        return an_object(f"{GROUP}/v1", kind, {"rules": [{"matches": [match] * count} for count in counts]})

    for kind in ("HTTPRoute", "GRPCRoute"):
        assert messages(route(kind, [64, 64])) == []
        refusals = messages(route(kind, [64, 64, 1]))
        assert any("must be less than 128" in refusal for refusal in refusals)


# Tested above for all types at once, or not to be reached: an enum refuses first, and status is not judged.
ELSEWHERE = ("filter.", "While 16 rules", "type must be one of", "Hostname value must only contain")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.api_version} {kind.kind}")
def test_every_rule_of_the_schema_has_a_case(kind: Any) -> None:
    agentgateway = read_cases("agentgateway_admission.yaml")  # a backend reference's inline policies
    lacking = rules_without_a_case(kind.schema, {**CASES, **agentgateway})
    never_fails = "at least one of the fields in [message statusCode] must be set"
    assert {message for message in lacking if not message.startswith(ELSEWHERE)} - {never_fails} == set()


@pytest.mark.parametrize(
    ("api_version", "kind"),
    [
        (f"{GROUP}/v1", "Gateway"),
        (f"{GROUP}/v1beta1", "Gateway"),
        (f"{GROUP}/v1beta1", "GatewayClass"),
        (f"{GROUP}/v1beta1", "HTTPRoute"),
        (f"{GROUP}/v1alpha2", "GRPCRoute"),
        (f"{GROUP}/v1beta1", "ReferenceGrant"),
        (f"{GROUP}/v1alpha2", "ReferenceGrant"),
    ],
)
def test_older_versions_are_judged_as_the_newest(api_version: str, kind: str) -> None:
    for case in PAIRS:
        good, bad, refusal = case.values
        if good["kind"] == kind:
            check_pair({**good, "apiVersion": api_version}, {**bad, "apiVersion": api_version}, refusal)


def test_a_misspelled_field_is_reported_with_the_field_that_was_meant() -> None:
    document = an_object(f"{GROUP}/v1", "HTTPRoute", {"parentRef": [{"name": "g"}]})
    problems = admit(document)
    assert [problem.message for problem in problems] == ['unknown field "spec.parentRef"']
    assert problems[0].hint == "did you mean `parentRefs`?"


def test_a_route_without_rules_gets_one_that_matches_every_path() -> None:
    stored = with_defaults(an_object(f"{GROUP}/v1", "HTTPRoute", {"parentRefs": [{"name": "g"}]}))
    assert stored["spec"]["rules"] == [{"matches": [{"path": {"type": "PathPrefix", "value": "/"}}]}]
    assert stored["spec"]["parentRefs"] == [{"name": "g", "group": GROUP, "kind": "Gateway"}]


def test_a_listener_admits_routes_of_its_own_namespace_by_default() -> None:
    stored = with_defaults(an_object(f"{GROUP}/v1", "Gateway", DEFAULTS["Gateway"]))
    assert stored["spec"]["listeners"][0]["allowedRoutes"] == {"namespaces": {"from": "Same"}}
