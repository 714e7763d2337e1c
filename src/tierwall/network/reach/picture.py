"""Blocks of ends and the flows between them in words: what graphs and the page draw."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tierwall.network.model.ends import End
from tierwall.network.reach.blocks import MOST_BLOCKS, TooManyBlocks, blocks
from tierwall.network.reach.listing import Entry, Flow, Flows
from tierwall.network.reach.matrix import Matrix
from tierwall.network.reach.naming import Named, Names


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
    drawn = blocks(found)
    arrows = [
        Arrow(edge.source, edge.destination, flows.of(edge.passages))
        for edge in drawn.edges
        if edge.source != edge.destination or len(_ends(found, drawn.masks[edge.source])) > 1
    ]
    return Picture(tuple(names.spelled(mask) for mask in drawn.masks), tuple(arrows))


def picture_of_changes(entries: Iterable[Entry]) -> Picture:
    """The picture of a comparison: the sets of ends its entries name, and an arrow for each way things change."""
    nodes: dict[Named, int] = {}
    arrows: dict[tuple[int, int, str], list[Flow]] = {}
    for entry in entries:
        source, destination = (nodes.setdefault(one, len(nodes)) for one in (entry.sources, entry.destinations))
        arrows.setdefault((source, destination, entry.change), []).extend(entry.flows)
        if len(nodes) > MOST_BLOCKS:
            raise TooManyBlocks(f"more than {MOST_BLOCKS} groups of ends differ")
    drawn = (Arrow(source, to, tuple(flows), change) for (source, to, change), flows in arrows.items())
    return Picture(tuple(nodes), tuple(drawn))


def _ends(found: Matrix, mask: int) -> list[End]:
    return [end for one in found.classes.members(mask) for end in one.members]
