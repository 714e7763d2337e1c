"""Pictures of connections: graphs for Graphviz and Mermaid.

A node is a group of endpoints; an arrow says that something passes.
"""

from __future__ import annotations

from collections.abc import Iterator

from tierwall.core.verdict import Verdict
from tierwall.network.reach.listing import Arrow, ConnectionFlow, Picture
from tierwall.render.connections import SIGNS
from tierwall.render.formats import View

_COLOURS = {"added": "darkgreen", "removed": "red", "changed": "orange"}


def dot(picture: Picture, view: View) -> Iterator[str]:
    """Write a directed graph; conditional arrows are dashed, changes are coloured."""
    yield "digraph connections {"
    yield '  rankdir="LR"; node [shape=box, fontname="sans-serif"]; edge [fontname="sans-serif", fontsize=10];'
    for number, named in enumerate(picture.nodes):
        yield f"  n{number} [label={_in_dot(str(named))}];"
    for arrow, passing in _passing(picture):
        style = ", style=dashed" if _are_conditional(arrow.flows) else ""
        if colour := _COLOURS.get(arrow.change):
            style += f", color={colour}, fontcolor={colour}"
        label = _in_dot(_ports(passing))
        yield f"  n{arrow.source} -> n{arrow.destination} [label={label}{style}];"
    yield "}"


def mermaid(picture: Picture, view: View) -> Iterator[str]:
    """Write a flowchart for Markdown pages; conditional arrows are dotted, changes carry a sign."""
    yield "flowchart LR"
    for number, named in enumerate(picture.nodes):
        yield f"  n{number}[{_in_mermaid(str(named))}]"
    for arrow, passing in _passing(picture):
        shaft = "-.->" if _are_conditional(passing) else "-->"
        label = _in_mermaid(SIGNS[arrow.change] + _ports(passing))
        yield f"  n{arrow.source} {shaft}|{label}| n{arrow.destination}"


def _passing(picture: Picture) -> Iterator[tuple[Arrow, tuple[ConnectionFlow, ...]]]:
    """Yield the arrows on which something passes, and the flows that pass."""
    for arrow in picture.arrows:
        passing = tuple(flow for flow in arrow.flows if flow.verdict is not Verdict.DENY)
        if passing:
            yield arrow, passing


def _ports(flows: tuple[ConnectionFlow, ...]) -> str:
    return ", ".join(dict.fromkeys(map(str, flows)))


def _are_conditional(flows: tuple[ConnectionFlow, ...]) -> bool:
    return all(flow.verdict is Verdict.CONDITIONAL for flow in flows)


def _in_dot(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _in_mermaid(text: str) -> str:
    escaped = text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
    return f'"{escaped}"'
