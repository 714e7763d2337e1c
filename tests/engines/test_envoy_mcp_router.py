"""The filter that Envoy has for joining MCP servers behind one path is not safe (docs/enforce-tools.md#joined-servers).

Envoy's filter `mcp_router` sends a call of `bank__pay` to the server `bank`, as a call of `pay`, and policies would
judge `pay`. These tests show what the server gets instead, and what clients lose. A test that fails with a newer Envoy
means that the filter was mended there, and that the decision can be taken again.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_components_pb2
from envoy.extensions.filters.http.mcp_router.v3 import mcp_router_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2

from tests.labs.waiting import PATIENCE_S, HeldPort
from tierwall.engines.envoy.config.compile import XdsResources
from tierwall.engines.envoy.config.matchers import packed
from tierwall.engines.envoy.config.mcp import mcp_filter, strict_filter
from tierwall.engines.envoy.probe.standalone import StandaloneEnvoy

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("needs_envoy")]
NEW = "2026-07-28"
META = {"io.modelcontextprotocol/protocolVersion": NEW, "io.modelcontextprotocol/clientCapabilities": {}}
TOOL = {"name": "pay", "title": "Pay", "inputSchema": {"type": "object"}, "outputSchema": {"type": "object"}}


class Server:
    """An MCP server that keeps the bodies of its messages, and has more than one page of tools."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        bodies = self.bodies

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = self.headers.get("content-length")
                body = self.rfile.read(int(length)) if length else b"".join(iter(self._chunk, b""))
                bodies.append(body)
                try:
                    message = json.loads(body)
                except ValueError:
                    message = {}
                result = {"tools": [TOOL], "nextCursor": "2"} if message.get("method") == "tools/list" else {}
                answer = json.dumps({"jsonrpc": "2.0", "id": message.get("id"), "result": result}).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def _chunk(self) -> bytes:
                out = self.rfile.read(int(self.rfile.readline(), 16))
                self.rfile.readline()
                return out

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Router:
    """An Envoy that reads messages as on ways with policies, before `bank` and a server that is down."""

    def __init__(self, bank: Server, down: int) -> None:
        self._bank = bank
        servers = {"bank": bank.port, "down": down}
        clusters = {name: _cluster(name, port) for name, port in servers.items()}
        self.envoy = StandaloneEnvoy(XdsResources(listeners={"l": _listener(servers)}, clusters=clusters))
        self._port = self.envoy.ports()["l"]

    def ask(self, body: str | None, verb: str = "POST", **headers: str) -> tuple[int, bytes]:
        """Send a message; return the answer."""
        self._bank.bodies.clear()
        kinds = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        kinds |= {name.replace("_", "-"): value for name, value in headers.items()}
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)) as connection:
            connection.request(verb, "/mcp", body, kinds)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def call(self, params: str) -> list[bytes]:
        """Call a tool with these parameters; return what the server gets."""
        self.ask(f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}')
        return list(self._bank.bodies)


def _listener(servers: Iterable[str]) -> Any:
    router = mcp_router_pb2.McpRouter()
    for name in servers:
        router.servers.add(name=name).mcp_cluster.cluster = name
    manager = http_connection_manager_pb2.HttpConnectionManager(stat_prefix="l")
    host = manager.route_config.virtual_hosts.add(name="all", domains=["*"])
    # As on the routes of a backend's streams, a GET meets no script.
    stream = host.routes.add(match={"prefix": "/"}, route={"cluster": "bank"})
    stream.match.headers.add(name=":method").string_match.exact = "GET"
    stream.typed_per_filter_config["strict"].Pack(route_components_pb2.FilterConfig(disabled=True))
    host.routes.add(match={"prefix": "/"}, route={"cluster": "bank"})
    for name, settings in (
        ("mcp", mcp_filter(1 << 20)),
        ("strict", strict_filter(False)),
        ("router", packed(router)),
    ):
        manager.http_filters.add(name=name).typed_config.CopyFrom(settings)
    out = listener_pb2.Listener(name="l")
    out.address.socket_address.address, out.address.socket_address.port_value = "127.0.0.1", 0
    out.filter_chains.add().filters.add(name="http").typed_config.CopyFrom(packed(manager))
    return out


def _cluster(name: str, port: int) -> Any:
    out = cluster_pb2.Cluster(name=name)
    out.load_assignment.cluster_name = name
    address = out.load_assignment.endpoints.add().lb_endpoints.add().endpoint.address.socket_address
    address.address, address.port_value = "127.0.0.1", port
    return out


@contextmanager
def running() -> Iterator[Router]:
    with closing(Server()) as bank, closing(HeldPort()) as down:
        made = Router(bank, down.number)
        with made.envoy:
            yield made


@pytest.fixture(scope="module")
def router() -> Iterator[Router]:
    with running() as made:
        yield made


def message(method: str, request: Any = 1, **params: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": request, "method": method, "params": params})


def test_a_plain_call_reaches_its_server_under_its_own_name(router: Router) -> None:
    [body] = router.call('{"name":"bank__pay","arguments":{}}')
    assert json.loads(body)["params"] == {"name": "pay", "arguments": {}}


def test_the_server_runs_another_tool_than_policies_would_judge(router: Router) -> None:
    """The filter replaces the first text that looks like the name, wherever that is: here in the arguments."""
    [body] = router.call('{"arguments":{"note":"bank__pay"},"name":"bank__pay"}')
    assert json.loads(body)["params"] == {"arguments": {"note": "pay"}, "name": "bank__pay"}


def test_a_name_with_an_escape_puts_the_connection_to_the_server_out_of_step() -> None:
    """The text is not found, but the length that the filter announces is that of the changed message.

    So the end of the message stands before the next request of whoever comes next.
    """
    with running() as router:
        params = r'{"name":"bank__p\u0061y","arguments":{"next":1}}'
        [body] = router.call(params)
        assert (params + "}").encode().startswith(body.partition(b'"params":')[2])
        assert body.endswith(b'{"next')
        status, answer = router.ask(message("tools/list"))
        assert (status, json.loads(answer)["result"]) == (200, {"tools": []})


def test_answers_have_another_id_than_their_requests(router: Router) -> None:
    for asked, answered in (("one", 0), (2**53 + 1, 2**53)):
        status, body = router.ask(message("ping", asked))
        assert (status, json.loads(body)["id"]) == (200, answered)


def test_lists_lose_pages_fields_and_servers(router: Router) -> None:
    status, body = router.ask(message("tools/list"))
    assert (status, json.loads(body)["result"]) == (
        200,
        {"tools": [{"name": "bank__pay", "inputSchema": {"type": "object"}}]},
    )


def test_much_of_the_protocol_is_refused(router: Router) -> None:
    for method in ("server/discover", "subscriptions/listen", "tasks/get"):
        params = {"_meta": META, "notifications": {}, "taskId": "t"}
        name = {"mcp_name": "t"} if method == "tasks/get" else {}
        headers = {"mcp_protocol_version": NEW, "mcp_method": method, **name}
        assert router.ask(message(method, **params), **headers) == (400, b"Invalid or missing MCP request")
    assert router.ask(message("notifications/progress"))[0] == 400
    # The MCP filter lets the stream of the server pass, and this one does not.
    assert router.ask(None, "GET", accept="text/event-stream") == (405, b"Method Not Allowed")
