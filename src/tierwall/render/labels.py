"""Places for the labels of arrows: on their own arrow, where they cover no other label, no node, and few other arrows.

An arrow has a place in each gap that it crosses and in each column that it passes. Arrows with few places choose first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from tierwall.render.layout import PlacedNode

Point = tuple[float, float]
# How far along a part of an arrow a label may be, the best place first, and where a part is looked at for crossings.
_SHARES = (0.5, 0.42, 0.58, 0.34, 0.66, 0.26, 0.74, 0.18, 0.82)
_SAMPLES = tuple(number / 10 for number in range(11))
# What it costs to cover a label or a node by a square pixel, another arrow at a sample, and to be off the best place.
_COVERED, _CROSSED, _AWAY = 1.0, 60.0, 20.0
# How often each label chooses anew, after the others did; the width of the strips into which what is drawn is sorted.
_SWEEPS, _STRIP = 3, 40


class PlacedLabel(NamedTuple):
    """The middle of a label, and half of its width."""

    x: float
    y: float
    half: float


class _Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def overlap(self, other: _Box) -> float:
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return width * height if width > 0 and height > 0 else 0.0


def place_labels(
    routes: Sequence[Sequence[Point]], halves: Sequence[float], nodes: Sequence[PlacedNode], height: float
) -> list[PlacedLabel]:
    """Return a place for the label of each route; `halves` are half of their widths, `height` that of all."""
    strips: dict[int, list[tuple[float, float, int]]] = {}
    for number, route in enumerate(routes):
        for x, y in _points(route):
            strips.setdefault(int(x // _STRIP), []).append((x, y, number))
    obstacles = [_Box(node.x, node.y, node.x + node.width, node.y + node.height) for node in nodes]
    places: dict[int, PlacedLabel] = {}
    boxes: dict[int, _Box] = {}
    order = sorted(range(len(routes)), key=lambda number: (len(routes[number]), number))
    for _ in range(_SWEEPS):
        for number in order:
            boxes.pop(number, None)
            taken = [*obstacles, *boxes.values()]
            half = halves[number]
            least = -1.0
            for (x, y), away in _candidates(routes[number], half):
                cost = _AWAY * away
                if 0 <= least <= cost:
                    continue
                box = _Box(x - half, y - height / 2, x + half, y + height / 2)
                cost += _COVERED * sum(map(box.overlap, taken))
                if least < 0 or cost < least:
                    cost += _CROSSED * _crossings(strips, box, number)
                if least < 0 or cost < least:
                    places[number], boxes[number], least = PlacedLabel(x, y, half), box, cost
    return [places[number] for number in range(len(routes))]


def _candidates(route: Sequence[Point], half: float) -> Iterator[tuple[Point, float]]:
    """Yield places on a route, each with how far it is from the best."""
    for part, (start, end) in enumerate(pairwise(route)):
        if abs(end[0] - start[0]) < 1:
            # Inside a column, an arrow leaves and enters on the right.
            yield (start[0] + 45 + half, (start[1] + end[1]) / 2), float(part)
            continue
        for rank, share in enumerate(_SHARES):
            yield _at(start, end, share), part / 2 + rank


def _points(route: Sequence[Point]) -> Iterator[Point]:
    for start, end in pairwise(route):
        bend = 45 if abs(end[0] - start[0]) < 1 else 0
        for share in _SAMPLES:
            x, y = _at(start, end, share)
            yield x + bend * 4 * share * (1 - share), y


def _at(start: Point, end: Point, share: float) -> Point:
    """Return the place on the curve of `render.svg.curve`: its height is that of a smooth step."""
    smooth = share * share * (3 - 2 * share)
    # Both control points are in the middle of the width.
    across = 1.5 * share * (1 - share) + share**3
    return start[0] + (end[0] - start[0]) * across, start[1] + (end[1] - start[1]) * smooth


def _crossings(strips: dict[int, list[tuple[float, float, int]]], box: _Box, itself: int) -> int:
    """Return how many other routes a box covers."""
    return len(
        {
            number
            for strip in range(int(box.left // _STRIP), int(box.right // _STRIP) + 1)
            for x, y, number in strips.get(strip, ())
            if number != itself and box.left < x < box.right and box.top < y < box.bottom
        }
    )
