"""From objects to Envoy's configuration: Gateways, HTTPRoutes, backends and AccessPolicies (pure, no I/O)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from tierwall.core.diagnostics import Diagnostic
from tierwall.engines.envoy.options import Options
from tierwall.resources.snapshot import Snapshot


class Resources(Struct, frozen=True, eq=False):
    """What an Envoy is given, by type and then by name, as protobuf messages; names in order.

    A message that has not changed since the last compilation with the same cache is the same object.
    """

    listeners: Mapping[str, Any]
    routes: Mapping[str, Any]
    clusters: Mapping[str, Any]
    endpoints: Mapping[str, Any]
    secrets: Mapping[str, Any]
    extension_configs: Mapping[str, Any]
    diagnostics: tuple[Diagnostic, ...] = ()


class Cache:
    """What compilations keep for the next one; one for each stream of snapshots."""


def compile(snapshot: Snapshot, options: Options, cache: Cache | None = None) -> Resources:
    """The configuration of an Envoy that serves the Gateways of a snapshot."""
    raise NotImplementedError
