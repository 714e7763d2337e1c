"""A cluster that is followed: one reflector per kind, in a thread of its own, and what has changed since the last look.

Discovery is asked every half minute and whenever a kind is not found, so kinds that are installed later are followed
too, and the objects of a kind that is removed are gone. A kind that is missing counts as removed only if it stays so:
a server that has just started does not know its custom resources yet.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from tierwall.cluster.access import ClusterAccess
from tierwall.cluster.changes import ClusterChanges, LostKind
from tierwall.cluster.connection import Connection
from tierwall.cluster.discovery import Discovery, ServedKind, discover
from tierwall.cluster.failures import ApiServerError, UnreachableError, failure_reason, is_refusal, shared_reason
from tierwall.cluster.polling import PolledObject
from tierwall.cluster.reading import as_resource, readable_version
from tierwall.cluster.reflector import FollowFailure, Name, Reflector, Timing, is_ready
from tierwall.cluster.sharing import SharedParts
from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.core.words import failure_words
from tierwall.resources.resource import Identity, Resource

KindKey: TypeAlias = tuple[str, str]
# A kind that is followed as a whole, or one of its objects: group, kind, namespace and name, both empty for all.
FollowedKey: TypeAlias = tuple[str, str, str, str]

# How often the reflectors are looked at.
_TICK = 0.25


class FollowedCluster:
    """Follows the kinds of a cluster until closed.

    INVARIANT: only the thread of the cluster touches reflectors. What `take` and `waiting` return is shared, under
    `_lock`. Changes are published between two steps of that thread, so a list is there as a whole or not at all.
    """

    def __init__(
        self,
        access: ClusterAccess,
        wanted: Mapping[KindKey, type[Any]],
        timeout: float | None,
        notify: Callable[[], None],
        timing: Timing | None = None,
        within: Mapping[KindKey, str] | None = None,
        only_gets: bool = False,
    ) -> None:
        """`notify` is called, in the thread of the cluster, when something has changed.

        `within` has the kinds that are followed in one namespace alone; `only_gets`: objects with names are polled.
        """
        self._within, self._only_gets = within or {}, only_gets
        self.access = access
        self._wanted, self._timeout = wanted, timeout
        self._notify, self._timing = notify, timing or Timing()
        self._cluster = access.context or access.server
        self._lock = threading.Lock()
        self._changed: dict[Identity, Resource | None] = {}
        # Changes that are not published yet: the kind of each object, the object, and what objects of the kind share.
        self._unpublished: dict[Identity, tuple[ServedKind, Any, SharedParts]] = {}
        self._state = ClusterChanges({})
        self._waiting = ""
        self._reflectors: dict[FollowedKey, tuple[Reflector, asyncio.Task[None]]] = {}
        self._missing_since: dict[FollowedKey, float] = {}
        # The groups of which the server does not know at the moment which kinds they have.
        self._stale: frozenset[str] = frozenset()
        self._named: dict[FollowedKey, type[Any]] = {}
        # When the server was last heard from, and when that was last looked at, by the clock of `time.monotonic`.
        self.heard: Mapping[FollowedKey, float] = {}
        self.looked = 0.0
        # Set when everything was read for the first time, or never will be.
        self._complete = threading.Event()
        self._failure: InputError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False
        self._look = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="cluster", daemon=True)

    def start(self) -> None:
        """Begin to read and follow, once; `notify` is called when everything was read, or cannot be."""
        if not self.is_started:
            self._thread.start()

    @property
    def is_started(self) -> bool:
        """Whether `start` was called."""
        return self._thread.ident is not None

    def is_complete(self, seconds: float = 0.0) -> bool:
        """Wait until everything was read, for so many seconds; InputError if it never will be."""
        is_complete = self._complete.wait(seconds) if seconds else self._complete.is_set()
        if self._failure is not None:
            raise self._failure
        return is_complete

    @property
    def waiting(self) -> str:
        """The kinds that have not been read yet, and why: `pods, services (the connection is refused)`."""
        with self._lock:
            return self._waiting

    def take(self) -> ClusterChanges:
        """Return what has changed since the last call."""
        with self._lock:
            changed, self._changed = self._changed, {}
            return ClusterChanges(changed, self._state.lost, self._state.faults)

    def follow_objects(self, named: Mapping[FollowedKey, type[Any]], seconds: float, is_patient: bool = False) -> None:
        """Follow these objects by their names, and no others; wait until new ones were read, for so many seconds.

        Without `is_patient`, one that cannot be read at the moment is not waited for.
        """
        if named.keys() == self._named.keys():
            return
        self._named = dict(named)
        done = threading.Event()

        async def adapt() -> None:
            self._look.set()
            try:
                async with asyncio.timeout(seconds):
                    while not self._are_read(named, is_patient):
                        await asyncio.sleep(0.005)
            except TimeoutError:
                pass
            finally:
                done.set()

        with self._lock:
            if self._is_closing or self._loop is None or self._loop.is_closed():
                return
            asyncio.run_coroutine_threadsafe(adapt(), self._loop)
        done.wait(seconds + 1)

    def close(self) -> None:
        """Stop following, whatever is going on."""
        with self._lock:
            self._is_closing = True
            if self._task is not None and self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._task.cancel)
        if self.is_started:
            self._thread.join()

    # In the thread of the cluster

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except asyncio.CancelledError:
            pass
        except InputError as error:
            self._failure = error
        except Exception as error:
            self._failure = self._refusal(f"unexpected {failure_words(error)}")
        finally:
            self._complete.set()
            self._notify()

    async def _main(self) -> None:
        with self._lock:
            if self._is_closing:
                return
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        connection = Connection(self.access, self._timeout)
        try:
            await self._first_look(connection)
            looked_at = self._loop.time()
            while True:
                self._observe()
                if not self._complete.is_set():
                    self._first_reads()
                is_due = self._loop.time() - looked_at > self._timing.discovery or bool(self._missing_since)
                if self._look.is_set() or is_due:
                    self._look.clear()
                    await self._look_again(connection)
                    looked_at = self._loop.time() - random.uniform(0, 0.2) * self._timing.discovery
                try:
                    async with asyncio.timeout(min(_TICK, self._timing.patience / 4)):
                        await self._look.wait()
                except TimeoutError:
                    continue
        finally:
            tasks = [task for _, task in self._reflectors.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await connection.close()

    async def _first_look(self, connection: Connection) -> None:
        """Wait until the server is ready and says which kinds it serves; InputError if it refuses to."""
        wait = self._timing.first_wait
        refused_since: float | None = None
        assert self._loop is not None
        while True:
            try:
                if await is_ready(connection):
                    self._adapt(connection, await discover(connection))
                    return
                self._set_waiting("it is not ready yet")
                refused_since = None
            except InputError:
                raise
            except Exception as error:
                if not is_refusal(error):
                    refused_since = None
                elif refused_since is None:
                    refused_since = self._loop.time()
                elif self._loop.time() - refused_since >= self._timing.patience:
                    raise self._refusal(failure_reason(error)) from None
                self._set_waiting(failure_reason(error))
            pause = wait * random.uniform(0.5, 1.5)
            if refused_since is not None:
                # The last word is due when patience ends, not when the next try happens to be.
                pause = min(pause, max(0.0, refused_since + self._timing.patience - self._loop.time()))
            await asyncio.sleep(pause)
            wait = min(2 * wait, self._timing.longest_wait)

    async def _look_again(self, connection: Connection) -> None:
        try:
            discovery = await discover(connection)
            # A server that has just started does not know its custom resources yet.
            is_certain = await is_ready(connection)
        except UnreachableError:
            # The watches of a server that has stopped are silent, as if nothing happened there.
            for reflector, _ in self._reflectors.values():
                reflector.doubt()
            return
        except Exception:
            # The reflectors notice other failures themselves.
            return
        self._adapt(connection, discovery, is_certain)

    def _adapt(self, connection: Connection, discovery: Discovery, is_certain: bool = True) -> None:
        """Follow kinds that are served now, and drop the objects of kinds that no longer are."""
        assert self._loop is not None
        self._stale = frozenset(discovery.stale)
        every = {(*key, self._within.get(key, ""), ""): shape for key, shape in self._wanted.items()} | self._named
        for key in self._reflectors.keys() - every.keys():
            self._drop(key)
        for key, shape in every.items():
            served = discovery.kinds.get(key[:2], ())
            kind, current = readable_version(served), self._reflectors.get(key)
            if kind is not None and (current is None or current[0].kind.version not in _versions(served)):
                self._begin(connection, key, kind, shape, current)
            elif current is None:
                continue
            elif kind is None and key[0] not in discovery.stale:
                since = self._missing_since.setdefault(key, self._loop.time())
                if is_certain and self._loop.time() - since >= self._timing.patience:
                    self._drop(key)
                continue
            self._missing_since.pop(key, None)

    def _begin(
        self,
        connection: Connection,
        key: FollowedKey,
        kind: ServedKind,
        shape: type[Any],
        before: tuple[Reflector, asyncio.Task[None]] | None,
    ) -> None:
        follow = PolledObject if key[3] and self._only_gets else Reflector
        reflector = follow(connection, kind, shape, self._changes_of(kind), key[2], self._timing, key[3])
        if before is not None:
            # In another version, everything counts as changed, and what is gone must be noticed.
            before[1].cancel()
            reflector.objects = dict.fromkeys(before[0].objects)
        self._reflectors[key] = reflector, asyncio.get_running_loop().create_task(reflector.run())

    def _drop(self, key: FollowedKey) -> None:
        reflector, task = self._reflectors.pop(key)
        self._missing_since.pop(key, None)
        task.cancel()
        report = self._changes_of(reflector.kind)
        for name in list(reflector.objects):
            report(name, None)

    def _changes_of(self, kind: ServedKind) -> Callable[[Name, Any], None]:
        parts: SharedParts = {}

        def changed(name: Name, item: Any) -> None:
            if not self._unpublished:
                asyncio.get_running_loop().call_soon(self._publish)
            self._unpublished[kind.group, kind.kind, *name] = kind, item, parts

        return changed

    def _publish(self) -> None:
        """Publish all changes of the last step together."""
        if not self._unpublished:
            return
        changed = {
            identity: as_resource(item, kind, self._cluster, parts) if item is not None else None
            for identity, (kind, item, parts) in self._unpublished.items()
        }
        self._unpublished = {}
        with self._lock:
            self._changed |= changed
        if self._complete.is_set():
            self._notify()

    def _observe(self) -> None:
        """Notice which reflectors have been failing for a while, and which objects are at fault."""
        assert self._loop is not None
        lost, faults = [], {}
        for reflector, _ in self._reflectors.values():
            kind, failure = reflector.kind, reflector.failure
            if failure is not None:
                if isinstance(failure.error, ApiServerError) and failure.error.code == 404:
                    self._look.set()
                if self._has_failed(failure):
                    lost.append(_lost(reflector, failure))
            for name, problem in reflector.faults.items():
                faults[kind.group, kind.kind, *name] = problem
        self.looked = self._loop.time()
        self.heard = {key: reflector.heard for key, (reflector, _) in self._reflectors.items()}
        state = ClusterChanges({}, tuple(lost), faults)
        if state != self._state:
            with self._lock:
                self._state = state
            if self._complete.is_set():
                self._notify()

    def _has_failed(self, failure: FollowFailure) -> bool:
        assert self._loop is not None
        return self._loop.time() - failure.since >= self._timing.patience

    def _first_reads(self) -> None:
        """See whether every kind was listed; InputError if some never will be."""
        assert self._loop is not None
        waiting = [reflector for reflector, _ in self._reflectors.values() if not reflector.complete.is_set()]
        unknown = sorted({group for group, _ in self._wanted if group in self._stale})
        if not waiting and not unknown:
            self._publish()
            self._complete.set()
            self._notify()
            return
        for reflector in waiting:
            if reflector.failure is not None and isinstance(reflector.failure.error, InputError):
                raise reflector.failure.error
        refused = {
            reflector.kind.plural: self._loop.time() - reflector.failure.refused_since
            for reflector in waiting
            if reflector.failure is not None and reflector.failure.refused_since is not None
        }
        if refused and min(refused.values()) >= self._timing.patience:
            raise self._refusal(f"this user may not list and watch {', '.join(sorted(refused))}")
        if unknown:
            # Nothing tells when they are back but to ask again.
            self._look.set()
        reasons: dict[str, list[str]] = {}
        for reflector in waiting:
            reason = shared_reason(reflector.failure.error) if reflector.failure is not None else ""
            reasons.setdefault(reason, []).append(reflector.kind.plural)
        for group in unknown:
            reasons.setdefault("its API server does not answer", []).append(group)
        self._set_waiting(
            "; ".join(
                ", ".join(sorted(names)) + (f" ({reason})" if reason else "") for reason, names in reasons.items()
            )
        )

    def _are_read(self, keys: Iterable[FollowedKey], is_patient: bool) -> bool:
        """Whether objects were read, or, without patience, cannot be at the moment; and all changes are published."""
        reflectors = [self._reflectors.get(key) for key in keys]
        return not self._unpublished and all(
            current is not None and (current[0].complete.is_set() or not (is_patient or current[0].failure is None))
            for current in reflectors
        )

    def _set_waiting(self, waiting: str) -> None:
        with self._lock:
            self._waiting = waiting

    def _refusal(self, reason: str) -> InputError:
        where = (
            f"the cluster `{self.access.context}`" if self.access.context else f"the API server {self.access.server}"
        )
        return InputError([Diagnostic("TW042", f"{where} cannot be followed: {reason}")])


def _versions(served: Iterable[ServedKind]) -> set[str]:
    return {kind.version for kind in served}


def _lost(reflector: Reflector, failure: FollowFailure) -> LostKind:
    reason, is_refused = failure_reason(failure.error), failure.refused_since is not None
    return LostKind(reflector.kind.plural, reflector.object_name, reason, failure.time, is_refused)
