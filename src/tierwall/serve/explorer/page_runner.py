"""Threads that compute pages. None of them keeps the program from ending, however long its page takes.

The threads of `asyncio.to_thread` are waited for at the end, and so is a page that takes minutes: Ctrl-C must not.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")
# The most pages that are computed at a time; others wait.
MAX_PAGES = 4


class ServerEnds(Exception):
    """The server ends before the page is done."""


class PageRunner:
    """Runs functions in threads, a few at a time, until the end."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(MAX_PAGES)
        self._waiting: set[asyncio.Future[Any]] = set()
        self._has_ended = False

    async def run(self, compute: Callable[[], T]) -> T:
        """Run a function in a thread, and return what it returns or raise what it raises; ServerEnds at the end."""
        async with self._free:
            if self._has_ended:
                raise ServerEnds
            loop = asyncio.get_running_loop()
            done: asyncio.Future[T] = loop.create_future()

            def settle(set_outcome: Callable[..., None], outcome: Any) -> None:
                if not done.done():
                    set_outcome(outcome)

            def work() -> None:
                set_outcome: Callable[..., None] = done.set_result
                try:
                    outcome: Any = compute()
                except BaseException as error:
                    set_outcome, outcome = done.set_exception, error
                # The loop may have ended meanwhile.
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(settle, set_outcome, outcome)

            self._waiting.add(done)
            try:
                threading.Thread(target=work, name="page", daemon=True).start()
                return await done
            finally:
                self._waiting.discard(done)

    def end(self) -> None:
        """Wait for no page any more."""
        self._has_ended = True
        for done in self._waiting:
            if not done.done():
                done.set_exception(ServerEnds())
