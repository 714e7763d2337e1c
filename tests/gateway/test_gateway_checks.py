"""The findings of `tierwall check` about gateway settings and attachment, and those it must not report."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds.gateway_objects import (
    ALLOW,
    TCP,
    TIMEOUT,
    gateway,
    listener_set,
    policy,
    route,
    service,
    snapshot,
    tools,
    tools_ref,
)
from tierwall.analyze.checks import check
from tierwall.core.catalogue import CATALOGUE
from tierwall.core.diagnostics import Diagnostic

BODY: dict[str, Any] = {"request": {"body": "'a'"}, "response": {"body": "'b'"}}


def findings(*objects: dict[str, Any], code: str = "") -> list[Diagnostic]:
    # The default ListenerSet has no Gateway that allows it; that is another finding.
    allowed = gateway(allowedListeners={"namespaces": {"from": "All"}})
    given = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in objects}
    more = [] if ("Gateway", "gw") in given else [allowed]
    grpc = route(kind="GRPCRoute", rules=[{"name": "rule", "backendRefs": []}])
    more += [] if ("GRPCRoute", "route") in given else [grpc]
    all_findings = list(check(snapshot(*objects, *more)))
    return [finding for finding in all_findings if finding.code.startswith(code)]


def messages(*objects: dict[str, Any], code: str) -> list[str]:
    return [finding.message for finding in findings(*objects, code=code)]


def test_a_valid_cluster_has_no_findings() -> None:
    sound = policy("p", "Gateway/gw", traffic=TIMEOUT), policy("q", "Service/svc", backend=TCP)
    assert findings(*sound, code="TW3") == []


def test_a_policy_that_attaches_nowhere() -> None:
    (finding,) = findings(policy("p", "HTTPRoute/gone", "HTTPRoute/route#gone", traffic=TIMEOUT), code="TW30")
    assert finding.code == "TW301"
    assert finding.message == "AgentgatewayPolicy/ns/p attaches nowhere: HTTPRoute ns/gone not found"
    assert finding.related[0][0] == 'sectionName "gone" not found in HTTPRoute ns/route'


def test_a_policy_that_attaches_only_partly() -> None:
    (finding,) = findings(policy("p", "HTTPRoute/route", "HTTPRoute/gone", traffic=TIMEOUT), code="TW30")
    assert finding.code == "TW302"
    assert "HTTPRoute ns/gone not found" in finding.message


def test_a_gateway_default_that_every_route_overrides_still_counts_for_future_routes() -> None:
    wide = policy("wide", "Gateway/gw", traffic=TIMEOUT)
    routes = [policy(kind.lower(), f"{kind}/route", traffic=TIMEOUT) for kind in ("HTTPRoute", "GRPCRoute")]
    assert messages(wide, *routes, policy("set", "ListenerSet/set", traffic=TIMEOUT), code="TW303") == []
    on_listener = policy("web", "Gateway/gw#web", traffic=TIMEOUT)
    assert messages(on_listener, *routes, code="TW303") == []


@pytest.mark.parametrize("listener_sets", [True, False])
def test_a_gateway_default_that_every_listener_overrides_counts_only_for_future_listener_sets(
    listener_sets: bool,
) -> None:
    wide = policy("wide", "Gateway/gw", traffic=TIMEOUT)
    listeners = [policy(name, f"Gateway/gw#{name}", traffic=TIMEOUT) for name in ("web", "admin")]
    listeners.append(policy("set", "ListenerSet/set", traffic=TIMEOUT))
    allowed: Any = {"allowedListeners": {"namespaces": {"from": "Same"}}} if listener_sets else {}
    reported = messages(wide, *listeners, gateway(**allowed), code="TW303")
    # If no ListenerSet is allowed, the existing one has no Gateway, and its policy no effect.
    assert len(reported) == (not listener_sets)
    assert all(
        "`traffic.timeouts` of AgentgatewayPolicy/ns/wide never takes effect: " in message for message in reported
    )


def test_a_setting_of_a_route_that_each_of_its_rules_replaces_never_takes_effect() -> None:
    wide = policy("wide", "HTTPRoute/route", traffic=TIMEOUT)
    narrow = policy("narrow", "HTTPRoute/route#rule", traffic=TIMEOUT)
    assert messages(wide, narrow, code="TW303") == []  # The second rule has no name.
    one_rule = route(rules=[{"name": "rule", "backendRefs": [tools_ref()]}])
    (message,) = messages(wide, narrow, one_rule, code="TW303")
    assert message.startswith("`traffic.timeouts` of AgentgatewayPolicy/ns/wide never takes effect: ")


def test_a_default_of_a_backend_counts_for_future_references_and_ports() -> None:
    inline = route(rules=[{"name": "rule", "backendRefs": [{"name": "svc", "port": 80, "policies": TCP}]}])
    assert messages(policy("p", "Service/svc", backend=TCP), inline, code="TW303") == []
    plain = route(rules=[{"name": "rule", "backendRefs": [{"name": "svc", "port": 80}]}])
    default, port = policy("p", "Service/svc", backend=TCP), policy("q", "Service/svc#80", backend=TCP)
    assert messages(default, port, plain, service("svc", 80, 81), code="TW303") == []
    assert len(messages(default, port, plain, service("svc", 80), code="TW303")) == 1


def test_a_setting_beyond_a_lock_never_takes_effect() -> None:
    lock = policy("lock", "Gateway/gw", traffic=TIMEOUT, override=True)
    (message,) = messages(lock, policy("p", "HTTPRoute/route", traffic=TIMEOUT), code="TW303")
    assert message.endswith("AgentgatewayPolicy/ns/lock (Gateway) has Override")


def test_a_setting_that_an_inline_one_replaces_never_takes_effect() -> None:
    (message,) = messages(policy("p", "AgentgatewayBackend/tools", backend=TCP), tools(policies=TCP), code="TW303")
    assert message.endswith("AgentgatewayBackend/ns/tools (Backend inline) is more specific")


@pytest.mark.parametrize(("fallback", "count"), [(False, 0), (True, 1)])
def test_a_conditional_list_is_sure_to_replace_only_if_its_last_entry_is_unconditional(
    fallback: bool, count: int
) -> None:
    entries: list[dict[str, Any]] = [{"condition": "request.path == '/x'", "policy": {"status": 200}}]
    entries += [{"policy": {"status": 404}}] if fallback else []
    wide = policy("wide", "HTTPRoute/route", traffic={"directResponse": {"status": 500}})
    narrow = policy("narrow", "HTTPRoute/route#rule", traffic={"directResponse": {"conditional": entries}})
    one_rule = route(rules=[{"name": "rule", "backendRefs": [tools_ref()]}])
    assert len(messages(wide, narrow, one_rule, code="TW303")) == count


def test_policies_of_equal_precedence_that_set_the_same_field() -> None:
    old = policy("old", "Gateway/gw", traffic=TIMEOUT, created="2024-01-01T00:00:00Z")
    new = policy("new", "Gateway/gw", traffic=TIMEOUT | ALLOW, created="2024-01-02T00:00:00Z")
    (finding,) = findings(old, new, code="TW30")
    assert finding.code == "TW304"
    words = "AgentgatewayPolicy/ns/new and AgentgatewayPolicy/ns/old set `traffic.timeouts` with equal precedence"
    assert finding.message == f"{words}; AgentgatewayPolicy/ns/old is older"
    early = policy("new", "Gateway/gw", traffic={"phase": "PreRouting", "cors": {"allowOrigins": ["*"]}})
    late = policy("old", "Gateway/gw", traffic={"cors": {"allowOrigins": ["*"]}})
    assert messages(early, late, code="TW304") == []


def _rule(action: str, *texts: str) -> dict[str, Any]:
    return {"authorization": {"action": action, "policy": {"matchExpressions": list(texts)}}}


@pytest.mark.parametrize(
    ("below", "above", "widens"),
    [
        (_rule("Allow", "a"), _rule("Allow", "b"), True),
        (ALLOW, _rule("Allow", "b"), True),
        (_rule("Allow", "a", "b"), _rule("Allow", "b"), False),
        (_rule("Allow", "a"), _rule("Require", "b"), False),
        (_rule("Allow", "a"), _rule("Deny", "b"), False),
        (_rule("Deny", "a"), _rule("Allow", "b"), False),
        (_rule("Require", "a"), _rule("Allow", "b"), False),
    ],
)
def test_an_allow_on_a_route_widens_an_allow_on_its_gateway(
    below: dict[str, Any], above: dict[str, Any], widens: bool
) -> None:
    on_gateway, on_route = policy("g", "Gateway/gw", traffic=below), policy("r", "HTTPRoute/route", traffic=above)
    assert bool(messages(on_gateway, on_route, code="TW305")) is widens
    on_gateway["spec"]["strategy"] = {"inheritance": "Override"}
    assert messages(on_gateway, on_route, code="TW305") == []


@pytest.mark.parametrize(
    ("below", "above", "lost"),
    [
        (BODY, {"request": {"body": "'c'"}}, ["response"]),
        (BODY, {"response": {"body": "'c'"}}, ["request"]),
        (BODY, BODY, []),
        ({"request": {"body": "'a'"}}, {"request": {"body": "'c'"}}, []),
        (BODY, {"conditional": [{"policy": {"request": {"body": "'c'"}}}]}, ["response"]),
    ],
)
def test_an_override_loses_half_of_a_transformation(
    below: dict[str, Any], above: dict[str, Any], lost: list[str]
) -> None:
    wide = policy("wide", "Gateway/gw", traffic={"transformation": below})
    narrow = policy("narrow", "HTTPRoute/route", traffic={"transformation": above})
    reported = messages(wide, narrow, code="TW306")
    assert [message.endswith(f"drops its `{half}` part") for message, half in zip(reported, lost, strict=True)] == [
        True for _ in lost
    ]


def test_an_override_loses_half_of_a_prompt_guard_too() -> None:
    guard = {"regex": {"matches": ["x"]}}
    wide = policy("wide", "Gateway/gw", backend={"ai": {"promptGuard": {"response": [guard]}}})
    narrow = policy("narrow", "HTTPRoute/route", backend={"ai": {"promptGuard": {"request": [guard]}}})
    (message,) = messages(wide, narrow, code="TW306")
    assert "`backend.ai.promptGuard`" in message


def test_an_expression_that_does_not_parse() -> None:
    entry = {"condition": "request.path ==", "policy": {"status": 200}}
    (message,) = messages(policy("p", "Gateway/gw", traffic={"directResponse": {"conditional": [entry]}}), code="TW307")
    assert message.startswith("`traffic.directResponse.conditional.0.condition` is not a valid CEL expression: 1:")


# Settings that are a Go duration or CEL, each with a hole for the text.
DURATIONS: dict[str, Any] = {
    "delay": lambda text: {"traffic": {"delay": {"duration": text}}},
    "cache": lambda text: {"traffic": {"extAuth": _cached(text)}},
    "conditional cache": lambda text: {"traffic": {"extAuth": {"conditional": [{"policy": _cached(text)}]}}},
    "backend cache": lambda text: {"backend": {"extAuth": _cached(text)}},
}


def _cached(ttl: str) -> dict[str, Any]:
    return {"backendRef": {"name": "svc", "port": 80}, "grpc": {}, "cache": {"key": ["request.path"], "ttl": ttl}}


@pytest.mark.parametrize("setting", DURATIONS)
@pytest.mark.parametrize("text", ["2s", "1h30m", "-1.5ms", 'duration("2s")', "random() < 0.1 ? 500 : 0"])
def test_a_duration_is_as_good_as_an_expression(setting: str, text: str) -> None:
    assert messages(policy("p", "Gateway/gw", **DURATIONS[setting](text)), code="TW307") == []


@pytest.mark.parametrize("setting", DURATIONS)
@pytest.mark.parametrize("text", ["2 seconds", "5x", "1h30"])
def test_what_is_neither_a_duration_nor_an_expression_is_found(setting: str, text: str) -> None:
    (message,) = messages(policy("p", "Gateway/gw", **DURATIONS[setting](text)), code="TW307")
    assert "is not a valid duration or CEL expression" in message


def test_other_expressions_are_no_durations() -> None:
    broken = {"condition": "2s", "policy": {"status": 200}}
    (message,) = messages(
        policy("p", "Gateway/gw", traffic={"directResponse": {"conditional": [broken]}}), code="TW307"
    )
    assert "is not a valid CEL expression" in message


def test_a_route_or_listener_set_that_attaches_nowhere() -> None:
    (message,) = messages(route(parents=[{"name": "gone"}]), code="TW308")
    assert message == "HTTPRoute/ns/route does not attach through parentRefs[0]: Gateway ns/gone not found"
    (message,) = messages(gateway(), listener_set(), code="TW308")
    assert message.endswith("Gateway ns/gw does not allow listeners from namespace ns")


def _parent(name: str, namespace: str = "ns") -> dict[str, Any]:
    group = "gateway.networking.k8s.io"
    ref = {"group": group, "kind": "HTTPRoute", "name": name, "namespace": namespace}
    return route("parent", [{"backendRefs": [ref]}])


def _labelled(app: str, *parents: str) -> dict[str, Any]:
    child = route("child", [{"backendRefs": []}], [{"kind": "HTTPRoute", "name": name} for name in parents])
    child["metadata"]["labels"] = {"app": app}
    return child


@pytest.mark.parametrize(
    ("parent", "child", "why"),
    [
        (_parent("app=a"), _labelled("b"), "no HTTPRoute in namespace ns has the label `app=a`"),
        (_parent("app=a"), _labelled("a", "other"), "HTTPRoute/ns/child lists other parents"),
        (_parent("app=a"), _labelled("a", "parent"), None),
        (_parent("app="), _labelled("a"), "HTTPRoute/ns/route lists other parents"),
        (_parent("child"), _labelled("a"), None),
        (_parent("gone"), _labelled("a"), "HTTPRoute ns/gone not found"),
        (_parent("*"), _labelled("a"), None),
        (_parent("*", "far"), _labelled("a"), "there is no other HTTPRoute in namespace far"),
        (
            _parent("*", "far"),
            route("child", [{"backendRefs": []}], [], namespace="far"),
            "no ReferenceGrant in namespace far permits HTTPRoute/far/child",
        ),
    ],
)
def test_a_route_that_hands_requests_on_to_no_route(
    parent: dict[str, Any], child: dict[str, Any], why: str | None
) -> None:
    wanted = [f"HTTPRoute/ns/parent hands requests on to no route: {why}"] if why is not None else []
    assert [text for text in messages(parent, child, code="TW308") if "hands" in text] == wanted


def test_children_that_the_owner_of_a_namespace_cannot_see_are_not_missing() -> None:
    given = snapshot(gateway(), _parent("*", "far"))
    assert [finding for finding in check(given, namespace="ns") if "hands" in finding.message] == []


def test_a_place_where_the_profiles_differ_is_a_note() -> None:
    on_route = policy("r", "HTTPRoute/route", backend=TCP)
    on_backend = policy("b", "AgentgatewayBackend/tools", backend=TCP)
    (finding,) = findings(on_route, on_backend, service(), code="TW309")
    assert CATALOGUE[finding.code].severity == "note"
    assert "AgentgatewayPolicy/ns/b by the documentation, AgentgatewayPolicy/ns/r by the code" in finding.message


def test_a_refused_policy_is_reported_by_admission_alone() -> None:
    wrong = policy("p", "HTTPRoute/gone", traffic={"timeouts": {"request": "soon"}})
    assert {finding.code[:3] for finding in findings(wrong)} == {"TW1"}
