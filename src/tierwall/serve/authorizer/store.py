"""The policies in force, the ones they superseded, and what is wrong with the newest edit.

A broken edit changes nothing but `trouble`. A superseded set is kept for a grace period, because an API server may
still hold an allowed answer of it: what that answer was granted on has to be enforced by admission (`bridge`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.serve.authorizer.policy_set import PolicySet, read_policies

# Longer than the API server's default `authorizedTTL` of five minutes.
GRACE_SECONDS = 330.0
# Superseded sets kept at once. A set may not be dropped early, so changes beyond this wait for the oldest to expire.
MOST_RETAINED = 64


class Store:
    """The policies of some paths. `clock` counts seconds.

    INVARIANT: `current` and the retained sets are replaced, never changed, and only by `take`, which runs in the event
    loop; `read` may run in another thread.
    """

    def __init__(
        self, paths: Sequence[str], grace: float = GRACE_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.paths = tuple(paths)
        self.grace = grace
        self._clock = clock
        self._superseded: deque[tuple[float, PolicySet]] = deque()
        self.trouble: tuple[Diagnostic, ...] = ()
        self.reloads = {"taken": 0, "unchanged": 0, "refused": 0}
        self.current = self.read()
        self.since = clock()

    def read(self) -> PolicySet:
        """The policies as they are in the files now; InputError if they cannot be used."""
        return read_policies(self.paths)

    def take(self, found: PolicySet) -> bool:
        """Put a set in force; false if it is the one in force already."""
        self.trouble = ()
        if found.revision == self.current.revision:
            self.reloads["unchanged"] += 1
            return False
        now = self._clock()
        self._superseded.append((now + self.grace, self.current))
        self.current, self.since = found, now
        self.reloads["taken"] += 1
        return True

    def refuse(self, error: InputError) -> None:
        """Keep the last good set, and say why."""
        self.trouble = error.diagnostics
        self.reloads["refused"] += 1

    @property
    def retained(self) -> tuple[PolicySet, ...]:
        """The superseded sets that an answer may still be out of, newest first."""
        if not self._superseded:
            return ()
        now = self._clock()
        while self._superseded and self._superseded[0][0] <= now:
            self._superseded.popleft()
        return tuple(one for _, one in reversed(self._superseded))

    @property
    def wait(self) -> float:
        """Seconds until another set may be taken."""
        if len(self.retained) < MOST_RETAINED:
            return 0.0
        return max(0.0, self._superseded[0][0] - self._clock())

    @property
    def age(self) -> float:
        """Seconds since the current set came into force."""
        return self._clock() - self.since
