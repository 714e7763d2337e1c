"""A cluster that is followed: one reflector per kind, in a thread of its own, and what has changed since the last look.

Discovery is asked again every minute and whenever a kind cannot be listed, so kinds that are installed later are
followed too, and the objects of a kind that is removed are gone.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from msgspec import Struct

from tierwall.cluster.access import ClusterAccess
from tierwall.cluster.connection import ApiServerError, Connection, UnreachableError
from tierwall.cluster.discovery import Discovery, ServedKind, discover
from tierwall.cluster.reading import as_resource, readable_version
from tierwall.cluster.reflector import Name, Reflector, Timing
from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.resources.resource import Identity, Resource
from tierwall.resources.unlisted import UnlistedKind

KindKey: TypeAlias = tuple[str, str]

_DISCOVERY_SECONDS = 60.0


class ClusterChanges(Struct, frozen=True):
    """The changes since the last look: objects by identity (None: gone), and what cannot be read."""

    objects: Mapping[Identity, Resource | None]
    unlisted: tuple[UnlistedKind, ...]


class FollowedCluster:
    """Follows the kinds of a cluster until closed.

    INVARIANT: only the thread of the cluster touches reflectors; `_changed` and `_unlisted` are shared, under `_lock`.
    """

    def __init__(
        self,
        access: ClusterAccess,
        wanted: Mapping[KindKey, type[Any]],
        timeout: float,
        notify: Callable[[], None],
        timing: Timing | None = None,
    ) -> None:
        self._access, self._wanted, self._timeout = access, wanted, timeout
        self._notify, self._timing = notify, timing
        self._cluster = access.context or access.server
        self._lock = threading.Lock()
        self._changed: dict[Identity, Resource | None] = {}
        self._unlisted: tuple[UnlistedKind, ...] = ()
        self._reflectors: dict[KindKey, tuple[Reflector, asyncio.Task[None]]] = {}
        self._complete = threading.Event()
        self._failure: Exception | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="cluster", daemon=True)

    def begin(self) -> None:
        """Read everything once; InputError if that fails."""
        self._thread.start()
        self._complete.wait()
        if self._failure is not None:
            raise InputError([Diagnostic("TW042", str(self._failure))])

    def take(self) -> ClusterChanges:
        """Return what has changed since the last call."""
        with self._lock:
            changes, self._changed = ClusterChanges(self._changed, self._unlisted), {}
        return changes

    def close(self) -> None:
        """Stop following."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._follow())
        except Exception as error:
            self._failure = error
            self._complete.set()

    async def _follow(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        connection = Connection(self._access, self._timeout, "tierwall")
        try:
            self._adapt(connection, await discover(connection))
            await self._first_reads()
            self._complete.set()
            while not self._stop.is_set():
                try:
                    async with asyncio.timeout(_DISCOVERY_SECONDS):
                        await self._stop.wait()
                except TimeoutError:
                    await self._look_again(connection)
        finally:
            tasks = [task for _, task in self._reflectors.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await connection.close()

    async def _look_again(self, connection: Connection) -> None:
        try:
            self._adapt(connection, await discover(connection))
        except (ApiServerError, UnreachableError):
            # The reflectors notice an outage themselves.
            return

    async def _first_reads(self) -> None:
        """Wait until every kind is listed, or known to be forbidden or unavailable."""
        for reflector, task in list(self._reflectors.values()):
            while not reflector.complete.is_set() and reflector.problem is None:
                if task.done():
                    task.result()
                await asyncio.sleep(0.01)

    def _adapt(self, connection: Connection, discovery: Discovery) -> None:
        """Follow kinds that are served now, and drop the objects of kinds that no longer are."""
        for key, shape in self._wanted.items():
            kind = readable_version(discovery.kinds.get(key, ()))
            current = self._reflectors.get(key)
            if current is not None and kind is None and key[0] not in discovery.stale:
                self._drop(key)
            elif current is None and kind is not None:
                reflector = Reflector(connection, kind, shape, self._changes_of(kind), timing=self._timing)
                self._reflectors[key] = reflector, asyncio.get_running_loop().create_task(reflector.run())

    def _drop(self, key: KindKey) -> None:
        reflector, task = self._reflectors.pop(key)
        task.cancel()
        report = self._changes_of(reflector.kind)
        for name in list(reflector.objects):
            report(name, None)

    def _changes_of(self, kind: ServedKind) -> Callable[[Name, Any], None]:
        def changed(name: Name, item: Any) -> None:
            resource = as_resource(item, kind, self._cluster) if item is not None else None
            with self._lock:
                self._changed[kind.group, kind.kind, *name] = resource
            self._notify()

        return changed
