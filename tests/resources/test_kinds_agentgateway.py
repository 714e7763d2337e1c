"""Admission of the agentgateway kinds, rule by rule (agentgateway_admission.yaml)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.resources.admission_cases import (
    an_object,
    check_pair,
    messages,
    parameters,
    read_cases,
    rules_without_a_case,
)
from tierwall.resources.admission.admit import admit
from tierwall.resources.kinds.registry import Kind, all_kinds
from tierwall.resources.schema import Schema

API_VERSION = "agentgateway.dev/v1alpha1"
GATEWAY = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw"}
KINDS = [kind for kind in all_kinds() if kind.group == "agentgateway.dev"]
CASES = read_cases("agentgateway_admission.yaml")
for case in CASES["AgentgatewayPolicy"]:
    for spec in (case["good"], case["bad"]):
        if "targetSelectors" not in spec:
            spec.setdefault("targetRefs", [GATEWAY])
PAIRS = parameters(CASES, API_VERSION, {})


def policy(text: str) -> dict[str, Any]:
    return an_object(API_VERSION, "AgentgatewayPolicy", {"targetRefs": [GATEWAY], **yaml.safe_load(text)})


@pytest.mark.parametrize(("good", "bad", "refusal"), PAIRS)
def test_a_rule_admits_the_good_object_and_refuses_the_bad_one(good: Any, bad: Any, refusal: str) -> None:
    check_pair(good, bad, refusal)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_every_rule_of_the_schema_has_a_case(kind: Any) -> None:
    # The server fills in the message and the status of a rejection, so that their rule cannot fail.
    never_fails = {"at least one of the fields in [message statusCode] must be set"}
    assert rules_without_a_case(kind.schema, CASES) == never_fails


def test_a_misspelled_field_is_reported_with_the_field_that_was_meant() -> None:
    problems = admit(policy("traffic: {timeout: {request: 1s}}"))
    assert [problem.message for problem in problems] == ['unknown field "spec.traffic.timeout"']
    assert problems[0].hint == "did you mean `timeouts`?"


def test_a_mixed_policy_must_satisfy_every_section_it_has() -> None:
    subject = policy("{frontend: {accessLog: {}}, traffic: {timeouts: {request: 1s}}}")
    assert messages(subject) == []
    subject["spec"]["targetRefs"] = [GATEWAY | {"kind": "HTTPRoute"}]
    assert messages(subject) == ["spec: Invalid value: the 'frontend' field can only target a Gateway"]


def test_an_empty_traffic_section_is_admitted_as_its_crd_has_no_rule_against_it() -> None:
    assert messages(policy("traffic: {}")) == []


@pytest.mark.parametrize("field", ["targetRefs", "targetSelectors"])
def test_a_target_list_has_one_to_sixteen_entries(field: str) -> None:
    labelled = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "matchLabels": {}}
    for count, refused in ((0, True), (1, False), (16, False), (17, True)):
        subject = policy("backend: {http: {}}")
        del subject["spec"]["targetRefs"]
        subject["spec"][field] = [GATEWAY if field == "targetRefs" else labelled] * count
        assert any(field in message for message in messages(subject)) is refused, count


@pytest.mark.parametrize("value", ["1h", "1m30s", "90s", "100ms", "1h1m1s1ms"])
def test_a_duration_is_written_in_whole_units(value: str) -> None:
    assert messages(policy(f"backend: {{tcp: {{connectTimeout: {value}}}}}")) == []


@pytest.mark.parametrize("value", ["1d", "-1s", "''", "1.5s", "100000s", "1s 2s", "5seconds", "5"])
def test_any_other_string_is_not_a_duration(value: str) -> None:
    refusals = messages(policy(f"backend: {{tcp: {{connectTimeout: {value}}}}}"))
    assert any("connectTimeout" in message for message in refusals)


# Which kinds each section may target (the published table), and PreRouting fewer.
TARGETS = {
    "Gateway": "gateway.networking.k8s.io",
    "HTTPRoute": "gateway.networking.k8s.io",
    "GRPCRoute": "gateway.networking.k8s.io",
    "ListenerSet": "gateway.networking.k8s.io",
    "Service": "",
    "AgentgatewayBackend": "agentgateway.dev",
    "InferencePool": "inference.networking.k8s.io",
}
ROUTED = {"Gateway", "HTTPRoute", "GRPCRoute", "ListenerSet", "InferencePool"}
SECTIONS = {
    "frontend: {accessLog: {}}": {"Gateway"},
    "traffic: {cors: {}}": ROUTED,
    "traffic: {phase: PreRouting, cors: {}}": {"Gateway", "ListenerSet"},
    "backend: {http: {}}": set(TARGETS),
    "backend: {ai: {modelAliases: {}}}": set(TARGETS) - {"Service"},
    "backend: {mcp: {authorization: {policy: {matchExpressions: [a]}}}}": set(TARGETS) - {"Service"},
}


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("by", ["targetRefs", "targetSelectors"])
def test_a_section_targets_the_kinds_of_the_published_table(section: str, kind: str, by: str) -> None:
    subject = policy(section)
    del subject["spec"]["targetRefs"]
    which = {"name": "x"} if by == "targetRefs" else {"matchLabels": {"a": "b"}}
    subject["spec"][by] = [{"group": TARGETS[kind], "kind": kind, **which}]
    assert (messages(subject) == []) is (kind in SECTIONS[section])


FRONTEND_FIELDS = {
    "tcp": "{keepalive: {}}",
    "tls": "{minProtocolVersion: '1.2'}",
    "http": "{http1MaxHeaders: 1}",
    "networkAuthorization": "{policy: {matchExpressions: [a]}}",
    "proxyProtocol": "{}",
    "connect": "{mode: Deny}",
    "accessLog": "{}",
    "tracing": "{url: 'http://a'}",
    "metrics": "{attributes: {add: [{name: a, expression: b}]}}",
}


@pytest.mark.parametrize("field", FRONTEND_FIELDS)
def test_a_listener_accepts_only_observability_fields_and_a_port_every_frontend_field(field: str) -> None:
    subject = policy(f"frontend: {{{field}: {FRONTEND_FIELDS[field]}}}")
    assert messages(subject) == []
    subject["spec"]["targetRefs"] = [GATEWAY | {"port": 443}]
    assert messages(subject) == []
    subject["spec"]["targetRefs"] = [GATEWAY | {"sectionName": "web"}]
    assert (messages(subject) == []) is (field in {"accessLog", "tracing", "metrics"})


TRAFFIC_FIELDS = {
    "apiKeyAuthentication": "{secretRef: {name: s}}",
    "authorization": "{policy: {matchExpressions: [a]}}",
    "basicAuthentication": "{users: ['a:b']}",
    "buffer": "{request: {}}",
    "cors": "{}",
    "csrf": "{}",
    "delay": "{duration: 1s}",
    "directResponse": "{status: 200}",
    "extAuth": "{url: 'http://a', grpc: {}}",
    "extProc": "{url: 'http://a'}",
    "headerModifiers": "{request: {}}",
    "hostRewrite": "{mode: None}",
    "jwtAuthentication": "{providers: [{issuer: i, jwks: {inline: '{}'}}]}",
    "rateLimit": "{local: [{requests: 1, unit: Hours}]}",
    "retry": "{}",
    "timeouts": "{request: 1s}",
    "transformation": "{request: {body: b}}",
}
BEFORE_ROUTING = {
    "apiKeyAuthentication",
    "authorization",
    "basicAuthentication",
    "cors",
    "extAuth",
    "extProc",
    "jwtAuthentication",
    "transformation",
}


@pytest.mark.parametrize("field", TRAFFIC_FIELDS)
def test_before_routing_only_the_named_fields_may_run(field: str) -> None:
    body = f"{field}: {TRAFFIC_FIELDS[field]}"
    assert messages(policy(f"traffic: {{{body}}}")) == []
    assert messages(policy(f"traffic: {{phase: PostRouting, {body}}}")) == []
    refusals = messages(policy(f"traffic: {{phase: PreRouting, {body}}}"))
    assert (refusals == []) is (field in BEFORE_ROUTING)
    assert all("phase PreRouting only supports" in message for message in refusals)


CONDITIONAL = {
    "extAuth": "{url: 'http://a', grpc: {}}",
    "extProc": "{url: 'http://a'}",
    "rateLimit": "{local: [{requests: 1, unit: Hours}]}",
    "transformation": "{request: {body: b}}",
    "directResponse": "{status: 200}",
}


@pytest.mark.parametrize("field", CONDITIONAL)
def test_a_conditional_list_has_at_most_one_entry_without_condition_and_it_is_the_last(field: str) -> None:
    body = CONDITIONAL[field]

    def entries(*conditions: bool) -> list[str]:
        listed = ", ".join(f"{{{'condition: c, ' if has else ''}policy: {body}}}" for has in conditions)
        return messages(policy(f"traffic: {{{field}: {{conditional: [{listed}]}}}}"))

    assert entries(True) == entries(False) == entries(True, True) == entries(True, False) == []
    for wrong in ((False, True), (False, False), (True, False, True), (True, False, False)):
        assert any("conditional entries without condition must be last" in text for text in entries(*wrong))
    assert any("conditional" in text for text in entries())
    assert entries(*[True] * 16) == []
    assert any("Too many" in text for text in entries(*[True] * 17))


def metadata_context(value: str) -> dict[str, Any]:
    text = (
        f"{{traffic: {{extProc: {{backendRef: {{name: s, port: 80}}, metadataContext: {{ns: {{key: '{value}'}}}}}}}}}}"
    )
    return policy(text)


def test_values_of_a_metadata_context_are_not_empty() -> None:
    kind = next(kind for kind in KINDS if kind.kind == "AgentgatewayPolicy")
    assert not admit(metadata_context("request.path"), kind)
    (problem,) = admit(metadata_context(""), kind)
    assert problem.path[-3:] == ("metadataContext", "ns", "key")


def secret_keys(schema: Schema, above: tuple[Schema, ...] = ()) -> Iterator[Schema]:
    """Yield the schemas of keys in references to Secrets."""
    if above.count(schema) > 1:
        return
    inside = (*above, schema)
    by_name = {part.name: part.schema for part in schema.properties}
    if by_name.keys() >= {"name", "group", "kind", "key"}:
        yield by_name["key"]
    for inner in (*by_name.values(), schema.items, schema.additional):
        if inner is not None:
            yield from secret_keys(inner, inside)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_the_key_of_a_secret_is_not_empty(kind: Kind) -> None:
    keys = list(secret_keys(kind.schema))
    assert keys
    assert {(key.min_length, key.max_length) for key in keys} == {(1, 253)}


def test_an_empty_key_of_a_secret_is_refused() -> None:
    for key, count in (("k", 0), ("''", 1)):
        spec = f"{{backend: {{auth: {{secretRef: {{name: s, key: {key}}}}}}}}}"
        kind = next(kind for kind in KINDS if kind.kind == "AgentgatewayPolicy")
        assert len(admit(policy(spec), kind)) == count
