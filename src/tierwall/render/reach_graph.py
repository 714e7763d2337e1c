"""Connections as a graph, for Graphviz and for Mermaid: a node a block of ends, an arrow where something passes."""

from __future__ import annotations

from collections.abc import Iterator

from tierwall.core.verdict import Verdict
from tierwall.network.reach.listing import Flow
from tierwall.network.reach.picture import Arrow, Picture
from tierwall.render.formats import View

_COLOURS = {"added": "darkgreen", "removed": "red", "changed": "orange"}
_SIGNS = {"added": "+ ", "removed": "- ", "changed": "~ "}


def dot(picture: Picture, view: View) -> Iterator[str]:
    """A directed graph; conditional arrows are dashed, changes are coloured."""
    yield "digraph connections {"
    yield '  rankdir="LR"; node [shape=box, fontname="sans-serif"]; edge [fontname="sans-serif", fontsize=10];'
    for number, named in enumerate(picture.nodes):
        yield f"  n{number} [label={_in_dot(str(named))}];"
    for arrow, passing in _passing(picture):
        style = ", style=dashed" if _are_conditional(arrow.flows) else ""
        if colour := _COLOURS.get(arrow.change):
            style += f", color={colour}, fontcolor={colour}"
        label = _in_dot(", ".join(map(str, passing)))
        yield f"  n{arrow.source} -> n{arrow.destination} [label={label}{style}];"
    yield "}"


def mermaid(picture: Picture, view: View) -> Iterator[str]:
    """A flowchart, for Markdown pages; conditional arrows are dotted, changes carry a sign."""
    yield "flowchart LR"
    for number, named in enumerate(picture.nodes):
        yield f"  n{number}[{_in_mermaid(str(named))}]"
    for arrow, passing in _passing(picture):
        line = "-.->" if _are_conditional(passing) else "-->"
        label = _in_mermaid(_SIGNS.get(arrow.change, "") + ", ".join(map(str, passing)))
        yield f"  n{arrow.source} {line}|{label}| n{arrow.destination}"


def _passing(picture: Picture) -> Iterator[tuple[Arrow, tuple[Flow, ...]]]:
    """The arrows on which something passes, and what."""
    for arrow in picture.arrows:
        passing = tuple(flow for flow in arrow.flows if flow.verdict is not Verdict.DENY)
        if passing:
            yield arrow, passing


def _are_conditional(flows: tuple[Flow, ...]) -> bool:
    return all(flow.verdict is Verdict.CONDITIONAL for flow in flows)


def _in_dot(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'


def _in_mermaid(text: str) -> str:
    escaped = text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
    return f'"{escaped}"'
