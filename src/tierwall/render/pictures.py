"""Pictures of connections: graphs for Graphviz and Mermaid, and an HTML page with a matrix that shows rules on hover.

A node is a group of endpoints; an arrow says that something passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from importlib.resources import files
from typing import Any, TypeAlias

from tierwall.core.verdict import Verdict
from tierwall.network.reach.listing import Arrow, ConnectionFlow, Picture
from tierwall.render.connections import SIGNS
from tierwall.render.formats import View
from tierwall.render.json import json_line

_COLOURS = {"added": "darkgreen", "removed": "red", "changed": "orange"}
_VERDICTS = {Verdict.ALLOW: "allowed", Verdict.CONDITIONAL: "conditional", Verdict.DENY: "denied"}
_CHANGES = {"added": "appears", "removed": "vanishes", "changed": "changes"}
# A cell whose endpoints were connected before and are connected after gains or loses ports only.
_PARTIAL = {"added": "widened", "removed": "narrowed"}

# A change ("" in a list), whether it is partial, and its flows.
_Changed: TypeAlias = tuple[str, bool, tuple[ConnectionFlow, ...]]

# The meaning of each colour of a cell, in the order of the key.
_KEY = {
    "all": "every port",
    "some": "some ports",
    "conditional": "conditional",
    "none": "denied",
    "": "not under policy",
}
_KEY_OF_CHANGES = {
    "added": "newly connected",
    "widened": "more ports",
    "changed": "other ports or names",
    "narrowed": "fewer ports, still connected",
    "removed": "no longer connected",
    "": "no change listed",
}


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


def page(picture: Picture, view: View) -> Iterator[str]:
    """Write the page of a list."""
    return _page(picture, "Connections", changes=False)


def page_of_changes(picture: Picture, title: str, lines: Iterable[str]) -> Iterator[str]:
    """Write the page of a comparison: only the endpoints whose connections change, and other changes as lines."""
    return _page(picture, title, changes=True, lines=lines)


def _page(picture: Picture, title: str, changes: bool, lines: Iterable[str] = ()) -> Iterator[str]:
    template = files("tierwall.render").joinpath("reach_page.html").read_text(encoding="utf-8")
    # `</script` and `<!--` mean something inside a script, whatever the objects are called.
    data = json_line(_data(picture, changes)).replace("<", "\\u003c")
    others = "".join(f"<li>{escape(line)}</li>" for line in lines)
    parts = {"{{title}}": escape(title), "{{others}}": f"<ul>{others}</ul>" if others else "", "{{data}}": data}
    for line in template.split("\n"):
        for mark, text in parts.items():
            if mark in line:
                line = line.replace(mark, text)
                break
        yield line


def _data(picture: Picture, changes: bool) -> dict[str, Any]:
    """Return the names of nodes, the distinct sets of flows, and the set of each cell."""
    arrows: dict[str, list[_Changed]] = {}
    for arrow in picture.arrows:
        arrows.setdefault(f"{arrow.source},{arrow.destination}", []).append((arrow.change, arrow.partial, arrow.flows))
    sets: dict[tuple[_Changed, ...], int] = {}
    cells = {cell: sets.setdefault(tuple(members), len(sets)) for cell, members in arrows.items()}
    everyone = range(len(picture.nodes))
    return {
        "key": _KEY_OF_CHANGES if changes else _KEY,
        "nodes": [str(named) for named in picture.nodes],
        "rows": sorted({arrow.source for arrow in picture.arrows}) if changes else list(everyone),
        "columns": sorted({arrow.destination for arrow in picture.arrows}) if changes else list(everyone),
        "sets": [
            {"kind": _kind(members), "flows": [_flow(flow, change) for change, _, flows in members for flow in flows]}
            for members in sets
        ],
        "cells": cells,
    }


def _kind(members: tuple[_Changed, ...]) -> str:
    """Say what a cell shows at a glance: all, some, conditional or none of the ports; or the change."""
    changes = {_PARTIAL.get(change, change) if partial else change for change, partial, _ in members}
    if changes != {""}:
        return changes.pop() if len(changes) == 1 else "changed"
    flows = [flow for _, _, flows_of_change in members for flow in flows_of_change]
    verdicts = {flow.verdict for flow in flows}
    if verdicts == {Verdict.ALLOW}:
        return "all" if len(flows) > 1 or flows[0].ports == "all" else "some"
    if verdicts == {Verdict.DENY}:
        return "none"
    return "some" if Verdict.ALLOW in verdicts else "conditional"


def _flow(flow: ConnectionFlow, change: str) -> dict[str, str]:
    condition = f"if {' or '.join(flow.domains)}" if flow.domains else ""
    word = _CHANGES.get(change) or _VERDICTS[flow.verdict]
    return {"word": word, "ports": flow.ports, "condition": condition, "because": flow.name_deciders()}
