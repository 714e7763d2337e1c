"""How a load comes into force, for every engine alike: read, prepare, accept, or keep the last good state.

One rule for all (docs/semantics.md#a-broken-edit-changes-nothing): a file that cannot be read, an object that an API
server would refuse, what the engine cannot prepare, and what it refuses in the end each keep the whole load out.
Nothing of such a load is applied; the state before stays in force, and the load says why. A start without one fails.

An engine subclasses `Follower` and says how a snapshot is prepared and how what was prepared comes into force.
"""

from __future__ import annotations

import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from msgspec import Struct

from tierwall.core.diagnostics import Diagnostic, Diagnostics, InputError, sorted_diagnostics
from tierwall.resources.load import Loaded
from tierwall.resources.snapshot import Snapshot

if TYPE_CHECKING:
    # Imported where something is followed: what comes into force once does without an event loop.
    import asyncio

    from tierwall.resources.load import Loader

State = TypeVar("State")


class ObjectSource(Protocol):
    """Where objects come from: `FileSource`, or whatever else can be read again and tells of changes."""

    def read(self) -> Loaded | None:
        """Everything as it is now; None if that is what was read last. InputError if nothing can be read at all.

        Called in a thread, one call after the other.
        """

    def changes(self, stop: asyncio.Event) -> AsyncGenerator[None, None]:
        """One item as soon as no change can be missed, then one whenever there may be news, until `stop` is set."""

    def nudge(self) -> None:
        """Let the next item of `changes` come now."""


class FileSource:
    """Files and folders as a source. `look`: seconds between looks where no change was heard of.

    Only what has changed is read anew; the rest are the objects of the load before.
    """

    def __init__(self, loader: Loader, look: float | None = None) -> None:
        self._loader, self._look = loader, look
        self._changed: asyncio.Event | None = None

    def read(self) -> Loaded | None:
        """Everything as it is now; None if that is what the last reading found. Never raises: problems are told."""
        return self._loader.load_if_changed()

    def changes(self, stop: asyncio.Event) -> AsyncGenerator[None, None]:
        """One item when watching has begun, then one whenever the files may have changed, until `stop` is set."""
        from asyncio import Event

        from tierwall.serve.watch import changes

        self._changed = Event()
        return changes(self._loader.paths, stop, self._changed, self._look)

    def nudge(self) -> None:
        """Have the files looked at now, changed or not."""
        if self._changed is not None:
            self._changed.set()


class LoadOutcome(StrEnum):
    """What became of a load."""

    TAKEN = "taken"
    # It says what is in force already.
    UNCHANGED = "unchanged"
    REFUSED = "refused"
    # It is good, and has to wait until the engine can take it.
    WAITING = "waiting"


class Prepared(NamedTuple, Generic[State]):
    """What an engine made of a snapshot, and what it noticed; with an error among that it does not come into force."""

    state: State
    diagnostics: tuple[Diagnostic, ...] = ()


