"""Leadership by the Lease `tierwall-controller`, and writes that only a leader sends (docs/controller.md#election).

A clock alone does not fence: a process may be paused between the look at its clock and the write. So every write also
carries the `resourceVersion` that was read in the same term: the API server refuses it if anybody has written since.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress

import msgspec

from tierwall.cluster.access import ClusterAccess
from tierwall.cluster.connection import Connection
from tierwall.cluster.failures import ApiServerError, ClusterError, failure_reason
from tierwall.cluster.reply import ServerReply
from tierwall.core.protocols import EngineReport
from tierwall.errors import TierwallError
from tierwall.serve.controller.lease import LeaseState, LeaseTiming
from tierwall.serve.leases import LeaseClient, LeaseRecord, wall_time

LEASE_NAME = "tierwall-controller"
# How long giving the lease back may wait for the answers to the last writes, in seconds.
_LAST_WRITES_S = 5.0


class NotLeadingError(TierwallError):
    """This process does not lead, or no longer in the term in which an object was read. Nothing was sent."""


def boot_time() -> float:
    """Return the seconds since the machine was started, those in which it was suspended included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Leadership:
    """Whether this process may write now.

    INVARIANT: everything happens in one event loop, and `may_write` looks at the clock each time it is asked.
    """

    def __init__(
        self,
        access: ClusterAccess,
        namespace: str,
        identity: str,
        timing: LeaseTiming,
        send_report: Callable[[EngineReport], None],
    ) -> None:
        """`namespace` is that of the Lease."""
        self._leases = LeaseClient(namespace, "tierwall")
        self._identity, self._timing = identity, timing
        self._send_report = send_report
        # Status writes must not delay renewals, so renewals have a connection of their own.
        self._connection = Connection(access, timing.renew_deadline / 2)
        self._state = LeaseState(identity, timing)
        self._is_closing = False
        self._in_flight = 0
        self._was_leading = False
        self._last_failure = ""
        self._news = asyncio.Event()

    @property
    def may_write(self) -> bool:
        """Whether this process leads at this moment."""
        return not self._is_closing and self._state.may_write(boot_time())

    @property
    def term(self) -> int:
        """The number of the term: what was read in an earlier one may not be written."""
        return self._state.term

    def check(self, term: int) -> None:
        """Raise NotLeadingError unless this process leads in this term."""
        if term != self._state.term or not self.may_write:
            raise NotLeadingError("another replica may lead by now")

    async def wait_to_lead(self, stop: asyncio.Event) -> bool:
        """Wait until this process leads; False if `stop` is set before."""
        while not self.may_write and not stop.is_set():
            self._news.clear()
            waiting = [asyncio.ensure_future(event.wait()) for event in (self._news, stop)]
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for future in waiting:
                    future.cancel()
        return not stop.is_set()

    @asynccontextmanager
    async def writing(self, term: int) -> AsyncIterator[None]:
        """Keep the lease from being given back until a write is answered."""
        self.check(term)
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1

    async def run(self, stop: asyncio.Event) -> None:
        """Stand for election, and renew the lease, until `stop` is set."""
        while not stop.is_set():
            await self._attempt()
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), self._pause())

    def _pause(self) -> float:
        pause = self._timing.retry_period * random.uniform(1, 1 + LeaseTiming.JITTER)
        free_in = self._state.free_in(boot_time())
        # A lease that ends soon is taken when it ends.
        return min(pause, free_in) if free_in else pause

    async def _attempt(self) -> None:
        """Read the lease unless it is ours, then renew or take it if that is possible."""
        failure = ""
        try:
            if not self._state.is_renewal:
                await self._read()
            started = boot_time()
            wanted = self._state.wanted(started, wall_time())
            if wanted is not None:
                self._state.wrote(await self._write(wanted), started)
        except ApiServerError as error:
            if error.code == 409:
                # Somebody else was faster, or has changed something else in the Lease.
                with suppress(ClusterError, msgspec.DecodeError):
                    await self._read()
            else:
                failure = failure_reason(error)
        except (ClusterError, msgspec.DecodeError) as error:
            failure = failure_reason(error)
        self._report(failure)

    async def _read(self) -> None:
        self._state.see(await self._leases.read(self._connection, LEASE_NAME), boot_time())

    async def _write(self, wanted: LeaseRecord) -> LeaseRecord:
        written = await self._leases.write(self._connection, LEASE_NAME, wanted)
        return LeaseRecord(wanted.spec, written.version)

    def _report(self, failure: str) -> None:
        is_leading = self.may_write
        if is_leading is not self._was_leading:
            self._was_leading = is_leading
            words = f"`{self._identity}` leads" if is_leading else f"`{self._identity}` no longer leads"
            self._send_report(EngineReport(words))
        if is_leading:
            self._news.set()
        if failure and failure != self._last_failure:
            self._send_report(EngineReport(f"the lease `{LEASE_NAME}` cannot be read or renewed: {failure}"))
        self._last_failure = failure

    async def close(self) -> None:
        """Give the lease back after the last write was answered."""
        self._is_closing = True
        end = boot_time() + _LAST_WRITES_S
        while self._in_flight and boot_time() < end:
            await asyncio.sleep(0.01)
        given_back = self._state.give_up()
        # A write without an answer may still be on its way: then the lease must end by itself.
        if given_back is not None and not self._in_flight:
            with suppress(ClusterError, msgspec.DecodeError):
                await self._write(given_back)
        await self._connection.close()


class FencedConnection:
    """A connection for writes that only a leader may send."""

    def __init__(self, connection: Connection, leadership: Leadership) -> None:
        self.connection, self._leadership = connection, leadership

    async def send(
        self,
        term: int,
        method: str,
        path: str,
        content: bytes | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> ServerReply:
        """Send a write of a term, as `Connection.send` does. NotLeadingError if the term is over: nothing is sent.

        The clock is looked at when the connection is open and the first byte is due.
        """
        async with self._leadership.writing(term):
            return await self.connection.send(
                method, path, content, query, content_type, check=lambda: self._leadership.check(term)
            )
