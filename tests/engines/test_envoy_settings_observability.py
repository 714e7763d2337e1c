"""A real Envoy sends traces and access logs where the frontend section says (docs/gateway.md#obeyed-by-run)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from tests.labs.envoy_lab import lab
from tests.labs.envoy_lab import policy as rules
from tests.labs.settings_lab import settings_lab
from tests.labs.waiting import PATIENCE_S, eventually
from tests.worlds.gateway_settings import Object, gateway, policy, route, service, to
from tierwall.engines.envoy.config.options import SocketAddress

# Their messages have no types.
traces: Any = trace_service_pb2
logs: Any = logs_service_pb2
pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("needs_envoy")]
_NAMES = ["time", "http.request.method", "url.path", "server.address", "client.address", "http.response.status_code"]
COLLECTOR = {"backendRef": {"name": "collector", "port": 4317}}


class Collector:
    """An OpenTelemetry collector; `spans` and `records` are the attributes of all that it got."""

    def __init__(self) -> None:
        self.spans: list[dict[str, str]] = []
        self.records: list[dict[str, str]] = []
        self._server = grpc.server(ThreadPoolExecutor(2))
        for name, messages, part, into in (
            ("trace.v1.TraceService", traces, "Trace", self.spans),
            ("logs.v1.LogsService", logs, "Logs", self.records),
        ):
            handler = grpc.unary_unary_rpc_method_handler(
                _keeping(into, getattr(messages, f"Export{part}ServiceResponse")),
                getattr(messages, f"Export{part}ServiceRequest").FromString,
                getattr(messages, f"Export{part}ServiceResponse").SerializeToString,
            )
            service_name = f"opentelemetry.proto.collector.{name}"
            self._server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(service_name, {"Export": handler}),)
            )
        self.address = SocketAddress("127.0.0.1", self._server.add_insecure_port("127.0.0.1:0"))
        self._server.start()

    def close(self) -> None:
        self._server.stop(0).wait(PATIENCE_S)


def _keeping(into: list[dict[str, str]], answer: Any) -> Any:
    def export(request: Any, context: Any) -> Any:
        into.extend({entry.key: entry.value.string_value for entry in each.attributes} for each in _each(request))
        return answer()

    return export


def _each(request: Any) -> Iterator[Any]:
    # The generated messages have the earlier names of `scope_spans` and `scope_logs`, which are the same on the wire.
    for resource in getattr(request, "resource_spans", ()):
        for scope in resource.instrumentation_library_spans:
            yield from scope.spans
    for resource in getattr(request, "resource_logs", ()):
        for scope in resource.instrumentation_library_logs:
            yield from getattr(scope, "logs", None) or scope.log_records


@pytest.fixture
def collector() -> Iterator[Collector]:
    with closing(Collector()) as running:
        yield running


def world(**frontend: Any) -> list[Object]:
    ways = route("web", [{"backendRefs": to("one")}])
    return [gateway(), service("one"), service("collector", 4317), ways, policy("p", "Gateway/edge", frontend=frontend)]


def test_spans_go_to_the_collector_of_the_gateway(collector: Collector) -> None:
    attributes = {"add": [{"name": "team", "expression": "request.headers['x-team']"}]}
    tracing = {**COLLECTOR, "randomSampling": "true", "attributes": attributes}
    with settings_lab(world(tracing=tracing), elsewhere={"collector": collector.address}) as lab:
        assert lab.send("/", x_team="red").status == 200
        eventually(lambda: [span.get("team") for span in collector.spans] == ["red"], lambda: collector.spans)


def test_records_go_to_the_collector_of_the_gateway(collector: Collector) -> None:
    otlp = {
        **COLLECTOR,
        "filter": "request.method == 'POST' && response.code == 200",
        "attributes": {"add": [{"name": "team", "expression": "request.headers['x-team']"}], "remove": ["duration"]},
    }
    with settings_lab(world(accessLog={"otlp": otlp}), elsewhere={"collector": collector.address}) as lab:
        assert lab.send("/quiet").status == 200
        assert lab.send("/bad", "POST", b"", x_status="503").status == 503
        assert lab.send("/loud?x=1", "POST", b"", x_team="red").status == 200
        eventually(lambda: bool(collector.records), lambda: collector.records)
        (record,) = collector.records
        assert (record["url.path"], record["http.response.status_code"], record["team"]) == ("/loud?x=1", "200", "red")
        assert "duration" not in record


def test_records_are_written_without_a_collector(tmp_path: Path) -> None:
    log: Object = {
        "filter": "request.method == 'POST'",
        "attributes": {"add": [{"name": "team", "expression": "request.headers['x-team']"}], "remove": ["duration"]},
    }
    path = tmp_path / "log"
    with path.open("wb") as file, settings_lab(world(accessLog=log), output=file.fileno()) as lab:
        assert lab.send("/quiet").status == 200
        assert lab.send("/loud?x=1", "POST", b"", x_team='a "red" one\t', x_status="503").status == 503
        eventually(lambda: path.read_text().endswith("\n"), path.read_text)
        (record,) = map(json.loads, path.read_text().splitlines())
        assert (record["url.path"], record["http.response.status_code"]) == ("/loud?x=1", 503)
        assert record["team"] == 'a "red" one'
        assert set(record) == {*_NAMES, "team"}
        assert lab.diagnostics == ()


@pytest.mark.parametrize(
    ("frontend", "words"),
    [
        ({"accessLog": {"otlp": {**COLLECTOR, "protocol": "HTTP"}}}, "only over gRPC"),
        ({"tracing": {**COLLECTOR, "randomSampling": "request.path == '/'"}}, "needs a constant"),
        ({"tracing": {"backendRef": {"name": "nowhere", "port": 1}}}, "no Service `shop/nowhere`"),
    ],
)
def test_what_cannot_be_sent_is_said_and_closes_nothing(frontend: Object, words: str) -> None:
    with settings_lab(world(**frontend)) as lab:
        assert lab.send("/").status == 200
        assert any(words in str(problem.message) and problem.code == "TW662" for problem in lab.diagnostics)


def test_records_reach_the_output_of_run() -> None:
    """An Envoy that Tierwall runs hands records over in whole lines, the last ones when it ends."""
    with lab() as running:
        logged = {
            "apiVersion": "agentgateway.dev/v1alpha1",
            "kind": "AgentgatewayPolicy",
            "metadata": {"name": "log", "namespace": "shop"},
            "spec": {
                "targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "agents"}],
                "frontend": {"accessLog": {"filter": "request.method == 'POST'"}},
            },
        }
        running.publish([rules("guard", "find_order"), logged])
        running.programmed()
        running.until_ready(running.caller(), "find_order")
        eventually(lambda: len(running.records) > 0, lambda: running.records)
        assert running.caller().call("find_order") == "allowed"
        running.do(running.process.stop())
        assert {json.loads(line)["http.request.method"] for line in running.records} == {"POST"}
        assert len(running.records) >= 2
