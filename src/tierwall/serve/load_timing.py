"""How soon after a load the next one may begin (docs/clusters.md#following).

Work is paid for in rest: `REST_TIMES` its CPU time. What is owed melts away with time. Up to `FREE_S` nobody has to
rest, so a handful of changes in quick succession comes into force at once; a stream of changes that does not end leaves
the processor alone most of the time. No rest is longer than `LONGEST_REST_S`: a change has a second to come into force.

CPU time counts, and not how long a load took: most of a small load is spent waiting for the kernel, and on a busy
machine for a processor. Resting after that would only make the next change later.
"""

from __future__ import annotations

import resource
import time

# A second of work is free.
REST_TIMES, FREE_S, LONGEST_REST_S = 19, 19.0, 0.5


class LoadTiming:
    """What is owed by the loads so far. Times are those of one clock, in seconds."""

    def __init__(self) -> None:
        self._owed = self._ended = 0.0

    def count(self, began: float, ended: float, work: float) -> None:
        """Count a load that took so many seconds of CPU time."""
        owed = max(0.0, self._owed - (began - self._ended)) + REST_TIMES * work
        # One long load must not slow the next ones down for minutes.
        self._owed = min(owed, FREE_S + LONGEST_REST_S)
        self._ended = ended

    def rest(self, now: float) -> float:
        """Return how long to wait from now on before the next load."""
        return max(0.0, min(self._owed - FREE_S, LONGEST_REST_S) - (now - self._ended))


def cpu_seconds() -> float:
    """Return the CPU time of this process and of the programs that it has run."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
