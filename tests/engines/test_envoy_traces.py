"""Traces of requests: a collector gets a span with the caller, the tool, and the policies that decided."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from tests.labs.envoy_lab import lab, policy
from tests.labs.waiting import PATIENCE_S, eventually
from tierwall.engines.envoy.config.options import SocketAddress

# Its messages have no types.
service: Any = trace_service_pb2
pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("needs_envoy")]


class Collector:
    """An OpenTelemetry collector; `spans` are the attributes of every span so far."""

    def __init__(self) -> None:
        self.spans: list[dict[str, str]] = []
        self._server = grpc.server(ThreadPoolExecutor(2))
        handler = grpc.unary_unary_rpc_method_handler(
            self._export,
            service.ExportTraceServiceRequest.FromString,
            service.ExportTraceServiceResponse.SerializeToString,
        )
        name = "opentelemetry.proto.collector.trace.v1.TraceService"
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"Export": handler}),))
        self.address = SocketAddress("127.0.0.1", self._server.add_insecure_port("127.0.0.1:0"))
        self._server.start()

    def _export(self, request: Any, context: Any) -> Any:
        for resource in request.resource_spans:
            # The generated messages have the earlier name of `scope_spans`, which is the same on the wire.
            for scope in resource.instrumentation_library_spans:
                for span in scope.spans:
                    self.spans.append({entry.key: entry.value.string_value for entry in span.attributes})
        return service.ExportTraceServiceResponse()

    def close(self) -> None:
        self._server.stop(0).wait(PATIENCE_S)


@pytest.fixture
def collector() -> Iterator[Collector]:
    running = Collector()
    yield running
    running.close()


def test_spans_name_the_policies_that_decided(collector: Collector) -> None:
    with lab(collector=collector.address) as running:
        running.publish([policy("gate", "allowed", "half"), policy("team", "allowed", on="XBackend")])
        caller = running.caller()
        running.until_ready(caller, "allowed")
        assert "team" in caller.call("half")

        def span(tool: str) -> dict[str, str]:
            return next((span for span in reversed(collector.spans) if span.get("gen_ai.tool.name") == tool), {})

        eventually(lambda: span("half") and span("allowed"), lambda: collector.spans)
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
