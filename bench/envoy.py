"""Envoy's CPU for a tool call: parsing only, with policies of 10 to 10,000 rules, and with an authorizer in Python.

Every chain has its own Envoy with one worker, the same backend, the same client and connection; rounds are interleaved,
and median and least are shown. Processor time is read from the kernel for Envoy (and the authorizer), so a busy machine
blurs the numbers less than it does times. Each chain must answer an allowed call from the backend, what is no MCP
without it, and all but the first a denied call without it.
"""

from __future__ import annotations

import http.server
import json
import multiprocessing
import socket
import ssl
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from envoy.config.route.v3 import route_components_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2

from tierwall.engines.envoy import clusters, external_auth
from tierwall.engines.envoy.certificates import Authority
from tierwall.engines.envoy.checkpoints import Checkpoint, Shards, on
from tierwall.engines.envoy.compile import Resources
from tierwall.engines.envoy.guards import NO_PROTECTION, Protection
from tierwall.engines.envoy.listeners import chain, connection_manager, http_filters, listener
from tierwall.engines.envoy.matchers import packed
from tierwall.engines.envoy.names import BACKEND_SLOTS, MCP, OPEN, ROUTER
from tierwall.engines.envoy.options import Address, Options
from tierwall.engines.envoy.rbac import guard
from tierwall.engines.envoy.routes import Destination, empty_configuration, guarded
from tierwall.engines.envoy.standalone import Standalone
from tierwall.engines.envoy.tls import Tls, transport_socket
from tierwall.resources.resource import Resource
from tierwall.tool.methods import Method
from tierwall.tool.request import CALL, Backend
from tierwall.tool.rules import Policy, Rule, Rules
from tierwall.tool.scope import Names
from tierwall.tool.sources import Source

ROUNDS, REQUESTS = 7, 1500
SIZES = (10, 1000, 10_000)
CALLER = "spiffe://cluster.local/ns/agents/sa/agent-0"
TOOLS_PER_CALLER = 100
Connection = ssl.SSLSocket


def policy_of(rules: int) -> Policy:
    """A policy with this many rules of one tool each, a hundred a caller; the last of our caller's is asked for."""
    made = []
    for number in range(rules):
        caller, tool = divmod(number, min(TOOLS_PER_CALLER, rules))
        source = Source(f"spiffe://cluster.local/ns/agents/sa/agent-{caller}")
        method = Method(CALL, Names(frozenset((f"tool-{tool}",))))
        made.append(Rule(f"rules[{number}]", ("spec", "rules", number), source, clauses=(method,)))
    resource = Resource("agentic.networking.x-k8s.io", "v1alpha1", "XAccessPolicy", "bench", "policy", {})
    return Policy(resource, Rules(made), Rules(), (), "XAccessPolicy/bench/policy")


def resources(
    protection: Protection,
    filters: list[Any],
    backend: Address,
    port: int,
    authority: Authority,
    *,
    reject: bool = False,
) -> Resources:
    """A listener with one route to the backend."""
    options = Options(static=True)
    routes = empty_configuration("bench")
    virtual = routes.virtual_hosts.add(name="all", domains=["*"])
    route = route_components_pb2.Route(name="bench")
    route.match.prefix = "/"
    route.route.timeout.seconds = 0
    made = guarded(route, [Destination("backend", 1, protection)], options)
    if reject:
        for one in made:
            del one.typed_per_filter_config[OPEN]
            one.typed_per_filter_config[MCP].CopyFrom(on())
    virtual.routes.extend(made)
    manager = connection_manager("bench", routes, options, filters)
    sock, _ = transport_socket(Tls(authority.server(), authority.pem, True), "bench", static=True)
    made_listener = listener("bench", Address("127.0.0.1", port), [chain("bench", manager, sock, "")])
    return Resources({"bench": made_listener}, {}, {"backend": clusters.cluster("backend", backend)}, {}, {}, {})


def parsing_only(backend: Address, port: int, authority: Authority) -> Resources:
    """The MCP filter as hardened as ever, and nothing else."""
    options = Options(static=True)
    filters = {one.name: one for one in http_filters(options, Shards().of(()))}
    return resources(NO_PROTECTION, [filters[MCP], filters[ROUTER]], backend, port, authority, reject=True)


def with_policy(rules: int) -> Callable[[Address, int, Authority], Resources]:
    """Everything that a protected route has, with a policy of this many rules."""

    def make(backend: Address, port: int, authority: Authority) -> Resources:
        found = guard(policy_of(rules), Backend("bench", "backend"), 443, None, 100)
        checkpoint = Checkpoint.of("backend", ["bench"], [found])
        filters = http_filters(Options(static=True), Shards().of([checkpoint]))
        return resources(Protection((checkpoint,)), list(filters), backend, port, authority)

    return make


