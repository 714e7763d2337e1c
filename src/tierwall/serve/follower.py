"""How a load comes into force, the same way for every engine: read, prepare, accept, or keep the last good state.

An error belongs to the object that it is in (docs/semantics.md#errors-belong-to-their-object). The snapshot goes to
the engine with its bad objects, which fail closed or are left out; what is wrong with them is reported with the load
and keeps nothing out. Only these refuse a whole load: input whose content is unknown, an InputError of the engine about
the machine or the whole source, and an unexpected error. Nothing of such a load is applied. The previous state stays in
force, and the load says why. A start without a previous state fails.

An engine subclasses `Follower`. It says how to prepare a snapshot and how to enforce what was prepared.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from msgspec import Struct

from tierwall.core.diagnostics import Diagnostic, Diagnostics, InputError, sorted_diagnostics
from tierwall.core.words import failure_words
from tierwall.resources.load import LoadResult
from tierwall.resources.snapshot import Snapshot

if TYPE_CHECKING:
    # Imported when something is followed: applying policies once needs no event loop.
    import asyncio

    from tierwall.analyze.admission import AdmissionIndex

State = TypeVar("State")


class ReadableSource(Protocol):
    """A source of objects that can be read."""

    def read(self) -> LoadResult | None:
        """Return all objects as they are now; None if nothing has changed. InputError if nothing can be read at all.

        Called in a thread, never twice at the same time.
        """


class ObjectSource(ReadableSource, Protocol):
    """A source that also reports changes: files (`serve.files`), or a cluster with files over it (`serve.cluster`)."""

    def changes(self, stop: asyncio.Event) -> AsyncGenerator[None, None]:
        """Yield once when no change can be missed any more, then on every possible change, until `stop` is set."""

    def nudge(self) -> None:
        """Make `changes` yield now."""


class LoadOutcome(StrEnum):
    """The outcome of a load."""

    TAKEN = "taken"
    # The load equals the state in force.
    UNCHANGED = "unchanged"
    REFUSED = "refused"


class PreparedState(NamedTuple, Generic[State]):
    """The state that an engine prepared from a snapshot, and its diagnostics, which keep nothing out."""

    state: State
    diagnostics: tuple[Diagnostic, ...] = ()


class Load(Struct, Generic[State]):
    """One reading of the source. `state` is absent if the load is refused, `loaded` if nothing could be read.

    `diagnostics` has everything that is wrong. `refusal` has those of them that keep the whole load out. `unreported`
    has those that the load before did not have: a thousand old problems are not reported again with every change.
    """

    loaded: LoadResult | None
    diagnostics: tuple[Diagnostic, ...]
    refusal: tuple[Diagnostic, ...] = ()
    unreported: tuple[Diagnostic, ...] = ()
    state: State | None = None
    seconds: float = 0.0
    outcome: LoadOutcome | None = None

    @property
    def snapshot(self) -> Snapshot:
        """The objects of a load that could be read."""
        assert self.loaded is not None
        return self.loaded.snapshot

    def refuse(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        """Keep the whole load out, for these reasons."""
        self.refusal = sorted_diagnostics((*self.refusal, *diagnostics))
        self.diagnostics = sorted_diagnostics((*self.diagnostics, *diagnostics))
        self.state, self.outcome = None, LoadOutcome.REFUSED


def problems(loaded: LoadResult, index: AdmissionIndex | None = None) -> Diagnostics:
    """Return what is wrong with files and objects, whichever engine enforces them; `index` has the load before."""
    # Imported by the first reading: `compile` does without the validation of every kind.
    from tierwall.analyze.admission import AdmissionIndex

    findings = (index or AdmissionIndex()).findings(loaded.snapshot)
    return sorted_diagnostics((*loaded.diagnostics, *findings))


class Follower(ABC, Generic[State]):
    """Keeps an engine in step with a source.

    INVARIANT: `next_load` may run in a thread, one call at a time; everything else happens in the event loop. The load
    in force is replaced as a whole, so other threads may read it.
    """

    def __init__(self, count: Callable[[Load[State]], None] | None = None) -> None:
        """`count` is called with each load that was accepted or refused."""
        self._count = count
        self._admission: AdmissionIndex | None = None
        # The load in force, and the newest one.
        self.in_force: Load[State] | None = None
        self.newest: Load[State] | None = None
        # The number of loads by outcome, without the first.
        self.outcomes = {LoadOutcome.TAKEN: 0, LoadOutcome.UNCHANGED: 0, LoadOutcome.REFUSED: 0}

    @abstractmethod
    def prepare(self, snapshot: Snapshot) -> PreparedState[State]:
        """Prepare a snapshot without changing anything.

        The snapshot has every object that was read, also those that an API server would refuse. What is wrong with an
        object closes its targets or leaves it out, with a diagnostic. InputError refuses the whole load: it is for
        faults of the machine or of the source as a whole, never for the fault of one object.
        """

    @abstractmethod
    def enforce(self, load: Load[State]) -> bool:
        """Bring a prepared load into force; False if it already was. After an InputError nothing has changed."""

    @property
    def refusal(self) -> tuple[Diagnostic, ...]:
        """The reasons why something that must be in force may not be; none if the newest load is in force.

        An older load then stays in force as a whole, or below a named folder that cannot be read.
        """
        load = self.newest
        if load is None:
            return ()
        return load.refusal or (load.loaded.lost if load.loaded is not None else ())

    def next_load(self, source: ReadableSource) -> Load[State] | None:
        """Read, check and prepare the objects; None if nothing has changed. Nothing comes into force yet."""
        load: Load[State] = Load(None, ())
        try:
            load.loaded = source.read()
            if load.loaded is None:
                return None
            start = time.perf_counter()
            load.diagnostics = self._problems(load.loaded)
            if unreadable := load.loaded.diagnostics.unreadable:
                load.refuse(unreadable)
            else:
                load.state, noticed = self.prepare(load.snapshot)
                load.diagnostics = sorted_diagnostics((*load.diagnostics, *noticed))
            load.seconds = time.perf_counter() - start
        except InputError as error:
            load.refuse(error.diagnostics)
        except Exception as error:
            # At the start there is no state to keep, and the whole traceback helps to fix the error.
            if self.in_force is None:
                raise
            load.refuse((unexpected(error),))
        return load

    def _problems(self, loaded: LoadResult) -> Diagnostics:
        from tierwall.analyze.admission import AdmissionIndex

        self._admission = self._admission or AdmissionIndex()
        return problems(loaded, self._admission)

    def accept(self, load: Load[State]) -> LoadOutcome:
        """Bring a load into force unless it is refused; InputError if there is no other state to keep."""
        reported = frozenset(self.newest.diagnostics) if self.newest is not None else frozenset()
        self.newest, first = load, self.in_force is None
        if not load.refusal:
            try:
                load.outcome = LoadOutcome.TAKEN if self.enforce(load) else LoadOutcome.UNCHANGED
            except InputError as error:
                load.refuse(error.diagnostics)
        assert load.outcome is not None
        if load.outcome is not LoadOutcome.REFUSED:
            self.in_force = load
        load.unreported = tuple(diagnostic for diagnostic in load.diagnostics if diagnostic not in reported)
        self.outcomes[load.outcome] += not first
        if self._count is not None:
            self._count(load)
        if self.in_force is None:
            raise InputError(load.diagnostics, load.loaded)
        return load.outcome

    def begin(self, source: ReadableSource) -> Load[State]:
        """Bring the objects as they are now into force; InputError with everything that is wrong."""
        load = self.next_load(source)
        assert load is not None, "the first reading always finds objects to load"
        self.accept(load)
        return load

    async def follow(self, source: ObjectSource, stop: asyncio.Event) -> AsyncGenerator[Load[State], None]:
        """Yield each load once it is accepted or refused, until `stop` is set.

        Changes that arrive meanwhile are read together. InputError if nothing is in force and the first is refused.
        """
        import asyncio

        async with aclosing(source.changes(stop)) as changes:
            async for _ in changes:
                load = await asyncio.to_thread(self.next_load, source)
                if load is not None and not stop.is_set():
                    self.accept(load)
                    yield load


def until_signalled(work: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine in its own event loop. SIGINT and SIGTERM set the event that tells it to stop."""
    import asyncio
    import signal

    async def main() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await work(stop)

    asyncio.run(main())


def unexpected(error: Exception) -> Diagnostic:
    """Return the diagnostic of an unexpected error, with the place where it was raised."""
    return Diagnostic("TW635", f"unexpected {failure_words(error)}")
