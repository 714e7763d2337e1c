"""A proxy in front of a real API server that fails on purpose: it cuts, delays, truncates, forges and swallows.

It speaks plain HTTP to the client, to which clients send no credentials, and adds those of an administrator.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import ssl
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import httpx

from tests.labs.waiting import PATIENCE_S

# Before a request reaches the server, and while its answer is passed on. Only a watch and a later page can expire, and
# only a watch has lines of which others can be forged.
BEFORE = ("cut", "delay", "403", "500", "503", "429", "401", "garbage", "swallow")
BEFORE_VERSION = (*BEFORE, "410")
WITHIN = ("cut", "delay", "half", "end", "swallow")
WITHIN_WATCH = (*WITHIN, "410", "error", "garbage")
_EXPIRED = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410}
_FAILED = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "InternalError", "code": 500}
_PASSED = ("content-type", "content-encoding", "retry-after")


class _Passed(NamedTuple):
    """A request of a client."""

    method: str
    target: str
    headers: dict[str, str]
    content: bytes
    is_held: bool = False


class _Cut(Exception):
    """The connection ends here."""


class FaultProxy:
    """Passes requests on to the API server at an address, in a thread of its own.

    `before` is the chance of a fault for each request, `within` that for each piece of an answer. `faults` counts what
    has happened. `always` is a fault for each request, if set. The fault `hold` keeps requests until `release`;
    `held_answers` has the codes of what the server then answered.
    """

    def __init__(self, server: str, authority: Path, seed: int = 0) -> None:
        self.before = self.within = 0.0
        self.always: Callable[[str], str | None] = lambda target: None
        self.faults: Counter[str] = Counter()
        self.url = ""
        self.is_holding = False
        self.held_answers: list[int] = []
        self._server, self._authority = server, authority
        self._random = random.Random(seed)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def calm(self) -> None:
        """Pass everything on from now on. Connections that are swallowed stay so until the client gives up."""
        self.before = self.within = 0.0

    def release(self) -> None:
        """Pass on what is held."""
        self._loop.call_soon_threadsafe(self._released.set)

    async def _run(self) -> None:
        self._loop, self._stop, self._released = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        context = ssl.create_default_context(cafile=str(self._authority))
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(verify=context, trust_env=False, timeout=None, limits=limits) as self._client:
            listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            self.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
            self._ready.set()
            await self._stop.wait()
            listener.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
            method, target, _ = head[0].split(" ")
            content = await reader.readexactly(int(headers.get("content-length", 0)))
            await self._pass_on(_Passed(method, target, headers, content), reader, writer)
            writer.close()
        except (_Cut, OSError, httpx.HTTPError, asyncio.IncompleteReadError):
            writer.transport.abort()
        finally:
            self._tasks.discard(task)
            if self._stop.is_set():
                writer.transport.abort()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _pass_on(self, request: _Passed, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = request.target
        has_version = "continue=" in target or "watch=" in target
        fault = self.always(target) or self._fault(self.before, BEFORE_VERSION if has_version else BEFORE)
        if fault == "cut":
            raise _Cut
        if fault == "delay":
            await asyncio.sleep(self._random.uniform(0, 0.3))
        elif fault == "swallow":
            await self._swallow(reader)
        elif fault == "hold":
            self.is_holding = True
            await self._released.wait()
            request = request._replace(is_held=True)
        elif fault == "410":
            if "watch=" in target:
                return await _answer(writer, 200, _event("ERROR", _EXPIRED), "application/json")
            return await _answer(writer, 410, json.dumps(_EXPIRED).encode(), "application/json")
        elif fault == "garbage":
            return await _answer(writer, 502, b"<html>\xff</html>", "text/html")
        elif fault is not None:
            return await _answer(writer, int(fault), b"the server is starting", "text/plain", "retry-after: 0\r\n")
        client_left = asyncio.create_task(reader.read(1))
        passing = asyncio.create_task(self._answer_of(request, writer))
        try:
            # A client that leaves ends the watch at the server, too.
            await asyncio.wait({client_left, passing}, return_when=asyncio.FIRST_COMPLETED)
            if passing.done():
                passing.result()
        finally:
            for task in (client_left, passing):
                task.cancel()
            await asyncio.gather(client_left, passing, return_exceptions=True)

    async def _answer_of(self, request: _Passed, writer: asyncio.StreamWriter) -> None:
        target, kept = request.target, ("accept", "accept-encoding", "content-type")
        sent = {name: value for name, value in request.headers.items() if name in kept}
        sent["authorization"] = "Bearer admin-token"
        url, content = self._server + target, request.content or None
        opened = self._client.build_request(request.method, url, headers=sent, content=content)
        async with contextlib.aclosing(await self._opened(opened)) as answer:
            if request.is_held:
                self.held_answers.append(answer.status_code)
            passed = "".join(f"{name}: {answer.headers[name]}\r\n" for name in _PASSED if name in answer.headers)
            head = f"HTTP/1.1 {answer.status_code} X\r\n{passed}transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
            writer.write(head.encode())
            is_watch = "watch=" in target
            at_line_end = True
            async for piece in answer.aiter_raw():
                fault = self._fault(self.within, WITHIN_WATCH if is_watch and at_line_end else WITHIN)
                if fault is not None and await self._spoil(fault, piece, writer):
                    break
                await _chunk(writer, piece)
                at_line_end = piece.endswith(b"\n")
            writer.write(b"0\r\n\r\n")
            await writer.drain()

    async def _opened(self, request: httpx.Request) -> httpx.Response:
        """Return the answer of the server.

        A client that leaves does not end the handshake with the server: httpcore would forget the connection.
        """
        opening = asyncio.ensure_future(self._client.send(request, stream=True))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            await asyncio.wait({opening}, timeout=PATIENCE_S)
            if opening.done() and opening.exception() is None:
                await opening.result().aclose()
            raise

    async def _spoil(self, fault: str, piece: bytes, writer: asyncio.StreamWriter) -> bool:
        """Let a fault happen before a piece is passed on; return whether the answer ends with it."""
        if fault == "cut":
            await _chunk(writer, piece[: self._random.randrange(len(piece))])
            raise _Cut
        if fault == "swallow":
            # A half-open connection: nothing comes any more, and nobody says so.
            await asyncio.Event().wait()
        if fault == "half":
            await _chunk(writer, piece[: self._random.randrange(len(piece))])
            return True
        if fault == "end":
            return True
        if fault == "delay":
            await asyncio.sleep(self._random.uniform(0, 0.3))
            return False
        forged = {"410": _event("ERROR", _EXPIRED), "error": _event("ERROR", _FAILED), "garbage": b"\xff\x00{\n"}
        await _chunk(writer, forged[fault])
        return True

    async def _swallow(self, reader: asyncio.StreamReader) -> None:
        """Answer nothing until the client leaves."""
        with contextlib.suppress(OSError):
            await reader.read()
        raise _Cut

    def _fault(self, chance: float, kinds: tuple[str, ...]) -> str | None:
        if self._random.random() >= chance:
            return None
        fault = self._random.choice(kinds)
        self.faults[fault] += 1
        return fault


async def _answer(writer: asyncio.StreamWriter, status: int, body: bytes, form: str, more: str = "") -> None:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {form}\r\n{more}content-length: {len(body)}\r\nconnection: close\r\n"
    writer.write(head.encode() + b"\r\n" + body)
    await writer.drain()


async def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    if data:
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await writer.drain()


def _event(kind: str, value: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": value}).encode() + b"\n"
