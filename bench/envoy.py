"""Envoy's CPU for a tool call: parsing only, with policies of 10 to 10,000 rules, and with an authorizer in Python.

There are two yardsticks: the MCP filter alone, and with the script that refuses what a lenient server might read
differently. No policy asks for that script, but every decision needs it. Calls go over mTLS, one at a time and sixteen
at once on as many connections. Every chain runs in several Envoys with one worker each, which take turns with the same
backend and client. Processor time is read from the kernel for Envoy (and the authorizer); what others on the machine do
can only add to it, so of every process the least round counts, and of the processes mean and median are shown. Each
chain must answer an allowed call from the backend, what is no MCP without it, and all but the yardsticks a denied call
without it.
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

from tierwall.engines.envoy.config import clusters, external_auth
from tierwall.engines.envoy.config.checkpoints import Checkpoint, PolicyFilters, on
from tierwall.engines.envoy.config.compile import XdsResources
from tierwall.engines.envoy.config.connection_manager import connection_manager, http_filters
from tierwall.engines.envoy.config.listeners import filter_chain, listener
from tierwall.engines.envoy.config.matchers import packed
from tierwall.engines.envoy.config.names import BACKEND_SLOTS, MCP, OPEN, ROUTER, STRICT
from tierwall.engines.envoy.config.options import EnvoyOptions, SocketAddress
from tierwall.engines.envoy.config.policy_compiler import NO_PROTECTION, Protection
from tierwall.engines.envoy.config.rbac import compile_policy
from tierwall.engines.envoy.config.routes import Destination, empty_configuration, protected_routes
from tierwall.engines.envoy.config.tls import ListenerTls, transport_socket
from tierwall.engines.envoy.probe.client import CertificateAuthority
from tierwall.engines.envoy.probe.standalone import StandaloneEnvoy
from tierwall.resources.resource import Resource
from tierwall.tool.methods import MethodClause, NameSet
from tierwall.tool.protocol import CALL
from tierwall.tool.request import Backend
from tierwall.tool.rules import AccessPolicy, AccessRule, AccessRules, CallerIdentity

ROUNDS, REQUESTS, PROCESSES = 6, 1280, 6
AT_ONCE = (1, 16)
SIZES = (10, 1000, 10_000)
CALLER = "spiffe://cluster.local/ns/agents/sa/agent-0"
TOOLS_PER_CALLER = 100
Connection = ssl.SSLSocket
PARSING, STRICTLY = "parsing only", "strict parsing only"
Make = Callable[[SocketAddress, int, CertificateAuthority], XdsResources]


def policy_of(rules: int) -> AccessPolicy:
    """A policy with this many rules of one tool each, a hundred a caller; the last of our caller's is asked for."""
    made = []
    for number in range(rules):
        caller, tool = divmod(number, min(TOOLS_PER_CALLER, rules))
        source = CallerIdentity(f"spiffe://cluster.local/ns/agents/sa/agent-{caller}")
        method = MethodClause(CALL, NameSet(frozenset((f"tool-{tool}",))))
        made.append(
            AccessRule(f"rules[{number}]", ("spec", "rules", number), f"rule-{number}", source, clauses=(method,))
        )
    resource = Resource("agentic.networking.x-k8s.io", "v1alpha1", "XAccessPolicy", "bench", "policy", {})
    return AccessPolicy(resource, AccessRules(made), AccessRules(), (), resource.reference)


