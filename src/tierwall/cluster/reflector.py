"""All objects of one kind, as the API server has them: listed once, then followed (docs/clusters.md#following).

Nothing is lost: a watch goes on from the last version that was seen, and if the server no longer has that version
(410), everything is listed again and compared, so that deletions during an outage are noticed. Nothing is invented:
a list replaces what is known only when it is complete.

Where the server has `sendInitialEvents`, the list is the beginning of the watch: one consistent stream. Servers that
refuse it, and those that never mark the end of the list, are read in pages.

Three answers are not believed at once, as a server that has just started may give them: that the kind is forbidden,
that it is not there, and that it has no objects although it had some. A server that was restored from a backup answers
a version of its future with silence. So before each new watch, a list of one object tells whether the server's version
is lower than ours; after a long outage, and now and then, everything is listed again. Only monotonic time counts.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from tierwall.cluster.connection import Connection
from tierwall.cluster.decoding import AnswerError, ItemReader, ListPage, UndecodedObject, metadata_of, name_of
from tierwall.cluster.discovery import ServedKind
from tierwall.cluster.failures import ApiServerError, is_refusal
from tierwall.cluster.pages import read_all
from tierwall.cluster.watch import OPENED, WatchEvent, watch

Name: TypeAlias = tuple[str, str]
# Called with the name of an object, and the object, or None if it is gone.
Changed: TypeAlias = Callable[[Name, Any], None]

_INITIAL_END = "k8s.io/initial-events-end"
# The codes by which a server refuses `sendInitialEvents`: it does not know it, or its etcd is too old for it.
_NO_INITIAL_EVENTS = (400, 422, 500, 501)


class Timing(Struct, frozen=True):
    """How long a reflector waits, in seconds."""

    # A watch lasts so long, chosen at random: not all kinds start anew together.
    watch: tuple[float, float] = (240, 480)
    # A watch is dead if it is silent for so long after its own end.
    grace: float = 15
    # The same, between bookmarks, which come each minute.
    bookmark: float = 90
    # So long a server may take to accept a watch, and between two events of a list that it sends as events.
    opening: float = 10
    # So long it may take to send the whole list as events.
    initial: float = 300
    first_wait: float = 0.8
    longest_wait: float = 30
    # A kind that was readable is forbidden or empty only if it stays so: a server that has just started forbids all.
    patience: float = 10
    # After an outage of this length, and now and then, everything is listed again.
    outage: float = 60
    relist: tuple[float, float] = (2700, 4500)
    # How often to ask which kinds are served.
    discovery: float = 30


class FollowFailure(Struct, frozen=True):
    """The reason why a kind cannot be followed, and since when: by the clock of the loop, and of the wall.

    `refused_since`: since when the server answers that this user may not, without any other failure in between.
    """

    error: Exception
    since: float
    time: str
    refused_since: float | None = None


class Reflector:
    """Follows one kind, in all namespaces or in one, or one object of it by its name.

    INVARIANT: between two awaits, `objects` is a state that the API server had, or has all changes up to a version.
    Objects that cannot be decoded are in their last good state, or else as they are; `faults` says why.
    """

    def __init__(
        self,
        connection: Connection,
        kind: ServedKind,
        shape: type[Any],
        changed: Changed,
        namespace: str = "",
        timing: Timing | None = None,
        name: str = "",
    ) -> None:
        """`changed` is called with each change; `shape` is the type that objects are decoded into."""
        self.kind, self.namespace = kind, namespace
        self.object_name = f"{namespace}/{name}" if name else ""
        self.objects: dict[Name, Any] = {}
        self.faults: dict[Name, str] = {}
        # When the server last sent a list, an event or a bookmark, or accepted a watch, by the clock of the loop.
        self.heard = time.monotonic()
        # Set when everything was listed for the first time.
        self.complete = asyncio.Event()
        # Why the kind cannot be followed at the moment.
        self.failure: FollowFailure | None = None
        self._connection, self._changed, self._timing = connection, changed, timing or Timing()
        self._selector = {"fieldSelector": f"metadata.name={name}"} if name else {}
        self._decoder = ItemReader(shape)
        self._version = ""
        self._has_bookmarks = False
        # Whether the server may send lists as events.
        self._streams = "watch" in kind.verbs
        self._relist_at = 0.0
        self._empty_since: float | None = None
        # The time limit of the open watch.
        self._deadline: asyncio.Timeout | None = None

    async def run(self) -> None:
        """Follow the kind until cancelled, whatever happens."""
        wait = self._timing.first_wait
        while True:
            started = _now()
            try:
                await self._follow()
                if _now() - started > self._timing.first_wait:
                    wait = self._timing.first_wait
                    continue
            except ApiServerError as error:
                if self._version and (error.code == 410 or error.reason in ("Expired", "Gone")):
                    self._version = ""
                else:
                    self._note(error)
            except Exception as error:
                # Nothing may end the following of a kind for good: its last state would stay, and nobody would know.
                self._note(error)
            if _now() - started > self._timing.longest_wait:
                wait = self._timing.first_wait
            # After a restart of the server, all kinds fail or expire together.
            await asyncio.sleep(wait * random.uniform(0.5, 1.5))
            wait = min(2 * wait, self._timing.longest_wait)

    def doubt(self) -> None:
        """Give the open watch up, and ask the server again: it does not answer others, so silence means nothing."""
        if self._deadline is not None and not self._deadline.expired():
            self._deadline.reschedule(_now())

    async def _follow(self) -> None:
        """List if that is due, and watch until the server ends the watch."""
        must_list = not self._version or _now() >= self._relist_at or self._was_away() or await self._is_restored()
        if must_list and self._streams:
            try:
                await self._watch(initial={})
                return
            except TimeoutError:
                self._streams = False
            except ApiServerError as error:
                if error.code not in _NO_INITIAL_EVENTS:
                    raise
                self._streams = False
        if must_list:
            everything = await read_all(
                self._connection, self.kind, self._decoder, self.namespace, selector=self._selector
            )
            await self._replace({name_of(item): item for item in everything.items}, everything.version)
        if "watch" in self.kind.verbs and self._version:
            await self._watch()
        else:
            self.failure = None
            await asyncio.sleep(self._timing.discovery)
            self._version = ""

    def _was_away(self) -> bool:
        return self.failure is not None and _now() - self.failure.since > self._timing.outage

    async def _is_restored(self) -> bool:
        """Whether the server's version is lower than ours, as after a restore from a backup."""
        response = await self._connection.get(self.kind.path(self.namespace), {**self._selector, "limit": "1"})
        try:
            version = _HEAD.decode(response.content).metadata.resource_version
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            version = self._decoder.page(response.content).metadata.resource_version
        return version.isdecimal() and self._version.isdecimal() and int(version) < int(self._version)

    async def _replace(self, items: Mapping[Name, Any], version: str) -> None:
        """Take a complete list, and report how it differs from what is known."""
        if self.objects and not items:
            self._empty_since = _now() if self._empty_since is None else self._empty_since
            if _now() - self._empty_since < self._timing.patience or not await is_ready(self._connection):
                raise AnswerError("the server says that there are no objects any more, which may mean that it starts")
        self._empty_since = None
        for name in self.objects.keys() - items.keys():
            self._drop(name)
        for name, item in items.items():
            self._put(name, item)
        self._version, self.heard = version, _now()
        self._relist_at = _now() + random.uniform(*self._timing.relist)
        self.complete.set()

    async def _watch(self, initial: dict[Name, Any] | None = None) -> None:
        """Watch from the last version; with `initial`, from a list that the server sends as events, collected there.

        TimeoutError if such a list does not end.
        """
        timing = self._timing
        seconds = random.uniform(*timing.watch)
        silence = timing.bookmark if self._has_bookmarks else seconds + timing.grace
        query = {**self._selector, "allowWatchBookmarks": "true", "timeoutSeconds": str(max(1, round(seconds)))}
        if initial is None:
            query["resourceVersion"] = self._version
        else:
            query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        path, latest = self.kind.path(self.namespace), _now() + timing.initial
        async with (
            asyncio.timeout(timing.opening) as deadline,
            aclosing(watch(self._connection, path, query, silence)) as events,
        ):
            try:
                async for event in events:
                    self.heard = _now()
                    if event.type == OPENED:
                        self.failure = self.failure if initial is not None else None
                    elif initial is None:
                        self._apply(event)
                    elif await self._collect(event, initial):
                        initial = self.failure = None
                    deadline.reschedule(None if initial is None else min(latest, _now() + timing.opening))
                    self._deadline = deadline if initial is None else None
            finally:
                self._deadline = None

    async def _collect(self, event: WatchEvent, initial: dict[Name, Any]) -> bool:
        """Collect an event of a list; take the list and return True at its end."""
        if event.type == "BOOKMARK":
            metadata = _bookmark(event)
            if (metadata.annotations or {}).get(_INITIAL_END) != "true":
                return False
            await self._replace(initial, metadata.resource_version)
            return True
        item = self._decoder.object(event.object)
        if event.type == "DELETED":
            initial.pop(name_of(item), None)
        else:
            initial[name_of(item)] = item
        return False

    def _apply(self, event: WatchEvent) -> None:
        if event.type == "BOOKMARK":
            self._has_bookmarks = True
            self._version = _bookmark(event).resource_version
            return
        if event.type not in ("ADDED", "MODIFIED", "DELETED"):
            raise AnswerError("expected an event of a known type")
        item = self._decoder.object(event.object)
        # Taken now: `_put` removes it.
        name, version = name_of(item), metadata_of(item).resource_version
        if event.type == "DELETED":
            self._drop(name)
        else:
            self._put(name, item)
        self._version = version

    def _put(self, name: Name, item: Any) -> None:
        """Take an object, and report it if it differs from what is known in anything but its version."""
        metadata_of(item).resource_version = ""
        known = self.objects.get(name)
        if isinstance(item, UndecodedObject):
            self.faults[name] = item.problem
            if not name[1]:
                return
            item = item.as_it_is if known is None else known
        else:
            self.faults.pop(name, None)
        if known != item:
            self.objects[name] = item
            self._changed(name, item)

    def _drop(self, name: Name) -> None:
        self.faults.pop(name, None)
        if name in self.objects:
            del self.objects[name]
            self._changed(name, None)

    def _note(self, error: Exception) -> None:
        """Remember why the kind cannot be followed, and since when."""
        before, now = self.failure, _now()
        refused_since = now if is_refusal(error) else None
        if before is None:
            self.failure = FollowFailure(error, now, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), refused_since)
            return
        if refused_since is not None and before.refused_since is not None:
            refused_since = before.refused_since
        self.failure = FollowFailure(error, before.since, before.time, refused_since)


async def is_ready(connection: Connection) -> bool:
    """Whether a server says that it has started; one that does not tell counts as started."""
    try:
        await connection.get("/readyz", accept="*/*")
    except ApiServerError as error:
        return error.code in (401, 403, 404)
    return True


class _BookmarkMetadata(Struct, frozen=True, rename="camel"):
    resource_version: str
    annotations: dict[str, str] | None = None


class _BookmarkObject(Struct, frozen=True):
    metadata: _BookmarkMetadata


_BOOKMARK = msgspec.json.Decoder(_BookmarkObject)
_HEAD = msgspec.json.Decoder(ListPage[msgspec.Raw])


def _bookmark(event: WatchEvent) -> _BookmarkMetadata:
    try:
        return _BOOKMARK.decode(event.object).metadata  # type: ignore[arg-type]
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError) as error:
        raise AnswerError(f"expected a bookmark: {error}") from None


def _now() -> float:
    return asyncio.get_running_loop().time()
