"""ExternalAuth with a running Envoy: what an authorizer receives, what its answers do, and what it cannot do."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import unquote

import grpc
import pytest
from envoy.service.auth.v3 import external_auth_pb2

from tests.labs.envoy_attacks import AGENT, SECRET, Attacked, Object, behind, call, calls, policy
from tests.labs.http2_client import Answer, Header, Http2, post
from tests.labs.loopback_server import LoopbackServer, QuietHandler
from tests.labs.waiting import HeldPort
from tests.worlds.tool_objects import manifest
from tierwall.engines.envoy.config import external_auth
from tierwall.engines.envoy.config.options import SocketAddress
from tierwall.engines.envoy.config.rbac import NO_AUTHORIZER
from tierwall.tool.question import ToolQuestion, ask

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("needs_envoy")]

Reply = Callable[[Any], Any]
MCP = "envoy.filters.http.mcp"
OK, BAD = json.dumps(call("add")).encode(), json.dumps(call(SECRET)).encode()
LIST = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).encode()
CALLS = {"authorization": {"type": "Inline", "mcp": {"methods": [{"name": "tools/call"}]}}}
PERMISSION_DENIED = 7
FORGED = ["x-tierwall-name", "x-tierwall-backend", "x-tierwall-caller", "mcp-name", "content-type", "host"]
SERVICES = ("asked", "web", "silent", "nobody")
BACKENDS = ("plain", "agent", "every", "body", "silent", "nobody", "chain", "http", "length", "web-body", "narrow")


class Authorizer:
    """A gRPC authorizer. `reply` is its answer, `checks` are the requests it got, with the host names used."""

    def __init__(self) -> None:
        self.checks: list[Any] = []
        self.reply: Reply = allowed()
        self._server = grpc.server(ThreadPoolExecutor(4))
        handler = grpc.unary_unary_rpc_method_handler(
            self._check, external_auth_pb2.CheckRequest.FromString, external_auth_pb2.CheckResponse.SerializeToString
        )
        service = grpc.method_handlers_generic_handler("envoy.service.auth.v3.Authorization", {"Check": handler})
        self._server.add_generic_rpc_handlers((service,))
        self.address = SocketAddress("127.0.0.1", self._server.add_insecure_port("127.0.0.1:0"))
        self._server.start()

    def _check(self, request: Any, context: Any) -> Any:
        self.checks.append(request)
        return self.reply(context)

    def close(self) -> None:
        self._server.stop(0).wait()


class WebAuthorizer(LoopbackServer):
    """An HTTP authorizer that always allows. `headers` are those of its answer, `asked` the requests it got."""

    def __init__(self) -> None:
        self.headers: tuple[Header, ...] = ()
        self.asked: list[dict[str, str]] = []
        self.body = b""
        outer = self

        class Handler(QuietHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                outer.body = self.rfile.read(int(self.headers.get("content-length", 0)))
                outer.asked.append({name.lower(): value for name, value in self.headers.items()})
                self.send_response(200)
                for name, value in outer.headers:
                    self.send_header(str(name), str(value))
                self.send_header("content-length", "3")
                self.end_headers()
                self.wfile.write(b"yes")

        super().__init__(Handler)


def allowed(*headers: Header, remove: tuple[str, ...] = ()) -> Reply:
    """Return an answer that allows, and changes these headers."""
    out = external_auth_pb2.CheckResponse()
    out.ok_response.headers_to_remove.extend(remove)
    for name, value in headers:
        option = out.ok_response.headers.add()
        option.header.key, option.header.value = name, value
    return lambda context: out


def denied(status: int = 0, body: str = "", *headers: Header) -> Reply:
    """Return an answer that denies, with this body."""
    out = external_auth_pb2.CheckResponse()
    out.status.code = PERMISSION_DENIED
    if status:
        out.denied_response.status.code = status
        out.denied_response.body = body
    for name, value in headers:
        option = out.denied_response.headers.add()
        option.header.key, option.header.value = name, value
    return lambda context: out


def failed(context: Any) -> Any:
    context.abort(grpc.StatusCode.INTERNAL, "it fell over")


def asks(service: str = "asked", grpc: Object | None = None, **more: Any) -> Object:
    settings = {"protocol": "GRPC", "grpc": grpc or {}, "backendRef": {"name": service, "port": 9000}, **more}
    return {"action": "ExternalAuth", "externalAuth": settings}


def asks_web(*copied: str) -> Object:
    http = {
        "path": "/check",
        "allowedHeaders": ["X-Sent", "two words", ":path", "", "a%b", *FORGED],
        "allowedResponseHeaders": list(copied),
    }
    settings = {"protocol": "HTTP", "http": http, "backendRef": {"name": "web", "port": 9000}}
    return {"action": "ExternalAuth", "externalAuth": settings}


def objects() -> list[Object]:
    every = policy("every", "every", [], **asks())
    del every["spec"]["rules"]
    source = {"type": "SPIFFE", "spiffe": AGENT}
    asks_web_body = asks_web()
    asks_web_body["externalAuth"]["forwardBody"] = {"maxSize": 200}
    return [
        *(manifest("v1", "Service", service, {"ports": [{"port": 9000}]}) for service in SERVICES),
        *(manifest for name in BACKENDS for manifest in behind(name)),
        every,
        policy("plain", "plain", [CALLS], **asks()),
        policy("agent", "agent", [{"source": source, **CALLS}], **asks()),
        policy("body", "body", [CALLS], **asks(forwardBody={"maxSize": 200})),
        policy("silent", "silent", [CALLS], **asks("silent")),
        policy("nobody", "nobody", [CALLS], **asks("nobody")),
        policy("a-asks", "chain", [CALLS], **asks()),
        policy("b-lists", "chain", [calls("add")]),
        policy("a-web", "http", [CALLS], **asks_web("x-good", *FORGED)),
        policy("b-web", "http", [calls("add")]),
        policy("length", "length", [CALLS], **asks_web("content-length")),
        policy("web-body", "web-body", [CALLS], **asks_web_body),
        policy("narrow", "narrow", [CALLS], **asks(grpc={"allowedHeaders": ["x-good"]})),
    ]


class World:
    """An Envoy whose policies ask authorizers, and those authorizers."""

    def __init__(self) -> None:
        self.authorizer, self.web = Authorizer(), WebAuthorizer()
        # A socket that listens and never accepts a connection.
        self._silent = socket.create_server(("127.0.0.1", 0), backlog=8)
        silent = SocketAddress("127.0.0.1", self._silent.getsockname()[1])
        self._nobody = HeldPort()
        nobody = SocketAddress("127.0.0.1", self._nobody.number)
        addresses = (self.authorizer.address, self.web.address, silent, nobody)
        endpoints = dict(zip((f"Service/prod/{service}" for service in SERVICES), addresses, strict=True))
        self.attacked = Attacked(objects(), endpoints)
        self.context = self.attacked.authority.context(AGENT)

    def send(self, path: str, body: bytes = OK, reply: Reply | None = None, *headers: Header) -> Answer:
        """Send a message as the agent."""
        self.authorizer.reply = reply or allowed()
        self.authorizer.checks.clear()
        self.attacked.recorder.requests.clear()
        with Http2(self.attacked.tls_port, self.context, "127.0.0.1") as client:
            return client.ask(post(path, body, *headers), body)

    def model(self, backend: str, method: str, tool: str | None, answers: dict[str, str]) -> str:
        """Return the model's verdict on a message of the agent."""
        question = {
            "gateway": "prod/gate",
            "listener": "secure",
            "backend": f"prod/{backend}",
            "caller": AGENT,
            "method": method,
            **({"tool": tool} if tool else {}),
            "externalAuth": {f"XAccessPolicy/prod/{name}": word for name, word in answers.items()},
        }
        return str(ask(self.attacked.snapshot, ToolQuestion.from_dict(question)).verdict)

    def close(self) -> None:
        self.attacked.close()
        self.web.close()
        self.authorizer.close()
        self._silent.close()
        self._nobody.close()


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(external_auth, "TIMEOUT_S", 1)
        running = World()
    yield running
    running.close()


