"""All objects of one kind, as the API server has them: listed once, then followed (docs/clusters.md#following).

Nothing is lost: a watch goes on from the last version that was seen, and if the server no longer has that version
(410), everything is listed again and compared, so that deletions during an outage are noticed. Nothing is invented:
a list replaces what is known only when it is complete.

A server that was restored from a backup answers a version of its future with silence. So before each new watch, a
list of one object tells whether the server's version is lower than ours.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, TypeAlias

import msgspec

from tierwall.cluster.connection import ApiServerError, Connection, UnreachableError
from tierwall.cluster.discovery import ServedKind
from tierwall.cluster.pages import ListPage, read_all
from tierwall.cluster.watch import WatchEvent, WatchLineError, watch

Name: TypeAlias = tuple[str, str]
# Called with the name of an object, and the object, or None if it is gone.
Changed: TypeAlias = Callable[[Name, Any], None]


class Timing(msgspec.Struct, frozen=True):
    """How long a reflector waits, in seconds."""

    # A watch lasts so long, chosen at random: not all kinds start anew together.
    watch: tuple[float, float] = (240, 480)
    # A watch is dead if it is silent for so long after its own end.
    grace: float = 15
    # The same, between bookmarks, which come each minute.
    bookmark: float = 90
    first_wait: float = 0.8
    longest_wait: float = 30
    # A kind that was readable is forbidden only if it stays so: a server that has just started forbids everything.
    forbidden: float = 10


class Reflector:
    """Follows one kind, in all namespaces or in one.

    INVARIANT: between two awaits, `objects` is a state that the API server had, or has all changes up to a version.
    """

    def __init__(
        self,
        connection: Connection,
        kind: ServedKind,
        shape: type[Any],
        changed: Changed,
        namespace: str = "",
        timing: Timing | None = None,
    ) -> None:
        """`changed` is called with each change; `shape` is the type that objects are decoded into."""
        self.kind, self.namespace = kind, namespace
        self.objects: dict[Name, Any] = {}
        # Set when everything was listed for the first time.
        self.complete = asyncio.Event()
        # Why the kind cannot be followed at the moment.
        self.problem: ApiServerError | UnreachableError | WatchLineError | None = None
        self._connection, self._changed, self._timing = connection, changed, timing or Timing()
        self._pages: msgspec.json.Decoder[Any] = msgspec.json.Decoder(ListPage[shape])  # type: ignore[valid-type]
        self._object: msgspec.json.Decoder[Any] = msgspec.json.Decoder(shape)
        self._version = ""
        self._has_bookmarks = False
        self._forbidden_since: float | None = None

    async def run(self) -> None:
        """Follow the kind until cancelled. InputError if there are no credentials any more."""
        wait = self._timing.first_wait
        while True:
            started = _now()
            try:
                if not self._version or await self._is_restored():
                    await self._list()
                await self._watch()
                if _now() - started > self._timing.first_wait:
                    wait = self._timing.first_wait
                    continue
            except ApiServerError as error:
                if error.code == 410 or error.reason in ("Expired", "Gone"):
                    self._version = ""
                    # After a restart of the server, the versions of all kinds expire together.
                    await asyncio.sleep(random.uniform(0, self._timing.first_wait))
                    continue
                self._note(error)
            except (UnreachableError, WatchLineError) as error:
                self._note(error)
            if _now() - started > self._timing.longest_wait:
                wait = self._timing.first_wait
            await asyncio.sleep(wait * random.uniform(0.5, 1.5))
            wait = min(2 * wait, self._timing.longest_wait)

    async def _list(self) -> None:
        """Read everything, and report how it differs from what is known."""
        everything = await read_all(self._connection, self.kind, self._pages, self.namespace)
        before, self.objects = self.objects, {_name(item): item for item in everything.items}
        self._version, self.problem, self._forbidden_since = everything.version, None, None
        for name, item in self.objects.items():
            known = before.get(name)
            if known is None or known.metadata.resource_version != item.metadata.resource_version:
                self._changed(name, item)
        for name in before.keys() - self.objects.keys():
            self._changed(name, None)
        self.complete.set()

    async def _is_restored(self) -> bool:
        """Whether the server's version is lower than ours, as after a restore from a backup."""
        response = await self._connection.get(self.kind.path(self.namespace), {"limit": "1"})
        version = msgspec.json.decode(response.content, type=ListPage[msgspec.Raw]).metadata.resource_version
        self.problem = self._forbidden_since = None
        return version.isdecimal() and self._version.isdecimal() and int(version) < int(self._version)

    async def _watch(self) -> None:
        seconds = random.uniform(*self._timing.watch)
        silence = self._timing.bookmark if self._has_bookmarks else seconds + self._timing.grace
        query = {
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, round(seconds))),
        }
        path = self.kind.path(self.namespace)
        async with aclosing(watch(self._connection, path, query, silence)) as events:
            async for event in events:
                self._apply(event)

    def _apply(self, event: WatchEvent) -> None:
        try:
            if event.type == "BOOKMARK":
                self._has_bookmarks = True
                self._version = msgspec.json.decode(event.object, type=_Versioned).metadata.resource_version
                return
            item = self._object.decode(event.object)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise WatchLineError(str(error)) from None
        name = _name(item)
        if event.type == "DELETED":
            if self.objects.pop(name, None) is not None:
                self._changed(name, None)
        elif event.type in ("ADDED", "MODIFIED"):
            self.objects[name] = item
            self._changed(name, item)
        else:
            raise WatchLineError(f"unknown event `{event.type}`")
        self._version = item.metadata.resource_version

    def _note(self, error: ApiServerError | UnreachableError | WatchLineError) -> None:
        """Remember why the kind cannot be followed."""
        if isinstance(error, ApiServerError) and error.code == 403 and self.complete.is_set():
            self._forbidden_since = self._forbidden_since or _now()
            if _now() - self._forbidden_since < self._timing.forbidden:
                return
        self.problem = error


class _VersionMetadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str


class _Versioned(msgspec.Struct, frozen=True):
    metadata: _VersionMetadata


def _name(item: Any) -> Name:
    return item.metadata.namespace, item.metadata.name


def _now() -> float:
    return asyncio.get_running_loop().time()
