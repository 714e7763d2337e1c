"""How soon a caller that has lost its identity is out (docs/run.md#how-soon-a-revocation-is-complete), on a real Envoy.

Open streams say nothing for as long as they last, so only what a test is about can end them.
"""

from __future__ import annotations

import copy
import datetime
import http.client
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from examples.agents import certificates
from tests.labs.agents_run import agents_in
from tests.labs.envoy_lab import PATH, Caller, Lab, Object, lab, policy
from tests.labs.http2_client import Http2
from tests.labs.waiting import PATIENCE_S, HeldPort, eventually
from tierwall.engines.envoy.config import connections
from tierwall.engines.envoy.config.connections import ConnectionTimes
from tierwall.engines.envoy.config.options import SocketAddress

pytestmark = pytest.mark.engine
BASE = policy("base", "allowed")
LIMIT_S = 4
# Slow machines get some more time than the promised ten seconds.
DRAINED_S = 10 + 10


def _gateway(name: str) -> str:
    return "other" if name == "beside" else name


class Site:
    """A lab with three Gateways: `agents` with TLS, `other` with TLS and an authority of its own, `plain` without.

    The port of `other` has another listener, `beside`, with a certificate and a host of its own.
    """

    def __init__(self, running: Lab, other: int, plain: int) -> None:
        self.lab, self.other, self.plain = running, other, plain
        self.authorities = {name: certificates.Authority() for name in ("agents", "other")}
        self.servers = {name: authority.server("localhost") for name, authority in self.authorities.items()}
        self.servers["beside"] = self.authorities["other"].server("beside.test")
        self.clients: dict[str, certificates.Authority] = dict(self.authorities)
        fixed = [manifest for manifest in running.fixed if manifest["kind"] not in ("Secret", "ConfigMap")]
        self._fixed = [*fixed, *self._gateways(fixed)]

    def _gateways(self, fixed: list[Object]) -> Iterator[Object]:
        gateway = next(manifest for manifest in fixed if manifest["kind"] == "Gateway")
        route = next(manifest for manifest in fixed if manifest["kind"] == "HTTPRoute")
        texts = {"other": (9443, "HTTPS"), "plain": (8080, "HTTP")}
        for name, (port, protocol) in texts.items():
            new_gateway, new_route = copy.deepcopy(gateway), copy.deepcopy(route)
            new_gateway["metadata"]["name"] = new_route["metadata"]["name"] = name
            [listener] = new_gateway["spec"]["listeners"]
            listener |= {"port": port, "protocol": protocol}
            if protocol == "HTTPS":
                listener["tls"]["certificateRefs"] = [{"name": f"{name}-tls"}]
                validation = new_gateway["spec"]["tls"]["frontend"]["default"]["validation"]
                validation["caCertificateRefs"][0]["name"] = f"{name}-ca"
                beside = {
                    "name": "beside",
                    "hostname": "beside.test",
                    "tls": {"certificateRefs": [{"name": "beside-tls"}]},
                }
                new_gateway["spec"]["listeners"].append({**listener, **beside})
            else:
                del listener["tls"], new_gateway["spec"]["tls"]
            new_route["spec"]["parentRefs"] = [{"name": name}]
            yield from (new_gateway, new_route)

    def publish(self, *policies: Object) -> None:
        """Put the certificates and authorities of this object in force, with these policies."""
        tls: list[Object] = []
        for name, server in self.servers.items():
            text = certificates.manifests(self.clients[_gateway(name)], server)
            tls += yaml.safe_load_all(text.replace("agents-", f"{name}-"))
        self.lab._fixed = [*self._fixed, *tls]
        self.lab.publish([*policies])
        self.lab.programmed()

    def context(self, name: str, pair: certificates.Pair | None = None) -> ssl.SSLContext:
        """The TLS context of an agent at a Gateway."""
        pair = pair or self.clients[_gateway(name)].agent("agents", "shopper")
        out = ssl.create_default_context(cadata=self.authorities[_gateway(name)].pem.decode())
        path = Path(self.lab.folder.name) / "client.pem"
        path.write_bytes(pair.certificate + pair.key)
        out.load_cert_chain(path)
        return out

    def port(self, name: str) -> int:
        return {"agents": self.lab.port, "other": self.other, "plain": self.plain}[_gateway(name)]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "HELLO_SECONDS", 1)
        patch.setattr(connections, "HANDSHAKE_SECONDS", 2)
        patch.setattr(connections, "HEADER_SECONDS", 2)
        other, plain = HeldPort(), HeldPort()
        binds = {
            "shop/other:9443": SocketAddress("127.0.0.1", other.number),
            "shop/plain:8080": SocketAddress("127.0.0.1", plain.number),
        }
        with lab(binds, max_connection_seconds=0) as running:
            new_site = Site(running, other.number, plain.number)
            new_site.publish(BASE)
            caller = Caller(new_site.context("agents"), running.port)
            running.until_ready(caller, "allowed")
            caller.close()
            yield new_site
        other.close()
        plain.close()


