"""Watching manifests: after each change they are given on as they are now, with all that is wrong with them.

Only what has changed is read anew; the rest are the objects of the load before (`resources.load.Loader`).

Whether a load comes into force is for the caller to say; a broken edit must leave the last good state alone. Standard
input (`-`) is read once and counts for every load.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path

from tierwall.resources.load import Loaded, Loader

STDIN = "-"
# Editors and `kubectl` write several files in a row: changes this close (in milliseconds) are one. `STEP` is how long
# the folder must be quiet, `LONGEST` how long a stream of changes can put a load off.
STEP, LONGEST = 10, 100


async def loads(paths: Sequence[str], stop: asyncio.Event) -> AsyncIterator[Loaded]:
    """The manifests as they are, then again after each change of what is in them, until `stop` is set."""
    files = [path for path in paths if path != STDIN]
    loader = Loader(paths)
    changed, watchers = asyncio.Event(), []
    folders = [path for path in files if Path(path).is_dir()]
    if folders:
        watchers.append(_Watcher(folders, None, changed, stop))
    # An editor replaces a file by another of its name, so what is watched is the folder that it is in.
    single = {Path(path).absolute() for path in files if Path(path).is_file()}
    if single:
        watchers.append(_Watcher(sorted({str(one.parent) for one in single}), single, changed, stop))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        # Watching begins before reading, so that no change in between is missed.
        for watcher in watchers:
            await watcher.begun.wait()
        while not stop.is_set():
            changed.clear()
            loaded = await asyncio.to_thread(loader.news)
            if loaded is not None:
                yield loaded
            waiting = asyncio.ensure_future(changed.wait())
            await asyncio.wait((waiting, stopping), return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
    finally:
        stopping.cancel()
        for watcher in watchers:
            await watcher.close()


class _Watcher:
    """Sets `changed` on each change below some folders; with `single`, only of these files beside each other."""

    def __init__(
        self, folders: Sequence[str], single: set[Path] | None, changed: asyncio.Event, stop: asyncio.Event
    ) -> None:
        self.begun = asyncio.Event()
        self._task = asyncio.create_task(self._watch(folders, single, changed, stop))

    async def _watch(
        self, folders: Sequence[str], single: set[Path] | None, changed: asyncio.Event, stop: asyncio.Event
    ) -> None:
        from watchfiles import awatch

        async for changes in awatch(
            *folders,
            # Any change counts: what is read may be a link to what is passed over, and looking costs little. The filter
            # that comes with it leaves out folders of some names, even if they are above those that are watched.
            watch_filter=None,
            step=STEP,
            debounce=LONGEST,
            # The first time-out says that watching has begun; after that it only bounds how long an end takes.
            rust_timeout=100,
            yield_on_timeout=True,
            stop_event=stop,
            recursive=single is None,
        ):
            self.begun.set()
            # A mounted ConfigMap changes by a link beside the file, which is named `..data`.
            if any(single is None or Path(path) in single or Path(path).name.startswith("..") for _, path in changes):
                changed.set()
        self.begun.set()

    async def close(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