class Load(Struct, Generic[State]):
    """One reading of the source. `state` is absent where errors keep it out, `loaded` where nothing could be read."""

    loaded: Loaded | None
    diagnostics: tuple[Diagnostic, ...]
    state: State | None = None
    seconds: float = 0.0
    outcome: LoadOutcome | None = None

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        """What keeps the load from coming into force."""
        return Diagnostics(self.diagnostics).errors

    @property
    def snapshot(self) -> Snapshot:
        """The objects of a load that was read."""
        assert self.loaded is not None
        return self.loaded.snapshot

    def refuse(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        """Keep the load out for these reasons, beside those that there are."""
        self.diagnostics = sorted_diagnostics((*self.diagnostics, *diagnostics))
        self.state, self.outcome = None, LoadOutcome.REFUSED


def problems(loaded: Loaded) -> Diagnostics:
    """What is wrong with objects, whoever enforces them: with an error among that they do not come into force."""
    # Imported by the first reading: who only compiles does without the validation of every kind.
    from tierwall.analyze.admission import admission_findings

    return sorted_diagnostics((*loaded.diagnostics, *admission_findings(loaded.snapshot)))


class Follower(ABC, Generic[State]):
    """Keeps an engine up with a source.

    INVARIANT: `look` may run in a thread, one call at a time; everything else happens in the event loop. What is in
    force is replaced as a whole, so that other threads may look at it.
    """

    def __init__(self, count: Callable[[Load[State]], None] | None = None) -> None:
        """`count` is told of each load when it was taken or refused."""
        self._count = count
        # The load in force, and the one that was looked at last.
        self.good: Load[State] | None = None
        self.latest: Load[State] | None = None
        # How many loads after the first became what.
        self.outcomes = {LoadOutcome.TAKEN: 0, LoadOutcome.UNCHANGED: 0, LoadOutcome.REFUSED: 0}

    @abstractmethod
    def prepare(self, snapshot: Snapshot) -> Prepared[State]:
        """Make a snapshot ready, and change nothing; admission takes its objects. InputError says why it cannot be."""

    @abstractmethod
    def enforce(self, load: Load[State]) -> bool:
        """Bring a prepared load into force, wholly or, with InputError, not at all; False if it was already."""

    @property
    def wait(self) -> float:
        """Seconds until the engine can take another load."""
        return 0.0

    @property
    def trouble(self) -> tuple[Diagnostic, ...]:
        """What is wrong with the newest load, if that is why an older one is in force."""
        return self.latest.errors if self.latest is not None else ()

    def other_problems(self, snapshot: Snapshot) -> tuple[Diagnostic, ...]:
        """What the engine has to say about a snapshot that is kept out already, so that all of it is told at once."""
        return ()

    def look(self, source: ObjectSource) -> Load[State] | None:
        """Read, check and prepare what is there now; None if there is no news. Nothing comes into force."""
        load: Load[State] = Load(None, ())
        try:
            load.loaded = source.read()
            if load.loaded is None:
                return None
            begun = time.perf_counter()
            load.diagnostics = problems(load.loaded)
            if load.errors:
                load.refuse(self.other_problems(load.snapshot))
            else:
                load.state, noticed = self.prepare(load.snapshot)
                load.diagnostics = sorted_diagnostics((*load.diagnostics, *noticed))
            load.seconds = time.perf_counter() - begun
        except InputError as error:
            load.refuse(error.diagnostics)
        except Exception as error:
            # At the start there is nothing to keep, and the whole story helps to mend it.
            if self.good is None:
                raise
            load.refuse((_unexpected(error),))
        return load

    def accept(self, load: Load[State]) -> LoadOutcome:
        """Bring a load into force if it can be; otherwise what is in force stays. InputError if nothing is."""
        self.latest, first = load, self.good is None
        if load.errors:
            load.refuse(())
        else:
            try:
                load.outcome = LoadOutcome.TAKEN if self.enforce(load) else LoadOutcome.UNCHANGED
            except InputError as error:
                load.refuse(error.diagnostics)
        assert load.outcome is not None
        if load.outcome is not LoadOutcome.REFUSED:
            self.good = load
        self.outcomes[load.outcome] += not first
        if self._count is not None:
            self._count(load)
        if self.good is None:
            raise InputError(load.diagnostics, load.loaded)
        return load.outcome

    def begin(self, source: ObjectSource) -> Load[State]:
        """Bring what is there into force; InputError with everything that is wrong."""
        load = self.look(source)
        assert load is not None, "the first reading is news"
        self.accept(load)
        return load

    async def follow(self, source: ObjectSource, stop: asyncio.Event) -> AsyncGenerator[Load[State], None]:
        """Each load when it was taken or refused, or has to wait; until `stop` is set.

        Changes that come meanwhile are one. InputError if nothing is in force and the first load cannot be.
        """
        import asyncio

        async with aclosing(source.changes(stop)) as changes:
            async for _ in changes:
                load = await asyncio.to_thread(self.look, source)
                while load is not None and not load.errors and (seconds := self.wait) and not stop.is_set():
                    load.outcome = LoadOutcome.WAITING
                    yield load
                    with suppress(TimeoutError):
                        await asyncio.wait_for(stop.wait(), seconds)
                    load = await asyncio.to_thread(self.look, source) or load
                if load is not None and not stop.is_set():
                    self.accept(load)
                    yield load


def until_signalled(work: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Do some work in an event loop of its own; SIGINT and SIGTERM set the event that tells it to stop."""
    import asyncio
    import signal

    async def main() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await work(stop)

    asyncio.run(main())


def _unexpected(error: Exception) -> Diagnostic:
    """An error that nobody foresaw, with the place where it came up."""
    [place] = traceback.extract_tb(error.__traceback__)[-1:]
    where = f"{place.filename.rpartition('/')[2]}:{place.lineno}"
    return Diagnostic("TW635", f"unexpected error at {where}: {type(error).__name__}: {error}")
