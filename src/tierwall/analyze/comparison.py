"""A comparison of two snapshots as `diff` shows it: connections in groups, and the differences of the other planes."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from tierwall.analyze.diff import PLANES, differences
from tierwall.analyze.difference import Difference
from tierwall.analyze.future_pods import future_pods, lacks_pods, uncompared
from tierwall.core.answer import Omission
from tierwall.network.reach.compare import compare_connections
from tierwall.network.reach.listing import ConnectionEntry, Picture, picture_of_changes
from tierwall.resources.snapshot import Snapshot


class PlaneComparison(Struct, frozen=True):
    """The differences on some planes. `connections` are the groups of the network plane, where they are asked for."""

    connections: tuple[ConnectionEntry, ...] = ()
    differences: tuple[Difference, ...] = ()
    # What was too much to compare.
    not_considered: tuple[Omission, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.connections or self.differences)

    def picture(self) -> Picture:
        """Return the picture of the connections. Raise TooManyBlocks if it would be too large to read."""
        return picture_of_changes(self.connections)


def compare(old: Snapshot, new: Snapshot, planes: Sequence[str] = (), grouped: bool = True) -> PlaneComparison:
    """Compare two snapshots on some planes, or on all. If not `grouped`, connections are differences as well."""
    wanted = [plane for plane in PLANES if not planes or plane in planes]
    connections: tuple[ConnectionEntry, ...] = ()
    left_out: tuple[Omission, ...] = ()
    if grouped and "network" in wanted:
        wanted.remove("network")
        if lacks_pods(old, new):
            future = future_pods(old, new)
            connections, left_out = tuple(future.changes()), tuple(future.limits())
        else:
            connections = tuple(compare_connections(old, new))
            left_out = tuple(uncompared(old, new)) if not connections else ()
    others = differences(old, new, wanted)
    return PlaneComparison(connections, tuple(others), (*left_out, *others.not_considered))