REPLIES: dict[str, tuple[Reply, str | None]] = {
    "yes": (allowed(), "Allow"),
    "no": (denied(), "Deny"),
    "no in other words": (denied(404, "no such thing"), "Deny"),
    "no that looks like yes": (denied(200, '{"result": {}}'), "Deny"),
    "an error": (failed, None),
}


@pytest.mark.parametrize("name", REPLIES)
@pytest.mark.parametrize(
    ("backend", "deciders"),
    [("plain", ["plain"]), ("agent", ["agent"]), ("every", ["every"]), ("body", ["body"]), ("chain", ["a-asks"])],
)
def test_the_verdict_equals_that_of_the_model(world: World, backend: str, deciders: list[str], name: str) -> None:
    reply, word = REPLIES[name]
    answers = dict.fromkeys(deciders, word) if word else {}
    for body, method, tool in ((OK, "tools/call", "add"), (BAD, "tools/call", SECRET), (LIST, "tools/list", None)):
        answer = world.send(f"/{backend}", body, reply)
        assert answer.reached is (world.model(backend, method, tool, answers) == "Allow"), (body, answer)
        # Envoy asks about exactly the requests that rules select.
        assert len(world.authorizer.checks) == (method == "tools/call" or backend == "every")
        if not answer.reached:
            assert answer.status == 200
            assert json.loads(answer.body)["error"]["data"]["policy"].startswith("XAccessPolicy/prod/")


