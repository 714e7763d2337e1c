"""A standalone Envoy with policies, and a client that sends arbitrary bytes.

Every policy here denies the tool `SECRET`. No request that reaches the backend may contain that word in any reading,
however lenient the server is.
"""

from __future__ import annotations

import codecs
import json
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import unquote_to_bytes

from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2

from tests.labs.waiting import PATIENCE_S
from tests.worlds.tool_objects import manifest
from tierwall.engines.envoy.config.compile import compile
from tierwall.engines.envoy.config.options import EnvoyOptions, SocketAddress
from tierwall.engines.envoy.probe.client import CertificateAuthority
from tierwall.engines.envoy.probe.recorder import REACHED, RecordedRequest, RecordingBackend
from tierwall.engines.envoy.probe.standalone import StandaloneEnvoy
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

Object = dict[str, Any]
SECRET = "delete_everything"
NETWORKING, GATEWAY_API = "agentic.networking.x-k8s.io", "gateway.networking.k8s.io"
AGENT = "spiffe://cluster.local/ns/prod/sa/agent"
BASE = {"mcpBaseProtocolMethodsOption": "MATCH_BASE_PROTOCOL_METHODS"}
JSON_HEADERS = "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"


def policy(name: str, backend: str, rules: list[Object], version: str = "v1alpha1", **spec: Any) -> Object:
    target = {"group": NETWORKING, "kind": "XBackend", "name": backend}
    action = {"action": "Allow"} if version == "v1alpha1" else {}
    listed = [{"name": f"r{number}", **rule} for number, rule in enumerate(rules)]
    return manifest(
        f"{NETWORKING}/{version}", "XAccessPolicy", name, {"targetRefs": [target], "rules": listed, **action, **spec}
    )


def behind(name: str) -> list[Object]:
    """Return a backend of this name with a route at `/<name>`."""
    reference = {"group": NETWORKING, "kind": "XBackend", "name": name}
    rule = {"matches": [{"path": {"value": f"/{name}"}}], "backendRefs": [reference]}
    spec = {"mcp": {"serviceName": "s", "port": 80, "path": f"/{name}"}}
    return [
        manifest(f"{NETWORKING}/v0alpha0", "XBackend", name, spec),
        manifest(f"{GATEWAY_API}/v1", "HTTPRoute", name, {"parentRefs": [{"name": "gate"}], "rules": [rule]}),
    ]


def calls(*tools: str) -> Object:
    return {
        "authorization": {"type": "Inline", "mcp": {"methods": [{"name": "tools/call", "params": list(tools)}], **BASE}}
    }


def objects(secure: bool = False) -> list[Object]:
    """Return a backend for each kind of policy, each at its own path `/<name>/…`; no policy protects `/open`."""
    path_rule = "request.mcp.tool_name == 'read' && request.mcp.arguments.path.startsWith('/data/')"
    tool_rule = f"request.mcp.tool_name != '{SECRET}'"
    asks: dict[str, Any] = {
        "action": "ExternalAuth",
        "externalAuth": {"protocol": "HTTP", "http": {}, "backendRef": {"name": "authorizer", "port": 80}},
    }
    backends = ("mcp", "arguments", "named", "old", "asks", "some", "agents", "open")
    source = {"type": "SPIFFE", "spiffe": AGENT}
    return [
        manifest(
            f"{GATEWAY_API}/v1",
            "Gateway",
            "gate",
            {
                "gatewayClassName": "c",
                "listeners": [
                    {"name": "web", "port": 80, "protocol": "HTTP"},
                    *([{"name": "secure", "port": 443, "protocol": "HTTPS"}] if secure else []),
                ],
            },
        ),
        *(
            manifest(
                f"{NETWORKING}/v0alpha0",
                "XBackend",
                backend,
                {"mcp": {"serviceName": "s", "port": 80, "path": f"/{backend}"}},
            )
            for backend in backends
        ),
        *(
            manifest(
                f"{GATEWAY_API}/v1",
                "HTTPRoute",
                backend,
                {
                    "parentRefs": [{"name": "gate"}],
                    "rules": [
                        {
                            "matches": [{"path": {"value": f"/{backend}"}}],
                            "backendRefs": [{"group": NETWORKING, "kind": "XBackend", "name": backend}],
                        }
                    ],
                },
            )
            for backend in backends
        ),
        policy("lists", "mcp", [calls("add")]),
        policy(
            "looks-at-arguments", "arguments", [{"authorization": {"type": "CEL", "cel": {"expression": path_rule}}}]
        ),
        policy("looks-at-name", "named", [{"authorization": {"type": "CEL", "cel": {"expression": tool_rule}}}]),
        policy(
            "older",
            "old",
            [{"source": source, "authorization": {"type": "InlineTools", "tools": ["add"]}}],
            version="v0alpha0",
        ),
        policy(
            "asks",
            "asks",
            [{"authorization": {"type": "Inline", "mcp": {"methods": [{"name": "tools/call"}]}}}],
            **asks,
        ),
        policy(
            "asks-about-some",
            "some",
            [
                {
                    "authorization": {
                        "type": "Inline",
                        "mcp": {
                            "methods": [
                                {"name": "tools/call", "params": [SECRET]},
                                {"name": "resources/read", "params": [f"file:///{SECRET}"]},
                            ]
                        },
                    }
                }
            ],
            **asks,
        ),
        policy("identities", "agents", [{"source": source}]),
        manifest("v1", "Service", "authorizer", {"ports": [{"port": 80}]}),
    ]


