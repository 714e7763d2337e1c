"""Following files: says when some of them may have changed.

Folders are watched, not files: editors, ConfigMap volumes and certificate managers replace a file by renaming, and a
watch on the old one would hear no more. A look at the files themselves now and then covers file systems without events.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence

from tierwall.resources.signature import signature

LOOK_SECONDS = 10.0
STEP_MS, DEBOUNCE_MS, TIMEOUT_MS = 20, 200, 500


async def changes(paths: Sequence[str], stop: asyncio.Event) -> AsyncIterator[None]:
    """One item for each change of the files under `paths`, until `stop` is set."""
    from watchfiles import awatch

    loop = asyncio.get_running_loop()
    before = await asyncio.to_thread(signature, paths)
    while not stop.is_set():
        looked = loop.time()
        watched = sorted({folder for path in paths if os.path.isdir(folder := _folder(path))})
        try:
            if not watched:
                raise FileNotFoundError
            async for found in awatch(
                *watched,
                watch_filter=None,
                step=STEP_MS,
                debounce=DEBOUNCE_MS,
                rust_timeout=TIMEOUT_MS,
                yield_on_timeout=True,
                stop_event=stop,
            ):
                if found or loop.time() - looked > LOOK_SECONDS:
                    looked = loop.time()
                    now = await asyncio.to_thread(signature, paths)
                    if now != before:
                        before = now
                        yield
                    if not all(map(os.path.isdir, watched)):
                        # A folder that went away takes its watch with it.
                        break
        except (OSError, RuntimeError):
            await asyncio.sleep(0.2)
            now = await asyncio.to_thread(signature, paths)
            if now != before:
                before = now
                yield


def _folder(path: str) -> str:
    return path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))
