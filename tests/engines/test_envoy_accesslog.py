"""What the decision log makes of Envoy's access log entries."""

from __future__ import annotations

from typing import Any

import pytest
from envoy.data.accesslog.v3 import accesslog_pb2

from tierwall.engines.envoy.accesslog import record, verdict
from tierwall.engines.envoy.names import BACKEND_SLOTS, GATEWAY_SLOTS, MCP, RBAC, backend_of_cluster, place_of

GATEWAY, BACKEND = GATEWAY_SLOTS[0], BACKEND_SLOTS[0]


def said(*entries: tuple[Any, str, str]) -> dict[str, str]:
    return {key: value for slot, result, by in entries for key, value in ((slot.result, result), (slot.decider, by))}


@pytest.mark.parametrize(
    ("metadata", "details", "expected"),
    [
        ({}, "via_upstream", {"verdict": "Allow", "policy": "Default"}),
        (
            said((GATEWAY, "allowed", "P/a/b rules[0]"), (BACKEND, "allowed", "P/a/c rules[1]")),
            "via_upstream",
            {"verdict": "Allow", "level": "Backend", "policy": "P/a/c", "rule": "rules[1]"},
        ),
        (
            said((GATEWAY, "allowed", "P/a/b rules[0] ask")),
            "ext_authz_denied",
            {"verdict": "Deny", "level": "Gateway", "policy": "P/a/b", "rule": "rules[0]", "name": "ask"},
        ),
        (
            said((GATEWAY, "allowed", "P/a/b rules[0]"), (BACKEND, "denied", "P/a/c")),
            "rbac_access_denied_matched_policy[P/a/c]",
            {"verdict": "Deny", "level": "Backend", "policy": "P/a/c", "rule": ""},
        ),
        (
            said((GATEWAY, "allowed", "P/a/b rules[0]")),
            "ext_authz_denied",
            {"verdict": "Deny", "level": "Gateway", "policy": "P/a/b", "rule": "rules[0]"},
        ),
        ({}, "mcp_reject_no_mcp", {"verdict": "Deny", "policy": "Default", "rule": "mcp_reject_no_mcp"}),
        ({}, "route_not_found", {"verdict": "Deny", "policy": "Default", "rule": "route_not_found"}),
        ({}, "upstream_reset_before_response_started{x}", {"verdict": "Allow", "policy": "Default"}),
        (
            said((GATEWAY, "allowed", "P/a/b rules[0]")),
            "request_payload_too_large",
            {"verdict": "Deny", "level": "Gateway", "policy": "P/a/b", "rule": "rules[0]"},
        ),
        (
            said((GATEWAY, "allowed", "P/a/b rules[0]")),
            "http2.remote_reset",
            {"verdict": "Deny", "policy": "Default", "rule": "http2.remote_reset"},
        ),
        ({}, "lua_response", {"verdict": "Deny", "policy": "Default", "rule": "lua_response"}),
        ({}, "http1.codec_error", {"verdict": "Deny", "policy": "Default", "rule": "http1.codec_error"}),
    ],
)
def test_the_verdict_is_that_of_the_policy_that_denied_or_of_the_last_that_allowed(
    metadata: dict[str, str], details: str, expected: dict[str, str]
) -> None:
    assert verdict(metadata, details) == expected


def test_a_stream_that_the_client_ends_was_let_through() -> None:
    allowed = said((GATEWAY, "allowed", "P/a/b rules[0]"))
    for details in ("http2.remote_reset", "downstream_remote_disconnect", ""):
        assert verdict(allowed, details, reached=True)["verdict"] == "Allow"
        assert verdict({}, details, reached=True) == {"verdict": "Allow", "policy": "Default"}


def test_a_denied_request_names_the_backend_it_was_for() -> None:
    entry = accesslog_pb2.HTTPAccessLogEntry()
    entry.common_properties.custom_tags["cluster"] = "backend/agentic.networking.x-k8s.io/shop/orders"
    assert record(entry)["backend"] == "XBackend/shop/orders"


def test_a_record_has_who_what_and_where_and_leaves_out_what_is_not_known() -> None:
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
    assert record(entry) == {
        "time": "2026-01-02T03:04:05Z",
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


def test_a_request_of_which_nothing_is_known_was_not_let_through() -> None:
    assert record(accesslog_pb2.HTTPAccessLogEntry())["verdict"] == "Deny"


def test_names_lead_back_to_places() -> None:
    assert backend_of_cluster("service/shop/orders/80") == "Service/shop/orders"
    assert backend_of_cluster("nowhere") is None
    assert place_of("gateway/shop/agents/80/5x2+8", "mcp *") == {"gateway": "shop/agents", "listener": "mcp"}
    assert place_of("gateway/shop/agents/443/5x2+8/a.b", "two a.b") == {"gateway": "shop/agents", "listener": "two"}
    assert place_of("gateway/shop/agents/80/5x2+8", "team/set/mcp *") == {
        "gateway": "shop/agents",
        "listener": "mcp",
    }
    assert place_of("other", "mcp *") == {}
    assert place_of("gateway/shop/agents/80/5x2+8", "") == {}
