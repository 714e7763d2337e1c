"""The origin of an object that was read from a cluster: it has no file and no lines, only a path inside the object."""

from __future__ import annotations

from msgspec import Struct

from tierwall.core.source import Path, Position


class ClusterOrigin(Struct, frozen=True):
    """The origin of all objects of one cluster; `cluster` is the context's name, or the server's address."""

    cluster: str

    def position(self, path: Path = (), key: bool = False) -> Position | None:
        """Return None: an object of a cluster stands in no file."""
        return None
