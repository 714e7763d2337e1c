"""The policies in force and the ones they superseded.

A superseded set is kept for a grace period, because an API server may still hold an allowed answer of it: what that
answer was granted on has to be enforced by admission (`bridge`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tierwall.resources.snapshot import Snapshot
from tierwall.serve.authorizer.policy_set import PolicySet, policy_set_of
from tierwall.serve.follower import Follower, Load, Prepared

# Longer than the API server's default `authorizedTTL` of five minutes.
GRACE_SECONDS = 330.0
# Superseded sets kept at once. A set may not be dropped early, so changes beyond this wait for the oldest to expire.
MOST_RETAINED = 64


class Store(Follower[PolicySet]):
    """Follows the policies. `clock` counts seconds; without `grace` no superseded set is kept.

    INVARIANT: `current` and the retained sets are replaced, never changed, and only in the event loop (`enforce`,
    `wait`, `expire`). Other threads may look at them.
    """

    # Absent until the first load is in force (`begin`).
    current: PolicySet

    def __init__(self, grace: float = GRACE_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.grace = grace
        self._clock = clock
        # With the end of its time, the oldest first.
        self._superseded: tuple[tuple[float, PolicySet], ...] = ()
        self.since = clock()

    def prepare(self, snapshot: Snapshot) -> Prepared[PolicySet]:
        """Put the chain of a snapshot together."""
        return Prepared(policy_set_of(snapshot))

    def enforce(self, load: Load[PolicySet]) -> bool:
        """Put a set in force; false if it is the one in force already."""
        policies = load.state
        assert policies is not None
        now = self._clock()
        if self.good is not None:
            before = self.current
            if policies.revision == before.revision:
                return False
            if self.grace:
                # Policies that were in force twice are kept once, for the longer time.
                kept = ((end, one) for end, one in self._superseded if one.revision != before.revision)
                self._superseded = (*kept, (now + self.grace, before))
        self.current, self.since = policies, now
        return True

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
