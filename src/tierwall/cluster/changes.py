"""Changes of a followed cluster since the last look, and what cannot be followed (docs/clusters.md#following)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from tierwall.resources.resource import Identity, Resource


class LostKind(Struct, frozen=True):
    """A kind that cannot be followed any more: why, and since when its last state counts. `name`: only this object."""

    kind: str
    name: str
    message: str
    time: str
    is_refused: bool


class ClusterChanges(Struct, frozen=True):
    """The changes since the last look: objects by identity (None: gone). And the state: what is lost or at fault."""

    objects: Mapping[Identity, Resource | None]
    lost: tuple[LostKind, ...] = ()
    # Why objects could not be decoded.
    faults: Mapping[Identity, str] = {}
