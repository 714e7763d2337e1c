"""The most CPU that one list may cost: all lists share one process (docs/run.md#lists)."""

from __future__ import annotations

import time


class CpuLimit:
    """Counts the CPU of its thread, from now on.

    The kernel takes longer to tell the CPU than most expressions take, so the clock is read first: what has not taken
    this long cannot have cost this much.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began, self._cpu = time.perf_counter(), time.thread_time()

    @property
    def is_reached(self) -> bool:
        """Whether this much CPU is spent."""
        if time.perf_counter() - self._began <= self._seconds:
            return False
        return time.thread_time() - self._cpu > self._seconds