@pytest.mark.parametrize("backend", ["silent", "nobody"])
def test_without_an_answer_the_request_is_denied(world: World, backend: str) -> None:
    answer = world.send(f"/{backend}", OK)
    assert not answer.reached
    assert f"XAccessPolicy/prod/{backend}" in json.loads(answer.body)["error"]["message"]
    assert world.model(backend, "tools/call", "add", {}) == "Deny"
    assert world.send(f"/{backend}", LIST).reached
    assert world.model(backend, "tools/list", None, {}) == "Allow"


def test_what_the_authorizer_receives(world: World) -> None:
    assert world.send("/plain", OK, None, ("x-hello", "there"), ("x-tierwall-caller", "forged")).reached
    [check] = world.authorizer.checks
    about = check.attributes
    assert about.source.principal == AGENT
    assert unquote(about.source.certificate).startswith("-----BEGIN CERTIFICATE-----")
    http = about.request.http
    assert (http.method, http.path, http.host) == ("POST", "/plain", "gate.test")
    assert http.headers["x-hello"] == "there"
    assert not [name for name in http.headers if name.startswith("x-tierwall-")]
    assert not http.body
    metadata = about.metadata_context.filter_metadata[MCP]
    assert metadata["method"] == "tools/call"
    assert metadata["params"]["name"] == "add"


def test_a_body_is_sent_completely_or_the_request_is_refused(world: World) -> None:
    assert world.send("/body", OK).reached
    [check] = world.authorizer.checks
    assert check.attributes.request.http.body.encode() == OK
    empty = len(json.dumps(call("add", {"x": ""})).encode())
    for size in (200, 201, 5000, 16_000):
        body = json.dumps(call("add", {"x": "y" * (size - empty)})).encode()
        assert len(body) == size
        answer = world.send("/body", body)
        if size == 200:
            assert answer.reached
            assert world.authorizer.checks[0].attributes.request.http.body.encode() == body
        else:
            assert answer.status == 413
            assert world.authorizer.checks == []
            assert world.attacked.recorder.requests == []


def test_a_body_in_pieces_is_sent_completely(world: World) -> None:
    world.authorizer.reply = allowed()
    world.authorizer.checks.clear()
    with Http2(world.attacked.tls_port, world.context, "127.0.0.1") as client:
        assert client.ask(post("/body"), *(OK[at : at + 7] for at in range(0, len(OK), 7))).reached
    assert [check.attributes.request.http.body.encode() for check in world.authorizer.checks] == [OK]


