"""What graphs and the page draw: the fewest blocks of ends such that every pair of blocks fares as one, and arrows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tierwall.network.reach.listing import Entry, Flow, Flows, only_itself
from tierwall.network.reach.matrix import Matrix, Passages
from tierwall.network.reach.naming import Named, Names
from tierwall.network.reach.spaces import cut, union

# A picture with more blocks than this shows nothing.
MOST_BLOCKS = 400


class TooManyBlocks(ValueError):
    """There are too many different blocks for a picture."""

    def __init__(self) -> None:
        super().__init__(f"more than {MOST_BLOCKS} groups of ends differ")


class Arrow(NamedTuple):
    """From one node to another, by number."""

    source: int
    destination: int
    flows: tuple[Flow, ...]
    change: str = ""


class Picture(NamedTuple):
    """Named nodes and arrows between them. Nodes that are one end have no arrow to themselves."""

    nodes: tuple[Named, ...]
    arrows: tuple[Arrow, ...]


def picture(found: Matrix, why: bool = False) -> Picture:
    """The picture of a matrix; TooManyBlocks if it would be too large to read."""
    names, flows = Names(found.classes), Flows(found.ports, why)
    blocks = _blocks(found)
    arrows = [
        Arrow(source, destination, flows.of(passages))
        for source, destination, passages in sorted(_edges(found, blocks), key=lambda edge: edge[:2])
        if not only_itself(found, blocks[destination], blocks[source])
    ]
    return Picture(tuple(map(names.spelled, blocks)), tuple(arrows))


def _blocks(found: Matrix) -> list[int]:
    """Disjoint sets of ends, in order, such that each group of the matrix has all of one or nothing."""
    sets = dict.fromkeys(group.destinations for group in found.groups)
    sets |= dict.fromkeys(sources for group in found.groups for sources, _ in group.sources)
    pieces = [everybody] if (everybody := union(sets)) else []
    for mask in sets:
        pieces = cut(pieces, mask)
        if len(pieces) > MOST_BLOCKS:
            raise TooManyBlocks
    return sorted(pieces, key=lambda piece: piece & -piece)


def _edges(found: Matrix, blocks: list[int]) -> Iterator[tuple[int, int, Passages]]:
    """How blocks reach blocks, by number."""
    for group in found.groups:
        destinations = [number for number, block in enumerate(blocks) if block & group.destinations]
        for sources, passages in group.sources:
            for source in (number for number, block in enumerate(blocks) if block & sources):
                for destination in destinations:
                    yield source, destination, passages


def picture_of_changes(entries: Iterable[Entry]) -> Picture:
    """The picture of a comparison: the sets of ends its entries name, and an arrow for each way things change."""
    nodes: dict[Named, int] = {}
    arrows: dict[tuple[int, int, str], list[Flow]] = {}
    for entry in entries:
        source, destination = (nodes.setdefault(named, len(nodes)) for named in (entry.sources, entry.destinations))
        arrows.setdefault((source, destination, entry.change), []).extend(entry.flows)
        if len(nodes) > MOST_BLOCKS:
            raise TooManyBlocks
    drawn = (Arrow(source, to, tuple(flows), change) for (source, to, change), flows in arrows.items())
    return Picture(tuple(nodes), tuple(drawn))
