"""The matrix as a picture needs it: the fewest blocks of ends such that every pair of blocks fares as one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tierwall.network.reach.matrix import Matrix, Passages

# A picture with more blocks than this shows nothing.
MOST_BLOCKS = 400


class TooManyBlocks(ValueError):
    """The matrix has too many different blocks for a picture."""


class Edge(NamedTuple):
    """How one block reaches another."""

    source: int
    destination: int
    passages: Passages


class Blocks(NamedTuple):
    """Disjoint sets of ends, and the pairs of them that have passages, by number."""

    masks: tuple[int, ...]
    edges: tuple[Edge, ...]


def blocks(found: Matrix, most: int = MOST_BLOCKS) -> Blocks:
    """The blocks of a matrix; TooManyBlocks if there are more than `most`."""
    pieces: list[int] = []
    for mask in _sets(found):
        fresh = mask
        cut: list[int] = []
        for piece in pieces:
            cut += [part for part in (piece & mask, piece & ~mask) if part]
            fresh &= ~piece
        pieces = [*cut, fresh] if fresh else cut
        if len(pieces) > most:
            raise TooManyBlocks(f"more than {most} groups of ends differ")
    masks = tuple(sorted(pieces, key=lambda piece: piece & -piece))
    return Blocks(masks, tuple(sorted(_edges(found, masks), key=lambda one: one[:2])))


def _sets(found: Matrix) -> Iterator[int]:
    for group in found.groups:
        yield group.destinations
        for sources, _ in group.sources:
            yield sources


def _edges(found: Matrix, masks: tuple[int, ...]) -> Iterator[Edge]:
    for group in found.groups:
        destinations = [number for number, mask in enumerate(masks) if mask & group.destinations]
        for sources, passages in group.sources:
            for source in (number for number, mask in enumerate(masks) if mask & sources):
                for destination in destinations:
                    yield Edge(source, destination, passages)