class Exchange(NamedTuple):
    """Envoy's reaction to some bytes: the complete answers, and whether it closed the connection."""

    answers: tuple[bytes, ...]
    closed: bool

    @property
    def statuses(self) -> tuple[int, ...]:
        return tuple(int(answer.split(b" ", 2)[1]) for answer in self.answers)

    @property
    def reached(self) -> bool:
        """Whether the backend answered."""
        return any(REACHED.encode() in answer for answer in self.answers)

    @property
    def refused(self) -> bool:
        """Whether Envoy refused the request or closed the connection, and the backend did not answer."""
        if not self.answers:
            return self.closed
        return not self.reached and (self.statuses[0] >= 400 or b'"error"' in self.answers[0])


def _exchange(connection: socket.socket, data: bytes, answers: int, hang_up: bool) -> Exchange:
    method = data.partition(b" ")[0]
    received: list[bytes] = []
    try:
        with connection.makefile("rb") as incoming:
            # Envoy may have closed the connection before it has read everything.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(data)
                if hang_up:
                    connection.shutdown(socket.SHUT_WR)
            while len(received) < answers and (answer := _answer(incoming, method)):
                received.append(answer)
    except ConnectionResetError:
        return Exchange(tuple(received), closed=True)
    except TimeoutError:
        words = f"{len(received)} of {answers} answers within {PATIENCE_S:g} s, and the connection is open"
        raise AssertionError(f"{words}: sent {data[:300]!r}, got {received}") from None
    return Exchange(tuple(received), closed=len(received) < answers)


def _answer(incoming: BinaryIO, method: bytes) -> bytes:
    """Read one complete answer; empty at the end of the connection."""
    head = incoming.readline()
    while head and not head.endswith(b"\r\n\r\n"):
        line = incoming.readline()
        if not line:
            return b""
        head += line
    status = int(head.split(b" ", 2)[1]) if head else 0
    if 100 <= status < 200 and status != 101:
        return _answer(incoming, method)
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in head.split(b"\r\n")[1:])
    }
    if not head or method == b"HEAD" or status in (101, 204, 304):
        return head
    if headers.get(b"transfer-encoding") == b"chunked":
        body = b""
        while size := int(incoming.readline().partition(b";")[0] or b"0", 16):
            body += incoming.read(size)
            incoming.readline()
        incoming.readline()
        return head + body
    return head + incoming.read(int(headers[b"content-length"]) if b"content-length" in headers else -1)


