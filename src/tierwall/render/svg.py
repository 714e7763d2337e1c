"""A drawing of connections as SVG, which needs no other program (docs/network.md#list-all-connections).

Namespaces are boxes, groups of endpoints are nodes in them, and arrows carry ports. `layout` places them. Very large
pictures are cut, and the drawing says so. It has no scripts; its title and description are for screen readers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import NamedTuple

from tierwall.core.verdict import Verdict
from tierwall.network.reach.listing import Picture
from tierwall.network.reach.naming import NamedEndpoints
from tierwall.render.connections import SIGNS
from tierwall.render.formats import View
from tierwall.render.labels import place_labels
from tierwall.render.layout import IMPORTANT, PADDING, BoxSpec, LinkSpec, PicturePlacement, PlacedNode, place
from tierwall.render.quotation import shortened

# The most nodes and arrows that are drawn, names in a node, characters of a name and of a label, and connections in the
# description.
MAX_NODES, MAX_ARROWS, MAX_NAMES, MAX_NAME, MAX_LABEL, MAX_DESCRIBED = 80, 240, 6, 44, 38, 60
LINE, LETTER, SMALL_LETTER, LABEL = 17, 7.3, 6.3, 16
# The heading of the ways in; no namespace has such a name.
WAYS = "ways in from outside"
_COLOURS = {"": "#44546a", "added": "#1a7f37", "removed": "#b42318", "changed": "#9a5b00"}
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_STYLE = (
    "text{font-family:'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif;font-size:13px;fill:#1f2933}"
    ".small{font-size:11px}.lane{font-weight:600;fill:#5b6b7d}.note{fill:#5b6b7d}"
)


class _DrawnArrow(NamedTuple):
    """An arrow with its label; between the same nodes and with the same label, two arrows are one with two heads."""

    source: int
    destination: int
    label: str
    change: str
    is_dashed: bool
    has_two_heads: bool = False


def drawing(picture: Picture, view: View) -> Iterator[str]:
    """Write the drawing of a list."""
    return _drawing(picture, "Connections")


def drawing_of_changes(picture: Picture, view: View) -> Iterator[str]:
    """Write the drawing of a comparison."""
    return _drawing(picture, "Changed connections")


def _drawing(picture: Picture, title: str) -> Iterator[str]:
    arrows = list(_arrows(picture))
    kept = [arrow for arrow in arrows if max(arrow.source, arrow.destination) < MAX_NODES][:MAX_ARROWS]
    nodes = [_parts(named) for named in picture.nodes[:MAX_NODES]]
    ways = range(len(picture.nodes) - picture.ways, len(picture.nodes))
    lane_of = [WAYS if at in ways else _namespace(parts) for at, parts in enumerate(nodes)]
    # Ways in come first, then what is in no namespace, then namespaces by name.
    lanes = {name: at for at, name in enumerate(sorted(set(lane_of), key=lambda name: (name != WAYS, name)))}
    texts = [_node_lines(at, parts, kept) for at, parts in enumerate(nodes)]
    boxes = [
        BoxSpec(_width(lines), LINE * len(lines) + 14, lanes[lane]) for lines, lane in zip(texts, lane_of, strict=True)
    ]
    links = [arrow for arrow in kept if arrow.source != arrow.destination]
    specs = [
        LinkSpec(link.source, link.destination, int(len(_short(link.label)) * SMALL_LETTER), _weight(link, ways))
        for link in links
    ]
    placed = place(boxes, specs, list(map(bool, lanes)))
    notes = list(_notes(len(picture.nodes) - len(nodes), len(arrows) - len(kept), kept))
    width, height = max(placed.width, 340), placed.height + 44 + LINE * len(notes)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"'
        f' viewBox="0 -40 {width:.0f} {height:.0f}" role="img" aria-labelledby="title description">'
    )
    yield f'<title id="title">{escape(title)}</title>'
    yield f'<desc id="description">{escape(_description(picture, arrows))}</desc>'
    yield f"<style>{_STYLE}</style>"
    yield from _markers()
    yield f'<rect x="0" y="-40" width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>'
    yield f'<text x="{2 * PADDING}" y="-14" style="font-size:17px;font-weight:600">{escape(title)}</text>'
    yield from _lane_boxes(lanes, placed)
    yield from _links(links, placed)
    for at, (lines, node) in enumerate(zip(texts, placed.nodes, strict=True)):
        yield from _node(lines, node, str(picture.nodes[at]), at in ways)
    for number, note in enumerate(notes):
        y = placed.height + LINE * number
        yield f'<text class="small note" x="{2 * PADDING}" y="{y:.0f}">{escape(note)}</text>'
    yield "</svg>"


def _weight(arrow: _DrawnArrow, ways: range) -> int:
    """Say how much it matters that an arrow leads from left to right; what rules let through matters most."""
    if arrow.has_two_heads:
        return 0
    return 1 if arrow.label == "all" and arrow.source not in ways else IMPORTANT


def _arrows(picture: Picture) -> Iterator[_DrawnArrow]:
    """Yield the arrows on which something passes, each pair of equal opposite arrows once."""
    drawn: dict[tuple[int, int, str, str], bool] = {}
    for arrow in picture.arrows:
        passing = [flow for flow in arrow.flows if arrow.change or flow.verdict is not Verdict.DENY]
        if passing:
            label = SIGNS[arrow.change] + ", ".join(map(str, passing))
            is_conditional = all(flow.verdict is Verdict.CONDITIONAL for flow in passing)
            drawn[arrow.source, arrow.destination, label, arrow.change] = is_conditional
    for (source, destination, label, change), is_dashed in drawn.items():
        has_two_heads = source != destination and (destination, source, label, change) in drawn
        if not has_two_heads or source < destination:
            yield _DrawnArrow(source, destination, label, change, is_dashed or change == "removed", has_two_heads)


def _parts(named: NamedEndpoints) -> list[str]:
    """Return a name in lines: the sets, their exceptions, and what else belongs to it."""
    sets, excepts, ends = (_lines(NamedEndpoints(part)) for part in (named.all, named.excepts, named.ends))
    return [*sets, *(f"except {name}" for name in excepts), *ends] or [str(named)]


def _lines(named: NamedEndpoints) -> list[str]:
    return str(named).split(", ") if named.all else []


def _namespace(parts: Sequence[str]) -> str:
    """Return the namespace that all parts of a name are in; empty if they differ."""
    names = [part.removeprefix("except ") for part in parts]
    namespaces = {name.partition("/")[0] if "/" in name else "" for name in names}
    namespace = namespaces.pop()
    return namespace if not namespaces and _NAMESPACE.fullmatch(namespace) and len(namespace) <= 63 else ""


def _node_lines(at: int, parts: Sequence[str], arrows: Iterable[_DrawnArrow]) -> list[str]:
    """Return the lines of a node: its names without the namespace of its box, and what its members may among them."""
    inside = _namespace(parts)
    lines = [part.replace(f"{inside}/", "", 1) if inside else part for part in parts]
    if inside and lines == ["*"]:
        lines = ["every pod"]
    if len(lines) > MAX_NAMES:
        lines = [*lines[: MAX_NAMES - 1], f"and {len(lines) - MAX_NAMES + 1} more"]
    among = [arrow.label for arrow in arrows if arrow.source == arrow.destination == at]
    return [shortened(line, MAX_NAME) for line in (*lines, *(f"↻ {label}" for label in among))]


def _short(label: str) -> str:
    return shortened(label, MAX_LABEL)


def _width(lines: Sequence[str]) -> int:
    return int(max(len(line) for line in lines) * LETTER) + 28


def _markers() -> Iterator[str]:
    yield "<defs>"
    for change, colour in _COLOURS.items():
        yield (
            f'<marker id="head{change}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7"'
            f' orient="auto-start-reverse"><path d="M0 1L10 5L0 9z" fill="{colour}"/></marker>'
        )
    yield "</defs>"


def _lane_boxes(lanes: dict[str, int], placed: PicturePlacement) -> Iterator[str]:
    for name, lane in lanes.items():
        top, bottom = placed.lanes[lane]
        x, width = PADDING, placed.width - 2 * PADDING
        if name not in ("", WAYS):
            yield (
                f'<rect x="{x}" y="{top:.1f}" width="{width:.1f}" height="{bottom - top:.1f}" rx="8"'
                ' fill="#f3f6fa" stroke="#c9d3df"/>'
            )
        if name:
            yield f'<text class="lane" x="{x + 10}" y="{top + 17:.1f}">{escape(name)}</text>'


def _node(lines: Sequence[str], node: PlacedNode, full: str, is_way: bool) -> Iterator[str]:
    fill, stroke, radius = ("#fff7e6", "#d9a441", node.height / 2) if is_way else ("#ffffff", "#44546a", 5)
    yield f"<g><title>{escape(full)}</title>"
    yield (
        f'<rect x="{node.x:.1f}" y="{node.y:.1f}" width="{node.width}" height="{node.height}" rx="{radius:.0f}"'
        f' fill="{fill}" stroke="{stroke}"/>'
    )
    for number, line in enumerate(lines):
        y = node.y + 7 + LINE * number + 13
        style = ' class="note"' if line.startswith("↻") else ""
        yield f'<text x="{node.x + node.width / 2:.1f}" y="{y:.1f}" text-anchor="middle"{style}>{escape(line)}</text>'
    yield "</g>"


def _links(links: Sequence[_DrawnArrow], placed: PicturePlacement) -> Iterator[str]:
    labels: list[str] = []
    texts = [_short(link.label) for link in links]
    halves = [len(text) * SMALL_LETTER / 2 + 4 for text in texts]
    places = place_labels(placed.routes, halves, placed.nodes, LABEL)
    for link, points, text, (x, y, half) in zip(links, placed.routes, texts, places, strict=True):
        colour = _COLOURS[link.change]
        # What nothing restricts steps back behind what a rule lets through.
        style = ' stroke-opacity="0.45"' if link.label == "all" else ""
        style += ' stroke-dasharray="6 4"' if link.is_dashed else ""
        start = f' marker-start="url(#head{link.change})"' if link.has_two_heads else ""
        yield (
            f'<path d="{curve(points)}" fill="none" stroke="{colour}" stroke-width="1.4"{style}{start}'
            f' marker-end="url(#head{link.change})"/>'
        )
        labels.append(
            f'<g><title>{escape(link.label)}</title><rect x="{x - half:.1f}" y="{y - 8:.1f}" width="{2 * half:.1f}"'
            f' height="15" rx="3" fill="#ffffff" fill-opacity="0.88"/><text class="small" x="{x:.1f}" y="{y + 3.5:.1f}"'
            f' text-anchor="middle" style="fill:{colour}">{escape(text)}</text></g>'
        )
    yield from labels


def curve(points: Sequence[tuple[float, float]]) -> str:
    """Return the path of an arrow through some points."""
    (x, y), *rest = points
    path = f"M{x:.1f} {y:.1f}"
    for to_x, to_y in rest:
        # Inside a column, an arrow leaves and enters on the right.
        left, right = (x + 60, to_x + 60) if abs(to_x - x) < 1 else ((x + to_x) / 2, (x + to_x) / 2)
        path += f"C{left:.1f} {y:.1f} {right:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"
        x, y = to_x, to_y
    return path


def _notes(nodes: int, arrows: int, kept: Sequence[_DrawnArrow]) -> Iterator[str]:
    """Yield the key, and what was cut."""
    if any(arrow.is_dashed and not arrow.change for arrow in kept):
        yield "dashed: passes under a condition"
    changes = dict.fromkeys(arrow.change for arrow in kept if arrow.change)
    words = {"added": "green +: appears", "removed": "red -, dashed: vanishes", "changed": "brown ~: changes"}
    if changes:
        yield ", ".join(words[change] for change in changes)
    if any(arrow.source == arrow.destination for arrow in kept):
        yield "↻: among themselves"
    if nodes or arrows:
        yield f"not drawn: {nodes:,} groups and {arrows:,} arrows; narrow the list with --from, --to and --port"


def _description(picture: Picture, arrows: Sequence[_DrawnArrow]) -> str:
    def sentence(arrow: _DrawnArrow) -> str:
        source, destination = (shortened(str(picture.nodes[at]), 200) for at in (arrow.source, arrow.destination))
        return f"{source} {'<=>' if arrow.has_two_heads else '=>'} {destination} : {arrow.label}."

    more = [f"And {len(arrows) - MAX_DESCRIBED:,} more."] if len(arrows) > MAX_DESCRIBED else []
    return " ".join([*map(sentence, arrows[:MAX_DESCRIBED]), *more]) or "No connections."
