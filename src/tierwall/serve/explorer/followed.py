"""The world that is shown, kept up to date with its source. Every change has a number, which pages wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime

from tierwall.core.diagnostics import InputError
from tierwall.explore.home import home
from tierwall.explore.network import overview
from tierwall.explore.page import ExploredWorld
from tierwall.network.reach.own_classes import compute_own_rows
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.follower import Follower, Load, PreparedState
from tierwall.world import World


class ExplorerFollower(Follower[Snapshot]):
    """Follows a source, and keeps the last world that could be read."""

    def __init__(
        self,
        options: str,
        source: str,
        kubectl: str = "kubectl",
        computing: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`computing` is around all that is computed for a page; the rest is as in `ExploredWorld`."""
        super().__init__()
        self._options, self._source, self._kubectl, self.computing = options, source, kubectl, computing
        self.explored: ExploredWorld | None = None
        self.version = 0
        self.has_ended = False
        # Set and replaced with every change.
        self._news: asyncio.Event | None = None

    def prepare(self, snapshot: Snapshot) -> PreparedState[Snapshot]:
        """Nothing is compiled: pages compute what they show."""
        return PreparedState(snapshot)

    def enforce(self, load: Load[Snapshot]) -> bool:
        """Show what was read from now on."""
        assert load.loaded is not None
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        world = World.of(load.loaded)
        explored = ExploredWorld(world, load.loaded, self._options, self._source, now, self._kubectl)
        is_new = self.explored is None or explored.world.snapshot is not self.explored.world.snapshot
        self.explored = explored
        if is_new:
            self.version += 1
            # What the first pages need takes longest in a large world, and nobody should wait for it.
            threading.Thread(target=self._warm, args=(explored,), daemon=True).start()
        return is_new

    @property
    def problem(self) -> str:
        """The reason why what is shown is old; empty if it is not."""
        loaded = self.newest.loaded if self.newest is not None else None
        reasons = self.refusal or (loaded.errors if loaded is not None else ())
        if not reasons:
            return ""
        place = f"{reasons[0].at}: " if reasons[0].at is not None else ""
        return f"What you see may be old: {place}{reasons[0].message}"

    def tell(self) -> None:
        """Wake those who wait for a change."""
        if self._news is not None:
            self._news.set()
        self._news = asyncio.Event()

    def end(self) -> None:
        """End the streams: the server stops."""
        self.has_ended = True
        self.tell()

    async def wait(self, seconds: float) -> None:
        """Wait for a change, for so many seconds."""
        if self._news is None:
            self._news = asyncio.Event()
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            pass

    def _warm(self, explored: ExploredWorld) -> None:
        with self.computing(), suppress(InputError):  # a page says what is wrong
            # The first page needs less than the others and must not wait for them.
            home(explored, {})
            overview(explored.world.snapshot)
            compute_own_rows(explored.world.snapshot)
