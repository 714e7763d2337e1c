"""Blocks of ends and the flows between them in words: what graphs and the page draw."""

from __future__ import annotations

from typing import NamedTuple

from tierwall.network.model.ends import End
from tierwall.network.reach.blocks import blocks
from tierwall.network.reach.listing import Flow, Flows
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


def _ends(found: Matrix, mask: int) -> list[End]:
    return [end for one in found.classes.members(mask) for end in one.members]
