"""Watching files and folders for possible changes, however they are made.

Standard input (`-`) is not watched: it is read once and is part of every load.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from pathlib import Path

from watchfiles import awatch

STDIN = "-"
# Editors and `kubectl` write several files in a row, so changes that follow each other closely are read together. A
# load waits until the folder has been quiet for `QUIET_MS`, but a stream of changes delays it by at most
# `MAX_DELAY_MS`.
QUIET_MS, MAX_DELAY_MS = 10, 100
# A round of watching ends after this time without a change. The end of the first round shows that watching has started.
ROUND_MS = 100
# How often to look at the files if no change is reported: some file systems report none, and no system reports a change
# behind a link or through another name of the file. A revocation has two seconds. Where looking takes long, it may take
# `POLL_SHARE` of the time.
POLL_SECONDS, LONGEST_POLL_SECONDS, POLL_SHARE = 0.5, 10.0, 0.05
# The same where nothing can be watched. It is also how soon a folder that replaces another is noticed.
UNWATCHED_POLL_SECONDS = 1.0


async def changes(
    paths: Sequence[str],
    stop: asyncio.Event,
    changed: asyncio.Event | None = None,
    poll_seconds: float | None = None,
    due: Callable[[], float | None] = lambda: None,
) -> AsyncGenerator[None, None]:
    """Yield once when watching has started, then whenever files may have changed, until `stop` is set.

    A change before the caller asks for the next item is part of that item, so no change between looking and waiting is
    missed. Setting `changed` counts as a change. `poll_seconds` is how often to look if no change is
    reported; `due` says in how many seconds to look again, if that is sooner.
    """
    changed = changed or asyncio.Event()
    files = [path for path in paths if path != STDIN]
    watchers = [_Watcher(files, folders, changed) for folders in (True, False)]
    stopping = asyncio.ensure_future(stop.wait())
    try:
        for watcher in watchers:
            await watcher.started.wait()
        while not stop.is_set():
            changed.clear()
            began = time.monotonic()
            yield
            took = time.monotonic() - began
            waiting = asyncio.ensure_future(changed.wait())
            soon = due()
            timeout = poll_seconds or min(max(POLL_SECONDS, took / POLL_SHARE), LONGEST_POLL_SECONDS)
            await asyncio.wait(
                (waiting, stopping),
                timeout=timeout if soon is None else min(timeout, soon),
                return_when=asyncio.FIRST_COMPLETED,
            )
            waiting.cancel()
    finally:
        stopping.cancel()
        for watcher in watchers:
            await watcher.close()


class _Watcher:
    """Sets `changed` when one of the paths changes: only those that are folders, or only those that are not.

    An editor replaces a file by another of the same name, so for a file its folder is watched.
    """

    def __init__(self, paths: Sequence[str], folders: bool, changed: asyncio.Event) -> None:
        self._paths = dict.fromkeys(Path(path).absolute() for path in paths)
        self._recursive, self._changed = folders, changed
        self.started = asyncio.Event()
        # An event of its own, because a cancelled watch sets the event that would end it.
        self._stopped = asyncio.Event()
        self._task = asyncio.create_task(self._watch())

    async def close(self) -> None:
        self._stopped.set()
        await self._task

    async def _watch(self) -> None:
        while not self._stopped.is_set():
            watched = self._folders()
            if watched:
                # A folder may disappear before it is watched, or the system may have no watches left.
                with suppress(OSError, RuntimeError):
                    await self._watch_folders(watched)
                self._changed.set()
            self.started.set()
            if self._folders() == watched:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopped.wait(), UNWATCHED_POLL_SECONDS)

    async def _watch_folders(self, watched: dict[str, tuple[int, int]]) -> None:
        """Watch folders until other folders take their names: a watch stays with a folder, whatever it is called."""
        quiet: int | None = None
        async with aclosing(
            awatch(
                *watched,
                # Any change counts: a file that is read may be a link to one that is not, and looking costs little. The
                # default filter leaves out folders of some names, even if they are above those watched.
                watch_filter=None,
                step=QUIET_MS,
                debounce=MAX_DELAY_MS,
                rust_timeout=ROUND_MS,
                yield_on_timeout=True,
                stop_event=self._stopped,
                recursive=self._recursive,
            )
        ) as rounds:
            async for changed_files in rounds:
                # A change before the first round may have gone unnoticed.
                if quiet is None or any(self._counts(Path(path)) for _, path in changed_files):
                    self._changed.set()
                self.started.set()
                quiet = 0 if changed_files else (quiet or 0) + ROUND_MS
                if quiet % int(UNWATCHED_POLL_SECONDS * 1000) == 0 and self._folders() != watched:
                    return

    def _folders(self) -> dict[str, tuple[int, int]]:
        """Return the folders to watch, with the device and inode of each."""
        out = {}
        for path in self._paths:
            if path.is_dir() is self._recursive:
                folder = path if self._recursive else path.parent
                with suppress(OSError):
                    status = folder.stat()
                    out[str(folder)] = status.st_dev, status.st_ino
        return out

    def _counts(self, path: Path) -> bool:
        # A mounted ConfigMap changes by a link beside the file, which is named `..data`.
        return self._recursive or path in self._paths or path.name.startswith("..")
