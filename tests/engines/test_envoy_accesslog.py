"""Envoy's access log entries as events of the decision log."""

from __future__ import annotations

from typing import Any

import pytest
from envoy.data.accesslog.v3 import accesslog_pb2

from tierwall.core.answer import DEFAULT, Decider
from tierwall.core.reference import Reference
from tierwall.core.verdict import StepVerdict
from tierwall.engines.envoy.config.names import (
    ANSWERER,
    BACKEND_SLOTS,
    GATEWAY_SLOTS,
    MCP,
    RBAC,
    REFUSAL,
    backend_of_cluster,
    decider,
    place_of,
)
from tierwall.engines.envoy.control.accesslog import LoggedDecision, event, logged_decision
from tierwall.render.engines import request_document

GATEWAY, BACKEND = GATEWAY_SLOTS[0], BACKEND_SLOTS[0]
ALLOW, DENY = StepVerdict.ALLOW, StepVerdict.DENY
REFUSED = LoggedDecision(DENY, refused=True)
ANSWERED_BY = "lua_response[HTTPRoute/shop/web]"


def said(*entries: tuple[Any, str, str]) -> dict[str, str]:
    return {key: value for slot, result, by in entries for key, value in ((slot.result, result), (slot.decider, by))}


@pytest.mark.parametrize(
    ("metadata", "details", "expected"),
    [
        ({}, "via_upstream", LoggedDecision(ALLOW)),
        (
            said((GATEWAY, "allowed", "P/a/b rules[0]"), (BACKEND, "allowed", "P/a/c rules[1]")),
            "via_upstream",
            LoggedDecision(ALLOW, decider("P/a/c rules[1]"), "Backend"),
        ),
        (
            said((GATEWAY, "allowed", "P/a/b rules[0] ask first")),
            "ext_authz_denied",
            LoggedDecision(DENY, Decider(Reference("P", "a", "b"), "rules[0]", "ask first"), "Gateway"),
        ),
        (
            said((GATEWAY, "allowed", "P/a/b rules[0]"), (BACKEND, "denied", "P/a/c")),
            "rbac_access_denied_matched_policy[P/a/c]",
            LoggedDecision(DENY, Decider(Reference("P", "a", "c")), "Backend"),
        ),
        (
            said((GATEWAY, "allowed", "P/a/b rules[0]")),
            "ext_authz_denied",
            LoggedDecision(DENY, decider("P/a/b rules[0]"), "Gateway"),
        ),
        ({}, "mcp_reject_no_mcp", REFUSED),
        ({}, "route_not_found", REFUSED),
        ({}, "upstream_reset_before_response_started{x}", LoggedDecision(ALLOW)),
        (
            said((GATEWAY, "allowed", "P/a/b rules[0]")),
            "request_payload_too_large",
            LoggedDecision(DENY, decider("P/a/b rules[0]"), "Gateway"),
        ),
        (said((GATEWAY, "allowed", "P/a/b rules[0]")), "http2.remote_reset", REFUSED),
        ({}, "lua_response", REFUSED),
        ({}, "http1.codec_error", REFUSED),
    ],
)
def test_the_verdict_comes_from_the_policy_that_denied_or_the_last_that_allowed(
    metadata: dict[str, str], details: str, expected: LoggedDecision
) -> None:
    assert logged_decision(metadata, details) == expected


def test_a_stream_that_the_client_ends_was_allowed() -> None:
    allowed = said((GATEWAY, "allowed", "P/a/b rules[0]"))
    for details in ("http2.remote_reset", "downstream_remote_disconnect", ""):
        assert logged_decision(allowed, details, reached=True).verdict is ALLOW
        assert logged_decision({}, details, reached=True) == LoggedDecision(ALLOW)


def test_a_request_refused_before_any_policy_says_why() -> None:
    entry = accesslog_pb2.HTTPAccessLogEntry()
    entry.response.response_code_details = "mcp_reject_no_mcp"
    document = request_document(event(entry))
    assert (document["verdict"], document["policy"], document["rule"]) == ("Deny", "Default", "mcp_reject_no_mcp")
    assert event(entry).decided_by == (DEFAULT,)
    entry.response.response_code_details = "lua_response"
    entry.common_properties.metadata.filter_metadata[REFUSAL].update({"why": "a key is empty"})
    assert request_document(event(entry))["rule"] == "lua_response[a key is empty]"


