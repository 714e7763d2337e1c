"""A real Envoy with a control plane in this process, a recording backend behind it, and callers with certificates.

The backend records every tool that reaches it: a call that is not in the record did not pass.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import select
import ssl
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from examples.agents import certificates
from tests import ROOT
from tests.labs.waiting import PATIENCE_S, HeldPort, eventually
from tierwall.core.diagnostics import Diagnostics
from tierwall.core.protocols import DecisionEvent
from tierwall.engines.envoy.config.compile import XdsResources
from tierwall.engines.envoy.config.options import EnvoyOptions, SocketAddress
from tierwall.engines.envoy.control import accesslog, responses
from tierwall.engines.envoy.control.process import EnvoyProcess, find_envoy
from tierwall.engines.envoy.control.server import XdsServer
from tierwall.render.engines import request_document
from tierwall.resources.load import LoadResult, load_objects
from tierwall.resources.read import ReadResult
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.envoy import EnvoyController

T = TypeVar("T")
Object = dict[str, Any]
EXAMPLE = ROOT / "examples" / "agents"
NETWORKING = "agentic.networking.x-k8s.io"
PATH = "/orders/mcp"
LISTEN = "subscriptions/listen"
LIST, TOOLS = "tools/list", ("allowed", "forbidden", "half")


class Backend:
    """An MCP server that answers every call and remembers its tool."""

    def __init__(self, address: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self.calls: list[str] = []
        # Answers to methods, as headers and body, and the headers of all messages.
        self.replies: dict[str, tuple[dict[str, str], bytes]] = {}
        self.headers: list[dict[str, str]] = []
        # What a stream says when it opens, whether by GET or by `subscriptions/listen`.
        self.events = b"data: {}\n\n"
        # What a GET gets if it opens no stream: status, headers and body.
        self.page: tuple[int, dict[str, str], bytes] | None = None
        self.may_speak = threading.Event()
        self.may_speak.set()
        record, replies, seen, backend = self.calls, self.replies, self.headers, self
        self._is_closing = is_closing = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                """Open an event stream that says one thing and then nothing for as long as the client is there."""
                if backend.page is not None and self.command == "GET":
                    status, headers, body = backend.page
                    self.send_response(status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(body)
                    return
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("connection", "close")
                self.end_headers()
                backend.may_speak.wait(PATIENCE_S)
                self.wfile.write(backend.events)
                self.wfile.flush()
                while not is_closing.is_set() and not select.select([self.connection], [], [], 0.2)[0]:
                    pass
                self.close_connection = True

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                message = json.loads(body)
                record.append(message.get("params", {}).get("name", message.get("method")))
                if message["method"] == LISTEN:
                    self.do_GET()
                    return
                result = {"tools": [{"name": tool} for tool in TOOLS]} if message["method"] == LIST else {"content": []}
                answer = json.dumps({"jsonrpc": "2.0", "id": message.get("id"), "result": result}).encode()
                headers = {"content-type": "application/json"}
                if message["method"] in replies:
                    headers, answer = replies[message["method"]]
                seen.append({name.lower(): value for name, value in self.headers.items()})
                self.send_response(200)
                for name, value in {**headers, "content-length": str(len(answer))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(address, Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def close(self) -> None:
        self._is_closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Caller:
    """An agent with a certificate and one persistent connection."""

    def __init__(self, context: ssl.SSLContext, port: int) -> None:
        self._context, self._port = context, port
        self._connection: http.client.HTTPSConnection | None = None

    def call(self, tool: str) -> str:
        """Call a tool; return `allowed`, the error that names the policy, or `no answer: …`."""
        got = self.send("tools/call", {"name": tool, "arguments": {}})
        if isinstance(got, str):
            return got
        return "allowed" if "result" in got else str(got["error"]["message"])

    def send(self, method: str, params: Object) -> Object | str:
        """Send a message; return its answer, or why no answer came."""
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        try:
            if self._connection is None:
                self._connection = http.client.HTTPSConnection(
                    "localhost", self._port, context=self._context, timeout=PATIENCE_S
                )
            self._connection.request("POST", PATH, json.dumps(message), headers)
            answer = self._connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return f"no answer: {error}"
        try:
            got: Object = json.loads(body)
        except ValueError:
            return f"no answer: {answer.status} {body!r}"
        return got

    @contextmanager
    def open(self, listens: Object | None = None) -> Iterator[http.client.HTTPResponse]:
        """Open a stream on a connection of its own: by GET, or by `subscriptions/listen` to these notifications."""
        connection = http.client.HTTPSConnection("localhost", self._port, context=self._context, timeout=PATIENCE_S)
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        if listens is None:
            connection.request("GET", PATH, headers={"accept": "text/event-stream"})
        else:
            message = {"jsonrpc": "2.0", "id": 1, "method": LISTEN, "params": {"notifications": listens}}
            connection.request("POST", PATH, json.dumps(message), headers)
        with closing(connection), connection.getresponse() as answer:
            yield answer

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Lab:
    """The whole setup, running. Envoy has one worker thread: if one request sees a state, the state is in force."""

    def __init__(
        self,
        binds: Mapping[str, SocketAddress] | None = None,
        endpoints: Mapping[str, SocketAddress] | None = None,
        **options: Any,
    ) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="tierwall-lab-")
        authority = certificates.Authority()
        self.tls = certificates.manifests(authority, authority.server("localhost"))
        self._ca = Path(self.folder.name) / "ca.pem"
        self._ca.write_bytes(authority.pem)
        for account in ("shopper", "clerk"):
            pair = authority.agent("agents", account)
            (Path(self.folder.name) / f"{account}.pem").write_bytes(pair.certificate + pair.key)
        self.backend = Backend()
        self._held = HeldPort()
        self.port = self._held.number
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.decisions: list[Object] = []
        self.said: list[str] = []
        self.records: list[bytes] = []
        self.options = EnvoyOptions(
            bind={"shop/agents:8443": SocketAddress("127.0.0.1", self.port), **(binds or {})},
            endpoints={"XBackend/shop/orders": SocketAddress("127.0.0.1", self.backend.port), **(endpoints or {})},
            access_logs=(accesslog.access_log(),),
            http_filters=(responses.http_filter(),),
            **options,
        )
        self.controller = self.new_controller()
        self.socket = Path(self.folder.name) / "xds.sock"
        self.server = self.do(self._serve())
        self.process = self.do(self._envoy("one"))
        self._callers: list[Caller] = []

    def new_controller(self) -> EnvoyController:
        """Return a controller without any state."""

        def publish(resources: XdsResources) -> None:
            self.server.publish(resources)
            self.responses.judge_again()

        return EnvoyController(self.options, publish)

    async def _serve(self) -> XdsServer:
        def decided(event: DecisionEvent) -> None:
            self.decisions.append(request_document(event))

        self.responses = responses.ResponseService(
            lambda place, caller: self.controller.view_of(place, caller),
            rules_of=lambda name: self.controller.rules_of(name),
            has_rules=lambda name: self.controller.has_rules(name),
        )
        services = (accesslog.service(decided), self.responses.handler)
        server = XdsServer(lambda: self.controller.acknowledge() if server.is_acknowledged else None, services)
        await server.start(self.socket)
        return server

    async def _envoy(self, node: str) -> EnvoyProcess:
        process = EnvoyProcess(
            find_envoy(), self.socket, node, self.said.append, self.records.extend, 1, self.options.collector
        )
        await process.start()
        return process

    def do(self, work: Coroutine[Any, Any, T], timeout: float = PATIENCE_S) -> T:
        """Run a coroutine in the event loop of the control plane."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)

    def comes(self, holds: Callable[[], object]) -> bool:
        """Whether a condition of the control plane becomes true; it is evaluated in the event loop."""

        async def wait() -> None:
            while not holds():
                await asyncio.sleep(0.01)

        try:
            self.do(asyncio.wait_for(wait(), PATIENCE_S), PATIENCE_S + 5)
        except TimeoutError:
            return False
        return True

    def publish(self, objects: list[Object]) -> None:
        """Put objects in force; return before Envoy has them."""
        source: Any = SimpleNamespace(read=lambda: loaded([*self.fixed, *objects]))
        load = self.controller.next_load(source)
        assert load is not None
        assert not load.refusal, load.refusal
        self.do(later(lambda: self.controller.accept(load)))

    @property
    def fixed(self) -> list[Object]:
        """Gateway, backend, route and certificates."""
        if not hasattr(self, "_fixed"):
            import yaml

            texts = [self.tls, (EXAMPLE / "manifests" / "orders.yaml").read_text()]
            texts.append((EXAMPLE / "manifests" / "platform.yaml").read_text())
            manifests = [manifest for text in texts for manifest in yaml.safe_load_all(text)]
            self._fixed = [manifest for manifest in manifests if manifest["kind"] != "XAccessPolicy"]
        return self._fixed

    def programmed(self) -> None:
        """Wait until every proxy has acknowledged what is in force."""
        assert self.comes(lambda: self.server.programmed.status == "True"), (self.server.programmed, self.said)

    def until_ready(self, caller: Caller, tool: str, word: str = "allowed") -> None:
        """Wait until a call gets a certain answer."""
        eventually(
            lambda: caller.call(tool) == word,
            lambda: f"`{word}` for `{tool}`, got `{caller.call(tool)}`: {self.server.programmed}, {self.said}",
        )

    def caller(self, account: str = "shopper") -> Caller:
        """Return a new caller with its own connection."""
        new_caller = Caller(self.context(account), self.port)
        self._callers.append(new_caller)
        return new_caller

    def context(self, account: str) -> ssl.SSLContext:
        """Return the TLS context of an agent."""
        out = ssl.create_default_context(cafile=str(self._ca))
        out.load_cert_chain(Path(self.folder.name) / f"{account}.pem")
        return out

    def restart_control_plane(self) -> None:
        """Start another control plane at the same address, without any state."""
        self.do(self.server.stop(0))
        self.server = self.do(self._serve())

    def close(self) -> None:
        for caller in self._callers:
            caller.close()
        self.do(self.process.stop())
        self.do(self.server.stop(0))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
        self.backend.close()
        self._held.close()
        self.folder.cleanup()


