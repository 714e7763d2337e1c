"""The garbage collector of a command's process: off while files are read, and blind to what was read.

What loading builds has no cycles. To look for some all the same takes several times as long as the loading itself, and
the first search afterwards would walk through everything that was loaded. The library leaves the collector alone,
because it is one for the whole process, whoever that belongs to; the process of a command belongs to the command.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from tierwall.resources.load import Loaded, Loader

# Containers that make it worth while to keep the collector from walking through them; a Pod has some sixty.
MANY = 100_000


def collect_as_usual() -> None:
    """Let the collector run as often as Python does by itself.

    A command that ends soon has it run seldom (`__main__`); in a process that stays, garbage would pile up.
    """
    gc.set_threshold(700, 10, 10)


@contextmanager
def uncollected(*, first: bool = True) -> Iterator[None]:
    """Keep the collector off, and after the first bulk of objects also away from them.

    Later on that is not done: what a process that stays has for garbage by then would never be found.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if first and gc.get_count()[0] > MANY:
            gc.freeze()
        if collecting:
            gc.enable()


class CommandLoader(Loader):
    """A loader that reads with the collector off."""

    def load(self) -> Loaded:
        """Everything as it is now; problems are collected, never raised."""
        with uncollected(first=not self.has_loaded):
            return super().load()
