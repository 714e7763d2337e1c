"""Names of servers, looked up in a thread that nobody has to wait for.

The event loop looks names up in threads that a program waits for at its end. A server of names that does not answer
would hold up a command for half a minute after its timeout.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress


async def can_be_resolved(host: str) -> bool:
    """Return whether a name has an address."""
    loop = asyncio.get_running_loop()
    known: asyncio.Future[bool] = loop.create_future()

    def settle(answer: bool) -> None:
        if not known.done():
            known.set_result(answer)

    def look_up() -> None:
        try:
            answer = bool(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError):
            answer = False
        # The loop may have ended meanwhile.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, answer)

    threading.Thread(target=look_up, name="resolving", daemon=True).start()
    return await known