def test_a_body_is_sent_completely_to_an_http_authorizer(world: World) -> None:
    world.web.headers = ()
    assert world.send("/web-body", OK).reached
    assert world.web.body == OK
    assert world.send("/web-body", json.dumps(call("add", {"x": "y" * 200})).encode()).status == 413
    assert world.attacked.recorder.requests == []


def test_an_authorizer_may_add_headers_for_the_backend(world: World) -> None:
    assert world.send("/chain", OK, allowed(("x-good", "yes"), remove=("x-hello",)), ("x-hello", "there")).reached
    [arrived] = world.attacked.recorder.requests
    assert arrived.headers["x-good"] == "yes"
    assert "x-hello" not in arrived.headers


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-tierwall-name", "add"),
        ("X-Tierwall-Name", "add"),
        ("x-tierwall-method", "ping"),
        ("x-tierwall-caller", "spiffe://cluster.local/ns/prod/sa/other"),
        ("x-tierwall-backend", "0"),
        ("x-tierwall-gateway", "0"),
        ("mcp-name", "add"),
        ("mcp-method", "ping"),
        (":path", "/open"),
        (":method", "GET"),
        (":authority", "other.test"),
        ("host", "other.test"),
        ("content-length", "3"),
        ("content-type", "text/plain"),
        ("content-encoding", "gzip"),
        ("transfer-encoding", "chunked"),
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("x-forwarded-client-cert", "URI=spiffe://cluster.local/ns/prod/sa/other"),
    ],
)
def test_an_authorizer_cannot_change_the_request(world: World, name: str, value: str) -> None:
    """Later policies and the backend must see what the client sent. If an authorizer changes it, nothing passes."""
    for body in (BAD, OK):
        for reply in (allowed((name, value)), allowed(remove=(name,))):
            assert world.send("/chain", body, reply).refused
            assert world.attacked.recorder.requests == []


@pytest.mark.parametrize("name", FORGED)
def test_an_http_authorizer_cannot_change_the_request(world: World, name: str) -> None:
    value = "add" if name == "x-tierwall-name" else "forged"
    world.web.headers = (("x-good", "yes"),)
    sent = (("x-sent", "1"), ("x-other", "2"), ("cookie", "3"), ("authorization", "Bearer 4"), ("~x-sent", "5"))
    assert world.send("/http", OK, None, *sent).reached
    [arrived] = world.attacked.recorder.requests
    assert arrived.headers["x-good"] == "yes"
    headers = world.web.asked[-1]
    wanted = {"host": "gate.test", "x-sent": "1", "authorization": "Bearer 4", "content-length": "0"}
    assert {name: headers[name] for name in wanted} == wanted
    # Besides those, only headers that the policy allows and Envoy's own.
    assert not [
        name for name in headers.keys() - wanted.keys() if not name.startswith("x-envoy-") and name not in FORGED
    ]
    world.web.headers = ((name, value),)
    for body in (BAD, OK):
        assert world.send("/http", body).refused
        assert world.attacked.recorder.requests == []


def test_the_length_of_an_answer_does_not_become_the_length_of_the_request(world: World) -> None:
    assert not world.send("/length", OK).reached
    assert world.attacked.recorder.requests == []


def test_a_demand_to_log_in_reaches_the_client(world: World) -> None:
    """MCP clients log in when they get 401 with its header, so this denial does not become a JSON-RPC error."""
    header = 'Bearer resource_metadata="https://login.test"'
    answer = world.send("/plain", OK, denied(401, "log in", ("www-authenticate", header)))
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == header
    assert json.loads(answer.body)["id"] == 1
    assert not answer.reached


def test_headers_that_envoy_cannot_drop_deny_the_request(world: World) -> None:
    assert not world.send("/narrow", OK).reached
    assert world.authorizer.checks == []
    assert world.send("/narrow", LIST).reached
    assert any(
        diagnostic.code == NO_AUTHORIZER and "allowedHeaders" in diagnostic.message
        for diagnostic in world.attacked.resources.diagnostics
    )
