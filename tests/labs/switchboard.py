"""A loopback port whose requests lead to the port of this machine that their header `x-server` names."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from types import TracebackType

from tests.labs.waiting import PATIENCE_S

_SERVER = re.compile(rb"\r\nx-server: *(\d+)\r\n", re.IGNORECASE)
_CONNECTION = re.compile(rb"\r\nconnection: [^\r]*(?=\r\n)", re.IGNORECASE)


class Switchboard:
    """Passes bytes on, in a thread of its own. Each connection has one request, so that the next may lead elsewhere."""

    def __init__(self) -> None:
        self.port = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> Switchboard:
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            head = await reader.readuntil(b"\r\n\r\n")
            if named := _SERVER.search(head):
                to_reader, to_writer = await asyncio.open_connection("localhost", int(named[1]))
                to_writer.write(_only_one(head))
                back = asyncio.ensure_future(_pass_on(reader, to_writer))
                # Servers do not always say that they close.
                writer.write(_only_one(await to_reader.readuntil(b"\r\n\r\n")))
                await asyncio.gather(back, _pass_on(to_reader, writer))
        writer.close()


def _only_one(head: bytes) -> bytes:
    """Return the head of a message that is the last one of its connection."""
    line, _, rest = _CONNECTION.sub(b"", head).partition(b"\r\n")
    return line + b"\r\nconnection: close\r\n" + rest


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()
