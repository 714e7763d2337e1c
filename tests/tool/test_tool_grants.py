"""The Python API of grants: rows, ways without routes, and every problem with the given names."""

from __future__ import annotations

import pytest

from tests.worlds.tool_objects import (
    AGENT,
    NETWORKING,
    PROTOTYPE,
    Object,
    backend,
    calls,
    gateway,
    manifest,
    mcp,
    on_backend,
    on_gateway,
    route,
    sa,
    v1,
)
from tests.worlds.tool_worlds import snapshot
from tierwall.core.answer import DEFAULT, Decider
from tierwall.core.diagnostics import InputError, UnknownName
from tierwall.core.reference import Reference
from tierwall.core.verdict import Verdict
from tierwall.tool.grants import grants, nearest_caller
from tierwall.tool.ways import is_unrouted

GATEWAY, BACKEND = Reference("Gateway", "prod", "prod-gateway"), Reference("XBackend", "prod", "payment-service")
PLAIN = [gateway(), backend(), route("r", "prod-gateway", "payment-service")]


def test_a_row_says_who_grants_a_tool_on_which_way() -> None:
    policy = v1("p", on_gateway(), {"source": sa(), "authorization": mcp(calls("pay"))})
    pay, other = grants(snapshot([*PLAIN, policy]), {"serviceAccount": "prod/agent"}).rows
    assert (pay.gateway, pay.listener, pay.backend, pay.tool) == (GATEWAY, "web", BACKEND, "pay")
    guard = Reference("XAccessPolicy", "prod", "p")
    assert (pay.verdict, pay.decided_by, pay.conditions) == (Verdict.ALLOW, (Decider(guard, "rules[0]", "r0"),), ())
    assert (other.tool, other.verdict, other.decided_by) == ("*", Verdict.DENY, (Decider(guard, "spec"),))
    assert pay.initialize.verdict is Verdict.DENY
    assert pay.initialize is other.initialize


def test_without_policies_the_default_decides() -> None:
    granted = grants(snapshot(PLAIN), None)
    assert (granted.caller, granted.routed) == (None, True)
    assert [(row.tool, row.decided_by) for row in granted.rows] == [("*", (DEFAULT,))]


def test_tools_that_no_policy_names_can_be_asked_about() -> None:
    assert [row.tool for row in grants(snapshot(PLAIN), AGENT, tools=["z", "a", "*"]).rows] == ["a", "z", "*"]


def test_without_a_route_every_gateway_leads_to_every_backend() -> None:
    objects = [gateway(), gateway("other"), backend(), backend("bank")]
    assert grants(snapshot(objects), AGENT).routed is False
    only = grants(snapshot(objects), AGENT, gateway="prod/other", backend="prod/bank")
    assert [(row.gateway.name, row.backend.name) for row in only.rows] == [("other", "bank")]


def test_only_ways_without_a_route_are_made_up() -> None:
    objects = [*PLAIN, gateway("other")]
    assert [row.gateway.name for row in grants(snapshot(objects), AGENT).rows] == ["prod-gateway"]
    other = grants(snapshot(objects), AGENT, gateway="prod/other")
    assert [row.gateway.name for row in other.rows] == ["other"]
    assert other.routed is False


def test_a_gateway_that_leads_nowhere_has_no_rows() -> None:
    granted = grants(snapshot([gateway()]), AGENT, gateway="prod/prod-gateway")
    assert (granted.ways, granted.routed) == ((), True)


def test_every_problem_is_reported_at_once() -> None:
    with pytest.raises(InputError) as caught:
        grants(snapshot(PLAIN), "agent", gateway="prod/prod-gatway", backend="x")
    assert [(diagnostic.code, diagnostic.message) for diagnostic in caught.value.diagnostics] == [
        (
            "TW703",
            "expected `namespace/name`, `Service/namespace/name` or `AgentgatewayBackend/namespace/name` as `backend`, "
            "found `x`",
        ),
        (
            "TW703",
            "expected a SPIFFE id such as `spiffe://cluster.local/ns/shop/sa/agent` as `caller`, found `agent`",
        ),
        ("TW704", "there is no Gateway `prod/prod-gatway`"),
    ]


