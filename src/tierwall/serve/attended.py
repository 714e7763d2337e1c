"""A source of objects whose follower also attends to something else, between two loads and never during one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from tierwall.resources.load import LoadResult
from tierwall.serve.follower import ObjectSource

# How long nothing must happen before `attend` is told that it is idle, in seconds.
IDLE_S = 2.0
# How long a change waits for an answer that is due, in seconds: many changes a second must not starve the search.
PATIENCE_S = 0.3
# Attends once, told whether nothing has happened for a while; returns whether another call may follow soon.
Attend = Callable[[bool], Awaitable[bool]]


class AttendedSource:
    """A source that calls `attend` whenever `wake` is set, after every load, and when it is idle."""

    def __init__(self, source: ObjectSource, attend: Attend, wake: asyncio.Event) -> None:
        self.nudge = source.nudge
        self._source, self._attend, self._wake = source, attend, wake
        # When something last happened. A source may look for changes far more often than there are any.
        self._happened = time.monotonic()

    def read(self) -> LoadResult | None:
        """Return all objects as they are now; None if nothing has changed."""
        loaded = self._source.read()
        if loaded is not None:
            self._happened = time.monotonic()
        return loaded

    async def changes(self, stop: asyncio.Event) -> AsyncGenerator[None, None]:
        """Yield on every possible change of the source."""
        async with aclosing(self._source.changes(stop)) as changes:
            while True:
                coming = asyncio.ensure_future(anext(changes, False))
                try:
                    await self._until(coming)
                finally:
                    if not coming.done():
                        coming.cancel()
                        await asyncio.wait((coming,))
                if coming.result() is False:
                    return
                yield

    async def _until(self, coming: asyncio.Future[Any]) -> None:
        """Attend until a change is there; at least once, and if an answer is due, until it was processed."""
        loop = asyncio.get_running_loop()
        deadline: float | None = None
        while True:
            idle = not self._wake.is_set() and time.monotonic() - self._happened >= IDLE_S
            if idle or self._wake.is_set():
                self._happened = time.monotonic()
            self._wake.clear()
            expects_more = await self._attend(idle)
            if coming.done():
                deadline = loop.time() + PATIENCE_S if deadline is None else deadline
                if not expects_more or loop.time() >= deadline:
                    return
            waking = asyncio.ensure_future(self._wake.wait())
            awaited = (waking,) if coming.done() else (waking, coming)
            timeout = IDLE_S if deadline is None else max(0.0, deadline - loop.time())
            try:
                await asyncio.wait(awaited, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waking.cancel()