class Stream:
    """An open event stream, over HTTP/1 or HTTP/2, that has had its first event."""

    def __init__(self, site: Site, gateway: str, version: int) -> None:
        self.name = f"HTTP/{version} at {gateway}"
        port, context = site.port(gateway), site.context(gateway) if gateway != "plain" else None
        host = "beside.test" if gateway == "beside" else "localhost"
        self._http2: Http2 | None = None
        if version == 2:
            self._http2 = Http2(port, context, host)
            scheme = "https" if context is not None else "http"
            head = [(":method", "GET"), (":scheme", scheme), (":authority", host), (":path", PATH)]
            self._number = self._http2.start([*head, ("accept", "text/event-stream")])
            eventually(lambda: self._is_open() and b"data" in self._answer.body, lambda: self._answer)
            return
        raw: Any = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self._socket = context.wrap_socket(raw, server_hostname=host) if context is not None else raw
        request = f"GET {PATH} HTTP/1.1\r\nhost: {host}\r\naccept: text/event-stream\r\n\r\n"
        self._socket.sendall(request.encode())
        got = b""
        while b"data: {}" not in got:
            part = self._socket.recv(1000)
            assert part, got
            got += part
        self._socket.settimeout(0.01)

    @property
    def _answer(self) -> Any:
        assert self._http2 is not None
        return self._http2.answers[self._number]

    def _is_open(self) -> bool:
        """Whether the connection is open."""
        if self._http2 is not None:
            self._http2.poll([self._number], 0.01)
            if self._answer.is_over:
                # The stream is over; whether the connection is shows in reading on.
                self._http2._read(0.01)
            return not self._http2.closed
        try:
            return self._socket.recv(1000) != b""
        except TimeoutError:
            return True
        except OSError:
            return False

    @property
    def is_open(self) -> bool:
        return self._is_open() and (self._http2 is None or not self._answer.is_over)

    @property
    def is_connected(self) -> bool:
        return self._is_open()

    def close(self) -> None:
        (self._http2 or self._socket).close()


def streams(site: Site, *gateways: str) -> list[Stream]:
    return [Stream(site, gateway, version) for gateway in gateways for version in (1, 2)]


class Idle:
    """A connection that has made a call and waits."""

    def __init__(self, site: Site, gateway: str) -> None:
        self._http = http.client.HTTPSConnection("localhost", site.port(gateway), context=site.context(gateway))
        self._http.request("GET", "/elsewhere")
        self._http.getresponse().read()
        self._http.sock.settimeout(0.01)

    @property
    def is_connected(self) -> bool:
        try:
            return self._http.sock.recv(1) != b""
        except TimeoutError:
            return True
        except OSError:
            return False

    def close(self) -> None:
        self._http.close()


class Stubborn:
    """A client that ignores that it should go: it opens streams again and again, or sends a body without end."""

    def __init__(self, site: Site, gateway: str, is_sending: bool) -> None:
        self._http2, self._is_sending, self._next = Http2(site.port(gateway), site.context(gateway)), is_sending, 0.0
        self._head = [(":scheme", "https"), (":authority", "localhost"), (":path", PATH)]
        self._number = self._http2.open()
        method = ":method", "POST" if is_sending else "GET"
        self._http2.frames(self._http2.headers(self._number, [method, *self._head], end=not is_sending))

    @property
    def is_connected(self) -> bool:
        if time.monotonic() > self._next and not self._http2.closed:
            self._next = time.monotonic() + 0.1
            if self._is_sending:
                self._http2.frames(self._http2.data(self._number, b" "))
            else:
                self._http2.start([(":method", "GET"), *self._head])
        self._http2._read(0.01)
        return not self._http2.closed

    def close(self) -> None:
        self._http2.close()