def test_an_answer_that_a_setting_or_a_rule_gives_says_so() -> None:
    entry = accesslog_pb2.HTTPAccessLogEntry()
    entry.response.response_code_details = "lua_response"
    entry.common_properties.metadata.filter_metadata[ANSWERER].update({"by": "HTTPRoute/shop/web"})
    for status, expected in ((301, ("Allow", "Default", None)), (403, ("Deny", "Default", ANSWERED_BY))):
        entry.response.response_code.value = status
        document = request_document(event(entry))
        assert (document["verdict"], document["policy"], document.get("rule")) == expected
        assert document["detail"] == ANSWERED_BY
    entry.common_properties.metadata.filter_metadata[RBAC].update(said((GATEWAY, "allowed", "P/a/b rules[0]")))
    entry.response.response_code.value = 200
    assert request_document(event(entry))["policy"] == "P/a/b"


@pytest.mark.parametrize(("status", "verdict"), [(200, "Allow"), (302, "Allow"), (404, "Deny"), (500, "Deny")])
def test_a_route_that_answers_by_itself_refuses_only_by_its_status(status: int, verdict: str) -> None:
    entry = accesslog_pb2.HTTPAccessLogEntry()
    entry.response.response_code_details = "direct_response"
    entry.response.response_code.value = status
    assert request_document(event(entry))["verdict"] == verdict


def test_a_denied_request_names_its_backend() -> None:
    entry = accesslog_pb2.HTTPAccessLogEntry()
    entry.common_properties.custom_tags["cluster"] = "backend/agentic.networking.x-k8s.io/shop/orders"
    assert request_document(event(entry))["backend"] == "XBackend/shop/orders"


def test_a_record_contains_caller_request_and_place_without_unknown_fields() -> None:
    entry = accesslog_pb2.HTTPAccessLogEntry()
    common = entry.common_properties
    common.start_time.FromJsonString("2026-01-02T03:04:05Z")
    common.tls_properties.peer_certificate_properties.subject_alt_name.add(uri="spiffe://cluster.local/ns/a/sa/b")
    common.custom_tags.update({"gateway": "shop/agents", "listener": "mcp"})
    common.upstream_cluster = "backend/agentic.networking.x-k8s.io/shop/orders"
    common.metadata.filter_metadata[MCP].update({"method": "tools/call", "params": {"name": "pay"}})
    common.metadata.filter_metadata[RBAC].update(said((GATEWAY, "denied", "P/a/b")))
    entry.request.request_method, entry.request.path = 3, "/mcp"
    entry.response.response_code.value = 200
    assert request_document(event(entry)) == {
        "time": "2026-01-02T03:04:05.000Z",
        "plane": "tool",
        "caller": "spiffe://cluster.local/ns/a/sa/b",
        "gateway": "shop/agents",
        "listener": "mcp",
        "backend": "XBackend/shop/orders",
        "method": "tools/call",
        "tool": "pay",
        "http": "POST /mcp",
        "status": 200,
        "verdict": "Deny",
        "level": "Gateway",
        "policy": "P/a/b",
        "seconds": 0.0,
    }


def test_a_request_without_any_information_was_refused() -> None:
    assert event(accesslog_pb2.HTTPAccessLogEntry()).verdict is DENY


def test_resource_names_can_be_parsed() -> None:
    assert backend_of_cluster("service/shop/orders/80") == "Service/shop/orders"
    assert backend_of_cluster("nowhere") is None
    assert place_of("gateway/shop/agents/80/5x1+4s9", "mcp *") == {"gateway": "shop/agents", "listener": "mcp"}
    assert place_of("gateway/shop/agents/443/5x1+4s9/a.b", "two a.b") == {"gateway": "shop/agents", "listener": "two"}
    assert place_of("gateway/shop/agents/80/5x1+4s9", "team/set/mcp *") == {
        "gateway": "shop/agents",
        "listener": "mcp",
        "listenerSet": "team/set",
    }
    assert place_of("other", "mcp *") == {}
    assert place_of("gateway/shop/agents/80/5x1+4s9", "") == {}
