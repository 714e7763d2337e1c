"""docs/semantics.md#gateway-plane, point by point, in both profiles."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds.gateway_objects import (
    ALLOW,
    FULL,
    TCP,
    TIMEOUT,
    answer,
    gateway,
    listener_set,
    manifest,
    model,
    policy,
    ref,
    route,
    settled,
    tools,
    tools_ref,
)

BOTH = pytest.mark.parametrize("profile", ["docs", "agentgateway"])
OLD, NEW = "2024-01-01T00:00:00Z", "2024-06-01T00:00:00Z"
KEEP = {"tcp": {"keepalive": {"retries": 1}}}


@BOTH
def test_only_the_levels_that_a_question_names_take_part(profile: str) -> None:
    levels = ["Gateway/gw", "Gateway/gw#web", "HTTPRoute/route", "HTTPRoute/route#rule"]
    policies = [policy(f"p{n}", target, traffic=ALLOW, backend=TCP) for n, target in enumerate(levels)]
    document = answer(*policies, profile=profile, route="HTTPRoute/ns/route")
    assert settled(document, "traffic.authorization") == ["p2"]
    assert settled(answer(*policies, profile=profile, backend="Service/ns/svc"), "backend.tcp") is None
    assert settled(answer(*policies, profile=profile, gateway="ns/gw"), "traffic.authorization") == ["p0"]


@BOTH
def test_backend_fields_are_reported_without_a_backend_and_frontend_fields_with_a_route(profile: str) -> None:
    on_gateway = policy("p", "Gateway/gw", frontend=KEEP, backend=TCP | {"ai": {"routes": {"/v1": "Messages"}}})
    document = answer(on_gateway, profile=profile, gateway="ns/gw", route="HTTPRoute/ns/route")
    assert (settled(document, "frontend.tcp"), settled(document, "backend.tcp")) == ("p", "p")
    at_service = answer(on_gateway, profile=profile, gateway="ns/gw", backend="Service/ns/svc")
    assert settled(at_service, "backend.ai.routes") == "p"


def test_a_number_is_an_index_and_a_string_a_rule_name() -> None:
    named_zero = route(rules=[{"name": "first"}, {"name": "0"}])
    on_route = policy("p", "HTTPRoute/route#0", traffic=TIMEOUT)
    assert settled(answer(named_zero, on_route, route="HTTPRoute/ns/route", rule="0"), "traffic.timeouts") == "p"
    assert answer(named_zero, on_route, route="HTTPRoute/ns/route", rule=0)["effective"] == {}
    assert settled(answer(named_zero, on_route, route="HTTPRoute/ns/route", rule=1), "traffic.timeouts") == "p"


def test_a_port_is_the_same_as_a_number_and_as_a_string() -> None:
    on_service = policy("p", "Service/svc#08080", backend=TCP)
    for section in (8080, "8080"):
        assert settled(answer(on_service, backend="Service/ns/svc", backendSection=section), "backend.tcp") == "p"


def test_a_gateway_listener_policy_reaches_a_listener_set_of_that_name_in_the_code_only() -> None:
    content: Any = {"traffic": TIMEOUT, "backend": TCP, "frontend": {"accessLog": {"filter": "true"}}}
    on_gateway = policy("on-gateway", "Gateway/gw#web", **content)
    on_set = policy("on-set", "ListenerSet/set#web", traffic=TIMEOUT)
    place = {"gateway": "ns/gw", "listenerSet": "ns/set", "listener": "web"}
    docs = answer(on_gateway, on_set, **place)
    assert docs["effective"].keys() == {"traffic.timeouts"}
    assert settled(docs, "traffic.timeouts") == "on-set"
    code = answer(on_gateway, on_set, profile="agentgateway", **place)
    for field in ("traffic.timeouts", "backend.tcp", "frontend.accessLog"):
        assert settled(code, field) == "on-gateway"


@BOTH
def test_the_frontend_port_is_that_of_the_listener_asked_about(profile: str) -> None:
    on_port = policy("on-port", "Gateway/gw:80", frontend=KEEP)
    on_set_port = policy("on-set-port", "Gateway/gw:81", frontend=KEEP)
    on_gateway = policy("on-gateway", "Gateway/gw", frontend=KEEP)
    every = (on_port, on_set_port, on_gateway)
    at = {"profile": profile, "gateway": "ns/gw"}
    assert settled(answer(*every, **at, listener="web"), "frontend.tcp") == "on-port"
    assert settled(answer(*every, **at, listener="web", listenerSet="ns/set"), "frontend.tcp") == "on-set-port"
    assert settled(answer(*every, **at, listener="admin"), "frontend.tcp") == "on-gateway"
    assert settled(answer(*every, **at), "frontend.tcp") == "on-gateway"


def test_a_frontend_listener_policy_beats_one_on_the_port() -> None:
    log = {"accessLog": {"filter": "true"}}
    every = [
        policy("gateway", "Gateway/gw", frontend=log),
        policy("port", "Gateway/gw:80", frontend=log),
        policy("listener", "Gateway/gw#web", frontend=log),
    ]
    assert settled(answer(*every, gateway="ns/gw", listener="web"), "frontend.accessLog") == "listener"
    assert settled(answer(*every[:2], gateway="ns/gw", listener="web"), "frontend.accessLog") == "port"


@BOTH
def test_traffic_levels_go_from_gateway_over_listener_set_to_rule(profile: str) -> None:
    order = ["Gateway/gw", "ListenerSet/set", "ListenerSet/set#web", "HTTPRoute/route", "HTTPRoute/route#rule"]
    if profile == "agentgateway":
        order.insert(3, "Gateway/gw#web")
    every = [policy(f"p{n}", target, traffic=ALLOW | TIMEOUT) for n, target in enumerate(order)]
    place = {"gateway": "ns/gw", "listenerSet": "ns/set", "listener": "web", "route": "HTTPRoute/ns/route", "rule": 0}
    document = answer(*every, profile=profile, **place)
    assert settled(document, "traffic.authorization") == [f"p{n}" for n in range(len(order))]
    assert settled(document, "traffic.timeouts") == f"p{len(order) - 1}"


MCP = {"mcp": {"authorization": {"policy": {"matchExpressions": ["true"]}}}}
OF_CODE = (
    "Gateway/gw",
    "Gateway/gw#web",
    "AgentgatewayBackend/tools",
    "HTTPRoute/route",
    "HTTPRoute/route#rule",
)


def test_the_code_puts_routes_over_backends_and_sub_backends_over_all() -> None:
    inline = tools(policies=MCP | TCP, target_policies=TCP)
    inline_route = route(rules=[{"name": "rule", "backendRefs": [tools_ref(policies=MCP | TCP)]}])
    every = [policy(f"p{n}", target, backend=MCP | TCP) for n, target in enumerate(OF_CODE)]
    section = policy("section", "AgentgatewayBackend/tools#target", backend=TCP)
    document = answer(*every, section, inline, inline_route, profile="agentgateway", **FULL)
    in_order = ["p0", "p1", "p2", "p3", "p4", "AgentgatewayBackend/ns/tools", "HTTPRoute/ns/route#rule"]
    assert settled(document, "backend.mcp.authorization") == in_order
    assert settled(document, "backend.tcp") == "AgentgatewayBackend/ns/tools#target"
    without_inline = answer(*every, section, tools(policies=TCP), inline_route, profile="agentgateway", **FULL)
    assert settled(without_inline, "backend.tcp") == "section"


def test_the_code_puts_a_service_and_its_port_under_the_route() -> None:
    order = ["Gateway/gw", "Gateway/gw#web", "Service/svc", "Service/svc#80", "HTTPRoute/route", "HTTPRoute/route#rule"]
    place = FULL | {"backend": "Service/ns/svc", "backendSection": 80}
    for count in range(1, len(order) + 1):
        every = [policy(f"p{n}", target, backend=TCP) for n, target in enumerate(order[:count])]
        assert settled(answer(*every, profile="agentgateway", **place), "backend.tcp") == f"p{count - 1}"


def test_the_code_does_not_look_up_backend_sections_of_listener_sets() -> None:
    on_listener_set = policy("p", "ListenerSet/set", backend=TCP)
    assert settled(answer(on_listener_set, listenerSet="ns/set"), "backend.tcp") == "p"
    assert answer(on_listener_set, profile="agentgateway", listenerSet="ns/set")["effective"] == {}


def test_the_single_provider_is_the_section_backend() -> None:
    on_backend = policy("p", "AgentgatewayBackend/llm#backend", backend=TCP)
    document = answer(on_backend, backend="AgentgatewayBackend/ns/llm", backendSection="backend")
    assert settled(document, "backend.tcp") == "p"


@BOTH
def test_a_provider_of_a_group_has_inline_settings(profile: str) -> None:
    group = model(name="group", providers=[{"name": "p", "openai": {}, "policies": TCP}, {"name": "q", "openai": {}}])
    place = {"backend": "AgentgatewayBackend/ns/group"}
    document = answer(group, profile=profile, **place, backendSection="p")
    assert settled(document, "backend.tcp") == "AgentgatewayBackend/ns/group#p"
    assert answer(group, profile=profile, **place, backendSection="q")["effective"] == {}


@BOTH
def test_a_value_is_what_the_object_says_without_defaults(profile: str) -> None:
    on_gateway = policy("p", "Gateway/gw", frontend={"proxyProtocol": {}}, traffic=ALLOW)
    document = answer(on_gateway, profile=profile, gateway="ns/gw")
    assert document["effective"]["frontend.proxyProtocol"]["value"] == {}
    assert document["effective"]["traffic.authorization"]["value"] == [ALLOW["authorization"]]


@BOTH
@pytest.mark.parametrize(("rule", "label"), [({"name": "named"}, "named"), ({}, "0")])
def test_a_backend_reference_is_named_by_its_rule(profile: str, rule: dict[str, Any], label: str) -> None:
    inline_route = route(
        kind="GRPCRoute", rules=[rule | {"backendRefs": [{"name": "svc", "port": 80, "policies": TCP}]}]
    )
    place = {"route": "GRPCRoute/ns/route", "rule": 0, "backend": "Service/ns/svc"}
    document = answer(inline_route, profile=profile, **place, backendSection="80")
    assert settled(document, "backend.tcp") == f"GRPCRoute/ns/route#{label}"
    assert answer(inline_route, profile=profile, **place, backendSection=8080)["effective"] == {}
    assert answer(inline_route, profile=profile, **place)["effective"] == {}
    without_rule = {key: value for key, value in place.items() if key != "rule"}
    assert answer(inline_route, profile=profile, **without_rule, backendSection=80)["effective"] == {}


@BOTH
def test_a_union_goes_by_level_then_age_then_name(profile: str) -> None:
    every = [
        policy("none", "Gateway/gw", traffic=ALLOW),
        policy("b", "Gateway/gw", traffic=ALLOW, created=NEW),
        policy("z-old", "Gateway/gw", traffic=ALLOW, created=OLD),
        policy("a", "Gateway/gw", traffic=ALLOW, created=NEW),
        policy("oldest", "HTTPRoute/route", traffic=ALLOW, created="2020-01-01T00:00:00Z"),
    ]
    document = answer(*every, profile=profile, **FULL)
    assert settled(document, "traffic.authorization") == ["z-old", "a", "b", "none", "oldest"]
    assert len(document["effective"]["traffic.authorization"]["value"]) == 5
    assert document["conflicts"] == []


@BOTH
def test_a_policy_at_two_levels_is_in_a_union_once_at_the_lower(profile: str) -> None:
    twice = policy("twice", "Gateway/gw", "Gateway/gw#web", traffic=ALLOW)
    other = policy("other", "Gateway/gw#web", traffic=ALLOW, created=OLD)
    document = answer(twice, other, profile=profile, gateway="ns/gw", listener="web")
    assert settled(document, "traffic.authorization") == ["twice", "other"]


def _limits(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"rateLimit": {"conditional": list(entries)}}


LOCAL = {"local": [{"requests": 1, "unit": "Seconds"}]}
GLOBAL = {
    "global": {"domain": "d", "url": "http://l", "descriptors": [{"entries": [{"name": "n", "expression": "1"}]}]}
}


def test_docs_selects_one_rate_limit_entry_and_the_code_one_for_each_part() -> None:
    both = policy(
        "both", "HTTPRoute/route", traffic=_limits({"condition": "true", "policy": LOCAL}, {"policy": GLOBAL})
    )
    below = policy("below", "Gateway/gw", traffic={"rateLimit": GLOBAL | LOCAL})
    docs = answer(both, below, **FULL)
    assert (settled(docs, "traffic.rateLimit.local"), settled(docs, "traffic.rateLimit.global")) == ("both", "below")
    code = answer(both, below, profile="agentgateway", **FULL)
    assert (settled(code, "traffic.rateLimit.local"), settled(code, "traffic.rateLimit.global")) == ("both", "both")


def test_in_the_code_a_part_that_no_entry_has_is_not_set_by_the_policy() -> None:
    above = policy("above", "HTTPRoute/route", traffic=_limits({"condition": "false", "policy": LOCAL}))
    below = policy("below", "Gateway/gw", traffic={"rateLimit": GLOBAL | LOCAL})
    code = answer(above, below, profile="agentgateway", **FULL)
    assert (settled(code, "traffic.rateLimit.local"), settled(code, "traffic.rateLimit.global")) == (None, "below")
    docs = answer(above, below, **FULL)
    assert (settled(docs, "traffic.rateLimit.local"), settled(docs, "traffic.rateLimit.global")) == ("below", "below")


@pytest.mark.parametrize("condition", ["nonsense(", "1 / 0 == 1", "request.path", "request.path == '/x'", "1"])
def test_a_condition_that_cannot_be_evaluated_is_false(condition: str) -> None:
    entries = [{"condition": condition, "policy": {"status": 200}}, {"policy": {"status": 404}}]
    on_gateway = policy("p", "Gateway/gw", traffic={"directResponse": {"conditional": entries}})
    for profile in ("docs", "agentgateway"):
        document = answer(on_gateway, profile=profile, gateway="ns/gw")
        assert document["effective"]["traffic.directResponse"]["value"] == {"status": 404}


def test_facts_may_be_dotted_or_nested() -> None:
    entries = [{"condition": "request.path == '/x' && request.headers['a'] == 'b'", "policy": {"status": 200}}]
    on_gateway = policy("p", "Gateway/gw", traffic={"directResponse": {"conditional": entries}})
    for facts in (
        {"request.path": "/x", "request.headers": {"a": "b"}},
        {"request": {"path": "/x"}, "request.headers.a": "b"},
        {"request": {"path": "/x", "headers": {"a": "b"}}},
    ):
        assert settled(answer(on_gateway, gateway="ns/gw", request=facts), "traffic.directResponse") == "p"


@pytest.mark.parametrize("field", ["modelAliases", "routes"])
def test_an_empty_map_is_unset_in_the_code_and_set_in_the_docs(field: str) -> None:
    full = {"modelAliases": {"m": "n"}, "routes": {"/v1": "Messages"}}[field]
    below = policy("below", "Gateway/gw", backend={"ai": {field: full}})
    above = policy("above", "AgentgatewayBackend/llm", backend={"ai": {field: {}}})
    place = {"gateway": "ns/gw", "backend": "AgentgatewayBackend/ns/llm"}
    assert settled(answer(below, above, **place), f"backend.ai.{field}") == "above"
    assert settled(answer(below, above, profile="agentgateway", **place), f"backend.ai.{field}") == "below"


def test_the_code_gives_buffer_to_the_least_specific_level() -> None:
    buffer = {"buffer": {"request": {"maxBytes": 1}}}
    below = policy("below", "Gateway/gw", traffic=buffer)
    middle = policy("middle", "Gateway/gw#web", traffic=buffer, override=True)
    above = policy("above", "HTTPRoute/route", traffic=buffer)
    assert settled(answer(below, middle, above, **FULL), "traffic.buffer") == "middle"
    assert settled(answer(below, above, **FULL), "traffic.buffer") == "above"
    assert settled(answer(below, middle, above, profile="agentgateway", **FULL), "traffic.buffer") == "below"


@BOTH
def test_a_conflict_is_reported_even_if_another_level_decides_the_field(profile: str) -> None:
    every = [
        policy("one", "Gateway/gw", traffic=TIMEOUT),
        policy("two", "Gateway/gw", traffic=TIMEOUT),
        policy("above", "HTTPRoute/route", traffic=TIMEOUT),
    ]
    document = answer(*every, profile=profile, **FULL)
    assert settled(document, "traffic.timeouts") == "above"
    assert document["conflicts"] == ["traffic.timeouts"]


@BOTH
def test_a_conflict_is_reported_even_behind_a_lock(profile: str) -> None:
    every = [
        policy("lock", "Gateway/gw", traffic=TIMEOUT, override=True),
        policy("one", "HTTPRoute/route", traffic=TIMEOUT),
        policy("two", "HTTPRoute/route", traffic=TIMEOUT),
    ]
    document = answer(*every, profile=profile, **FULL)
    assert (settled(document, "traffic.timeouts"), document["conflicts"]) == ("lock", ["traffic.timeouts"])


@BOTH
def test_several_references_of_one_policy_to_one_place_are_one_attachment(profile: str) -> None:
    twice = policy("twice", "Gateway/gw", "Gateway/gw", traffic=TIMEOUT | ALLOW)
    document = answer(twice, profile=profile, gateway="ns/gw")
    assert (settled(document, "traffic.authorization"), document["conflicts"]) == (["twice"], [])


def test_a_list_that_selects_nothing_takes_part_in_a_conflict_in_the_code_only() -> None:
    never = {"directResponse": {"conditional": [{"condition": "false", "policy": {"status": 200}}]}}
    older = policy("older", "Gateway/gw", traffic=never, created=OLD)
    newer = policy("newer", "Gateway/gw", traffic={"directResponse": {"status": 404}}, created=NEW)
    docs = answer(older, newer, gateway="ns/gw")
    assert (settled(docs, "traffic.directResponse"), docs["conflicts"]) == ("newer", [])
    code = answer(older, newer, profile="agentgateway", gateway="ns/gw")
    assert (settled(code, "traffic.directResponse"), code["conflicts"]) == (None, ["traffic.directResponse"])


@BOTH
def test_a_tie_goes_to_the_older_policy_whatever_its_strategy(profile: str) -> None:
    older = policy("older", "Gateway/gw", traffic={"timeouts": {"request": "1s"}}, created=OLD)
    newer = policy("newer", "Gateway/gw", traffic={"timeouts": {"request": "2s"}}, created=NEW, override=True)
    above = policy("above", "HTTPRoute/route", traffic=TIMEOUT)
    assert settled(answer(older, newer, profile=profile, gateway="ns/gw"), "traffic.timeouts") == "older"
    # The policy that loses a tie locks nothing.
    assert settled(answer(older, newer, above, profile=profile, **FULL), "traffic.timeouts") == "above"


@BOTH
def test_override_locks_its_fields_and_default_locks_nothing(profile: str) -> None:
    lock = policy("lock", "Gateway/gw", traffic=TIMEOUT, override=True)
    above = policy("above", "HTTPRoute/route", traffic=TIMEOUT | {"retry": {"attempts": 1}})
    document = answer(lock, above, profile=profile, **FULL)
    assert (settled(document, "traffic.timeouts"), settled(document, "traffic.retry")) == ("lock", "above")
    lock["spec"]["strategy"]["inheritance"] = "Default"
    assert settled(answer(lock, above, profile=profile, **FULL), "traffic.timeouts") == "above"


@BOTH
def test_of_two_overrides_the_less_specific_wins(profile: str) -> None:
    first = policy("one", "Gateway/gw", traffic=TIMEOUT, override=True)
    second = policy("two", "HTTPRoute/route", traffic=TIMEOUT, override=True)
    assert settled(answer(first, second, profile=profile, **FULL), "traffic.timeouts") == "one"


@BOTH
def test_override_takes_a_whole_level_of_a_union_and_stops_there(profile: str) -> None:
    every = [
        policy("plain", "Gateway/gw", traffic=ALLOW, created=OLD),
        policy("lock", "Gateway/gw", traffic=ALLOW, created=NEW, override=True),
        policy("last", "Gateway/gw", traffic=ALLOW),
        policy("above", "HTTPRoute/route", traffic=ALLOW),
    ]
    assert settled(answer(*every, profile=profile, **FULL), "traffic.authorization") == ["plain", "lock", "last"]


def test_an_override_list_that_selects_nothing_locks_in_the_code_only() -> None:
    never = {"directResponse": {"conditional": [{"condition": "false", "policy": {"status": 200}}]}}
    lock = policy("lock", "Gateway/gw", traffic=never, override=True)
    above = policy("above", "HTTPRoute/route", traffic={"directResponse": {"status": 404}})
    assert settled(answer(lock, above, **FULL), "traffic.directResponse") == "above"
    assert settled(answer(lock, above, profile="agentgateway", **FULL), "traffic.directResponse") is None


def test_override_has_no_effect_before_routing_in_the_code() -> None:
    early = {"phase": "PreRouting", "cors": {"allowOrigins": ["https://a.example"]}} | ALLOW
    lock = policy("lock", "Gateway/gw", traffic=early, override=True)
    above = policy("above", "Gateway/gw#web", traffic=early)
    place = {"gateway": "ns/gw", "listener": "web", "phase": "PreRouting"}
    docs = answer(lock, above, **place)
    assert (settled(docs, "traffic.cors"), settled(docs, "traffic.authorization")) == ("lock", ["lock"])
    code = answer(lock, above, profile="agentgateway", **place)
    assert (settled(code, "traffic.cors"), settled(code, "traffic.authorization")) == ("above", ["lock", "above"])


@BOTH
def test_the_phase_concerns_the_traffic_section_only(profile: str) -> None:
    early = policy("p", "Gateway/gw", traffic={"phase": "PreRouting"} | ALLOW, frontend=KEEP, backend=TCP)
    for phase in ("PreRouting", "PostRouting"):
        document = answer(early, profile=profile, gateway="ns/gw", phase=phase)
        assert (settled(document, "frontend.tcp"), settled(document, "backend.tcp")) == ("p", "p")
        assert settled(document, "traffic.authorization") == (["p"] if phase == "PreRouting" else None)


@BOTH
def test_a_refused_policy_takes_no_part_and_is_not_an_error(profile: str) -> None:
    wrong = policy("wrong", "Gateway/gw", traffic={"timeouts": {"request": "soon"}}, created=OLD)
    right = policy("right", "Gateway/gw", traffic=TIMEOUT)
    document = answer(wrong, right, profile=profile, gateway="ns/gw")
    assert (settled(document, "traffic.timeouts"), document["conflicts"]) == ("right", [])


@BOTH
def test_an_inference_pool_is_a_backend_without_sections(profile: str) -> None:
    pool = manifest("inference.networking.k8s.io/v1", "InferencePool", "pool", {})
    on_pool = policy("p", "InferencePool/pool#any", backend=TCP)
    assert settled(answer(pool, on_pool, profile=profile, backend="InferencePool/ns/pool"), "backend.tcp") == "p"


@BOTH
def test_a_selector_selects_by_label_in_the_policys_own_namespace(profile: str) -> None:
    on_gateway = policy("p", "Gateway/gw", traffic=TIMEOUT)
    del on_gateway["spec"]["targetRefs"]
    entry = {key: ref("Gateway/gw")[key] for key in ("group", "kind")}
    on_gateway["spec"]["targetSelectors"] = [entry | {"matchLabels": {"a": "1", "b": "2"}}]
    here, part, other = gateway("here"), gateway("part"), gateway("other", namespace="elsewhere")
    here["metadata"]["labels"] = other["metadata"]["labels"] = {"a": "1", "b": "2", "c": "3"}
    part["metadata"]["labels"] = {"a": "1"}
    every = (on_gateway, here, part, other)
    assert settled(answer(*every, profile=profile, gateway="ns/here"), "traffic.timeouts") == "p"
    assert answer(*every, profile=profile, gateway="ns/part")["effective"] == {}
    assert answer(*every, profile=profile, gateway="elsewhere/other")["effective"] == {}


def test_a_listener_set_alone_is_a_place() -> None:
    on_listener_set = policy("p", "ListenerSet/set#web", traffic=TIMEOUT)
    assert (
        settled(answer(on_listener_set, listener_set(), listenerSet="ns/set", listener="web"), "traffic.timeouts")
        == "p"
    )
