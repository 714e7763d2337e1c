"""An HTTPS server whose certificate may be replaced while it runs, bounded in everything that a client can hold.

How handshakes are limited is in `serve.server`, and how headers are in `serve.authorizer.connections`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

import uvicorn

from tierwall.cluster.tls import load_certificate
from tierwall.serve.authorizer.connections import timed_protocol
from tierwall.serve.server import TlsServer, bind, new_context

KEEP_ALIVE_S, STOP_S = 120, 5


def server_config(app: Callable[..., Any], header_seconds: float, connections: int) -> uvicorn.Config:
    """Return the settings of a server that writes no log and tells nothing about itself."""
    return uvicorn.Config(
        app,
        interface="asgi3",
        http=timed_protocol(header_seconds),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        limit_concurrency=connections,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
    )


class HttpsServer:
    """Serves an application. It listens first, and answers once it has a certificate."""

    def __init__(self, app: Callable[..., Any], seconds: float, connections: int) -> None:
        """A handshake, and the headers of a request, may take so many `seconds`."""
        self._config, self._seconds = server_config(app, seconds, connections), seconds
        self._newest: ssl.SSLContext | None = None
        self._server: TlsServer | None = None
        self._task: asyncio.Task[None] | None = None
        self._socket: socket.socket | None = None
        self.port = 0

    def listen(self, host: str, port: int) -> None:
        """Listen; InputError if the address cannot be used."""
        self._socket = bind(host, port)
        self.port = int(self._socket.getsockname()[1])

    @property
    def has_certificate(self) -> bool:
        """Whether requests can be answered."""
        return self._newest is not None

    def use(self, certificate: bytes, key: bytes) -> None:
        """Serve with this certificate from the next handshake on, and end connections that have another."""
        self._newest = _context(certificate, key)
        if self._server is not None:
            self._server.drain(is_authority_new=False)
            return
        assert self._socket is not None, "it listens before it has a certificate"
        context = _context(certificate, key)
        context.sni_callback = self._switch
        self._server = TlsServer(self._config, context, self._seconds)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))

    def _switch(self, connection: Any, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._newest

    async def stop(self) -> None:
        """Finish open requests, and stop."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task
        if self._socket is not None:
            self._socket.close()


def _context(certificate: bytes, key: bytes) -> ssl.SSLContext:
    context = new_context()
    load_certificate(context, certificate + b"\n" + key)
    return context
