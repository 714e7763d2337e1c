"""HTTPS connections: certificates that are reloaded in place, and a time limit for headers.

A new certificate, key or client CA counts from the next handshake on, and open connections end, each after the request
that it is answering: a client of a removed CA must not go on. Sessions are not resumed for the same reason. A handshake
that has begun is given up only if the client CA changes: a new certificate must not cost an API server its request.
Files that do not fit together leave the old ones in force.

Headers must arrive within a time limit that starts with the connection. Uvicorn limits idle kept-alive connections, but
not a client that never begins or never completes its headers. `serve.server` limits handshakes.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tierwall.serve.server import HeaderLimit, TlsFiles, read_context


class Certificates:
    """The certificates in force. `context` stays the same; each handshake switches to the newest one."""

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        # Read before the context, so that a change in between is noticed later.
        self._contents = files.contents()
        self._newest = read_context(files)
        self.context = read_context(files)
        self.context.sni_callback = self._switch

    def reload(self) -> bool:
        """Read the files again; False if they have not changed. After an InputError, the old ones are in force."""
        before, self._contents = self._contents, self.files.contents()
        if self._contents == before:
            return False
        self._newest = read_context(self.files)
        return True

    @property
    def authority(self) -> bytes | None:
        """The CA of clients as it was last read; None if clients need no certificate."""
        return self._contents[-1] if self.files.client_ca is not None else None

    def _switch(self, connection: Any, name: str | None, context: ssl.SSLContext) -> None:
        # Called at every handshake, with or without a server name. The connection then uses the certificate, the key
        # and the client CA of the newest context.
        connection.context = self._newest


HEADER_SECONDS = 10.0


class TimedHttpProtocol(HeaderLimit, HttpToolsProtocol):
    """Closes a connection whose next request's headers do not arrive in time."""

    header_seconds = HEADER_SECONDS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer."""
        super().connection_made(transport)
        self._due()

    def data_received(self, data: bytes) -> None:
        """Stop the timer once headers are complete; nearly all arrive whole and need none."""
        super().data_received(data)
        # The scope is made when headers begin to arrive, and handed to a cycle when they are complete.
        if getattr(self.cycle, "scope", None) is not self.scope:
            if self._deadline is None:
                self._due()
        elif self._deadline is not None:
            self._done()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._done()
        super().connection_lost(exc)


def timed_protocol(header_seconds: float) -> type[Any]:
    """Return the protocol class with another time limit."""
    return type("PromptProtocol", (TimedHttpProtocol,), {"header_seconds": header_seconds})
