"""Connections of the explorer: whoever has no token cannot keep others out (docs/explorer.md#safety).

The headers of a request must arrive in time; uvicorn waits for them for ever. If there are too many connections, the
oldest ends that waits for a request: a flood of silent ones costs nobody an answer, nor a stream that a tab follows.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from tierwall.serve.server import HeaderLimit

# The time for the headers of a request, in seconds, and the most connections.
HEADERS_S, MAX_CONNECTIONS = 10.0, 200


class ExplorerProtocol(HeaderLimit, H11Protocol):
    """A connection with a limit for its headers, among a limited number."""

    header_seconds: ClassVar[float] = HEADERS_S
    # The connections of one server, the oldest first.
    clients: ClassVar[dict[ExplorerProtocol, None]]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room, and start the timer."""
        super().connection_made(transport)
        self.clients[self] = None
        if len(self.clients) > MAX_CONNECTIONS:
            oldest = next(client for client in self.clients if client.is_waiting)
            del self.clients[oldest]
            oldest.transport.abort()
        self._due()

    @property
    def is_waiting(self) -> bool:
        """Whether no request of this connection is being answered."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """Stop the timer once headers are complete."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._done()
        elif self._deadline is None:
            self._due()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._done()
        self.clients.pop(self, None)
        super().connection_lost(exc)


def explorer_protocol() -> type[ExplorerProtocol]:
    """Return the protocol of one server, which counts its own connections."""
    return type("CountedProtocol", (ExplorerProtocol,), {"clients": {}})
