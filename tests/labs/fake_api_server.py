"""A small API server that discovers, lists, watches, compacts and forbids like a real one, and fails on purpose.

It keeps every version of every object, so a test can say whether a follower invented or lost anything. `FakeCluster`
runs one in a thread, for commands that follow it.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import random
import re
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qs, urlsplit

T = TypeVar("T")
Name = tuple[str, str]


class Fault(Exception):
    """The connection is cut here."""


class FakeKind(NamedTuple):
    """A kind that the server serves."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def prefix(self) -> str:
        """The path of its version."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"


THING = FakeKind("example.com", "v1", "Thing", "things")
# Is sent as a list that is nested too deeply to be decoded as usual.
DEEP = "@deep@"
_END = b"0\r\n\r\n"


class FakeApiServer:
    """Serves objects. `faults` is the chance of a fault for each answer and event."""

    def __init__(self, seed: int = 0, faults: float = 0.0, kinds: tuple[FakeKind, ...] = (THING,)) -> None:
        self.random = random.Random(seed)
        self.faults = faults
        self.fault_count = 0
        self.version = 1
        self.compacted = 0
        self.kinds: dict[str, FakeKind] = {kind.plural: kind for kind in kinds}
        self.forbidden: set[str] = set()
        # What somebody else writes before every write of ours.
        self.contested: set[str] = set()
        # Whether the server sends lists as events, and whether it says that it is ready.
        self.streams_lists = True
        self.is_ready = True
        # Accepts connections and never answers.
        self.is_stopped = False
        # Each event: version, type, plural, and the object.
        self.log: list[tuple[int, str, str, dict[str, Any]]] = []
        self.requests: list[str] = []
        self.port = 0
        # Until when the server has just started: it forbids, knows no kinds, or has no objects.
        self._starting_until = 0.0
        self._serial = 0
        # Set at the next change; another one takes its place then.
        self._news = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # The content

    async def put(self, plural: str, value: dict[str, Any]) -> None:
        """Create or change an object."""
        kind, value = self.kinds[plural], copy.deepcopy(value)
        value |= {"apiVersion": f"{kind.group}/{kind.version}".strip("/"), "kind": kind.kind}
        metadata = value.setdefault("metadata", {})
        if kind.namespaced:
            metadata.setdefault("namespace", "default")
        self.version += 1
        metadata["resourceVersion"] = str(self.version)
        before = _name(value) in self.objects(plural)
        await self._record("MODIFIED" if before else "ADDED", plural, value)

    async def put_thing(self, name: str) -> None:
        """Create or change a thing; no other version of any thing has the same content."""
        self._serial += 1
        # U+0085 is the end of a line for `str.splitlines`, and an API server sends it as it is.
        metadata = {"name": name, "namespace": "n", "annotations": {"a": "x\x85y"}}
        await self.put("things", {"metadata": metadata, "spec": {"serial": self._serial}})

    async def delete(self, plural: str, namespace: str, name: str) -> None:
        """Delete an object; its last event has the version of the deletion."""
        self.version += 1
        value = copy.deepcopy(self.objects(plural)[namespace, name])
        value["metadata"]["resourceVersion"] = str(self.version)
        await self._record("DELETED", plural, value)

    async def remove_kind(self, plural: str) -> None:
        """Remove a kind, as when its definition is deleted: its objects go, its watches end, then it is not found."""
        for namespace, name in list(self.objects(plural)):
            await self.delete(plural, namespace, name)
        await asyncio.sleep(0.05)
        del self.kinds[plural]
        await self._wake()

    def compact(self) -> None:
        """Forget how the present came about: older versions are gone."""
        self.compacted = self.version

    async def restore(self, version: int) -> None:
        """Go back to an earlier version, as after a restore from a backup."""
        self.log = [event for event in self.log if event[0] <= version]
        self.version = version
        self.compacted = 0
        await self._wake()

    def objects(self, plural: str, version: int | None = None) -> dict[Name, dict[str, Any]]:
        """Return the objects of a kind, now or at a version."""
        objects: dict[Name, dict[str, Any]] = {}
        for at, kind, of_kind, value in self.log:
            if of_kind == plural and (version is None or at <= version):
                if kind == "DELETED":
                    objects.pop(_name(value), None)
                else:
                    objects[_name(value)] = value
        return objects

    async def _record(self, kind: str, plural: str, value: dict[str, Any]) -> None:
        self.log.append((self.version, kind, plural, value))
        await self._wake()

    async def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # HTTP

    async def __aenter__(self) -> FakeApiServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, always on the same port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening, and cut all connections."""
        assert self._server is not None
        self._server.close()
        await self._cut()

    async def restart(self, seconds: float = 0.05) -> None:
        """Cut all connections and forget old versions; for a moment, answer as a server that has just started does."""
        await self._cut()
        self.compact()
        self._starting_until = asyncio.get_running_loop().time() + seconds

    async def _cut(self) -> None:
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        """The address to talk to."""
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, target = head.split(" ")[:2]
            self.requests.append(target if method == "GET" else f"{method} {target}")
            length = re.search(r"\r\ncontent-length: (\d+)", head, re.IGNORECASE)
            body = await reader.readexactly(int(length[1])) if length else b""
            if self.is_stopped:
                await asyncio.sleep(3600)
            path = urlsplit(target).path
            if (place := self._object_place(path, method)) is not None:
                await self._answer_object(method, *place, body, writer)
            else:
                await self._answer(path, _query(target), writer)
        except (Fault, ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort() if self.random.random() < 0.3 else writer.close()

    async def _answer(self, path: str, query: dict[str, str], writer: asyncio.StreamWriter) -> None:
        if path == "/readyz":
            await self._send(writer, 200 if self.is_ready and not self._is_starting() else 500, {})
            return
        if path in ("/api", "/apis") and path in self.forbidden:
            await self._send(writer, 403, {"reason": "Forbidden", "message": f"{path} is forbidden", "code": 403})
            return
        if path in ("/api", "/apis"):
            await self._send(writer, 200, self._discovery(path), "apidiscovery.k8s.io")
            return
        await self._maybe_fail_first(writer)
        kind = next((kind for kind in self.kinds.values() if path.startswith(f"{kind.prefix}/")), None)
        parts = path.removeprefix(kind.prefix).strip("/").split("/") if kind is not None else []
        namespace = parts[1] if len(parts) == 3 else ""
        plural = parts[-1] if parts else ""
        if plural not in self.kinds:
            await self._send(writer, 404, {"message": "404 page not found"})
        elif plural in self.forbidden:
            await self._send(writer, 403, {"reason": "Forbidden", "message": f"{plural} is forbidden", "code": 403})
        elif query.get("watch") == "true":
            await self._watch(plural, namespace, query, writer)
        else:
            await self._list(plural, namespace, query, writer)

    def _object_place(self, path: str, method: str) -> tuple[str, Name, str] | None:
        """Return the plural, the name and the subresource of a request about one object; None if it is about a list."""
        for kind in self.kinds.values():
            if not path.startswith(f"{kind.prefix}/"):
                continue
            *parts, last = path.removeprefix(f"{kind.prefix}/").split("/")
            subresource = last if last == "status" else ""
            parts = parts if subresource else [*parts, last]
            namespace = ""
            if parts[0] == "namespaces" and len(parts) > 2:
                namespace, parts = parts[1], parts[2:]
            if parts[0] == kind.plural and (len(parts) == 2 or method == "POST"):
                return kind.plural, (namespace, parts[1] if len(parts) == 2 else ""), subresource
        return None

    async def _answer_object(
        self, method: str, plural: str, name: Name, subresource: str, body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        """Read, create or replace one object: with a status of its stored, and only in the version that was read."""
        value: dict[str, Any] = json.loads(body) if body else {}
        name = (name[0], value["metadata"]["name"]) if method == "POST" else name
        known = self.objects(plural).get(name)
        version = value.get("metadata", {}).get("resourceVersion")
        if plural in self.forbidden:
            await self._send(writer, 403, {"reason": "Forbidden", "message": f"{plural} is forbidden", "code": 403})
        elif (known is None) is not (method == "POST"):
            await self._send(writer, 409 if known else 404, {"reason": "Wrong", "message": f"{plural} {name[1]}"})
        elif method == "PUT" and (plural in self.contested or version != (known or {})["metadata"]["resourceVersion"]):
            await self._send(
                writer, 409, {"reason": "Conflict", "message": "the object has been modified", "code": 409}
            )
        elif method == "GET":
            await self._send(writer, 200, known or {})
        else:
            known = known or {"metadata": {"uid": f"uid-{self.version}"}}
            stored = known | {"status": value.get("status")} if subresource else value | {"status": known.get("status")}
            metadata = (known if subresource else value)["metadata"]
            stored["metadata"] = {**metadata, "uid": known["metadata"].get("uid", "")}
            await self.put(plural, {key: part for key, part in stored.items() if part is not None})
            await self._send(writer, 200, self.objects(plural)[name])

    def _discovery(self, path: str) -> dict[str, Any]:
        served = [] if self._is_starting() else list(self.kinds.values())
        groups: dict[str, dict[str, list[dict[str, Any]]]] = {}
        for kind in served:
            if bool(kind.group) is (path == "/apis"):
                resource = {
                    "resource": kind.plural,
                    "responseKind": {"kind": kind.kind},
                    "scope": "Namespaced" if kind.namespaced else "Cluster",
                    "verbs": ["get", "list", "watch"],
                }
                groups.setdefault(kind.group, {}).setdefault(kind.version, []).append(resource)
        return {
            "items": [
                {
                    "metadata": {"name": group} if group else {},
                    "versions": [
                        {"version": version, "resources": resources} for version, resources in versions.items()
                    ],
                }
                for group, versions in groups.items()
            ]
        }

    def _is_starting(self) -> bool:
        return asyncio.get_running_loop().time() < self._starting_until

    def _happens(self) -> bool:
        if self.random.random() >= self.faults:
            return False
        self.fault_count += 1
        return True

    async def _maybe_fail_first(self, writer: asyncio.StreamWriter) -> None:
        if self._is_starting() and self.random.random() < 0.5:
            fault = self.random.choice(["403", "404", "503"])
        elif self._happens():
            faults = ["cut", "delay", "500", "503", "429", "403", "401", "404", "garbage", "empty", "other", "restart"]
            fault = self.random.choice(faults)
        else:
            return
        if fault == "restart":
            await self.restart(self.random.uniform(0, 0.1))
            raise Fault
        if fault == "cut":
            raise Fault
        if fault == "delay":
            await asyncio.sleep(self.random.uniform(0, 0.4))
            return
        if fault == "other":
            # Something on the way answers in the server's place.
            body = self.random.choice([b"<html>no</html>", b"", b"{}", b"[]", b'{"kind":"Status","items":[]}', b"null"])
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body) + body)
        elif fault in ("garbage", "empty"):
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

    async def _list(self, plural: str, namespace: str, query: dict[str, str], writer: asyncio.StreamWriter) -> None:
        version, after = self.version, ("", "")
        if "continue" in query:
            number, *mark = query["continue"].split(" ")
            version, after = int(number), (mark[0], mark[1])
            if version < self.compacted or self._happens():
                body = {
                    "kind": "Status",
                    "reason": "Expired",
                    "code": 410,
                    "metadata": {"continue": query["continue"]},
                }
                await self._send(writer, 410, body)
                return
        objects = self._selected(self.objects(plural, version), namespace, query)
        names = sorted(name for name in objects if name > after)
        if self._is_starting():
            names = []
        limit = min(int(query["limit"]), 3) if "limit" in query else 10**9
        page, rest = names[:limit], names[limit:]
        metadata = {"resourceVersion": str(version)}
        if rest:
            metadata["continue"] = f"{version} {' '.join(page[-1])}"
        # Built-in kinds: their items do not say what they are, but the objects of events do.
        items = [{key: objects[name][key] for key in objects[name].keys() - {"apiVersion", "kind"}} for name in page]
        kind = f"{self.kinds[plural].kind}List"
        await self._send(writer, 200, {"kind": kind, "metadata": metadata, "items": items or None})

    def _selected(self, objects: dict[Name, Any], namespace: str, query: dict[str, str]) -> dict[Name, Any]:
        name = query.get("fieldSelector", "").removeprefix("metadata.name=")
        return {at: value for at, value in objects.items() if namespace in ("", at[0]) and name in ("", at[1])}

    async def _send(self, writer: asyncio.StreamWriter, status: int, body: dict[str, Any], group: str = "") -> None:
        data = _encoded(body)
        content = f"application/json;g={group};v=v2" if group else "application/json"
        head = "HTTP/1.1 {} X\r\ncontent-type: {}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n"
        writer.write(head.format(status, content, len(data)).encode())
        if self._happens():
            writer.write(data[: self.random.randrange(len(data))])
            await writer.drain()
            raise Fault
        writer.write(data)
        await writer.drain()

    async def _watch(self, plural: str, namespace: str, query: dict[str, str], writer: asyncio.StreamWriter) -> None:
        is_initial = query.get("sendInitialEvents") == "true"
        if is_initial and query.get("resourceVersionMatch") != "NotOlderThan":
            await self._send(writer, 422, {"reason": "Invalid", "code": 422})
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        end = asyncio.get_running_loop().time() + self.random.uniform(0.1, float(query["timeoutSeconds"]))
        version = self.version if is_initial else int(query["resourceVersion"])
        if is_initial and not self.streams_lists:
            status = {"reason": "InternalError", "code": 500, "message": "feature RequestWatchProgress is disabled"}
            await self._event(writer, "ERROR", status)
        elif version > self.version:
            # A version of the future is answered by silence.
            await asyncio.sleep(max(0.0, end - asyncio.get_running_loop().time()))
        elif version < self.compacted:
            await self._event(writer, "ERROR", {"kind": "Status", "reason": "Expired", "code": 410, "message": "old"})
        else:
            if is_initial:
                objects = self._selected(self.objects(plural), namespace, query)
                for value in () if self._is_starting() else objects.values():
                    await self._event(writer, "ADDED", value)
                await self._event(writer, "BOOKMARK", _bookmark(version, {"k8s.io/initial-events-end": "true"}))
            await self._events_from(version, end, plural, namespace, query, writer)
        writer.write(_END)
        await writer.drain()

    async def _events_from(
        self,
        version: int,
        end: float,
        plural: str,
        namespace: str,
        query: dict[str, str],
        writer: asyncio.StreamWriter,
    ) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < end and plural in self.kinds and version <= self.version:
            changed = self._news
            news = [event for event in self.log if event[0] > version]
            for at, kind, of_kind, value in news:
                if of_kind == plural and self._selected({_name(value): value}, namespace, query):
                    await self._event(writer, kind, value)
                version = at
            if not news:
                if self.random.random() < 0.3:
                    await self._event(writer, "BOOKMARK", _bookmark(version))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.01, min(0.05, end - loop.time()))):
                        await changed.wait()

    async def _event(self, writer: asyncio.StreamWriter, kind: str, value: dict[str, Any]) -> None:
        line = _encoded({"type": kind, "object": value}) + b"\n"
        if self._happens():
            fault = self.random.choice(["cut", "half", "delay", "410", "error", "silence", "end", "garbage", "restart"])
            if fault == "cut":
                raise Fault
            if fault == "restart":
                await self.restart(self.random.uniform(0, 0.1))
                raise Fault
            if fault == "half":
                await self._chunk(writer, line[: self.random.randrange(1, len(line))])
                writer.write(_END)
                await writer.drain()
                raise Fault
            if fault == "delay":
                await asyncio.sleep(self.random.uniform(0, 0.3))
            elif fault in ("410", "error"):
                code = 410 if fault == "410" else 500
                status = {"kind": "Status", "reason": "Expired" if code == 410 else "InternalError", "code": code}
                await self._chunk(writer, json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
                writer.write(_END)
                raise Fault
            elif fault == "silence":
                await asyncio.sleep(2)
                raise Fault
            elif fault == "garbage":
                await self._chunk(writer, self.random.choice([b"\xff\x00garbage\n", b"[]\n", b'{"type":1}\n']))
                raise Fault
            else:
                writer.write(_END)
                await writer.drain()
                raise Fault
        for part in _parts(line, self.random):
            await self._chunk(writer, part)

    async def _chunk(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await writer.drain()


class FakeCluster:
    """A fake API server in a thread of its own, with a kubeconfig for it."""

    def __init__(self, folder: Path, kinds: tuple[FakeKind, ...]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.server = self._wait(self._make(kinds))
        self.kubeconfig = folder / "kubeconfig.yaml"
        self.kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "fake",
                    "clusters": [{"name": "fake", "cluster": {"server": self.server.url}}],
                    "users": [{"name": "me", "user": {}}],
                    "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me"}}],
                }
            )
        )

    async def _make(self, kinds: tuple[FakeKind, ...]) -> FakeApiServer:
        server = FakeApiServer(kinds=kinds)
        await server.start()
        return server

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def put(self, plural: str, **value: Any) -> None:
        """Create or change an object."""
        self._wait(self.server.put(plural, value))

    def delete(self, plural: str, namespace: str, name: str) -> None:
        """Delete an object."""
        self._wait(self.server.delete(plural, namespace, name))

    def go_away(self) -> None:
        """Stop answering."""
        self._wait(self.server.stop())

    def objects(self, plural: str) -> dict[Name, dict[str, Any]]:
        """Return the objects of a kind."""

        async def read() -> dict[Name, dict[str, Any]]:
            return self.server.objects(plural)

        return self._wait(read())

    def come_back(self) -> None:
        """Answer again, at the same address."""
        self._wait(self.server.start())

    def __enter__(self) -> FakeCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self._wait(self.server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _encoded(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode().replace(b'"%s"' % DEEP.encode(), b"[" * 3000 + b"]" * 3000)


def _query(target: str) -> dict[str, str]:
    return {key: values[0] for key, values in parse_qs(urlsplit(target).query).items()}


def _name(value: dict[str, Any]) -> Name:
    return value["metadata"].get("namespace", ""), value["metadata"]["name"]


def _bookmark(version: int, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    # As for Pods: null where a list stands.
    metadata = {"resourceVersion": str(version), "annotations": annotations}
    return {"kind": "Thing", "metadata": metadata, "spec": {"containers": None}, "status": {}}


def _parts(line: bytes, chance: random.Random) -> list[bytes]:
    if chance.random() < 0.5:
        return [line]
    cut = chance.randrange(1, len(line))
    return [line[:cut], line[cut:]]