@contextmanager
def opened(site: Site, ending: str, *others: str) -> Iterator[tuple[list[Stream | Stubborn | Idle], list[Stream]]]:
    """Open connections that are to end, at one Gateway, and streams at others."""
    with ExitStack() as stack:
        stubborn = [Stubborn(site, ending, is_sending) for is_sending in (False, True)]
        these: list[Stream | Stubborn | Idle] = [*streams(site, ending), *stubborn, Idle(site, ending)]
        those = streams(site, *others)
        for connection in (*these, *those):
            stack.callback(connection.close)
        yield these, those


def is_accepted(site: Site, gateway: str, pair: certificates.Pair) -> bool:
    caller = Caller(site.context(gateway, pair), site.port(gateway))
    try:
        return not caller.call("allowed").startswith("no answer")
    finally:
        caller.close()


def test_a_replaced_authority_ends_its_connections_and_no_others(site: Site) -> None:
    before = site.clients["agents"].agent("agents", "shopper")
    assert is_accepted(site, "agents", before)
    with opened(site, "agents", "other", "plain") as (ending, others):
        site.clients["agents"] = certificates.Authority()
        site.publish(BASE)
        eventually(lambda: not any(end.is_connected for end in ending), "the end of the connections", DRAINED_S)
        assert not is_accepted(site, "agents", before)
        assert is_accepted(site, "agents", site.clients["agents"].agent("agents", "shopper"))
        assert [stream.name for stream in others if not stream.is_open] == []


def test_a_replaced_certificate_ends_connections_and_an_edit_of_policies_ends_none(site: Site) -> None:
    with opened(site, "other", "agents", "plain", "beside") as (ending, others):
        for number in range(3):
            site.publish(policy("base", "allowed", f"new-{number}"))
        caller = Caller(site.context("agents"), site.lab.port)
        assert caller.call("new-2") == "allowed"
        caller.close()
        assert all(connection.is_connected for connection in (*ending, *others))
        site.servers["other"] = site.authorities["other"].server("localhost")
        site.publish(BASE)
        eventually(lambda: not any(end.is_connected for end in ending), "the end of the connections", DRAINED_S)
        assert [stream.name for stream in others if not stream.is_open] == []


def test_connections_with_an_identity_end_in_time_and_others_do_not(site: Site) -> None:
    """Envoy's own limit would wait for open streams, whatever their clients do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site.lab, "options", replace(site.lab.options, max_connection_seconds=LIMIT_S))
        patch.setattr(certificates, "LIFETIME", datetime.timedelta(seconds=LIMIT_S))
        site.lab.controller = site.lab.new_controller()
        site.publish(BASE)
        short = site.clients["agents"].agent("agents", "shopper")
        assert is_accepted(site, "agents", short)
    start = time.monotonic()
    with opened(site, "agents", "plain") as (ending, others):
        lasted: dict[int, float] = {}
        while len(lasted) < len(ending):
            for number, end in enumerate(ending):
                if number not in lasted and not end.is_connected:
                    lasted[number] = time.monotonic() - start
            assert time.monotonic() - start < LIMIT_S + 15, lasted
        times = ConnectionTimes.of(LIMIT_S)
        for number, end in enumerate(ending):
            assert lasted[number] >= (times.request if isinstance(end, Stream) else times.taking) / 1000, lasted
        assert [stream.name for stream in others if not stream.is_open] == []
        # Whoever has lost the right to connect is out now.
        eventually(lambda: not is_accepted(site, "agents", short), "the end of the certificate")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_sessions_are_not_resumed(site: Site, version: ssl.TLSVersion) -> None:
    context = site.context("agents")
    context.minimum_version = context.maximum_version = version
    session = None
    for _ in range(3):
        with (
            socket.create_connection(("127.0.0.1", site.lab.port), PATIENCE_S) as raw,
            context.wrap_socket(raw, server_hostname="localhost", session=session) as client,
        ):
            client.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert client.recv(1000)
            assert client.session_reused is False
            session = client.session
            assert session is None or not session.has_ticket


def hello() -> bytes:
    """The first message of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def test_a_connection_that_does_not_finish_its_handshake_ends(site: Site) -> None:
    sent = {"nothing": b"", "a part of a hello": hello()[:50], "a hello": hello()}
    clients = {name: socket.create_connection(("127.0.0.1", site.lab.port), PATIENCE_S) for name in sent}
    clients["nothing, without TLS"] = socket.create_connection(("127.0.0.1", site.plain), PATIENCE_S)
    clients["a part of a request"] = socket.create_connection(("127.0.0.1", site.plain), PATIENCE_S)
    clients["a part of a request"].sendall(b"GET / HTTP/1.1\r\nhost: local")
    for name, data in sent.items():
        clients[name].sendall(data)
    for name, connection in clients.items():
        connection.settimeout(20)
        try:
            while connection.recv(10_000):
                pass
        except ConnectionResetError:
            pass
        except TimeoutError:
            pytest.fail(f"a connection that sends {name} stays open")
        connection.close()


