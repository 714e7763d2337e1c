"""A source that something else attends to between two loads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from tierwall.resources.load import LoadResult
from tierwall.serve import attended
from tierwall.serve.attended import AttendedSource


class PollingSource:
    """Looks for changes far more often than there are any."""

    def read(self) -> LoadResult | None:
        return None

    async def changes(self, stop: asyncio.Event) -> AsyncGenerator[None, None]:
        while not stop.is_set():
            yield
            await asyncio.sleep(0.01)

    def nudge(self) -> None:
        """Nobody nudges it here."""


def test_a_source_that_only_looks_for_changes_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attended, "IDLE_S", 0.2)
    told: list[bool] = []

    async def attend(idle: bool) -> bool:
        told.append(idle)
        return False

    async def follow() -> None:
        stop = asyncio.Event()
        source = AttendedSource(PollingSource(), attend, asyncio.Event())
        async with aclosing(source.changes(stop)) as changes:
            async for _ in changes:
                source.read()
                if told.count(True) == 2:
                    stop.set()

    asyncio.run(asyncio.wait_for(follow(), 60))
    # It is idle now and then, not at every look.
    assert 2 == told.count(True) < told.count(False)
