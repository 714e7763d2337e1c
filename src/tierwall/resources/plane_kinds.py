"""The kinds that each plane reads: `kinds/data/planes.json`, one line per plane and group.

`network` decides connections, and `ways` are the ways in from outside. `aggregation` and `node` are what the authorizer
reads besides `api`: which groups other servers serve, and the pods of nodes. A line says what follows if an object of
its kinds is refused (`closed`, see `resources.refused`), and what follows if a cluster does not let them be listed
(`unlisted`, see `resources.gaps`). It is the one table of this: whatever a plane looks up is in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import msgspec

from tierwall.resources.kinds.registry import read_data
from tierwall.resources.snapshot import KindKey


class PlaneKind(msgspec.Struct, frozen=True):
    """A line of the table."""

    plane: str
    group: str
    kinds: tuple[str, ...]
    closed: str = "read here as far as possible"
    # The effect on an answer if objects of these kinds are not known; empty if answers do not depend on them.
    unlisted: str = ""
    # Whether admission judges the objects.
    judged: bool = True
    # Whether decisions read the objects of a cluster; if not, only admission looks at those of files.
    read: bool = True
    # Whether a snapshot may have very many of them.
    many: bool = False
    # Whether an object matters only to questions about its own namespace.
    local: bool = False


@cache
def _table() -> Mapping[str, Mapping[KindKey, PlaneKind]]:
    table: dict[str, dict[KindKey, PlaneKind]] = {}
    for line in msgspec.convert(read_data("planes.json"), tuple[PlaneKind, ...]):
        table.setdefault(line.plane, {}).update({(line.group, kind): line for kind in line.kinds})
    return table


@cache
def judged_kinds(plane: str) -> Mapping[KindKey, PlaneKind]:
    """Return the kinds of a plane whose objects admission judges."""
    return {key: line for key, line in _table()[plane].items() if line.judged}


@cache
def kinds_read(plane: str) -> Mapping[KindKey, PlaneKind]:
    """Return the kinds of a plane that decisions read from a cluster."""
    return {key: line for key, line in _table()[plane].items() if line.read}
