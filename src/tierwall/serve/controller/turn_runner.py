"""Users take turns in one thread, so that nobody's change keeps those of others waiting for long.

Who sends a hundred changes waits for their own. A task that takes long is ended, wherever it is at that moment: when
nobody waits for its answer any more, or after `TURN_S` while others wait.

Checks in every loop of an analysis would cost time, and the next analysis would lack them. So the interpreter raises
an exception in the thread (`PyThreadState_SetAsyncExc`). What a task shares with later ones must bear that: a cache
keeps complete values only.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any, Generic, TypeVar

T = TypeVar("T")
# So long may a task take while others wait; how often it is looked at, and told again to end.
TURN_S, LOOK_S = 0.5, 0.05
# Updates go before all users.
_UPDATE = ""


class _TaskEnds(BaseException):
    """The task has had its time. No analysis catches this."""


class _EndableThread(Generic[T]):
    """A thread for one task, which can be ended from outside."""

    def __init__(self, work: Callable[[], T], loop: asyncio.AbstractEventLoop) -> None:
        self.done: asyncio.Future[T] = loop.create_future()
        self._work, self._loop = work, loop
        self._thread = threading.Thread(target=self._run, name="warnings", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    def end(self) -> None:
        """Raise an exception in the thread; once may not be enough, as finalizers swallow exceptions."""
        ident = self._thread.ident
        if ident is not None and self.is_alive:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(_TaskEnds))

    def _run(self) -> None:
        # An end that comes late, as the task ends by itself, ends nothing but this thread.
        with suppress(_TaskEnds):
            set_outcome: Callable[..., None] = self.done.set_result
            try:
                outcome: Any = self._work()
            except Exception as error:
                set_outcome, outcome = self.done.set_exception, error
            # The loop may have ended meanwhile.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._settle, set_outcome, outcome)

    def _settle(self, set_outcome: Callable[..., None], outcome: Any) -> None:
        if not self.done.done():
            set_outcome(outcome)


class TurnRunner:
    """Runs tasks in a thread, one at a time. For one event loop."""

    def __init__(self) -> None:
        # The user whose turn is next comes first.
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._is_taken = False
        # Who has the turn, or had the last one.
        self._latest = _UPDATE
        self._running: _EndableThread[Any] | None = None
        self._ending: set[asyncio.Task[None]] = set()

    async def update(self, work: Callable[[], None]) -> None:
        """Run a task before those of all users. It is never ended."""
        await self._run(_UPDATE, work, inf)

    async def run(self, user: str, work: Callable[[], T], until: float) -> T:
        """Return what a task of a user returns; TimeoutError at `until`, by `time.monotonic`, or after its turn."""
        return await self._run(f"user {user}", work, until)

    def stop(self) -> None:
        """End what runs, whose outcome nobody wants any more."""
        if self._running is not None:
            self._running.end()

    async def _run(self, who: str, work: Callable[[], T], until: float) -> T:
        await self._turn(who, until)
        thread = _EndableThread(work, asyncio.get_running_loop())
        self._running = thread
        begun = time.monotonic()
        try:
            while not thread.done.done():
                left = until - time.monotonic()
                if self._waiting and until < inf:
                    left = min(left, begun + TURN_S - time.monotonic())
                if left <= 0:
                    raise TimeoutError
                await asyncio.wait((thread.done,), timeout=min(left, LOOK_S))
            return thread.done.result()
        finally:
            if thread.done.done():
                self._pass_on()
            else:
                # The answer does not wait for the end of the thread.
                ending = asyncio.create_task(self._end(thread))
                self._ending.add(ending)
                ending.add_done_callback(self._ending.discard)

    async def _turn(self, who: str, until: float) -> None:
        """Wait for the turn of a user."""
        if not self._is_taken:
            self._is_taken, self._latest = True, who
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(who, deque()).append(mine)
        if who == _UPDATE:
            self._waiting.move_to_end(who, last=False)
        try:
            async with asyncio.timeout(None if until == inf else until - time.monotonic()):
                await mine
        except BaseException:
            if mine.done() and not mine.cancelled():
                self._pass_on()
            else:
                self._leave(who, mine)
            raise

    def _leave(self, who: str, mine: asyncio.Future[None]) -> None:
        line = self._waiting.get(who)
        if line is not None and mine in line:
            line.remove(mine)
            if not line:
                del self._waiting[who]

    def _pass_on(self) -> None:
        """Let the next user run a task; whoever has just run one comes last."""
        self._running = None
        if self._latest in self._waiting:
            self._waiting.move_to_end(self._latest)
        while self._waiting:
            who, line = next(iter(self._waiting.items()))
            following = line.popleft()
            if not line:
                del self._waiting[who]
            if not following.done():
                self._latest = who
                following.set_result(None)
                return
        self._is_taken = False

    async def _end(self, thread: _EndableThread[Any]) -> None:
        while thread.is_alive:
            thread.end()
            await asyncio.sleep(LOOK_S)
        self._pass_on()
