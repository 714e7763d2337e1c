"""Leases of the release namespace: how every process reads and writes them.

A write carries the `resourceVersion` that was read before, so that of two writers one gets 409. Times are written for
people alone; nobody compares them with a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct

from tierwall.cluster.connection import Connection
from tierwall.cluster.failures import ApiServerError
from tierwall.cluster.reply import ServerReply


class LeaseSpec(Struct, frozen=True, rename="camel", omit_defaults=True):
    """`spec` of a Lease. What is null or absent counts as empty."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class LeaseRecord(Struct, frozen=True):
    """A Lease as it was read: its spec and its `resourceVersion`."""

    spec: LeaseSpec
    version: str


class _Metadata(Struct, rename="camel"):
    resource_version: str = ""


class _Lease(Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)


_DECODER = msgspec.json.Decoder(_Lease)


class LeaseClient:
    """The Leases of a namespace; `manager` is who writes them."""

    def __init__(self, namespace: str, manager: str) -> None:
        self._namespace, self._query = namespace, {"fieldManager": manager}
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"

    async def read(self, connection: Connection, name: str) -> LeaseRecord | None:
        """Return a Lease; None if there is none of that name."""
        try:
            return _record(await connection.get(f"{self._path}/{name}"))
        except ApiServerError as error:
            if error.code != 404:
                raise
            return None

    async def write(
        self, connection: Connection, name: str, wanted: LeaseRecord, metadata: Mapping[str, Any] | None = None
    ) -> LeaseRecord:
        """Write a Lease over the version that was read, or create it; return it as it is then."""
        named: dict[str, Any] = {**(metadata or {}), "name": name, "namespace": self._namespace}
        if wanted.version:
            named["resourceVersion"] = wanted.version
        spec = msgspec.to_builtins(wanted.spec)
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": named, "spec": spec}
        method, path = ("PUT", f"{self._path}/{name}") if wanted.version else ("POST", self._path)
        return _record(await connection.send(method, path, msgspec.json.encode(body), self._query))


def _record(reply: ServerReply) -> LeaseRecord:
    lease = reply.decode(_DECODER)
    return LeaseRecord(lease.spec, lease.metadata.resource_version)


def wall_time() -> str:
    """Return the time of the clock on the wall, as Leases have it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
