"""An HTTP server of Python's own on loopback, for tests whose authorizer or backend is a few lines."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tierwall.engines.envoy.config.options import SocketAddress


class QuietHandler(BaseHTTPRequestHandler):
    """A handler that writes no log."""

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class LoopbackServer:
    """Serves a handler on a free port until it is closed."""

    def __init__(self, handler: type[QuietHandler]) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.address = SocketAddress("127.0.0.1", self._server.server_port)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()