async def later(do: Any) -> None:
    do()


def loaded(objects: list[Object]) -> LoadResult:
    """Return objects as if they had been read from files."""
    resources = load_objects(objects)
    return LoadResult(resources, Snapshot.of(resources), Diagnostics(), ReadResult((), (), {}))


def policy(name: str, *tools: str, on: str = "Gateway", account: str = "shopper", created: int = 1) -> Object:
    """Return a policy that lets an agent call these tools, and denies everything else."""
    group, target = ("gateway.networking.k8s.io", "agents") if on == "Gateway" else (NETWORKING, "orders")
    return {
        "apiVersion": f"{NETWORKING}/v0alpha0",
        "kind": "XAccessPolicy",
        "metadata": {"name": name, "namespace": "shop", "creationTimestamp": f"2026-01-{created:02}T00:00:00Z"},
        "spec": {
            "targetRefs": [{"group": group, "kind": on, "name": target}],
            "rules": [
                {
                    "name": "it",
                    "source": {"type": "ServiceAccount", "serviceAccount": {"namespace": "agents", "name": account}},
                    "authorization": {"type": "InlineTools", "tools": list(tools)},
                }
            ],
        },
    }


@contextmanager
def lab(binds: Mapping[str, SocketAddress] | None = None, **options: Any) -> Iterator[Lab]:
    """Run a lab while the block lasts; the options are those of `Lab`."""
    new_lab = Lab(binds, **options)
    try:
        yield new_lab
    finally:
        new_lab.close()
