"""The policies in force, the ones they superseded, and what is wrong with the newest edit.

A broken edit changes nothing but `trouble`. A superseded set is kept for a grace period, because an API server may
still hold an allowed answer of it: what that answer was granted on has to be enforced by admission (`bridge`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.resources.load import Loader
from tierwall.serve.authorizer.policy_set import PolicySet, policy_set

# Longer than the API server's default `authorizedTTL` of five minutes.
GRACE_SECONDS = 330.0
# Superseded sets kept at once. A set may not be dropped early, so changes beyond this wait for the oldest to expire.
MOST_RETAINED = 64


class Store:
    """The policies that a loader reads. `clock` counts seconds; without `grace` no superseded set is kept.

    INVARIANT: `current` and the retained sets are replaced, never changed, and only in the event loop (`take`, `wait`,
    `expire`). Other threads may look at them, and `read` may run in one, one at a time.
    """

    def __init__(
        self, loader: Loader, grace: float = GRACE_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._loader = loader
        self.grace = grace
        self._clock = clock
        # With the end of its time, the oldest first.
        self._superseded: tuple[tuple[float, PolicySet], ...] = ()
        self.trouble: tuple[Diagnostic, ...] = ()
        self.reloads = {"taken": 0, "unchanged": 0, "refused": 0}
        self.current = policy_set(self._loader.load())
        self.since = clock()

    def read(self) -> PolicySet | None:
        """The policies as they are in the files now; None if nothing has changed, InputError if they cannot be used."""
        loaded = self._loader.news()
        return policy_set(loaded) if loaded is not None else None

    def take(self, found: PolicySet) -> bool:
        """Put a set in force; false if it is the one in force already."""
        self.trouble = ()
        if found.revision == self.current.revision:
            self.reloads["unchanged"] += 1
            return False
        now, before = self._clock(), self.current
        if self.grace:
            # Policies that were in force twice are kept once, for the longer time.
            kept = ((end, one) for end, one in self._superseded if one.revision != before.revision)
            self._superseded = (*kept, (now + self.grace, before))
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
        superseded = self._superseded
        if not superseded:
            return ()
        now = self._clock()
        return tuple(policies for end, policies in reversed(superseded) if end > now)

    def expire(self) -> None:
        """Drop the sets whose time is over."""
        now = self._clock()
        self._superseded = tuple((end, policies) for end, policies in self._superseded if end > now)

    @property
    def wait(self) -> float:
        """Seconds until another set may be taken."""
        self.expire()
        if len(self._superseded) < MOST_RETAINED:
            return 0.0
        return max(0.0, self._superseded[0][0] - self._clock())

    @property
    def age(self) -> float:
        """Seconds since the current set came into force."""
        return self._clock() - self.since
