"""A cluster as a source of objects, with files over it: followed from a complete first read on (docs/clusters.md).

What is followed is what `cluster.following` has: the last good state of each kind, whatever happens to the server. Only
what has changed is put into the next snapshot. Changes that follow each other closely are read together, and reading
takes at most a share of the time, so that a busy cluster costs little and a single change counts at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from tierwall.cluster.access import ClusterAccess
from tierwall.cluster.changes import ClusterChanges, LostKind
from tierwall.cluster.failures import address_of
from tierwall.cluster.following import FollowedCluster, KindKey
from tierwall.cluster.reflector import Timing
from tierwall.cluster.shapes import DataObject
from tierwall.core.diagnostics import Diagnostic, InputError, sorted_diagnostics
from tierwall.core.reference import Reference
from tierwall.core.source import ClusterPosition
from tierwall.resources.load import LoadResult, LoadSettings
from tierwall.resources.overlay import overlay
from tierwall.resources.removal import without, without_those_known
from tierwall.resources.resource import Identity, Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.snapshot_document import over_cluster
from tierwall.resources.workloads import WORKLOADS
from tierwall.serve.files import FileSource
from tierwall.serve.load_timing import LoadTiming, cpu_seconds

# The code of a cluster that cannot be followed.
LOST = "TW043"
# A change waits so long for others, in seconds.
QUIET_S = 0.02
# The same for who only reports: on a busy node, the agent has the processor first.
REPORTING_QUIET_S = 0.1
# How long to wait before saying what is waited for, and how often to look whether that has changed.
PATIENCE_S = 1.0
# A thread of a cluster that has not looked for so long does not any more.
STUCK_S = 60.0
# How long the first load waits for Secrets and ConfigMaps.
NAMED_PATIENCE_S = 10.0


class ClusterSource:
    """A cluster as a source. `files` lie over it; `settings` say which objects are left out."""

    def __init__(
        self,
        access: ClusterAccess,
        wanted: Mapping[KindKey, type[Any]],
        timeout: float | None,
        files: FileSource,
        settings: LoadSettings,
        send_message: Callable[[str], None],
        named: Callable[[Snapshot], Iterable[Identity]] = lambda snapshot: (),
        timing: Timing | None = None,
        within: Mapping[KindKey, str] | None = None,
        only_gets: bool = False,
        quiet: float = QUIET_S,
    ) -> None:
        """`wanted` are the kinds that are followed, with the shapes of their objects; `timeout` is for one request.

        `named` returns the Secrets and ConfigMaps that the other objects need; these are followed by name, with
        `only_gets` by reading them again and again. `within` has the kinds that are followed in one namespace alone.
        A change waits for others for `quiet` seconds.
        """
        self._quiet = quiet
        self._followed = FollowedCluster(access, wanted, timeout, self._notify, timing, within, only_gets)
        self._server, self._cluster = address_of(access.server), access.context or access.server
        self._files, self._settings, self._send_message = files, settings, send_message
        self._named = named
        self._said = ""
        # The objects of the cluster, and with the files over them; None if they must be laid over anew.
        self._base = Snapshot({}, backend_ref_grants=settings.backend_ref_grants)
        self._over: Snapshot | None = None
        self._files_loaded: LoadResult | None = None
        self._in_files: frozenset[Identity] = frozenset()
        self._followed_by_name: frozenset[Identity] = frozenset()
        # What the last load said about the cluster, and the reason that it gave for the server being away.
        self._told: tuple[Diagnostic, ...] = ()
        self._away: tuple[str, str] | None = None
        # Whether nothing was read yet.
        self.is_first = True
        # Set while the files may have changed since they were last read.
        self._are_files_due = True
        self._files_read: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news: asyncio.Event | None = None

    def read(self) -> LoadResult | None:
        """Return all objects as they are now; None if nothing has changed. InputError if nothing can be followed."""
        self._followed.start()
        while not self._followed.is_complete(PATIENCE_S):
            self._say_what_is_missing()
        taken = self._followed.take()
        if taken.objects:
            self._take(taken.objects)
        files = self._read_files()
        # Kinds are lost and found one by one: only what is said about them is worth a load.
        told = self._diagnostics(taken)
        if not self.is_first and not taken.objects and files is None and told == self._told:
            return None
        if self._follow_named(self._laid_over()):
            taken = self._followed.take()
            if taken.objects:
                self._take(taken.objects)
            told = self._diagnostics(taken)
        self._told = told
        snapshot = self._left_of(self._laid_over())
        self.is_first = False
        return self._result(snapshot, told)

    def _laid_over(self) -> Snapshot:
        """Return the objects of the cluster with the files over them."""
        if self._over is None:
            self._over = overlay(self._base, self._files_loaded.resources) if self._files_loaded else self._base
        return self._over

    def _follow_named(self, snapshot: Snapshot) -> bool:
        """Follow the Secrets and ConfigMaps that objects name; False if they are followed already."""
        named = frozenset(self._named(snapshot)) - self._in_files
        if named == self._followed_by_name:
            return False
        self._followed_by_name = named
        # At the start, listeners without their certificates would be a failure; later, they come with the next change.
        seconds = NAMED_PATIENCE_S if self.is_first else PATIENCE_S
        self._followed.follow_objects(dict.fromkeys(named, DataObject), seconds, self.is_first)
        return True

    def _take(self, changed: Mapping[Identity, Resource | None]) -> None:
        """Take changes of the cluster into the snapshots."""
        put = [resource for resource in changed.values() if resource is not None]
        gone = [identity for identity, resource in changed.items() if resource is None]
        over, self._over = self._over, None
        self._base = _changed(self._base, put, gone)
        if not self._in_files:
            return
        # Files that hold workloads replace their pods, too.
        if over is not None and self._in_files.isdisjoint(changed) and not self._have_workloads:
            self._over = _changed(over, put, gone)

    @property
    def _have_workloads(self) -> bool:
        return any((group, kind) in WORKLOADS for group, kind, _, _ in self._in_files)

    def _read_files(self) -> LoadResult | None:
        """Read the files if they may have changed; None if they have not."""
        if not self._are_files_due:
            return None
        # Reset before reading: what changes meanwhile makes them due again.
        self._are_files_due = False
        loaded = self._files.read()
        if loaded is not None:
            if self.is_first and loaded.cluster_snapshot is not None:
                raise InputError([over_cluster()])
            self._files_loaded, self._over = loaded, None
            self._in_files = frozenset(resource.identity for resource in loaded.resources)
        return loaded

    def _left_of(self, snapshot: Snapshot) -> Snapshot:
        """Return the objects without those of `--without`: at first, they must exist; later, they may come and go."""
        references, namespace = self._settings.without, self._settings.namespace
        if self.is_first:
            return without([snapshot], references, namespace)[0]
        return without_those_known(snapshot, references, namespace)

    def _result(self, snapshot: Snapshot, told: tuple[Diagnostic, ...]) -> LoadResult:
        loaded = self._files_loaded
        assert loaded is not None
        return replace(
            loaded,
            resources=tuple(snapshot),
            snapshot=snapshot,
            diagnostics=sorted_diagnostics((*loaded.diagnostics, *told)),
            lost=(*loaded.lost, *(problem for problem in told if problem.code == LOST)),
        )

    def _diagnostics(self, state: ClusterChanges) -> tuple[Diagnostic, ...]:
        """Return what is to be said about the cluster: what is lost, and which objects are at fault."""
        faults = (self._fault_diagnostic(identity, problem) for identity, problem in state.faults.items())
        return (*self._loss_diagnostics(state.lost), *faults)

    def _loss_diagnostics(self, lost: Iterable[LostKind]) -> Iterable[Diagnostic]:
        """Yield one diagnostic for a server that is away, and one for each reason why this user may not."""
        kinds: dict[tuple[bool, str], list[LostKind]] = {}
        for kind in lost:
            kinds.setdefault((kind.is_refused, kind.message), []).append(kind)
        away = [kind for (is_refused, _), group in kinds.items() if not is_refused for kind in group]
        if not away:
            self._away = None
        elif self._away is None or all(kind.message != self._away[1] for kind in away):
            first = min(away, key=lambda kind: (kind.time, kind.kind, kind.name))
            self._away = first.time if self._away is None else self._away[0], first.message
        if self._away is not None:
            yield self._lost(*self._away)
        for (is_refused, message), group in kinds.items():
            if is_refused:
                yield self._lost(min(kind.time for kind in group), message)

    def _lost(self, since: str, reason: str) -> Diagnostic:
        message = f"cluster `{self._cluster}` cannot be followed since {since}, its last state counts: {reason}"
        return Diagnostic(LOST, message)

    def _fault_diagnostic(self, identity: Identity, problem: str) -> Diagnostic:
        group, kind, namespace, name = identity
        reference = Reference(kind, namespace, name)
        at = ClusterPosition(self._cluster, group, reference)
        message = f"cannot be decoded, so its last good state counts, or else it is taken as it is: {problem}"
        return Diagnostic("TW044", message, at, reference=reference)

    @property
    def heard(self) -> Mapping[str, float]:
        """When the server was last heard from about each kind, by the clock of `time.monotonic`: the earliest time."""
        heard = self._followed.heard.items()
        return {kind: moment for moment, kind in sorted(((moment, key[1]) for key, moment in heard), reverse=True)}

    @property
    def is_turning(self) -> bool:
        """Whether the thread of the cluster still looks at what it follows, once it does."""
        return not self._followed.looked or time.monotonic() - self._followed.looked < STUCK_S

    # Following

    async def wait(self, stop: asyncio.Event) -> bool:
        """Wait for a complete first read; False if `stop` is set before. InputError if there will never be one."""
        self._loop, self._news = asyncio.get_running_loop(), asyncio.Event()
        self._followed.start()
        while not self._followed.is_complete() and not stop.is_set():
            if not await first_of(self._news, stop, PATIENCE_S):
                self._say_what_is_missing()
            self._news.clear()
        if stop.is_set():
            await asyncio.to_thread(self.close)
        return not stop.is_set()

    async def changes(self, stop: asyncio.Event) -> AsyncGenerator[None, None]:
        """Yield when everything was read, then whenever something may have changed, until `stop` is set."""
        following: asyncio.Task[None] | None = None
        try:
            if not await self.wait(stop):
                return
            assert self._news is not None
            if self._files.paths:
                self._files_read = asyncio.Event()
                following = asyncio.create_task(self._follow_files(stop))
            pace = LoadTiming()
            while not stop.is_set():
                self._news.clear()
                began, spent = time.monotonic(), cpu_seconds()
                yield
                pace.count(began, time.monotonic(), cpu_seconds() - spent)
                if self._files_read is not None and not self._are_files_due:
                    self._files_read.set()
                # A change that came during the load has waited already.
                quiet = 0.0 if self._news.is_set() else self._quiet
                await first_of(self._news, stop)
                await first_of(None, stop, max(pace.rest(time.monotonic()), quiet))
        finally:
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
            await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Stop following."""
        self._followed.close()

    def nudge(self) -> None:
        """Look now, whether anything has changed or not."""
        self._files.nudge()
        if self._news is not None:
            self._news.set()

    async def _follow_files(self, stop: asyncio.Event) -> None:
        assert self._files_read is not None
        assert self._news is not None
        async for _ in self._files.changes(stop):
            self._files_read.clear()
            self._are_files_due = True
            self._news.set()
            # How often files are looked at depends on how long reading takes.
            await self._files_read.wait()

    def _notify(self) -> None:
        """Called in the thread of the cluster."""
        if self._loop is not None and self._news is not None:
            # The loop may have ended meanwhile.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._news.set)

    def _say_what_is_missing(self) -> None:
        waiting = self._followed.waiting
        if waiting and waiting != self._said:
            self._said = waiting
            self._send_message(f"waiting for the API server at {self._server}: {waiting}")


def _changed(snapshot: Snapshot, put: Iterable[Resource], gone: Iterable[Identity]) -> Snapshot:
    """Return a snapshot after changes. An object in another version than before may have another place there."""
    aside = {resource.identity: resource for resource in snapshot.set_aside}

    def known(identity: Identity) -> Resource | None:
        return aside.get(identity) or snapshot.get(*identity)

    dropped = [known(identity) for identity in gone]
    dropped += [old for new in put if (old := known(new.identity)) is not None and old.version != new.version]
    return snapshot.with_changes(put, [resource for resource in dropped if resource is not None])


async def first_of(event: asyncio.Event | None, stop: asyncio.Event, seconds: float | None = None) -> bool:
    """Wait until `event` or `stop` is set, for so many seconds; False if neither was."""
    waiting = [asyncio.ensure_future(each.wait()) for each in (event, stop) if each is not None]
    try:
        done, _ = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for future in waiting:
            future.cancel()
    return bool(done)
