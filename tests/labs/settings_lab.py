"""A real Envoy with the settings of AgentgatewayPolicies in front of a backend that tells what reaches it."""

from __future__ import annotations

import http.client
import json
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from tierwall.core.diagnostics import Diagnostic
from tierwall.engines.envoy.config.compile import compile
from tierwall.engines.envoy.config.options import Certificate, EnvoyOptions, SocketAddress
from tierwall.engines.envoy.probe.standalone import StandaloneEnvoy
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot


class Answer(NamedTuple):
    """An answer: its status, its headers in lower case, and its body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def seen(self) -> dict[str, str]:
        """The headers that the backend saw."""
        seen: dict[str, str] = json.loads(self.body)
        return seen


class EchoBackend:
    """Answers with the headers of each request. `x-sleep` makes it slow, `x-status` sets the status."""

    def __init__(self, certificate: Certificate | None = None, answers: Mapping[str, str] | None = None) -> None:
        """With a certificate, the backend speaks TLS. `answers` are the bodies of some paths."""
        self.paths: list[str] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        # Requests to these paths are answered with 403.
        self.refused: set[str] = set()
        paths, bodies, refused, known = self.paths, self.bodies, self.refused, answers or {}
        every = self.headers

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # A body would wait until the client has acknowledged the headers.
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                if self.headers.get("transfer-encoding"):
                    # Each chunk ends with a line break, and the last one is empty.
                    while size := int(self.rfile.readline(), 16):
                        body += self.rfile.read(size)
                        self.rfile.read(2)
                    self.rfile.read(2)
                bodies.append(body)
                paths.append(self.path)
                time.sleep(float(self.headers.get("x-sleep") or 0))
                every.append({name.lower(): value for name, value in self.headers.items()})
                seen = json.dumps(every[-1])
                answer = known.get(self.path, seen).encode()
                status = int(self.headers.get("x-status") or 200)
                self.send_response(403 if self.path in refused else status)
                self.send_header("content-length", str(len(answer)))
                self.send_header("x-from", "backend")
                self.end_headers()
                self.wfile.write(answer)

            do_POST = do_PUT = do_OPTIONS = do_GET  # noqa: N815 (names of the base class)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            # The ssl module only reads certificates from files.
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "backend.pem"
                path.write_bytes(certificate.key + certificate.chain)
                context.load_cert_chain(path)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.address = SocketAddress("127.0.0.1", self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class SettingsLab:
    """A running Envoy; `diagnostics` are those of the compilation."""

    def __init__(self, port: int, backend: EchoBackend, diagnostics: tuple[Diagnostic, ...]) -> None:
        self._port = port
        self.backend = backend
        self.diagnostics = diagnostics

    @property
    def address(self) -> tuple[str, int]:
        """The address of the listener."""
        return "127.0.0.1", self._port

    def send(self, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Answer:
        """Send a request; underscores in header names stand for hyphens."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=20)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): text for name, text in headers.items()})
            answer = connection.getresponse()
            names = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, names, answer.read())
        finally:
            connection.close()


@contextmanager
def settings_lab(
    objects: list[dict[str, Any]],
    services: tuple[str, ...] = ("one",),
    elsewhere: Mapping[str, SocketAddress] | None = None,
    certificate: Certificate | None = None,
    answers: Mapping[str, str] | None = None,
    output: int = subprocess.DEVNULL,
    **options: Any,
) -> Iterator[SettingsLab]:
    """Run an Envoy for the only listener of the only Gateway.

    All Services lead to one backend, or `elsewhere`; a name with a slash is the reference of another backend.
    """
    backend = EchoBackend(certificate, answers)
    try:
        addresses = {**dict.fromkeys(services, backend.address), **(elsewhere or {})}
        wanted = EnvoyOptions(
            static=True,
            bind={"shop/edge:8080": SocketAddress("127.0.0.1", 0)},
            endpoints={name if "/" in name else f"Service/shop/{name}": address for name, address in addresses.items()},
            **options,
        )
        resources, _ = compile(Snapshot.of(load_objects(objects)), wanted)
        with StandaloneEnvoy(resources, output=output) as envoy:
            (port,) = envoy.ports().values()
            yield SettingsLab(port, backend, resources.diagnostics)
    finally:
        backend.close()
