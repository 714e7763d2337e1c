"""MCP servers behind one path: each records what it gets, and says what a test wants."""

from __future__ import annotations

import http.client
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from msgspec.structs import replace

from tests.labs.envoy_lab import Lab
from tests.labs.waiting import PATIENCE_S
from tests.worlds.tool_objects import BASE, on_gateway, v1
from tierwall.engines.envoy.config.options import SocketAddress

Object = dict[str, Any]
KEYS = {
    "tools/list": ("tools", "name"),
    "prompts/list": ("prompts", "name"),
    "resources/list": ("resources", "uri"),
    "resources/templates/list": ("resourceTemplates", "uriTemplate"),
}


class JoinedServer:
    """A server with tools, prompts and resources of one name each; `items` may be changed."""

    def __init__(self, name: str, *items: str) -> None:
        self.name, self.items = name, list(items)
        # The messages, and the headers of each request with its path and method.
        self.messages: list[Object] = []
        self.bodies: list[bytes] = []
        self.requests: list[Object] = []
        self.session: str | None = f"{name}'s,1:%"
        self.version = "2025-11-25"
        self.page = 100
        # Answers to methods as they are written, in place of a result; and how long each takes.
        self.results: dict[str, str] = {}
        self.raw: dict[str, tuple[int, Object, bytes]] = {}
        self.is_streaming = False
        self.delay_s = 0.0
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_DELETE(self) -> None:
                server._note(self)
                self._answer(200, {}, b"")

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                message = json.loads(body)
                server._note(self)
                server.messages.append(message)
                server.bodies.append(body)
                time.sleep(server.delay_s)
                if message["method"] in server.raw:
                    self._answer(*server.raw[message["method"]])
                elif "id" not in message:
                    self._answer(202, {}, b"")
                else:
                    result = server.results.get(message["method"]) or json.dumps(server.result(message))
                    text = f'{{"jsonrpc":"2.0","id":{json.dumps(message["id"])},"result":{result}}}'
                    headers = {"content-type": "application/json"}
                    if server.is_streaming:
                        headers["content-type"] = "text/event-stream"
                        event = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {}})
                        text = f"id: 1\ndata: {event}\n\n: wait\n\nevent: message\ndata: {text}\n\n"
                    if server.session is not None:
                        headers["mcp-session-id"] = server.session
                    self._answer(200, headers, text.encode())

            def _answer(self, status: int, headers: Object, body: bytes) -> None:
                self.send_response(status)
                for name, value in {**headers, "content-length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def _note(self, handler: BaseHTTPRequestHandler) -> None:
        headers = {name.lower(): value for name, value in handler.headers.items()}
        self.requests.append({":method": handler.command, ":path": handler.path, **headers})

    def result(self, message: Object) -> Object:
        """Return the result of a message."""
        method, params = message["method"], message.get("params", {})
        abilities = {"tools": {"listChanged": True}, "prompts": {}, "resources": {"subscribe": True}, "logging": {}}
        told = {"capabilities": abilities, "instructions": f'I am "{self.name}".'}
        if method == "initialize":
            return {"protocolVersion": self.version, "serverInfo": {"name": self.name, "version": "1"}, **told}
        if method == "server/discover":
            return {"supportedVersions": [self.version], "resultType": "complete", **told}
        if method in KEYS:
            key, name = KEYS[method]
            first = int(params.get("cursor", "0").strip(',:%" é') or 0)
            items = [f"file:///{item}" if "resource" in method else item for item in self.items]
            page: Object = {key: [{name: item, "title": f"{item} é"} for item in items[first : first + self.page]]}
            if first + self.page < len(items):
                page["nextCursor"] = f',:%" é{first + self.page}'
            return page
        return {"content": [{"type": "text", "text": self.name}]}

    def forget(self) -> None:
        """Forget what came so far."""
        self.messages.clear()
        self.bodies.clear()
        self.requests.clear()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def agentgateway(kind: str, name: str, spec: Object) -> Object:
    version = "agentgateway.dev/v1alpha1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "shop"}, "spec": spec}


def joined(path: str = "/all", names: tuple[str, ...] = ("bank", "shop.eu"), policies: Object | None = None,
           filters: list[Object] | None = None, **mcp: Any) -> list[Object]:  # fmt: skip
    """A backend with these targets, and a route to it."""
    targets = [{"name": name, "static": {"host": f"{name}.example", "port": 80, "path": f"/{name}"}} for name in names]
    backend = agentgateway("AgentgatewayBackend", path[1:], {"mcp": {"targets": targets, **mcp}, "policies": policies})
    if policies is None:
        del backend["spec"]["policies"]
    ref = {"group": "agentgateway.dev", "kind": "AgentgatewayBackend", "name": path[1:]}
    rule = {"matches": [{"path": {"value": path}}], "backendRefs": [ref], "filters": filters or []}
    spec = {"parentRefs": [{"name": "agents"}], "rules": [rule]}
    version = "gateway.networking.k8s.io/v1"
    return [
        backend,
        {
            "apiVersion": version,
            "kind": "HTTPRoute",
            "metadata": {"name": path[1:], "namespace": "shop"},
            "spec": spec,
        },
    ]


def granting(*methods: Object, name: str = "p") -> Object:
    """An AccessPolicy on the Gateway that grants the base set and these methods."""
    granted = {"authorization": {"type": "Inline", "mcp": {"methods": list(methods), **BASE}}}
    return v1(name, on_gateway("agents"), granted, action="Allow") | {"metadata": {"name": name, "namespace": "shop"}}


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def message(self) -> Object:
        got: Object = json.loads(self.body)
        return got


class Joined:
    """A running Envoy before the servers `bank` and `shop.eu`."""

    def __init__(self, running: Lab, bank: JoinedServer, shop: JoinedServer, down: int) -> None:
        self.lab, self.bank, self.shop = running, bank, shop
        self._connection: http.client.HTTPSConnection | None = None
        ports = {"bank": bank.port, "shop.eu": shop.port, "down": down}
        known = {
            f"AgentgatewayBackend/shop/{backend}/{name}": SocketAddress("127.0.0.1", port)
            for name, port in ports.items()
            for backend in ("all", "open", "closed", "one", "slow")
        }
        running.options = replace(running.options, endpoints={**running.options.endpoints, **known})
        running.controller = running.new_controller()

    def put(self, *objects: Object) -> None:
        self.lab.publish(list(objects))
        self.lab.programmed()
        self.forget()

    def forget(self) -> None:
        self.bank.forget()
        self.shop.forget()

    def send(self, body: bytes | None, verb: str = "POST", path: str = "/all", **headers: str) -> Reply:
        if self._connection is None:
            self._connection = http.client.HTTPSConnection(
                "localhost", self.lab.port, context=self.lab.context("shopper"), timeout=PATIENCE_S
            )
        given = {"accept": "application/json, text/event-stream"}
        given |= {"content-type": "application/json"} if body is not None else {}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(verb, path, body, {name: text.encode() for name, text in given.items()})
        answer = self._connection.getresponse()
        return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())

    def ask(
        self, method: str, params: Object | None = None, request: Any = 7, path: str = "/all", **headers: str
    ) -> Reply:
        message: Object = {"jsonrpc": "2.0", "method": method, "params": params or {}}
        if request is not None:
            message["id"] = request
        return self.send(json.dumps(message, ensure_ascii=False).encode(), path=path, **headers)

    def listed(self, method: str, path: str = "/all", **headers: str) -> list[str]:
        key, name = KEYS[method]
        return [entry[name] for entry in self.ask(method, {}, 7, path, **headers).message["result"][key]]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
