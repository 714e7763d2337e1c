"""Every statement and example of the page "Targeting and merging" of agentgateway, one test each."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds.gateway_objects import (
    FULL,
    TCP,
    TIMEOUT,
    answer,
    model,
    policy,
    ref,
    route,
    service,
    settled,
    snapshot,
    tools,
    tools_ref,
)
from tierwall.resources.admission import admit

KINDS = ("Gateway", "HTTPRoute", "GRPCRoute", "ListenerSet", "Service", "AgentgatewayBackend")
SECTIONS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "frontend": ({"tcp": {"keepalive": {"retries": 1}}}, ("Gateway",)),
    "traffic": (TIMEOUT, ("Gateway", "HTTPRoute", "GRPCRoute", "ListenerSet")),
    "backend": (TCP, KINDS),
}
NAMES = {"Gateway": "gw", "HTTPRoute": "route", "GRPCRoute": "route", "ListenerSet": "set", "Service": "svc"}


def refused(manifest: dict[str, Any]) -> list[str]:
    return [problem.message for problem in admit(manifest) if problem.refuses]


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_section_can_only_target_its_resource_types(section: str, kind: str) -> None:
    content, valid = SECTIONS[section]
    given: Any = {section: content}
    errors = refused(policy("p", f"{kind}/{NAMES.get(kind, 'tools')}", **given))
    assert bool(errors) is (kind not in valid)
    assert all(f"'{section}' field can only target" in message for message in errors)


def test_invalid_targeting_is_a_validation_error_and_takes_no_part() -> None:
    wrong = policy("wrong", "Service/svc", traffic=TIMEOUT, backend=TCP)
    assert refused(wrong)
    assert answer(wrong, backend="Service/ns/svc")["effective"] == {}


@pytest.mark.parametrize("field", ["targetRefs", "targetSelectors"])
def test_all_targets_must_reference_the_same_kind(field: str) -> None:
    on_gateway = policy("p", "Gateway/gw", traffic=TIMEOUT)
    entries = [ref("Gateway/gw"), ref("HTTPRoute/route")]
    if field == "targetSelectors":
        entries = [{key: entry[key] for key in ("group", "kind")} | {"matchLabels": {"a": "b"}} for entry in entries]
    del on_gateway["spec"]["targetRefs"]
    on_gateway["spec"][field] = entries
    assert any("Only one Kind of targetRef" in message for message in refused(on_gateway))


def test_a_frontend_policy_applies_to_all_listeners_of_its_gateway() -> None:
    on_gateway = policy("p", "Gateway/gw", frontend={"tcp": {"keepalive": {"retries": 1}}})
    for listener in ("web", "admin"):
        assert settled(answer(on_gateway, gateway="ns/gw", listener=listener), "frontend.tcp") == "p"


def test_a_frontend_policy_takes_no_section_name() -> None:
    assert refused(policy("p", "Gateway/gw#web", frontend={"tcp": {"keepalive": {"retries": 1}}}))


def test_a_section_name_on_a_gateway_selects_a_listener() -> None:
    on_gateway = policy("p", "Gateway/gw#web", traffic=TIMEOUT, backend=TCP)
    assert settled(answer(on_gateway, gateway="ns/gw", listener="web"), "traffic.timeouts") == "p"
    assert answer(on_gateway, gateway="ns/gw", listener="admin")["effective"] == {}
    assert answer(on_gateway, gateway="ns/gw")["effective"] == {}


@pytest.mark.parametrize("kind", ["HTTPRoute", "GRPCRoute"])
def test_a_section_name_on_a_route_selects_a_rule(kind: str) -> None:
    on_route = policy("p", f"{kind}/route#rule", traffic=TIMEOUT)
    assert settled(answer(on_route, route=f"{kind}/ns/route", rule="rule"), "traffic.timeouts") == "p"
    assert answer(on_route, route=f"{kind}/ns/route", rule=1)["effective"] == {}
    assert answer(on_route, route=f"{kind}/ns/route")["effective"] == {}


def test_a_section_name_on_a_service_selects_a_port() -> None:
    on_service = policy("p", "Service/svc#8080", backend=TCP)
    assert settled(answer(on_service, backend="Service/ns/svc", backendSection=8080), "backend.tcp") == "p"
    assert answer(on_service, backend="Service/ns/svc", backendSection=80)["effective"] == {}


def test_a_section_name_on_a_backend_selects_a_sub_backend() -> None:
    on_backend = policy("p", "AgentgatewayBackend/tools#target", backend=TCP)
    document = answer(on_backend, backend="AgentgatewayBackend/ns/tools", backendSection="target")
    assert settled(document, "backend.tcp") == "p"
    assert answer(on_backend, backend="AgentgatewayBackend/ns/tools")["effective"] == {}


@pytest.mark.parametrize(
    ("field", "content"),
    [
        ("ai", {"routes": {"/v1": "Messages"}}),
        ("mcp", {"authorization": {"policy": {"matchExpressions": ["true"]}}}),
    ],
)
def test_ai_and_mcp_settings_cannot_target_a_service(field: str, content: dict[str, Any]) -> None:
    wrong = refused(policy("p", "Service/svc", backend={field: content}))
    assert any(f"backend.{field} may not be used with a Service target" in message for message in wrong)
    assert not refused(policy("p", "AgentgatewayBackend/tools", backend={field: content}))


@pytest.mark.parametrize("kind", ["Gateway", "ListenerSet", "HTTPRoute", "GRPCRoute"])
def test_prerouting_can_only_target_a_gateway_or_listener_set(kind: str) -> None:
    content = {"phase": "PreRouting", "cors": {"allowOrigins": ["*"]}}
    wrong = refused(policy("p", f"{kind}/{NAMES[kind]}", traffic=content))
    assert bool(wrong) is (kind not in ("Gateway", "ListenerSet"))


def test_prerouting_and_postrouting_are_merged_separately() -> None:
    early = policy(
        "early", "Gateway/gw", traffic={"phase": "PreRouting", "cors": {"allowOrigins": ["https://a.example"]}}
    )
    late = policy("late", "Gateway/gw", traffic={"cors": {"allowOrigins": ["https://b.example"]}})
    for phase, name in (("PreRouting", "early"), ("PostRouting", "late")):
        document = answer(early, late, gateway="ns/gw", phase=phase)
        assert settled(document, "traffic.cors") == name
        assert document["conflicts"] == []


def test_policies_are_merged_field_by_field() -> None:
    wide = policy("wide", "Gateway/gw", traffic=TIMEOUT | {"retry": {"attempts": 1}})
    narrow = policy("narrow", "HTTPRoute/route", traffic={"timeouts": {"request": "9s"}})
    document = answer(wide, narrow, **FULL)
    assert settled(document, "traffic.timeouts") == "narrow"
    assert settled(document, "traffic.retry") == "wide"


def test_each_field_is_an_atomic_unit() -> None:
    wide = policy(
        "wide", "Gateway/gw", traffic={"transformation": {"request": {"body": "'a'"}, "response": {"body": "'b'"}}}
    )
    narrow = policy("narrow", "HTTPRoute/route", traffic={"transformation": {"request": {"body": "'c'"}}})
    document = answer(wide, narrow, **FULL)
    assert document["effective"]["traffic.transformation"]["value"] == {"request": {"body": "'c'"}}


def test_nested_sub_fields_of_two_policies_are_both_included() -> None:
    guard = {"ai": {"promptGuard": {"request": [{"regex": {"matches": ["x"]}}]}}}
    first = policy("one", "AgentgatewayBackend/llm", backend=guard)
    second = policy("two", "AgentgatewayBackend/llm", backend={"ai": {"routes": {"/v1": "Messages"}}})
    document = answer(first, second, backend="AgentgatewayBackend/ns/llm")
    assert settled(document, "backend.ai.promptGuard") == "one"
    assert settled(document, "backend.ai.routes") == "two"
    assert document["conflicts"] == []


def test_the_policy_of_higher_precedence_sets_the_whole_value_of_a_nested_sub_field() -> None:
    wide = {
        "ai": {"promptGuard": {"request": [{"regex": {"matches": ["x"]}}], "response": [{"regex": {"matches": ["y"]}}]}}
    }
    narrow = {"ai": {"promptGuard": {"request": [{"regex": {"matches": ["z"]}}]}}}
    document = answer(
        policy("wide", "Gateway/gw", backend=wide),
        policy("narrow", "AgentgatewayBackend/llm", backend=narrow),
        gateway="ns/gw",
        backend="AgentgatewayBackend/ns/llm",
    )
    assert document["effective"]["backend.ai.promptGuard"]["value"] == narrow["ai"]["promptGuard"]


def test_conditional_policies_are_selected_first_and_only_the_selected_merge() -> None:
    entry = {"condition": "request.path == '/x'", "policy": {"request": {"body": "'narrow'"}}}
    wide = policy("wide", "Gateway/gw", traffic={"transformation": {"request": {"body": "'wide'"}}})
    narrow = policy("narrow", "HTTPRoute/route", traffic={"transformation": {"conditional": [entry]}})
    chosen = answer(wide, narrow, **FULL, request={"request.path": "/x"})
    assert chosen["effective"]["traffic.transformation"]["value"] == {"request": {"body": "'narrow'"}}
    assert settled(answer(wide, narrow, **FULL, request={"request.path": "/y"}), "traffic.transformation") == "wide"
    assert settled(answer(wide, narrow, **FULL), "traffic.transformation") == "wide"


def test_the_frontend_section_is_merged_over_policies_on_the_same_gateway() -> None:
    first = policy("one", "Gateway/gw", frontend={"tcp": {"keepalive": {"retries": 1}}})
    second = policy("two", "Gateway/gw", frontend={"connect": {"mode": "Deny"}})
    document = answer(first, second, gateway="ns/gw", listener="web")
    assert (settled(document, "frontend.tcp"), settled(document, "frontend.connect")) == ("one", "two")


TRAFFIC_ORDER = ("Gateway/gw", "Gateway/gw#web", "HTTPRoute/route", "HTTPRoute/route#rule")
BACKEND_ORDER = (*TRAFFIC_ORDER, "AgentgatewayBackend/tools", "AgentgatewayBackend/tools#target")


@pytest.mark.parametrize("lower", range(4))
@pytest.mark.parametrize("upper", range(4))
def test_traffic_precedence_is_gateway_listener_route_rule(lower: int, upper: int) -> None:
    if lower >= upper:
        return
    first, second = (
        policy(name, TRAFFIC_ORDER[n], traffic=TIMEOUT) for name, n in (("lower", lower), ("upper", upper))
    )
    assert settled(answer(first, second, **FULL), "traffic.timeouts") == "upper"


@pytest.mark.parametrize("lower", range(6))
@pytest.mark.parametrize("upper", range(6))
def test_backend_precedence_is_gateway_listener_route_rule_backend(lower: int, upper: int) -> None:
    if lower >= upper:
        return
    first, second = (policy(name, BACKEND_ORDER[n], backend=TCP) for name, n in (("lower", lower), ("upper", upper)))
    assert settled(answer(first, second, **FULL), "backend.tcp") == "upper"


def test_inline_on_the_backend_beats_every_policy_and_inline_on_the_route_beats_that() -> None:
    policies = [policy(f"p{n}", target, backend=TCP) for n, target in enumerate(BACKEND_ORDER)]
    inline = tools(policies=TCP)
    assert settled(answer(*policies, inline, **FULL), "backend.tcp") == "AgentgatewayBackend/ns/tools"
    with_target = tools(policies=TCP, target_policies=TCP)
    assert settled(answer(*policies, with_target, **FULL), "backend.tcp") == "AgentgatewayBackend/ns/tools#target"
    inline_route = route(rules=[{"name": "rule", "backendRefs": [tools_ref(policies=TCP)]}])
    assert settled(answer(*policies, with_target, inline_route, **FULL), "backend.tcp") == "HTTPRoute/ns/route#rule"


def test_the_example_takes_tcp_from_the_gateway_and_tls_from_the_backend() -> None:
    on_gateway = policy("on-gateway", "Gateway/gw", backend=TCP | {"tls": {"sni": "gateway.example"}})
    on_backend = policy("on-backend", "Service/svc", backend={"tls": {"sni": "backend.example"}})
    document = answer(on_gateway, on_backend, service(), gateway="ns/gw", backend="Service/ns/svc")
    assert document["effective"] == {
        "backend.tcp": {"value": {"connectTimeout": "1s"}, "from": "AgentgatewayPolicy/ns/on-gateway"},
        "backend.tls": {"value": {"sni": "backend.example"}, "from": "AgentgatewayPolicy/ns/on-backend"},
    }
    assert document["conflicts"] == []


def test_targets_are_valid_objects_of_the_tests() -> None:
    for resource in (*snapshot(), *snapshot(model(providers=[{"name": "p", "openai": {}}]))):
        assert not refused(resource.value)
