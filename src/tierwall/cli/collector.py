"""Keep the garbage collector of a command off while files are read, and away from what was read.

Loaded objects have no reference cycles. Searching them for garbage takes several times as long as loading them, and
the first search afterwards would walk through all of them. The library itself leaves the collector alone: the
collector belongs to the whole process, and only a command owns its process.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from tierwall.resources.load import Loader, LoadResult

# From this number of containers on, the collector is kept away from them; a Pod has about sixty.
MANY_CONTAINERS = 100_000


def restore_collector() -> None:
    """Restore Python's thresholds.

    `__main__` raises them for commands that end soon; in a server, garbage would pile up.
    """
    gc.set_threshold(700, 10, 10)


@contextmanager
def collector_off(*, first: bool = True) -> Iterator[None]:
    """Keep the collector off; after the first load, keep it away from the loaded objects too.

    Not after later loads: the garbage that a server has by then would never be found.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if first and gc.get_count()[0] > MANY_CONTAINERS:
            gc.freeze()
        if collecting:
            gc.enable()


class CommandLoader(Loader):
    """A loader that reads with the collector off."""

    def load(self) -> LoadResult:
        """Load everything as it is now. Problems are collected, never raised."""
        with collector_off(first=not self.has_loaded):
            return super().load()
