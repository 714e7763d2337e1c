"""A running Envoy with HTTPRoutes, a recording backend for each of a few Services, and a client for plain requests."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from tests.labs.envoy_attacks import GATEWAY_API, Object
from tests.labs.waiting import PATIENCE_S
from tests.worlds.tool_objects import manifest
from tierwall.engines.envoy.config.compile import compile
from tierwall.engines.envoy.config.options import EnvoyOptions, SocketAddress
from tierwall.engines.envoy.probe.client import CertificateAuthority
from tierwall.engines.envoy.probe.recorder import RecordedRequest, RecordingBackend
from tierwall.engines.envoy.probe.standalone import StandaloneEnvoy
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

SERVICES = ("v1", "v2", "v3")
LISTENERS = {"web": (80, "HTTP"), "other": (8080, "HTTP"), "secure": (443, "HTTPS")}


class Got(NamedTuple):
    """An answer, and the request as it reached a backend, if it did."""

    status: int
    headers: Mapping[str, str]
    backend: str | None
    request: RecordedRequest | None

    @property
    def path(self) -> str | None:
        return self.request.path if self.request is not None else None


def route(name: str, host: str | Sequence[str], rules: list[Object], on: str = "web", created: int = 1) -> Object:
    """Return an HTTPRoute for a host name on a listener."""
    hosts = [host] if isinstance(host, str) else list(host)
    spec: Object = {"parentRefs": [{"name": "gate", "sectionName": on}], "rules": rules}
    if hosts != ["*"]:
        spec["hostnames"] = hosts
    out = manifest(f"{GATEWAY_API}/v1", "HTTPRoute", name, spec)
    out["metadata"]["creationTimestamp"] = f"2026-01-{created:02}T00:00:00Z"
    return out


def to(*services: str) -> list[Object]:
    return [{"name": service, "port": 80} for service in services]


class Routed:
    """An Envoy with these routes; InputError if it refuses the configuration."""

    def __init__(
        self,
        objects: list[Object],
        endpoints: Mapping[str, SocketAddress] | None = None,
        hosts: Mapping[str, str] | None = None,
        ports: Mapping[str, Object] | None = None,
        by_name: Collection[str] = (),
    ) -> None:
        """`hosts` are more listeners, by name and host name; `ports` more fields of the Services' ports.

        The XBackends in `by_name` are found by their own host names.
        """
        self.recorders = {name: RecordingBackend() for name in SERVICES}
        self._authority = CertificateAuthority()
        listeners = [{"name": name, "port": port, "protocol": protocol} for name, (port, protocol) in LISTENERS.items()]
        # More listeners on the port of the first, each with its own host name.
        listeners += [
            {"name": name, "port": 80, "protocol": "HTTP", "hostname": host} for name, host in (hosts or {}).items()
        ]
        spec = {"gatewayClassName": "c", "listeners": listeners, "allowedListeners": {"namespaces": {"from": "Same"}}}
        gateway = manifest(f"{GATEWAY_API}/v1", "Gateway", "gate", spec)
        more = ports or {}
        services = [
            manifest("v1", "Service", name, {"ports": [{"port": 80, **more.get(name, {})}]}) for name in SERVICES
        ]
        self.snapshot = Snapshot.of(load_objects([gateway, *services, *objects]))
        addresses = {f"Service/prod/{name}": recorder.address for name, recorder in self.recorders.items()}
        # Every XBackend uses the first recorder, too.
        first = self.recorders[SERVICES[0]].address
        backends = [each for each in self.snapshot if each.kind == "XBackend" and each.name not in by_name]
        addresses |= {str(resource.reference): first for resource in backends}
        options = EnvoyOptions(
            static=True,
            bind={f"prod/gate:{port}": SocketAddress("127.0.0.1", 0) for port, _ in LISTENERS.values()},
            endpoints={**addresses, **(endpoints or {})},
            certificate=self._authority.server(),
            client_authority=self._authority.pem,
        )
        self.resources, _ = compile(self.snapshot, options)
        self._envoy = StandaloneEnvoy(self.resources)
        open_ports = self._envoy.ports()
        self.ports = {name: open_ports.get(f"gateway/prod/gate/{port}") for name, (port, _) in LISTENERS.items()}

    def get(
        self,
        host: str,
        path: str = "/",
        headers: Mapping[str, str] | Sequence[tuple[str, str]] = (),
        method: str = "GET",
        on: str = "web",
        body: bytes = b"",
    ) -> Got:
        """Send one request; return the answer and where the request arrived."""
        before = {name: len(recorder.requests) for name, recorder in self.recorders.items()}
        status, answered = self.send(host, path, headers, method, on, body)
        reached = [name for name, recorder in self.recorders.items() if len(recorder.requests) > before[name]]
        assert len(reached) <= 1
        backend = reached[0] if reached else None
        request = self.recorders[backend].requests[-1] if backend is not None else None
        return Got(status, answered, backend, request)

    def send(
        self,
        host: str,
        path: str = "/",
        headers: Mapping[str, str] | Sequence[tuple[str, str]] = (),
        method: str = "GET",
        on: str = "web",
        body: bytes = b"",
    ) -> tuple[int, Mapping[str, str]]:
        """Send one request; return the status and headers of the answer."""
        connection = self._connection(on)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        connection.putheader("host", host)
        for name, value in headers.items() if isinstance(headers, Mapping) else headers:
            connection.putheader(name, value)
        if body:
            connection.putheader("content-length", str(len(body)))
        connection.endheaders(body or None)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}

    def _connection(self, on: str) -> Any:
        if LISTENERS[on][1] == "HTTP":
            return http.client.HTTPConnection("127.0.0.1", self.ports[on], timeout=PATIENCE_S)
        context = self._authority.context("spiffe://cluster.local/ns/prod/sa/agent")
        return http.client.HTTPSConnection("127.0.0.1", self.ports[on], timeout=PATIENCE_S, context=context)

    def close(self) -> None:
        self._envoy.close()
        for recorder in self.recorders.values():
            recorder.close()


def silent() -> tuple[socket.socket, SocketAddress]:
    """Return a listening socket that never answers, and its address."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=8)
    return listening, SocketAddress("127.0.0.1", listening.getsockname()[1])