def test_what_ends_a_connection_is_as_documented() -> None:
    assert connections.HELLO_SECONDS + connections.HANDSHAKE_SECONDS <= 15
    assert connections.DRAIN_SECONDS <= 10
    for seconds in (1, 2, 5, 60, 600):
        times = ConnectionTimes.of(seconds)
        assert 0 < times.parting < times.taking < times.request
        assert times.taking + times.request + times.closing == seconds * 1000


def test_silence_ends_no_stream(site: Site) -> None:
    from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2

    assert site.lab.controller.in_force is not None
    state = site.lab.controller.in_force.state
    assert state is not None
    assert len(state.resources.listeners) == 3
    for listener in state.resources.listeners.values():
        for chain in listener.filter_chains:
            manager = hcm_pb2.HttpConnectionManager()
            assert chain.filters[0].typed_config.Unpack(manager)
            # Absent would be five minutes.
            assert manager.HasField("stream_idle_timeout")
            assert manager.stream_idle_timeout.ToMilliseconds() == 0
    for routes in state.resources.routes.values():
        for host in routes.virtual_hosts:
            assert not any(route.route.HasField("idle_timeout") for route in host.routes)


def test_files_of_options_are_read_again_and_drain_their_connections(tmp_path: Path) -> None:
    with agents_in(tmp_path) as agents:
        path = agents.manifests / "platform.yaml"
        manifests = list(yaml.safe_load_all(path.read_text()))
        gateway = next(manifest for manifest in manifests if manifest["kind"] == "Gateway")
        del gateway["spec"]["tls"], gateway["spec"]["listeners"][0]["tls"]
        path.write_text(yaml.safe_dump_all(manifests))
        first, second = certificates.Authority(), certificates.Authority()
        server = first.server("localhost")
        (tmp_path / "server.pem").write_bytes(server.certificate + server.key)
        (agents.keys / "ca.pem").write_bytes(first.pem)
        (tmp_path / "clients.pem").write_bytes(first.pem)
        for name, authority in (("first", first), ("second", second)):
            pair = authority.agent("agents", "shopper")
            (agents.keys / f"{name}.pem").write_bytes(pair.certificate + pair.key)

        def call(name: str) -> str:
            caller = Caller(agents.context(name), agents.port)
            try:
                return caller.call("refund_order")
            finally:
                caller.close()

        guarded = "denied by XAccessPolicy/shop/platform-guard"
        options = [f"--certificate={tmp_path}/server.pem", f"--key={tmp_path}/server.pem"]
        with agents.running(*options, f"--client-ca={tmp_path}/clients.pem") as running:
            assert call("first") == guarded
            assert call("second").startswith("no answer")
            context = agents.context("first")
            with (
                socket.create_connection(("127.0.0.1", agents.port), PATIENCE_S) as raw,
                context.wrap_socket(raw, server_hostname="localhost") as client,
            ):
                client.do_handshake()
                # A file that is half written changes nothing.
                (tmp_path / "clients.pem").write_bytes(second.pem[:100])
                eventually(lambda: "stay in force" in running.said, lambda: running.said)
                assert call("first") == guarded
                (tmp_path / "clients.pem").write_bytes(second.pem)
                eventually(lambda: call("second") == guarded, lambda: running.said)
                assert call("first").startswith("no answer")
                client.settimeout(DRAINED_S)
                assert client.recv(1000) == b""
