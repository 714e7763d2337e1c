"""Connections as a Graphviz graph: a node a block of ends, an arrow where something passes."""

from __future__ import annotations

from collections.abc import Iterator

from tierwall.core.verdict import Verdict
from tierwall.network.reach.picture import Arrow, Picture
from tierwall.render.formats import View

_COLOURS = {"added": "darkgreen", "removed": "red", "changed": "orange"}


def lines(picture: Picture, view: View) -> Iterator[str]:
    """A directed graph; conditional arrows are dashed, changes are coloured."""
    yield "digraph connections {"
    yield '  rankdir="LR"; node [shape=box, fontname="sans-serif"]; edge [fontname="sans-serif", fontsize=10];'
    for number, named in enumerate(picture.nodes):
        yield f"  n{number} [label={_quoted(str(named))}];"
    for arrow in picture.arrows:
        passing = [flow for flow in arrow.flows if flow.verdict is not Verdict.DENY]
        if passing:
            label = _quoted(", ".join(map(str, passing)))
            yield f"  n{arrow.source} -> n{arrow.destination} [label={label}{_style(arrow)}];"
    yield "}"


def _style(arrow: Arrow) -> str:
    style = ", style=dashed" if all(flow.verdict is Verdict.CONDITIONAL for flow in arrow.flows) else ""
    colour = _COLOURS.get(arrow.change)
    return f"{style}, color={colour}, fontcolor={colour}" if colour else style


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'