class Attacked:
    """The Envoy under attack. `recorder` has all requests that passed. At `tls_port` callers have certificates."""

    def __init__(
        self, more: Sequence[Object] = (), endpoints: Mapping[str, SocketAddress] = MappingProxyType({})
    ) -> None:
        self.recorder = RecordingBackend()
        self.authority = CertificateAuthority()
        self.snapshot = snapshot = Snapshot.of(load_objects([*objects(secure=True), *more]))
        backends = {
            str(resource.reference): self.recorder.address for resource in snapshot if resource.kind == "XBackend"
        }
        options = EnvoyOptions(
            static=True,
            bind={f"prod/gate:{number}": SocketAddress("127.0.0.1", 0) for number in (80, 443)},
            endpoints={**backends, **endpoints},
            certificate=self.authority.server(),
            client_authority=self.authority.pem,
        )
        self.resources, _ = compile(snapshot, options)
        for listener in self.resources.listeners.values():
            for chain in listener.filter_chains:
                _hangs_up_at_once(chain.filters[0])
        self.envoy = StandaloneEnvoy(self.resources)
        ports = self.envoy.ports()
        self.port, self.tls_port = ports["gateway/prod/gate/80"], ports["gateway/prod/gate/443"]

    def close(self) -> None:
        self.envoy.close()
        self.recorder.close()

    def memory(self) -> int:
        """Return the memory that Envoy uses, in kB."""
        lines = Path(f"/proc/{self.envoy.process.pid}/status").read_text().splitlines()
        [line] = [line for line in lines if "VmRSS" in line]
        return int(line.split()[1])

    def send(self, data: bytes, answers: int = 1, hang_up: bool = False) -> Exchange:
        """Send bytes on their own connection, and wait for this many answers or until Envoy closes it.

        With `hang_up` nothing more will be sent, and Envoy is told so: a message that is not whole can only be given
        up. Silence is not a refusal: it fails the test.
        """
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S) as connection:
            return _exchange(connection, data, answers, hang_up)

    def post(
        self, body: bytes | str | Object | list[Object], path: str = "/mcp", headers: str = JSON_HEADERS
    ) -> Exchange:
        """Post a body with its correct length."""
        return self.send(request("POST", path, body, headers))

    def leaked(self) -> list[RecordedRequest]:
        """Return the requests at the backend that can be read as a call of the secret tool."""
        return [request for request in self.recorder.requests if any(SECRET in text for text in readings(request))]

    def assert_safe(self) -> None:
        """Check that nothing leaked, and that Envoy still works: an allowed call arrives."""
        assert self.leaked() == []
        before = len(self.recorder.requests)
        assert self.post(call("add")).reached
        assert len(self.recorder.requests) == before + 1


def _hangs_up_at_once(filter: Any) -> None:
    """Make Envoy close abandoned connections at once: otherwise tests would wait a second for each."""
    manager = http_connection_manager_pb2.HttpConnectionManager()
    assert filter.typed_config.Unpack(manager)
    manager.delayed_close_timeout.FromMilliseconds(20)
    filter.typed_config.Pack(manager)


def request(method: str, path: str, body: bytes | str | Object | list[Object], headers: str = JSON_HEADERS) -> bytes:
    data = encoded(body)
    return (
        f"{method} {path} HTTP/1.1\r\nHost: gate.test\r\n{headers}Content-Length: {len(data)}\r\n\r\n".encode() + data
    )


def encoded(body: bytes | str | Object | list[Object]) -> bytes:
    if isinstance(body, bytes):
        return body
    return (body if isinstance(body, str) else json.dumps(body)).encode()


def chunked(*parts: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + end


def call(tool: str, arguments: Object | None = None) -> Object:
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments or {}}}


def readings(request: RecordedRequest) -> list[str]:
    """Return a request in every reading of a lenient server, in lower case without white space."""
    head = "\n".join([request.method, request.path, *(f"{name}:{value}" for name, value in request.headers.items())])
    texts = [head, unquote_to_bytes(head).decode(errors="replace")]
    for name in ("utf-8", "utf-16-le", "utf-16-be", "utf-7", "utf-32-le"):
        text = codecs.decode(request.body, name, "replace")
        texts += [text, re.sub(r"\\u([0-9a-fA-F]{4})", lambda match: chr(int(match[1], 16)), text)]
    return [re.sub(r"[\s\0]", "", text).lower() for text in texts]
