"""Places the nodes of a picture in columns and lanes, and routes its arrows between them.

Arrows lead from left to right where that is possible: the order of columns follows the longest paths, after the fewest
possible arrows are turned around. Each lane is a band that the nodes of one namespace share. An arrow that passes a
column gets a slot of its own there, so that no arrow crosses a node. The nodes of a cell are ordered by the middle of
their neighbours, which keeps crossings few.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct

# Distances in pixels: between the nodes of a cell, around a lane, the height of a slot for a passing arrow.
GAP, PADDING, SLOT, HEADING = 16, 14, 12, 24
# The space between columns besides the longest label, and how often the order of cells is improved.
GUTTER, SWEEPS = 90, 6
MAX_COLUMNS = 6
# A link with this weight should lead from left to right before any lighter link does.
IMPORTANT = 20


class BoxSpec(NamedTuple):
    """A node to place: its size and its lane."""

    width: int
    height: int
    lane: int


class LinkSpec(NamedTuple):
    """An arrow to route, by the numbers of its nodes, the width of its label, and how much its direction matters."""

    source: int
    destination: int
    width: int
    weight: int = 1


class PlacedNode(NamedTuple):
    """The place of a node."""

    x: float
    y: float
    width: int
    height: int


class PlacedSpan(NamedTuple):
    """The top and the bottom of a lane."""

    top: float
    bottom: float


class PicturePlacement(Struct, frozen=True):
    """The places of everything; a route has the points through which an arrow passes, two for each gutter."""

    width: float
    height: float
    nodes: tuple[PlacedNode, ...]
    lanes: tuple[PlacedSpan, ...]
    routes: tuple[tuple[tuple[float, float], ...], ...]


class _Item:
    """A node, or a slot for a passing arrow, in a cell."""

    __slots__ = ("column", "height", "lane", "neighbours", "node", "order", "width", "x", "y")

    def __init__(self, node: int, column: int, lane: int, width: int, height: int) -> None:
        self.node, self.column, self.lane, self.width, self.height = node, column, lane, width, height
        self.x = self.y = self.order = 0.0
        self.neighbours: list[_Item] = []


def place(boxes: Sequence[BoxSpec], links: Sequence[LinkSpec], headings: Sequence[bool]) -> PicturePlacement:
    """Place boxes and route links; each lane has a heading or not."""
    columns = _columns(len(boxes), links)
    items = [_Item(at, columns[at], box.lane, box.width, box.height) for at, box in enumerate(boxes)]
    chains = [_chain(items, link) for link in links]
    everything = list(dict.fromkeys([*items, *(item for chain in chains for item in chain)]))
    cells = _ordered_cells(everything)
    gutters = _gutters(items, links, chains)
    lefts, width = _lefts(everything, gutters)
    spans, height = _stack(cells, headings)
    for item in everything:
        item.x = lefts[item.column]
    routes = _routes(links, chains, lefts, everything)
    placed = tuple(PlacedNode(item.x, item.y, item.width, item.height) for item in items)
    return PicturePlacement(width, height, placed, tuple(spans), tuple(routes))


def _columns(count: int, links: Sequence[LinkSpec]) -> list[int]:
    """Return the column of each node: one more than that of any node before it, after turning some links around."""
    rank = {node: at for at, node in enumerate(_from_left_to_right(count, links))}
    before: dict[int, set[int]] = {}
    for link in links:
        first, then = sorted((link.source, link.destination), key=rank.__getitem__)
        before.setdefault(then, set()).add(first)
    columns = [0] * count
    for node in rank:
        columns[node] = max((columns[earlier] + 1 for earlier in before.get(node, ())), default=0)
    most = max(columns, default=0)
    # A long chain would make a picture that is wide and empty: its columns are shared.
    return [column * (MAX_COLUMNS - 1) // most if most >= MAX_COLUMNS else column for column in columns]


def _from_left_to_right(count: int, links: Sequence[LinkSpec]) -> list[int]:
    """Order nodes such that few links lead to the left: always take a node that no important link leads to."""
    arriving = [0] * count
    surplus = [0] * count
    after: dict[int, list[LinkSpec]] = {}
    for link in links:
        surplus[link.source] += link.weight
        surplus[link.destination] -= link.weight
        if link.weight >= IMPORTANT:
            arriving[link.destination] += 1
            after.setdefault(link.source, []).append(link)
    order: list[int] = []
    remaining = set(range(count))
    while remaining:
        node = min(remaining, key=lambda node: (arriving[node] > 0, -surplus[node], node))
        remaining.remove(node)
        order.append(node)
        for link in after.get(node, ()):
            arriving[link.destination] -= 1
            surplus[link.destination] += link.weight
    return order


def _chain(items: Sequence[_Item], link: LinkSpec) -> list[_Item]:
    """Return the items that a link connects, from left to right: its nodes, and a slot in each column between."""
    ends = sorted((items[link.source], items[link.destination]), key=lambda item: item.column)
    slots = [_Item(-1, column, ends[0].lane, 0, SLOT) for column in range(ends[0].column + 1, ends[1].column)]
    chain = [ends[0], *slots, ends[1]]
    for left, right in pairwise(chain):
        left.neighbours.append(right)
        right.neighbours.append(left)
    return chain


def _ordered_cells(everything: Sequence[_Item]) -> dict[tuple[int, int], list[_Item]]:
    """Return the items of each column and lane, in an order with few crossings."""
    cells: dict[tuple[int, int], list[_Item]] = {}
    for item in everything:
        cells.setdefault((item.column, item.lane), []).append(item)
    in_order = sorted(cells)
    for sweep in range(SWEEPS):
        _number(cells)
        for key in in_order if sweep % 2 == 0 else reversed(in_order):
            cells[key].sort(key=_middle)
            _number({key: cells[key]})
    return cells


def _number(cells: dict[tuple[int, int], list[_Item]]) -> None:
    for (_, lane), cell in cells.items():
        for at, item in enumerate(cell):
            item.order = lane + (at + 1) / (len(cell) + 1)


def _middle(item: _Item) -> float:
    if not item.neighbours:
        return item.order
    return sum(neighbour.order for neighbour in item.neighbours) / len(item.neighbours)


def _gutters(items: Sequence[_Item], links: Sequence[LinkSpec], chains: Sequence[Sequence[_Item]]) -> dict[int, int]:
    """Return the width of the space to the right of each column, which holds the labels of links that start there."""
    widths: dict[int, int] = {}
    for link, chain in zip(links, chains, strict=True):
        column = chain[0].column
        widths[column] = max(widths.get(column, 0), link.width)
    return {item.column: widths.get(item.column, 0) + GUTTER for item in items}


def _lefts(everything: Iterable[_Item], gutters: dict[int, int]) -> tuple[dict[int, float], float]:
    widths: dict[int, int] = {}
    for item in everything:
        widths[item.column] = max(widths.get(item.column, 0), item.width)
    lefts: dict[int, float] = {}
    x = float(2 * PADDING)
    last = max(widths, default=0)
    for column in sorted(widths):
        lefts[column] = x
        # Only links inside the last column need the space to its right.
        x += widths[column] + (gutters.get(column, GUTTER) if column != last or gutters.get(column, 0) > GUTTER else 0)
    return lefts, x + 2 * PADDING


def _stack(cells: dict[tuple[int, int], list[_Item]], headings: Sequence[bool]) -> tuple[list[PlacedSpan], float]:
    """Give every item its height above the ground, lane below lane; the cells of a lane are centred."""
    spans: list[PlacedSpan] = []
    y = float(PADDING)
    for lane, has_heading in enumerate(headings):
        inside = [cell for (_, of_lane), cell in cells.items() if of_lane == lane]
        heights = [sum(item.height for item in cell) + GAP * (len(cell) - 1) for cell in inside]
        tallest = max(heights, default=0)
        top = y + (HEADING if has_heading else 0)
        for cell, height in zip(inside, heights, strict=True):
            at = top + (tallest - height) / 2
            for item in cell:
                item.y = at
                at += item.height + GAP
        spans.append(PlacedSpan(y, top + tallest + PADDING))
        y = top + tallest + 2 * PADDING + GAP / 2
    return spans, y


def _routes(
    links: Sequence[LinkSpec],
    chains: Sequence[Sequence[_Item]],
    lefts: dict[int, float],
    everything: Iterable[_Item],
) -> list[tuple[tuple[float, float], ...]]:
    """Return the points of each link, from its source to its destination."""
    rights = dict(lefts)
    for item in everything:
        rights[item.column] = max(rights[item.column], lefts[item.column] + item.width)
    docks = _docks(chains)
    routes = []
    for number, (link, chain) in enumerate(zip(links, chains, strict=True)):
        points: list[tuple[float, float]] = []
        for at, item in enumerate(chain):
            enter, leave = docks.get((number, at, "left")), docks.get((number, at, "right"))
            if enter is not None:
                points.append((item.x, enter))
            if leave is not None:
                points.append((item.x + item.width if item.node >= 0 else rights[item.column], leave))
        is_backward = chain[0].node != link.source
        routes.append(tuple(reversed(points)) if is_backward else tuple(points))
    return routes


def _docks(chains: Sequence[Sequence[_Item]]) -> dict[tuple[int, int, str], float]:
    """Return the height at which each link meets each item, spread over the side that it meets."""
    sides: dict[tuple[_Item, str], list[tuple[float, int, int]]] = {}
    for number, chain in enumerate(chains):
        for at, (left, right) in enumerate(pairwise(chain)):
            sides.setdefault((left, "right"), []).append((right.y + right.height / 2, number, at))
            # A link inside a column leaves and enters on the right.
            side = "right" if left.column == right.column else "left"
            sides.setdefault((right, side), []).append((left.y + left.height / 2, number, at + 1))
    docks: dict[tuple[int, int, str], float] = {}
    for (item, side), meetings in sides.items():
        for place, (_, number, at) in enumerate(sorted(meetings, key=lambda meeting: meeting[0]), 1):
            docks[number, at, side] = item.y + item.height * place / (len(meetings) + 1)
    return docks