def with_python(authorizer: Address) -> Callable[[Address, int, Authority], Resources]:
    """The MCP filter, and an authorizer in Python that is asked about every call over HTTP."""

    def make(backend: Address, port: int, authority: Authority) -> Resources:
        filters = {one.name: one for one in http_filters(Options(static=True), Shards().of(()))}
        asking = external_auth.slot_filter(BACKEND_SLOTS[0])
        asking.ClearField("filter_enabled_metadata")
        asking.http_service.server_uri.uri = "http://authorizer"
        asking.http_service.server_uri.cluster = "authorizer"
        asking.http_service.server_uri.timeout.seconds = 5
        asking.with_request_body.max_request_bytes = 1 << 20
        asked = hcm_pb2.HttpFilter(name="authorizer", typed_config=packed(asking))
        made = resources(NO_PROTECTION, [filters[MCP], asked, filters[ROUTER]], backend, port, authority, reject=True)
        made.clusters["authorizer"] = clusters.cluster("authorizer", authorizer)  # type: ignore[index]
        return made

    return make


def serve(port: Any, authorize: bool) -> None:
    """A backend, or an authorizer that reads the call and compares the tool; in a process of its own."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            denied = authorize and json.loads(body)["params"]["name"] == "denied"
            who = b"" if authorize else b"x-reached: 1\r\n"
            self.wfile.write(b"HTTP/1.1 %d X\r\n%bcontent-length: 0\r\n\r\n" % (403 if denied else 200, who))

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    port.send(server.server_port)
    server.serve_forever()


def started(stack: ExitStack, authorize: bool) -> tuple[Address, int]:
    """A server process: its address and its id."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, authorize), daemon=True)
    process.start()
    stack.callback(process.kill)
    assert process.pid is not None
    return Address("127.0.0.1", ours.recv()), process.pid


def processor_time(pid: int) -> float:
    """Seconds of processor time that a process has had, in user and system."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(one.read_text().split()[0]) for one in threads) / 1e9


def connect(port: int, context: ssl.SSLContext) -> Connection:
    """A connection of the caller."""
    plain = socket.create_connection(("127.0.0.1", port), timeout=10)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return context.wrap_socket(plain, server_hostname="127.0.0.1")


def call(tool: str) -> bytes:
    """A call as it is on the wire."""
    params = {"name": tool, "arguments": {"city": "Graz", "days": 3, "note": "x" * 100}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": CALL, "params": params}).encode()
    head = "POST /mcp HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
    head += f"accept: application/json, text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def ask(connection: Connection, data: bytes) -> bytes:
    """The head of the answer (the body is empty, or comes with it)."""
    connection.sendall(data)
    out = b""
    while b"\r\n\r\n" not in out:
        part = connection.recv(65536)
        if not part:
            raise ConnectionError("Envoy hung up")
        out += part
    return out


def main() -> None:
    """Measure, and print a table."""
    with ExitStack() as stack:
        backend, _ = started(stack, authorize=False)
        authorizer, python = started(stack, authorize=True)
        authority = Authority()
        context = authority.context(CALLER)
        chains: dict[str, tuple[Callable[[Address, int, Authority], Resources], int, str]] = {
            "parsing only": (parsing_only, 0, "tool-0"),
            **{
                f"{rules:,} rules": (with_policy(rules), 0, f"tool-{min(rules, 100) - 1}")
                for rules in (10, 1000, 10_000)
            },
            "ext_authz in Python": (with_python(authorizer), python, "tool-0"),
        }
        running: dict[str, tuple[Standalone, Connection, int, bytes]] = {}
        for name, (make, helper, tool) in chains.items():
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            envoy = stack.enter_context(Standalone(make(backend, port, authority)))
            connection = stack.enter_context(connect(port, context))
            allowed = call(tool)
            assert b"x-reached: 1" in ask(connection, allowed), name
            with connect(port, context) as other:
                assert b"x-reached: 1" not in ask(other, call("add").replace(b"jsonrpc", b"nothing")), name
            if name != "parsing only":
                with connect(port, context) as other:
                    assert b"x-reached: 1" not in ask(other, call("denied")), name
            running[name] = envoy, connection, helper, allowed
        found: dict[str, list[float]] = {name: [] for name in running}
        for _ in range(ROUNDS):
            for name, (envoy, connection, helper, allowed) in running.items():
                pids = [envoy.process.pid, *([helper] if helper else [])]
                before = sum(map(processor_time, pids))
                for _ in range(REQUESTS):
                    ask(connection, allowed)
                found[name].append((sum(map(processor_time, pids)) - before) / REQUESTS * 1e6)
        base = statistics.median(found["parsing only"])
        least = min(found["parsing only"])
        print(f"{'chain':<22}{'µs of CPU, median':>18}{'of parsing':>12}{'µs of CPU, least':>18}{'of parsing':>12}")
        for name, values in found.items():
            median, low = statistics.median(values), min(values)
            print(f"{name:<22}{median:>18.1f}{median / base:>12.2f}{low:>18.1f}{low / least:>12.2f}")


if __name__ == "__main__":
    main()