def resources(
    protection: Protection,
    filters: list[Any],
    backend: SocketAddress,
    port: int,
    authority: CertificateAuthority,
    reading: tuple[str, ...] = (),
) -> XdsResources:
    """A listener with one route to the backend; with nothing to protect, these filters read its requests."""
    # Connections are measured for longer than they would last.
    options = EnvoyOptions(static=True, max_connection_seconds=0)
    routes = empty_configuration("bench")
    virtual = routes.virtual_hosts.add(name="all", domains=["*"])
    route = route_components_pb2.Route(name="bench")
    route.match.prefix = "/"
    route.route.timeout.seconds = 0
    made = protected_routes(route, [Destination("backend", 1, protection)], options)
    for rule in made if reading else ():
        del rule.typed_per_filter_config[OPEN]
        for name in reading:
            rule.typed_per_filter_config[name].CopyFrom(on())
    virtual.routes.extend(made)
    manager = connection_manager("bench", routes, options, filters, identifies=True)
    sock, _ = transport_socket(ListenerTls(authority.server(), authority.pem, True), "bench", static=True)
    made_listener = listener("bench", SocketAddress("127.0.0.1", port), [filter_chain("bench", manager, sock, "")])
    return XdsResources({"bench": made_listener}, clusters={"backend": clusters.cluster("backend", backend)})


def parsing(*reading: str) -> Make:
    """The filters that read messages, as hardened as ever, and nothing else."""

    def make(backend: SocketAddress, port: int, authority: CertificateAuthority) -> XdsResources:
        filters = {
            http_filter.name: http_filter
            for http_filter in http_filters(EnvoyOptions(static=True), PolicyFilters.of({}).messages)
        }
        those = [filters[name] for name in (*reading, ROUTER)]
        return resources(NO_PROTECTION, those, backend, port, authority, reading)

    return make


def with_policy(rules: int, counts: bool = False) -> Make:
    """Everything that a protected route has, with a policy of this many rules; Envoy may count their verdicts."""

    def make(backend: SocketAddress, port: int, authority: CertificateAuthority) -> XdsResources:
        compiled = compile_policy(policy_of(rules), Backend("bench", "backend"), 443, None, 100)
        checkpoint = Checkpoint.of("backend", ["bench"], [compiled])
        policies = PolicyFilters().after({checkpoint.name: checkpoint}, number=1, acknowledged=0, counts=counts)
        filters = http_filters(EnvoyOptions(static=True), policies.messages)
        return resources(Protection((checkpoint,)), list(filters), backend, port, authority)

    return make


def with_python(authorizer: SocketAddress) -> Make:
    """The MCP filter, and an authorizer in Python that is asked about every call over HTTP."""

    def make(backend: SocketAddress, port: int, authority: CertificateAuthority) -> XdsResources:
        filters = {
            http_filter.name: http_filter
            for http_filter in http_filters(EnvoyOptions(static=True), PolicyFilters.of({}).messages)
        }
        asking = external_auth.slot_filter(BACKEND_SLOTS[0])
        asking.ClearField("filter_enabled_metadata")
        asking.http_service.server_uri.uri = "http://authorizer"
        asking.http_service.server_uri.cluster = "authorizer"
        asking.http_service.server_uri.timeout.seconds = 5
        asking.with_request_body.max_request_bytes = 1 << 20
        asked = hcm_pb2.HttpFilter(name="authorizer", typed_config=packed(asking))
        made = resources(NO_PROTECTION, [filters[MCP], asked, filters[ROUTER]], backend, port, authority, (MCP,))
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


def started(stack: ExitStack, authorize: bool) -> tuple[SocketAddress, int]:
    """A server process: its address and its id."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, authorize), daemon=True)
    process.start()
    stack.callback(process.kill)
    assert process.pid is not None
    return SocketAddress("127.0.0.1", ours.recv()), process.pid


def processor_time(pid: int) -> float:
    """Seconds of processor time that a process has had, in user and system."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def connect(port: int, context: ssl.SSLContext) -> Connection:
    """A connection of the caller."""
    plain = socket.create_connection(("127.0.0.1", port), timeout=10)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return context.wrap_socket(plain, server_hostname="127.0.0.1")


