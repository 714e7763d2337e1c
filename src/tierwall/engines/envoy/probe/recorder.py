"""A backend on loopback that records requests and stands in for every authorizer."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from tierwall.core.verdict import Verdict
from tierwall.engines.envoy.config.options import SocketAddress

REACHED = "x-tierwall-reached"
AUTHORIZE = "/tierwall-authorize/"
_MAX_LINE = 1 << 16
# No probe waits longer for an answer.
_SILENCE_S = 10.0


class RecordedRequest(NamedTuple):
    """A request as it arrived, with lower-case header names."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class RecordingBackend:
    """A running backend. `requests` are those that reached it, `answers` those of authorizers, by policy number."""

    def __init__(self) -> None:
        self.requests: list[RecordedRequest] = []
        self.answers: Mapping[int, Verdict] = {}
        # What it answers: the status code and additional headers. It says nothing until `speaks` is set.
        self.status = 200
        self.headers: Mapping[str, str] = {}
        self.speaks = threading.Event()
        self.speaks.set()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.address = SocketAddress("127.0.0.1", self._server.server_port)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """Stop the backend."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing if Envoy did not wait for an answer."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _handler(recorder: RecordingBackend) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # With Nagle's algorithm, the second part of an answer would be delayed.
        disable_nagle_algorithm = True

        def _answer(self) -> None:
            body = self._body()
            headers = {name.lower(): value for name, value in self.headers.items()}
            if self.path.startswith(AUTHORIZE):
                verdict = recorder.answers.get(int(self.path.removeprefix(AUTHORIZE).partition("/")[0]))
                if verdict is None:
                    self.close_connection = True  # as if the authorizer were down
                    return
                self._send(200 if verdict is Verdict.ALLOW else 403, b"", {})
                return
            recorder.requests.append(RecordedRequest(self.command, self.path, headers, body))
            recorder.speaks.wait(_SILENCE_S)
            body = b'{"jsonrpc": "2.0", "id": 1, "result": {}}'
            self._send(recorder.status, body, {REACHED: "1", **recorder.headers})

        def _send(self, code: int, body: bytes, headers: Mapping[str, str]) -> None:
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _body(self) -> bytes:
            if self.headers.get("transfer-encoding", "").lower() != "chunked":
                return self.rfile.read(int(self.headers.get("content-length") or 0))
            out = b""
            while size := int(self.rfile.readline(_MAX_LINE).partition(b";")[0], 16):
                out += self.rfile.read(size)
                self.rfile.readline(_MAX_LINE)
            self.rfile.readline(_MAX_LINE)
            return out

        def __getattr__(self, name: str) -> Any:
            if name.startswith("do_"):
                return self._answer
            raise AttributeError(name)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
