"""Watching manifests: everything is read anew after each change, and given on with all that is wrong with it.

Whether a load comes into force is for the caller to say; a broken edit must leave the last good state alone. Standard
input (`-`) is read once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from tierwall.resources.load import Loaded, load

STDIN = "-"
# Editors and `kubectl` write several files in a row: changes this close (in milliseconds) are one. `STEP` is how long
# the folder must be quiet, `LONGEST` how long a stream of changes can put a load off.
STEP, LONGEST = 10, 100


async def loads(paths: Sequence[str], stop: asyncio.Event) -> AsyncIterator[Loaded]:
    """The manifests as they are, then again after each change, until `stop` is set."""
    from watchfiles import awatch

    watched = [path for path in paths if path != STDIN and Path(path).exists()]
    if not watched:
        yield load(paths)
        await stop.wait()
        return
    # Watching begins before reading, so that no change in between is missed.
    watcher = awatch(*watched, step=STEP, debounce=LONGEST, rust_timeout=500, yield_on_timeout=True, stop_event=stop)
    first = await anext(watcher, None)
    if first is None:
        return
    yield load(paths)
    async for changes in watcher:
        if changes:
            yield load([path for path in paths if path != STDIN])
