"""Drawings of folded connections as SVG: a graph while it can be read, a matrix beyond.

The server computes every place, the stylesheet has the colours, and a table beside the drawing has the same facts. A
graph is placed by `render.layout`. A matrix has one row for each source and one column for each destination.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tierwall.explore.fold import NODES, Cell, Fold, Unit
from tierwall.explore.markup import Markup, joined, tag
from tierwall.explore.page import address
from tierwall.network.reach.naming import OUTSIDE
from tierwall.render.labels import place_labels
from tierwall.render.layout import BoxSpec, LinkSpec, PicturePlacement, place
from tierwall.render.quotation import shortened
from tierwall.render.svg import curve

# A graph with more units or arrows than this is drawn as a matrix.
MAX_UNITS, MAX_ARROWS = 24, 70
LETTER, SMALL_LETTER, MAX_NAME, MAX_LABEL = 7.6, 6.6, 34, 26
# The width that a graph of few columns gets: it leaves room for the buttons beside it.
ROOMY = 700
# The least height and width of what can be chosen.
TARGET = 25
# Of a matrix: the side of a cell, the characters of a name, and the most units.
SIDE, MAX_BESIDE, MAX_SIDE = 24, 26, 400


def drawing(folded: Fold, title: str) -> Markup:
    """Draw a fold, with buttons to zoom and a key."""
    arrows = sum(1 for source, destination in folded.cells if source != destination)
    is_graph = len(folded.units) <= MAX_UNITS and arrows <= MAX_ARROWS
    picture = _graph(folded, title) if is_graph else _matrix(folded, title)
    buttons = [
        tag("button", words, type="button", data_zoom=action, aria_label=label)
        for words, action, label in (
            ("+", "in", "Zoom in"),
            ("−", "out", "Zoom out"),
            ("←", "left", "Move left"),
            ("→", "right", "Move right"),
            ("↑", "up", "Move up"),
            ("↓", "down", "Move down"),
            ("Fit", "fit", "Show everything"),
        )
    ]
    key = [
        tag("li", tag("span", shape, class_=f"swatch {kind}", aria_hidden="true"), f" {words}")
        for kind, shape, words in (
            ("all", "■", "all ports, all ends"),
            ("some", "▪", "some ports or some ends"),
            ("conditional", "◆", "under a condition"),
        )
    ]
    return tag(
        "figure",
        tag("div", buttons, class_="zoom", role="group", aria_label="Zoom and move the drawing"),
        tag("div", picture, class_="canvas", data_pan=True),
        tag("figcaption", tag("ul", key, class_="key")),
        class_="drawing" if is_graph else "drawing large",
    )


def _svg(width: float, height: float, title: str, *children: Any) -> Markup:
    return tag(
        "svg",
        tag("title", title),
        *children,
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=f"{width:.0f}",
        height=f"{height:.0f}",
        data_width=width,
        data_height=height,
        role="group",
        aria_label=title,
    )


def _short_name(name: str, limit: int) -> str:
    """Cut a long name in the middle: names differ at their ends."""
    return name if len(name) <= limit else f"{name[: limit // 2]}…{name[len(name) - (limit - 1) // 2 :]}"


# Graph


def _graph(folded: Fold, title: str) -> Markup:
    links = [(pair, cell) for pair, cell in sorted(folded.cells.items()) if pair[0] != pair[1]]
    both = {
        pair
        for pair, cell in links
        if pair[0] < pair[1]
        and (back := folded.cells.get((pair[1], pair[0]))) is not None
        and (back.label, back.kind) == (cell.label, cell.kind)
    }
    links = [(pair, cell) for pair, cell in links if (pair[1], pair[0]) not in both]
    texts = [_lines(number, unit, folded) for number, unit in enumerate(folded.units)]
    boxes = [
        BoxSpec(int(max(map(len, lines)) * LETTER) + 32, 18 * len(lines) + 18, 0 if unit.name != OUTSIDE else 1)
        for lines, unit in zip(texts, folded.units, strict=True)
    ]
    has_outside = any(unit.name == OUTSIDE for unit in folded.units)
    specs = [
        LinkSpec(*pair, int(len(shortened(cell.shown, MAX_LABEL)) * SMALL_LETTER), 0 if pair in both else 1)
        for pair, cell in links
    ]
    placed = place_roomily(boxes, specs, [False, False] if has_outside else [False])
    paths: list[Markup] = []
    labels: list[Markup] = []
    shown = [shortened(cell.shown, MAX_LABEL) for _, cell in links]
    halves = [max(len(text) * SMALL_LETTER / 2 + 5, TARGET / 2 + 1) for text in shown]
    places = place_labels(placed.routes, halves, placed.nodes, TARGET + 7)
    for ((source, destination), cell), points, text, at in zip(links, placed.routes, shown, places, strict=True):
        names = folded.units[source].name, folded.units[destination].name
        sign = "⇄" if (source, destination) in both else "→"
        words = f"{names[0]} {sign} {names[1]}: {_words(cell)}"
        start = "url(#head)" if (source, destination) in both else None
        paths.append(
            tag("path", d=curve(points), class_=f"edge {cell.kind}", marker_start=start, marker_end="url(#head)")
        )
        labels.append(_label(folded, (source, destination), text, words, *at))
    nodes = [
        _node(unit, lines, box.x, box.y, box.width, box.height)
        for unit, lines, box in zip(folded.units, texts, placed.nodes, strict=True)
    ]
    head = tag(
        "marker",
        tag("path", d="M0 1L10 5L0 9z", class_="head"),
        id="head",
        viewBox="0 0 10 10",
        refX=9,
        refY=5,
        markerWidth=11,
        markerHeight=11,
        markerUnits="userSpaceOnUse",
        orient="auto-start-reverse",
    )
    return _svg(max(placed.width, 320), placed.lanes[-1].bottom, title, tag("defs", head), paths, nodes, labels)


def place_roomily(boxes: list[BoxSpec], specs: list[LinkSpec], headings: list[bool]) -> PicturePlacement:
    """Place a graph. Where it would be narrow, the gaps share what is left, so that labels lie beside one another."""
    placed = place(boxes, specs, headings)
    gaps = len({box.x for box in placed.nodes}) - 1
    left = ROOMY - int(placed.width)
    if gaps < 1 or left <= 0 or not specs:
        return placed
    return place(boxes, [spec._replace(width=spec.width + left // gaps) for spec in specs], headings)


def _label(folded: Fold, pair: tuple[int, int], text: str, words: str, x: float, y: float, half: float) -> Markup:
    source, destination = (folded.units[number].focus for number in pair)
    content = joined(
        tag("title", words),
        tag("rect", x=x - half, y=y - TARGET / 2, width=2 * half, height=TARGET, rx=5, class_="label-box"),
        tag("text", text, x=x, y=y + 4, class_="label", text_anchor="middle"),
    )
    if source and destination:
        return tag("a", content, href=address("/network", from_=source, to=destination), aria_label=words)
    return tag("g", content)


def _lines(number: int, unit: Unit, folded: Fold) -> list[str]:
    lines = [_short_name(name, MAX_NAME) for name in unit.name.split(", ")[:5]]
    among = folded.cells.get((number, number))
    return [*lines, *([f"↻ {shortened(among.shown, MAX_LABEL)}"] if among is not None else ())]


def _node(unit: Unit, lines: list[str], x: float, y: float, width: float, height: float) -> Markup:
    texts = [
        tag(
            "text",
            line,
            x=x + width / 2,
            y=y + 22 + 18 * number,
            text_anchor="middle",
            class_="among" if line[0] == "↻" else "name",
        )
        for number, line in enumerate(lines)
    ]
    shape = "unit special" if unit.name in (OUTSIDE, NODES) else "unit"
    box = tag("rect", x=x, y=y, width=width, height=height, rx=8, class_=shape)
    content = joined(tag("title", unit.name), box, texts)
    if unit.focus:
        return tag("a", content, href=address("/network", focus=unit.focus), aria_label=f"Unfold {unit.name}")
    return tag("g", content)


def _words(cell: Cell) -> str:
    words = {
        "all": "all ports",
        "some": f"{cell.label}, not all ends or ports",
        "conditional": f"{cell.label}, under a condition",
    }
    return words[cell.kind]


# Matrix


def _matrix(folded: Fold, title: str) -> Markup:
    units = folded.units[:MAX_SIDE]
    names = [_short_name(unit.name, MAX_BESIDE) for unit in units]
    margin = int(max(map(len, names), default=0) * LETTER) + 20
    width = margin + SIDE * len(units) + 10
    rows = [_row(folded, number, len(units), margin) for number in range(len(units))]
    beside, above = [], []
    for number, (unit, text) in enumerate(zip(units, names, strict=True)):
        middle = margin + SIDE * number + SIDE / 2 + 4
        side = tag("text", text, x=margin - 8, y=middle, text_anchor="end", class_="name")
        turned = f"translate({middle:.0f} {margin - 8}) rotate(-90)"
        above.append(tag("text", text, transform=turned, class_="name", aria_hidden="true"))
        hit = tag("rect", x=0, y=margin + SIDE * number, width=margin, height=SIDE, class_="hit")
        if unit.focus:
            side = tag("a", hit, side, href=address("/network", focus=unit.focus), aria_label=f"Unfold {unit.name}")
        beside.append(side)
    lines = tag("path", d="".join(_grid(len(units), margin)), class_="grid")
    # The names stay in sight when the drawing is moved.
    axes = [
        tag("g", tag("rect", width=across, height=along, class_="axis"), shown, data_axis=axis)
        for axis, across, along, shown in (("above", width, margin, above), ("beside", margin, width, beside))
    ]
    corner = tag("g", tag("rect", width=margin, height=margin, class_="axis"), data_axis="corner")
    return _svg(width, width, title, lines, rows, axes, corner)


def _grid(count: int, margin: int) -> Iterator[str]:
    end = margin + SIDE * count
    for number in range(0, count + 1, 5):
        at = margin + SIDE * number
        yield f"M{margin} {at}H{end}M{at} {margin}V{end}"


def _row(folded: Fold, source: int, count: int, margin: int) -> list[Markup]:
    """Draw the cells of a source: one path for each kind, so that a large matrix stays light."""
    shapes: dict[str, list[str]] = {}
    y = margin + SIDE * source
    for destination in range(count):
        cell = folded.cells.get((source, destination))
        if cell is None:
            continue
        x = margin + SIDE * destination
        if cell.kind == "all":
            shape = f"M{x + 1} {y + 1}h{SIDE - 2}v{SIDE - 2}h-{SIDE - 2}z"
        elif cell.kind == "some":
            # The more pairs may connect, the larger.
            side = 6 + 3 * min(4, int(cell.share * 5))
            start = (SIDE - side) // 2
            shape = f"M{x + start} {y + start}h{side}v{side}h-{side}z"
        else:
            half = SIDE // 2 - 3
            shape = f"M{x + SIDE // 2} {y + 3}l{half} {half}l-{half} {half}l-{half} -{half}z"
        shapes.setdefault(cell.kind, []).append(shape)
    return [tag("path", d="".join(parts), class_=f"cell {kind}") for kind, parts in shapes.items()]