@pytest.mark.parametrize(
    ("backend_name", "message", "hint"),
    [
        ("prod/paymnt-service", "there is no XBackend `prod/paymnt-service`", "did you mean `prod/payment-service`?"),
        ("Service/prod/payments", "there is no Service `prod/payments`", ""),
    ],
)
def test_a_backend_that_does_not_exist_is_an_unknown_name(backend_name: str, message: str, hint: str) -> None:
    with pytest.raises(UnknownName) as caught:
        grants(snapshot(PLAIN), AGENT, backend=backend_name)
    assert [(diagnostic.message, diagnostic.hint) for diagnostic in caught.value.diagnostics] == [(message, hint)]


def test_a_service_behind_a_route_is_listed() -> None:
    service = manifest("v1", "Service", "payments", {"ports": [{"port": 80}]})
    to_service: Object = route("s", "prod-gateway", "payments")
    to_service["spec"]["rules"][0]["backendRefs"] = [{"name": "payments", "port": 80}]
    granted = grants(snapshot([*PLAIN, service, to_service]), AGENT, backend="Service/prod/payments")
    assert [str(row.backend) for row in granted.rows] == ["Service/prod/payments"]


def test_an_agentgateway_backend_behind_a_route_is_listed() -> None:
    target = {"name": "bank", "static": {"host": "bank.example", "port": 80}}
    joined = manifest("agentgateway.dev/v1alpha1", "AgentgatewayBackend", "bank", {"mcp": {"targets": [target]}})
    way = route("s", "prod-gateway", "bank", group="agentgateway.dev")
    way["spec"]["rules"][0]["backendRefs"][0]["kind"] = "AgentgatewayBackend"
    guard = v1("p", on_gateway(), {"authorization": mcp(calls("pay"))})
    granted = grants(snapshot([*PLAIN, joined, way, guard]), AGENT, backend="AgentgatewayBackend/prod/bank")
    assert [(str(row.backend), row.tool, str(row.verdict)) for row in granted.rows] == [
        ("AgentgatewayBackend/prod/bank", "pay", "Allow"),
        ("AgentgatewayBackend/prod/bank", "*", "Deny"),
    ]


def test_backends_of_one_name_are_told_apart_by_their_group() -> None:
    policy = v1("p", on_backend(), {"authorization": mcp(calls("pay"))})
    objects = [gateway(), backend(), backend(group=PROTOTYPE), policy]
    objects += [
        route("r", "prod-gateway", "payment-service"),
        route("q", "prod-gateway", "payment-service", group=PROTOTYPE),
    ]
    loaded = snapshot(objects)
    with pytest.raises(InputError, match="is ambiguous: both groups have one"):
        grants(loaded, AGENT, backend="prod/payment-service")
    old, new = (
        grants(loaded, AGENT, backend=f"XBackend.{group}/prod/payment-service") for group in (PROTOTYPE, NETWORKING)
    )
    assert [row.tool for row in old.rows] == ["*"]
    assert [row.tool for row in new.rows] == ["pay", "*"]
    assert len(grants(loaded, AGENT).ways) == 2


def test_a_hint_at_the_nearest_caller() -> None:
    loaded = snapshot([*PLAIN, v1("p", on_gateway(), {"source": sa(), "authorization": mcp(calls("pay"))})])
    assert nearest_caller(loaded, AGENT) == ""
    assert nearest_caller(loaded, None) == ""
    assert nearest_caller(loaded, AGENT.replace("agent", "agnt")) == f"did you mean `{AGENT}`?"


def test_a_way_that_no_route_takes() -> None:
    other = Reference("Gateway", "prod", "other")
    assert is_unrouted(snapshot([*PLAIN, gateway("other")]), other, BACKEND)
    assert not is_unrouted(snapshot(PLAIN), GATEWAY, BACKEND)
    assert not is_unrouted(snapshot([gateway(), backend()]), GATEWAY, BACKEND)
    elsewhere = manifest(
        "gateway.networking.k8s.io/v1", "HTTPRoute", "r", {"parentRefs": [{"name": "gw"}], "rules": []}
    )
    assert is_unrouted(snapshot([gateway(), backend(), elsewhere]), GATEWAY, BACKEND), "no route leads anywhere"
