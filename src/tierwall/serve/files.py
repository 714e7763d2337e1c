"""Files and folders as a source of objects: read again after every change, and never caught half written.

While a source is followed, a changed file counts when its change has settled (`resources.settling`). What is broken,
suddenly empty or cannot be read keeps what it had (`serve.retention`).
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING

from tierwall.resources.settling import FileSettlement
from tierwall.serve.retention import Retention

if TYPE_CHECKING:
    # Imported when something is followed: applying policies once needs no event loop.
    import asyncio

    from tierwall.resources.load import Loader, LoadResult
    from tierwall.serve.state import StateFolder


class FileSource:
    """Files and folders as a source. `poll_seconds`: how often to look if the file system reports no change.

    Only changed files are read again; the other objects are those of the previous load. `state` has copies of the
    files, for a start that finds one broken.
    """

    def __init__(
        self,
        loader: Loader,
        poll_seconds: float | None = None,
        state: StateFolder | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loader, self._poll_seconds, self._clock = loader, poll_seconds, clock
        self._retention = loader.retention = Retention(loader.paths, state, clock)
        self._settlement: FileSettlement | None = None
        self._changed: asyncio.Event | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """The files and folders."""
        return self._loader.paths

    def read(self) -> LoadResult | None:
        """Return all objects as they are now; None if nothing has changed. Never raises: problems are diagnostics."""
        # The first reading has nothing that could count until a change has settled.
        self._loader.cache.settlement = self._settlement if self._loader.has_loaded else None
        return self._loader.load_if_changed()

    def changes(self, stop: asyncio.Event) -> AsyncGenerator[None, None]:
        """Yield once when watching has started, then whenever files may have changed, until `stop` is set."""
        from asyncio import Event

        from tierwall.serve.watch import changes

        self._changed = Event()
        # Only now: a change that has not settled is read again, but without a follower nobody would do that.
        self._settlement = FileSettlement(self._clock)
        return changes(self._loader.paths, stop, self._changed, self._poll_seconds, self._seconds_to_wait)

    def nudge(self) -> None:
        """Look at the files now, whether they have changed or not."""
        if self._changed is not None:
            self._changed.set()

    def _seconds_to_wait(self) -> float | None:
        """Return in how many seconds the files must be read again, even if nothing changes."""
        assert self._settlement is not None
        due = [at for at in (self._settlement.due, self._retention.due) if at is not None]
        return max(0.0, min(due) - self._clock()) if due else None
