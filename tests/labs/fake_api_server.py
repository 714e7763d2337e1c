"""A small API server of one kind that lists, watches and compacts like a real one, and fails on purpose.

It keeps every version of every object, so a test can say whether a follower invented or lost anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from typing import Any
from urllib.parse import parse_qs, urlsplit


class Fault(Exception):
    """The connection is cut here."""


class FakeApiServer:
    """Serves `things` of `example.com/v1`. `faults` is the chance of a fault for each answer and event."""

    def __init__(self, seed: int = 0, faults: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.faults = faults
        self.fault_count = 0
        self.version = 1
        self.compacted = 0
        self.objects: dict[str, int] = {}
        # Each event: version, type, name, and the object's own version.
        self.log: list[tuple[int, str, str]] = []
        self.requests: list[str] = []
        self._news = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # The content

    async def put(self, name: str) -> None:
        """Create or change an object."""
        kind = "MODIFIED" if name in self.objects else "ADDED"
        self.version += 1
        self.objects[name] = self.version
        await self._record(kind, name)

    async def delete(self, name: str) -> None:
        """Delete an object; its last event has the version of the deletion."""
        self.version += 1
        del self.objects[name]
        await self._record("DELETED", name)

    def compact(self) -> None:
        """Forget how the present came about: older versions are gone."""
        self.compacted = self.version

    async def _record(self, kind: str, name: str) -> None:
        async with self._news:
            self.log.append((self.version, kind, name))
            self._news.notify_all()

    def _objects_at(self, version: int) -> dict[str, int]:
        objects: dict[str, int] = {}
        for at, kind, name in self.log:
            if at <= version:
                if kind == "DELETED":
                    objects.pop(name, None)
                else:
                    objects[name] = at
        return objects

    # HTTP

    async def __aenter__(self) -> FakeApiServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        """The address to talk to."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            target = head.split(" ")[1]
            self.requests.append(target)
            await self._answer(target, writer)
        except (Fault, ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort() if self.random.random() < 0.3 else writer.close()

    async def _answer(self, target: str, writer: asyncio.StreamWriter) -> None:
        query = {key: values[0] for key, values in parse_qs(urlsplit(target).query).items()}
        await self._maybe_fail_first(writer)
        if query.get("watch") == "true":
            await self._watch(query, writer)
        else:
            await self._list(query, writer)

    def _happens(self) -> bool:
        if self.random.random() >= self.faults:
            return False
        self.fault_count += 1
        return True

    async def _maybe_fail_first(self, writer: asyncio.StreamWriter) -> None:
        if not self._happens():
            return
        fault = self.random.choice(["cut", "delay", "500", "503", "429", "403", "401", "404", "garbage", "empty"])
        if fault == "cut":
            raise Fault
        if fault == "delay":
            await asyncio.sleep(self.random.uniform(0, 0.4))
            return
        if fault in ("garbage", "empty"):
            body = b"<html>no</html>" if fault == "garbage" else b""
            writer.write(b"HTTP/1.1 502 Bad\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body) + body)
        else:
            retry = b"retry-after: 0\r\n" if fault in ("503", "429") else b""
            text = b"the server is starting"
            writer.write(
                b"HTTP/1.1 %s X\r\ncontent-type: text/plain\r\n%scontent-length: %d\r\nconnection: close\r\n\r\n%s"
                % (fault.encode(), retry, len(text), text)
            )
        await writer.drain()
        raise Fault

    async def _list(self, query: dict[str, str], writer: asyncio.StreamWriter) -> None:
        version, after = self.version, ""
        if "continue" in query:
            number, _, after = query["continue"].partition(" ")
            version = int(number)
            if version < self.compacted or self._happens():
                body = {
                    "kind": "Status",
                    "reason": "Expired",
                    "code": 410,
                    "metadata": {"continue": f"{version} {after}"},
                }
                await self._send(writer, 410, body)
                return
        names = sorted(name for name in self._objects_at(version).items() if name[0] > after)
        limit = min(int(query.get("limit", 10**9)), 3)
        if "limit" not in query:
            limit = 10**9
        page, rest = names[:limit], names[limit:]
        metadata = {"resourceVersion": str(version)}
        if rest:
            metadata["continue"] = f"{version} {page[-1][0]}"
        items = [_object(name, at) for name, at in page]
        await self._send(writer, 200, {"kind": "ThingList", "metadata": metadata, "items": items or None})

    async def _send(self, writer: asyncio.StreamWriter, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        writer.write(head % (status, len(data)))
        if self._happens():
            writer.write(data[: self.random.randrange(len(data))])
            await writer.drain()
            raise Fault
        writer.write(data)
        await writer.drain()

    async def _watch(self, query: dict[str, str], writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        version = int(query["resourceVersion"])
        end = asyncio.get_running_loop().time() + self.random.uniform(0.1, float(query["timeoutSeconds"]))
        if version > self.version:
            # A version of the future is answered by silence.
            await asyncio.sleep(max(0.0, end - asyncio.get_running_loop().time()))
        elif version < self.compacted:
            await self._event(writer, "ERROR", {"kind": "Status", "reason": "Expired", "code": 410, "message": "old"})
        else:
            await self._events_from(version, end, writer)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _events_from(self, version: int, end: float, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < end:
            news = [event for event in self.log if event[0] > version]
            for at, kind, name in news:
                await self._event(writer, kind, _object(name, at))
                version = at
            if not news:
                if self.random.random() < 0.3:
                    await self._event(
                        writer, "BOOKMARK", {"kind": "Thing", "metadata": {"resourceVersion": str(version)}}
                    )
                async with self._news:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._news.wait(), max(0.01, min(0.05, end - loop.time())))

    async def _event(self, writer: asyncio.StreamWriter, kind: str, value: dict[str, Any]) -> None:
        line = json.dumps({"type": kind, "object": value}, ensure_ascii=False).encode() + b"\n"
        if self._happens():
            fault = self.random.choice(["cut", "half", "delay", "410", "error", "silence", "end", "garbage"])
            if fault == "cut":
                raise Fault
            if fault == "half":
                await self._chunk(writer, line[: self.random.randrange(1, len(line))])
                writer.write(b"0\r\n\r\n")
                await writer.drain()
                raise Fault
            if fault == "delay":
                await asyncio.sleep(self.random.uniform(0, 0.3))
            elif fault in ("410", "error"):
                code = 410 if fault == "410" else 500
                status = {"kind": "Status", "reason": "Expired" if code == 410 else "InternalError", "code": code}
                await self._chunk(writer, json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
                writer.write(b"0\r\n\r\n")
                raise Fault
            elif fault == "silence":
                await asyncio.sleep(2)
                raise Fault
            elif fault == "garbage":
                await self._chunk(writer, b"\xff\x00garbage\n")
                raise Fault
            else:
                writer.write(b"0\r\n\r\n")
                await writer.drain()
                raise Fault
        for part in _parts(line, self.random):
            await self._chunk(writer, part)

    async def _chunk(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await writer.drain()


def _object(name: str, version: int) -> dict[str, Any]:
    # U+0085 is the end of a line for `str.splitlines`, and an API server sends it as it is.
    return {
        "apiVersion": "example.com/v1",
        "kind": "Thing",
        "metadata": {"name": name, "namespace": "n", "resourceVersion": str(version), "annotations": {"a": "x\x85y"}},
        "spec": {"version": version},
    }


def _parts(line: bytes, chance: random.Random) -> list[bytes]:
    if chance.random() < 0.5:
        return [line]
    cut = chance.randrange(1, len(line))
    return [line[:cut], line[cut:]]
