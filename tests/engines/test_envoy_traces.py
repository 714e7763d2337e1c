"""Traces of requests: a collector gets a span with the caller, the tool, and the policies that decided."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from tests.labs.collector import Collector
from tests.labs.envoy_lab import lab, policy
from tests.labs.waiting import eventually

# Its messages have no types.
service: Any = trace_service_pb2
pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("needs_envoy")]


def spans(collector: Collector) -> list[dict[str, str]]:
    """Return the attributes of every span so far."""
    # The generated messages have the earlier name of `scope_spans`, which is the same on the wire.
    return [
        {entry.key: entry.value.string_value for entry in span.attributes}
        for request in tuple(collector.requests)
        for resource in request.resource_spans
        for scope in resource.instrumentation_library_spans
        for span in scope.spans
    ]


@pytest.fixture
def collector() -> Iterator[Collector]:
    running = Collector("opentelemetry.proto.collector.trace.v1.TraceService", service, "ExportTraceService")
    yield running
    running.close()


def test_spans_name_the_policies_that_decided(collector: Collector) -> None:
    with lab(collector=collector.address) as running:
        running.publish([policy("gate", "allowed", "half"), policy("team", "allowed", on="XBackend")])
        caller = running.caller()
        running.until_ready(caller, "allowed")
        assert "team" in caller.call("half")

        def span(tool: str) -> dict[str, str]:
            return next((span for span in reversed(spans(collector)) if span.get("gen_ai.tool.name") == tool), {})

        eventually(lambda: span("half") and span("allowed"), lambda: spans(collector))
        for tool, verdict in (("allowed", "allowed"), ("half", "denied")):
            got = span(tool)
            assert got["tierwall.caller"] == "spiffe://cluster.local/ns/agents/sa/shopper"
            assert (got["tierwall.gateway"], got["tierwall.backend"]) == ("shop/agents", "XBackend/shop/orders")
            assert got["mcp.method.name"] == "tools/call"
            decided = {key: value for key, value in got.items() if key.startswith("tierwall.policy.")}
            rules = {key.split(".")[2]: value for key, value in decided.items() if key.endswith(".rule")}
            verdicts = {key.split(".")[2]: value for key, value in decided.items() if key.endswith(".verdict")}
            assert rules["gateway"] == "XAccessPolicy/shop/gate rules[0] it"
            assert rules["backend"].startswith("XAccessPolicy/shop/team")
            assert verdicts == {"gateway": "allowed", "backend": verdict}


def test_a_collector_that_is_away_holds_nothing_up(collector: Collector) -> None:
    collector.close()
    with lab(collector=collector.address) as running:
        running.publish([policy("gate", "allowed")])
        caller = running.caller()
        running.until_ready(caller, "allowed")
        assert "gate" in caller.call("forbidden")
