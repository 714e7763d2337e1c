"""TLSRoutes in mode Passthrough and TCPRoutes through a running Envoy: bytes go on as they come, or not at all."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.labs.envoy_attacks import GATEWAY_API, NETWORKING, Object
from tests.labs.waiting import PATIENCE_S
from tests.worlds.tool_objects import manifest
from tierwall.engines.envoy.config.compile import CompileState, XdsResources, compile
from tierwall.engines.envoy.config.options import EnvoyOptions, SocketAddress
from tierwall.engines.envoy.probe.standalone import StandaloneEnvoy
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

PORTS = {"tls": 443, "raw": 9000, "greeting": 9001}
CLOSED = b""


class Server:
    """A server that names itself at once, if it speaks first, and otherwise before whatever it gets."""

    def __init__(self, name: bytes, speaks_first: bool = False) -> None:
        self._name, self._speaks_first = name, speaks_first
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = SocketAddress("127.0.0.1", self._listening.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection:
                connection.sendall(self._name if self._speaks_first else self._name + b":" + connection.recv(4096))

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


def stream_route(kind: str, name: str, listener: str, service: str = "", created: int = 1, **spec: Any) -> Object:
    refs = [{"name": service or listener, "port": 80}] if "rules" not in spec else []
    parent = {"name": "gate", "sectionName": listener}
    out = manifest(f"{GATEWAY_API}/v1", kind, name, {"parentRefs": [parent], "rules": [{"backendRefs": refs}], **spec})
    out["metadata"]["creationTimestamp"] = f"2026-01-{created:02}T00:00:00Z"
    return out


def service(name: str) -> Object:
    return manifest("v1", "Service", name, {"ports": [{"port": 80}]})


LISTENERS = [
    {
        "name": "tls",
        "port": PORTS["tls"],
        "protocol": "TLS",
        "hostname": "*.example.com",
        "tls": {"mode": "Passthrough"},
    },
    {"name": "raw", "port": PORTS["raw"], "protocol": "TCP"},
    {"name": "greeting", "port": PORTS["greeting"], "protocol": "TCP"},
]
OBJECTS: list[Object] = [
    manifest(f"{GATEWAY_API}/v1", "Gateway", "gate", {"gatewayClassName": "c", "listeners": LISTENERS}),
    *(service(name) for name in ("tls", "raw", "greeting", "other")),
    stream_route("TLSRoute", "wide", "tls", hostnames=["*.b.example.com"]),
    stream_route("TLSRoute", "exact", "tls", "other", hostnames=["a.b.example.com", "a.example.com"]),
    stream_route("TLSRoute", "late", "tls", created=2, hostnames=["a.example.com", "late.example.com"]),
    stream_route("TLSRoute", "nowhere", "tls", "gone", hostnames=["gone.example.com"]),
    stream_route("TCPRoute", "raw", "raw"),
    stream_route("TCPRoute", "late", "raw", "other", created=2),
    stream_route("TCPRoute", "greeting", "greeting"),
]
ANYTHING = {"action": "Allow", "rules": [{"name": "r"}]}


def compiled(*more: Object, **options: Any) -> XdsResources:
    return compile(Snapshot.of(load_objects([*OBJECTS, *more])), EnvoyOptions(**{"static": True, **options}))[0]


def policy(name: str, group: str, kind: str, target: str, **spec: Any) -> Object:
    ref = {"group": group, "kind": kind, "name": target}
    return manifest(f"{NETWORKING}/v1alpha1", "XAccessPolicy", name, {"targetRefs": [ref], **ANYTHING, **spec})


def leads_to(resources: XdsResources) -> dict[str, set[str]]:
    """Return the clusters of every filter chain, by listener and server name."""
    from envoy.extensions.filters.network.tcp_proxy.v3 import tcp_proxy_pb2

    out = {}
    for message in resources.listeners.values():
        for chain in message.filter_chains:
            proxy = tcp_proxy_pb2.TcpProxy()
            chain.filters[0].typed_config.Unpack(proxy)
            names = {each.name for each in proxy.weighted_clusters.clusters} or {proxy.cluster}
            out["/".join(chain.name.split("/")[3:])] = names
    return out


class Streaming:
    """A running Envoy in front of the servers."""

    def __init__(self) -> None:
        self.servers = {name: Server(name.encode(), name == "greeting") for name in ("tls", "raw", "greeting", "other")}
        bind = {f"prod/gate:{port}": SocketAddress("127.0.0.1", 0) for port in PORTS.values()}
        endpoints = {f"Service/prod/{name}": server.address for name, server in self.servers.items()}
        self._envoy = StandaloneEnvoy(compiled(bind=bind, endpoints=endpoints))
        self.ports = self._envoy.ports()

    def ask(self, listener: str, sent: bytes) -> bytes:
        """Send bytes, and return the answer; nothing if the connection is closed."""
        port = self.ports[f"gateway/prod/gate/{PORTS[listener]}"]
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection:
            try:
                if sent:
                    connection.sendall(sent)
                return connection.recv(4096)
            except ConnectionError:
                return CLOSED

    def close(self) -> None:
        self._envoy.close()
        for server in self.servers.values():
            server.close()


@pytest.fixture(scope="module")
def streaming(needs_envoy: None) -> Iterator[Streaming]:
    world = Streaming()
    yield world
    world.close()


def hello(name: str | None) -> bytes:
    """Return the first message of a TLS client."""
    context = ssl.create_default_context()
    context.check_hostname = False
    out = ssl.MemoryBIO()
    connection = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        connection.do_handshake()
    return out.read()


@pytest.mark.engine
@pytest.mark.parametrize(
    ("name", "server"),
    [
        ("a.example.com", b"other"),  # of two routes, the older one
        ("late.example.com", b"tls"),
        ("a.b.example.com", b"other"),  # exact before the wildcard
        ("c.b.example.com", b"tls"),
        ("x.c.b.example.com", b"tls"),
        ("gone.example.com", None),
        ("nobody.example.com", None),
        ("example.org", None),
        (None, None),
    ],
)
def test_the_server_name_selects_the_backend(streaming: Streaming, name: str | None, server: bytes | None) -> None:
    sent = hello(name)
    assert streaming.ask("tls", sent) == (server + b":" + sent if server is not None else CLOSED)


@pytest.mark.engine
def test_what_is_not_tls_does_not_pass_a_tls_listener(streaming: Streaming) -> None:
    assert streaming.ask("tls", b"GET / HTTP/1.1\r\nHost: a.example.com\r\n\r\n") == CLOSED


@pytest.mark.engine
def test_bytes_of_a_tcp_listener_go_on_as_they_come(streaming: Streaming) -> None:
    for sent in (b"GET / HTTP/1.1\r\n\r\n", b"\x00\xff", hello("a.example.com")):
        assert streaming.ask("raw", sent) == b"raw:" + sent
    assert streaming.ask("greeting", b"") == b"greeting"


@pytest.mark.parametrize(
    "guard",
    [
        policy("p", GATEWAY_API, "Gateway", "gate"),
        policy("p", GATEWAY_API, "Gateway", "gate", rules=[]),
        policy("p", "", "Service", "raw"),
        policy("p", NETWORKING, "XBackend", "tools"),
        policy("p", NETWORKING, "XBackend", "tools", action="Sometimes"),
        manifest(
            "agentgateway.dev/v1alpha1",
            "AgentgatewayPolicy",
            "p",
            {
                "targetRefs": [{"group": GATEWAY_API, "kind": "Gateway", "name": "gate"}],
                "traffic": {"timeouts": {"request": "1s"}},
            },
        ),
        manifest(
            "agentgateway.dev/v1alpha1",
            "AgentgatewayPolicy",
            "p",
            {"targetRefs": [{"kind": "Gateway", "name": "gate"}], "traffic": {"timeouts": {"request": "1s"}}},
        ),
    ],
)
def test_no_stream_goes_past_a_policy(guard: Object) -> None:
    tools = manifest(f"{NETWORKING}/v0alpha0", "XBackend", "tools", {"mcp": {"serviceName": "raw", "port": 80}})
    before, after = compiled(tools), compiled(tools, guard)
    assert leads_to(before)["9000/*"] == {"stream/prod/raw/80"}
    assert leads_to(after)["9000/*"] == {"nowhere"}
    said = (
        f"{guard['kind']}/prod/p cannot see the connections of TCPRoute/prod/raw to Service/prod/raw: they are closed"
    )
    assert [each.code for each in after.diagnostics if each.message == said] == ["TW655"]
    if guard["spec"]["targetRefs"][0]["kind"] != "Gateway":
        assert leads_to(after)["443/a.example.com"] == {"stream/prod/other/80"}


def test_a_policy_closes_streams_when_it_comes_and_opens_them_when_it_goes() -> None:
    objects = list(load_objects(OBJECTS))
    [guard] = load_objects([policy("p", GATEWAY_API, "Gateway", "gate")])
    options, state, seen = EnvoyOptions(), CompileState(), []
    for added in ([], [guard], []):
        resources, state = compile(Snapshot.of([*objects, *added]), options, state)
        seen.append(leads_to(resources)["9000/*"])
    assert seen == [{"stream/prod/raw/80"}, {"nowhere"}, {"stream/prod/raw/80"}]


@pytest.mark.parametrize("static", [True, False])
def test_an_envoy_of_streams_alone_gets_no_filters_that_it_would_not_ask_for(static: bool) -> None:
    guard = policy("p", GATEWAY_API, "Gateway", "gate")
    for more in ([], [guard]):
        resources = compiled(*more, static=static)
        assert set(resources.listeners) == {f"gateway/prod/gate/{port}" for port in PORTS.values()}
        assert (resources.extension_configs, resources.routes, resources.secrets) == ({}, {}, {})


def test_what_cannot_be_passed_on_is_closed() -> None:
    several = [{"backendRefs": [{"name": "raw", "port": 80}]}] * 2
    for spec, words in (
        ({"rules": several}, "has several rules"),
        ({"rules": [{"backendRefs": [{"name": "raw", "port": 0}]}]}, "is not a port of a Service"),
        ({"rules": [{"backendRefs": [{"group": NETWORKING, "kind": "XBackend", "name": "x"}]}]}, "is not a port"),
        (
            {"rules": [{"backendRefs": [{"name": "raw", "port": 80, "weight": 1 << 40}]}]},
            "a weight that is not",
        ),
        ({"rules": [{"backendRefs": [{"name": "raw", "port": 80, "weight": -1}]}]}, "a weight that is not"),
        ({"rules": [{"backendRefs": [{"name": "raw", "port": 80}] * 17}]}, "has more than 16 backends"),
        ({"rules": []}, ""),
        ({"rules": "none", "hostnames": 7}, ""),
    ):
        oldest = stream_route("TCPRoute", "first", "raw", **spec)
        oldest["metadata"]["creationTimestamp"] = "2025-01-01T00:00:00Z"
        resources = compiled(oldest)
        assert leads_to(resources)["9000/*"] == {"nowhere"}, spec
        assert words in " ".join(each.message for each in resources.diagnostics)
    secured = {
        "targetRefs": [{"group": "", "kind": "Service", "name": "raw"}],
        "validation": {"hostname": "raw", "wellKnownCACertificates": "System"},
    }
    tls_policy = manifest(f"{GATEWAY_API}/v1", "BackendTLSPolicy", "b", secured)
    assert leads_to(compiled(tls_policy))["9000/*"] == {"nowhere"}


def test_shares_of_connections() -> None:
    refs = [
        {"name": name, "port": 80, "weight": weight}
        for name, weight in (("raw", 3), ("other", 1), ("gone", 1), ("tls", 0))
    ]
    shared = stream_route("TCPRoute", "first", "raw", rules=[{"backendRefs": refs}])
    shared["metadata"]["creationTimestamp"] = "2025-01-01T00:00:00Z"
    assert leads_to(compiled(shared))["9000/*"] == {"stream/prod/raw/80", "stream/prod/other/80", "nowhere"}


def test_https_and_passthrough_share_a_port() -> None:
    gateway = manifest(f"{GATEWAY_API}/v1", "Gateway", "both", {"gatewayClassName": "c"})
    ends = {"name": "ends", "port": 443, "protocol": "HTTPS", "hostname": "www.example.com"}
    ends["tls"] = {"certificateRefs": [{"name": "c"}]}
    gateway["spec"]["listeners"] = [
        LISTENERS[0],
        {
            **LISTENERS[0],
            "name": "stops",
            "hostname": "s.example.com",
            "tls": {"mode": "Terminate", "certificateRefs": [{"name": "c"}]},
        },
        ends,
    ]
    resources = compiled(gateway, bind={"prod/both:443": SocketAddress("127.0.0.2", 443)})
    codes = [each.code for each in resources.diagnostics if "both" in str(each.message)]
    # One ends TLS, and the certificate of the other does not exist.
    assert sorted(codes) == ["TW653", "TW657"]
    assert "gateway/prod/both/443" in resources.listeners
