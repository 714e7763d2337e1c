"""The rules of an election by Lease, without requests and without a clock of its own (docs/controller.md#election).

Candidates note by their own clocks when they last saw the record change, and take it over when the holder is empty or
`leaseDurationSeconds` of the record have passed since. No time in the record is compared with a clock, so clocks that
differ do no harm. A leader counts from the moment at which it began to send a renewal that was answered: the others
cannot have seen that renewal earlier. It stops `renew_deadline` later, which is less than the duration, so clocks may
even run at different speeds.
"""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

from tierwall.serve.leases import LeaseRecord, LeaseSpec


class LeaseTiming(Struct, frozen=True):
    """The times of an election, in seconds."""

    duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0

    # So much longer than `retry_period` a pause may be, so that candidates do not all ask at once.
    JITTER = 0.25
    # `leaseDurationSeconds` has 32 bits: an API server refuses more, and nobody would lead.
    LONGEST = 2**31 - 1

    @property
    def problem(self) -> str:
        """What is wrong with the times; empty if nothing is."""
        if not self.duration > self.renew_deadline:
            return "the lease must last longer than the renewal deadline"
        if self.duration > self.LONGEST:
            return f"the lease can last {self.LONGEST} s at most"
        if not self.renew_deadline > self.retry_period * (1 + self.JITTER):
            return f"the renewal deadline must be longer than the retry period and {self.JITTER:.0%}"
        if not self.retry_period > 0:
            return "the retry period must be longer than 0s"
        return ""


class LeaseState:
    """The knowledge of one candidate. Every `now` is of its own clock, which never goes back or stands still."""

    def __init__(self, identity: str, timing: LeaseTiming) -> None:
        self._identity, self._timing = identity, timing
        self._record: LeaseRecord | None = None
        # When the record was first seen as it is.
        self._seen = -math.inf
        # `acquireTime` of the record with which this process has become the holder. Another process may have the same
        # identity, by mistake or before a restart.
        self._acquired = ""
        # Until when this process may write.
        self._until = -math.inf
        # Counts the times in which it may write without a gap.
        self.term = 0

    def may_write(self, now: float) -> bool:
        """Whether the lease is ours for certain."""
        return now < self._until

    def see(self, record: LeaseRecord | None, now: float) -> None:
        """Note the record as it was read just now; None without a Lease."""
        if self._record is None or record is None or record.spec != self._record.spec:
            self._seen = now
        self._record = record
        if not self._is_ours:
            self._until = -math.inf

    @property
    def _is_ours(self) -> bool:
        spec = self._record.spec if self._record is not None else LeaseSpec()
        return bool(self._acquired) and (spec.holder_identity, spec.acquire_time) == (self._identity, self._acquired)

    @property
    def is_renewal(self) -> bool:
        """Whether the record is ours as far as this process knows, so that it can be renewed without reading it."""
        return self._is_ours

    def free_in(self, now: float) -> float:
        """Return in how many seconds the lease may be taken; 0 if it may be now."""
        if self._record is None or self._is_ours or not self._record.spec.holder_identity:
            return 0.0
        seconds = self._record.spec.lease_duration_seconds
        return max(0.0, self._seen + (self._timing.duration if seconds is None else seconds) - now)

    def wanted(self, now: float, wall_time: str) -> LeaseRecord | None:
        """Return the record to write: a renewal, or one with which to take the lease; None if another holds it.

        `wall_time` is what people read in the record; nobody compares it with anything.
        """
        if self.free_in(now) > 0:
            return None
        spec = self._record.spec if self._record is not None else LeaseSpec()
        acquired, transitions = spec.acquire_time, spec.lease_transitions or 0
        if not self._is_ours:
            acquired = self._acquired = wall_time
            transitions += self._record is not None
        return LeaseRecord(
            LeaseSpec(self._identity, math.ceil(self._timing.duration), acquired, wall_time, transitions),
            self._record.version if self._record is not None else "",
        )

    def wrote(self, record: LeaseRecord, started: float) -> None:
        """Note that the server has taken a record that `wanted` returned; `started` is when the request began."""
        self._record, self._seen = record, started
        if started >= self._until:
            # Somebody else may have had the lease meanwhile: what was read before does not count any more.
            self.term += 1
        self._until = started + self._timing.renew_deadline

    def give_up(self) -> LeaseRecord | None:
        """Stop writing; return the record that gives the lease back, or None if it is not ours."""
        self._until = -math.inf
        if self._record is None or not self._is_ours:
            return None
        spec = replace(self._record.spec, holder_identity="", lease_duration_seconds=1)
        return replace(self._record, spec=spec)