def call(tool: str, accepts: str = "application/json, text/event-stream") -> bytes:
    """A call as it is on the wire."""
    params = {"name": tool, "arguments": {"city": "Graz", "days": 3, "note": "x" * 100}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": CALL, "params": params}).encode()
    head = "POST /mcp HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
    head += f"accept: {accepts}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def ask(connection: Connection, data: bytes) -> bytes:
    """The head of the answer (the body is empty, or comes with it)."""
    connection.sendall(data)
    return head(connection)


def head(connection: Connection) -> bytes:
    """The head of an answer, once it has come."""
    out = b""
    while b"\r\n\r\n" not in out:
        part = connection.recv(65536)
        if not part:
            raise ConnectionError("Envoy hung up")
        out += part
    return out


class Chain:
    """A chain of filters in several Envoys: processes of one configuration differ by a tenth."""

    def __init__(
        self, stack: ExitStack, make: Make, backend: SocketAddress, helper: int, tool: str, decides: bool
    ) -> None:
        authority = CertificateAuthority()
        context = authority.context(CALLER)
        self.allowed, self._helper = call(tool), helper
        self.running: list[tuple[StandaloneEnvoy, list[Connection]]] = []
        self.found: list[list[float]] = [[] for _ in range(PROCESSES)]
        for _ in range(PROCESSES):
            envoy = stack.enter_context(StandaloneEnvoy(make(backend, 0, authority)))
            [port] = envoy.ports().values()
            connections = [stack.enter_context(connect(port, context)) for _ in range(max(AT_ONCE))]
            assert b"x-reached: 1" in ask(connections[0], self.allowed)
            for refused in (call("add").replace(b"jsonrpc", b"nothing"), *([call("denied")] if decides else [])):
                with connect(port, context) as other:
                    assert b"x-reached: 1" not in ask(other, refused)
            self.running.append((envoy, connections))

    def measure(self, at_once: int) -> None:
        """One round: requests to each Envoy, so many at once."""
        for (envoy, connections), times in zip(self.running, self.found, strict=True):
            used = connections[:at_once]
            pids = [envoy.process.pid, *([self._helper] if self._helper else [])]
            before = sum(map(processor_time, pids))
            for _ in range(REQUESTS // at_once):
                for connection in used:
                    connection.sendall(self.allowed)
                for connection in used:
                    head(connection)
            times.append((sum(map(processor_time, pids)) - before) / (REQUESTS // at_once * at_once) * 1e6)

    def least(self) -> list[float]:
        """Return the best round of each process without the first, which only warms up; forget all rounds."""
        out = [min(times[1:]) for times in self.found]
        self.found = [[] for _ in range(PROCESSES)]
        return out


def main() -> None:
    """Measure, and print a table for each number of requests at once."""
    with ExitStack() as stack:
        backend, _ = started(stack, authorize=False)
        authorizer, python = started(stack, authorize=True)
        yardsticks = {PARSING: parsing(MCP), STRICTLY: parsing(MCP, STRICT)}
        chains = {name: Chain(stack, make, backend, 0, "tool-0", decides=False) for name, make in yardsticks.items()}
        for rules in SIZES:
            tool = f"tool-{min(rules, TOOLS_PER_CALLER) - 1}"
            chains[f"{rules:,} rules"] = Chain(stack, with_policy(rules), backend, 0, tool, decides=True)
        chains["ext_authz in Python"] = Chain(stack, with_python(authorizer), backend, python, "tool-0", decides=True)
        for at_once in AT_ONCE:
            for _ in range(ROUNDS):
                for chain in chains.values():
                    chain.measure(at_once)
            show({name: chain.least() for name, chain in chains.items()}, at_once)


def show(times: dict[str, list[float]], at_once: int) -> None:
    """Print what was found."""
    print(f"{at_once} at a time, {PROCESSES} processes each: µs of CPU, and of the yardsticks")
    print(f"{'chain':<22}{'mean':>8}{PARSING:>16}{STRICTLY:>22}{'median':>10}{PARSING:>16}{STRICTLY:>22}")
    for name, values in times.items():
        line = f"{name:<22}"
        for middle, width in ((statistics.fmean, 8), (statistics.median, 10)):
            line += f"{middle(values):>{width}.1f}"
            line += "".join(
                f"{middle(values) / middle(times[name]):>{n}.2f}" for name, n in ((PARSING, 16), (STRICTLY, 22))
            )
        print(line)


if __name__ == "__main__":
    main()
