"""HTTP connections that have to get on: headers come within a time, from the first byte of the connection on.

Uvicorn times idle kept-alive connections but not a client that never ends, or never begins, its headers.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_SECONDS = 10.0


class PromptProtocol(HttpToolsProtocol):
    """Closes a connection whose next request's headers do not come in time."""

    header_seconds = HEADER_SECONDS
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Headers are due from now on."""
        super().connection_made(transport)
        self._due()

    def data_received(self, data: bytes) -> None:
        """Headers that came whole, as nearly all do, need no timer; the body is timed by the application."""
        super().data_received(data)
        # The scope is made when headers begin to come, and handed to a cycle when they are there.
        if getattr(self.cycle, "scope", None) is not self.scope:
            if self._deadline is None:
                self._due()
        elif self._deadline is not None:
            self._done()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is due any more."""
        self._done()
        super().connection_lost(exc)

    def _due(self) -> None:
        self._deadline = self.loop.call_later(self.header_seconds, self._late)

    def _done(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()


def prompt(header_seconds: float) -> type[Any]:
    """The protocol with another time."""
    return type("PromptProtocol", (PromptProtocol,), {"header_seconds": header_seconds})
