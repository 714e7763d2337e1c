"""The heartbeat of a node's agent: the Lease `tierwall-node-NODE` (docs/enforce-network.md#reports).

Two agents may run on a node while one replaces the other. The one that took the Lease last reports. The other notices
when it renews, and takes the Lease back if nobody renews it any more. No time in the record is compared with a clock.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct

from tierwall.cluster.connection import Connection
from tierwall.cluster.failures import ApiServerError

HEARTBEAT_PREFIX = "tierwall-node-"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
_MANAGER = {"fieldManager": "tierwall-node-agent"}


class _Metadata(Struct, rename="camel"):
    resource_version: str = ""


class _LeaseSpec(Struct, rename="camel"):
    holder_identity: str | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _Lease(Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _LeaseSpec = msgspec.field(default_factory=_LeaseSpec)


_DECODER = msgspec.json.Decoder(_Lease)


class HeartbeatSender:
    """Renews the Lease of a node, one step at a time."""

    def __init__(
        self, node: str, namespace: str, abandoned: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """A Lease that another agent holds is taken back when it has not changed for `abandoned` seconds."""
        self.identity = f"{os.environ.get('POD_NAME') or socket.gethostname()}_{os.urandom(4).hex()}"
        # The agent that reports for this node instead of this one.
        self.replaced_by = ""
        self._namespace, self._name = namespace, f"{HEARTBEAT_PREFIX}{node}"
        self._path = _LEASES.format(namespace)
        self._abandoned, self._clock = abandoned, clock
        # The Lease as it was last read or written, and since when it is as it is.
        self._lease: _Lease | None = None
        self._seen = 0.0

    async def beat(self, connection: Connection) -> None:
        """Renew the Lease; take it at the start, and when the agent that has taken it since is gone."""
        known = self._lease
        # Whatever fails, the Lease is read again before the next attempt: it may have been written all the same.
        self._lease = None
        if known is None or self.replaced_by:
            known = await self._read(connection, known)
        if self.replaced_by and self._clock() - self._seen < self._abandoned:
            self._lease = known
            return
        try:
            self._lease = await self._written(connection, known)
        except ApiServerError as error:
            if error.code != 409 or known is None or known.spec.holder_identity != self.identity:
                raise
            other = await self._read(connection, known)
            if other is not None and other.spec.holder_identity not in (None, "", self.identity):
                self.replaced_by, self._lease = other.spec.holder_identity or "", other
        else:
            self.replaced_by = ""

    async def _read(self, connection: Connection, before: _Lease | None) -> _Lease | None:
        try:
            lease = (await connection.get(f"{self._path}/{self._name}")).decode(_DECODER)
        except ApiServerError as error:
            if error.code != 404:
                raise
            self.replaced_by = ""
            return None
        if before is None or before.spec != lease.spec:
            self._seen = self._clock()
        return lease

    async def _written(self, connection: Connection, known: _Lease | None) -> _Lease:
        """Write the Lease as ours, unless somebody has changed it since it was read."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = known.spec if known is not None else _LeaseSpec()
        is_ours = spec.holder_identity == self.identity
        metadata = {"name": self._name, "namespace": self._namespace}
        body: dict[str, Any] = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": max(1, round(self._abandoned)),
                "acquireTime": spec.acquire_time if is_ours else now,
                "renewTime": now,
                "leaseTransitions": (spec.lease_transitions or 0) + (known is not None and not is_ours),
            },
        }
        method, path = "POST", self._path
        if known is not None:
            metadata["resourceVersion"] = known.metadata.resource_version
            method, path = "PUT", f"{self._path}/{self._name}"
        return (await connection.send(method, path, msgspec.json.encode(body), _MANAGER)).decode(_DECODER)
