"""The release of the Gateway API in a cluster, as one of its definitions tells (Gateway API, "Versioning").

Only the metadata of one definition is read, by its name, once a minute: the right to read all definitions would be more
than that needs. The definitions of a bundle are installed together.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import msgspec
from msgspec import Struct

from tierwall.attach.place import GATEWAY_API
from tierwall.cluster.connection import Connection
from tierwall.cluster.failures import ApiServerError, ClusterError

DEFINITION_NAME = f"gatewayclasses.{GATEWAY_API}"
BUNDLE_VERSION = f"{GATEWAY_API}/bundle-version"
# How often the definition is read, and how long that may take, in seconds.
INTERVAL_S, TIMEOUT_S = 60.0, 2.0
_PATH = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{DEFINITION_NAME}"
_ACCEPT = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json"


class GatewayApiVersion(NamedTuple):
    """The bundle version of the definition: empty if it has none, None if it cannot be seen."""

    version: str | None = None


UNSEEN = GatewayApiVersion()


class _Metadata(Struct):
    annotations: dict[str, str] | None = None


class _Definition(Struct):
    metadata: _Metadata


_DECODER = msgspec.json.Decoder(_Definition)


class GatewayApiReader:
    """Reads the release now and then."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._release: GatewayApiVersion | None = None
        self._due = 0.0

    async def current(self, now: float) -> GatewayApiVersion | None:
        """Return the release as it was last read; None if that was not possible yet. `now` is in monotonic seconds."""
        if now >= self._due:
            self._due = now + INTERVAL_S
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    self._release = await self._read()
            except (ClusterError, TimeoutError, msgspec.DecodeError):
                # What was read before still counts; if nothing was, it is tried again with the next plan.
                self._due = now if self._release is None else self._due
        return self._release

    async def _read(self) -> GatewayApiVersion:
        try:
            definition = (await self._connection.get(_PATH, accept=_ACCEPT)).decode(_DECODER)
        except ApiServerError as error:
            if error.code not in (403, 404):
                raise
            return UNSEEN
        return GatewayApiVersion((definition.metadata.annotations or {}).get(BUNDLE_VERSION, ""))
