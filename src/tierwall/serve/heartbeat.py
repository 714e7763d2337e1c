"""The heartbeat of a node's agent: the Lease `tierwall-node-NODE` (docs/enforce-network.md#reports).

Two agents may run on a node while one replaces the other. The one that took the Lease last reports. The other notices
when it renews, and takes the Lease back if nobody renews it any more. No time in the record is compared with a clock.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

from tierwall.cluster.connection import Connection
from tierwall.cluster.failures import ApiServerError
from tierwall.serve.leases import LeaseClient, LeaseRecord, LeaseSpec, wall_time

HEARTBEAT_PREFIX = "tierwall-node-"


class HeartbeatSender:
    """Renews the Lease of a node, one step at a time."""

    def __init__(
        self, node: str, namespace: str, abandoned: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """A Lease that another agent holds is taken back when it has not changed for `abandoned` seconds."""
        self.identity = f"{os.environ.get('POD_NAME') or socket.gethostname()}_{os.urandom(4).hex()}"
        # The agent that reports for this node instead of this one.
        self.replaced_by = ""
        self._leases, self._name = LeaseClient(namespace, "tierwall-node-agent"), f"{HEARTBEAT_PREFIX}{node}"
        self._abandoned, self._clock = abandoned, clock
        # The Lease as it was last read or written, and since when it is as it is.
        self._lease: LeaseRecord | None = None
        self._seen = 0.0
        # Whether this agent has ever taken it.
        self._has_taken = False

    async def beat(self, connection: Connection) -> None:
        """Renew the Lease; take it at the start, and when the agent that has taken it since is gone."""
        known = self._lease
        # Whatever fails, the Lease is read again before the next attempt: it may have been written all the same.
        self._lease = None
        if known is None or self.replaced_by:
            known = await self._read(connection, known)
        if known is not None and self._has_taken and known.spec.holder_identity not in (None, "", self.identity):
            # Another agent may have taken it while nothing could be written here.
            self.replaced_by = known.spec.holder_identity or ""
        if self.replaced_by and self._clock() - self._seen < self._abandoned:
            self._lease = known
            return
        try:
            self._lease = await self._written(connection, known)
            self._has_taken = True
        except ApiServerError as error:
            if error.code != 409 or known is None or known.spec.holder_identity != self.identity:
                raise
            other = await self._read(connection, known)
            if other is not None and other.spec.holder_identity not in (None, "", self.identity):
                self.replaced_by, self._lease = other.spec.holder_identity or "", other
        else:
            self.replaced_by = ""

    async def _read(self, connection: Connection, before: LeaseRecord | None) -> LeaseRecord | None:
        lease = await self._leases.read(connection, self._name)
        if lease is None:
            self.replaced_by = ""
        elif before is None or before.spec != lease.spec:
            self._seen = self._clock()
        return lease

    async def _written(self, connection: Connection, known: LeaseRecord | None) -> LeaseRecord:
        """Write the Lease as ours, unless somebody has changed it since it was read."""
        now = wall_time()
        spec = known.spec if known is not None else LeaseSpec()
        is_ours = spec.holder_identity == self.identity
        wanted = LeaseSpec(
            self.identity,
            max(1, round(self._abandoned)),
            spec.acquire_time if is_ours else now,
            now,
            (spec.lease_transitions or 0) + (known is not None and not is_ours),
        )
        version = known.version if known is not None else ""
        return await self._leases.write(connection, self._name, LeaseRecord(wanted, version))
