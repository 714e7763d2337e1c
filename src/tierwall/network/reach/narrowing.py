"""A part of a matrix that is known already: what begins or ends in a set of classes, without computing it again."""

from __future__ import annotations

from tierwall.network.reach.classes import EndpointClasses
from tierwall.network.reach.matrix import ConnectionPassages, DestinationGroup, ReachMatrix
from tierwall.network.reach.spaces import bits


def classes_of_namespace(classes: EndpointClasses, namespace: str) -> int | None:
    """Return the classes of a namespace's pods; None if another namespace has pods of the same class."""
    mask = 0
    for each in classes.all:
        inside = [member.kind == "pod" and member.namespace == namespace for member in each.members]
        if all(inside):
            mask |= 1 << each.bit
        elif any(inside):
            return None
    return mask


def focused(matrix: ReachMatrix, focus: int) -> ReachMatrix:
    """Return the matrix that `reach_matrix` returns with this focus."""
    by_entry: dict[tuple[int, tuple[tuple[int, ConnectionPassages], ...]], int] = {}
    for group in matrix.groups:
        inside, outside = group.destinations & focus, group.destinations & ~focus
        if inside:
            key = group.possible, group.sources
            by_entry[key] = by_entry.get(key, 0) | inside
        if outside:
            some = tuple((part, passages) for sources, passages in group.sources if (part := sources & focus))
            if some:
                key = group.possible, some
                by_entry[key] = by_entry.get(key, 0) | outside
    in_order = sorted(by_entry.items(), key=lambda item: next(iter(bits(item[1]))))
    groups = tuple(DestinationGroup(mask, sources, possible) for (possible, sources), mask in in_order)
    return ReachMatrix(matrix.classes, matrix.membership, matrix.ports, groups)
