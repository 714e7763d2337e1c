"""Connections as one self-contained page: a matrix of sources and destinations, with the deciding rules on hover."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from importlib.resources import files
from typing import Any

import msgspec

from tierwall.core.verdict import Verdict
from tierwall.network.reach.listing import Flow
from tierwall.network.reach.picture import Picture
from tierwall.render.formats import View

_WORDS = {Verdict.ALLOW: "allowed", Verdict.CONDITIONAL: "conditional", Verdict.DENY: "denied"}
_CHANGES = {"added": "appears", "removed": "vanishes", "changed": "changes"}

# What the colours of cells mean, in the order of the key.
_KEY = {
    "all": "every port",
    "some": "some ports",
    "conditional": "conditional",
    "none": "denied",
    "": "no policy is about it",
}
_KEY_OF_CHANGES = {"added": "appears", "removed": "vanishes", "changed": "changes", "": "no change listed"}


def lines(picture: Picture, view: View) -> Iterator[str]:
    """The page, line by line."""
    return _page(picture, "Connections", changes=False)


def lines_of_changes(picture: Picture, view: View) -> Iterator[str]:
    """The page of a comparison: only the ends whose connections change."""
    return _page(picture, "Changed connections", changes=True)


def _page(picture: Picture, title: str, changes: bool) -> Iterator[str]:
    page = files("tierwall.render").joinpath("reach_page.html").read_text(encoding="utf-8")
    # `</script` and `<!--` mean something inside a script, whatever the objects are called.
    data = msgspec.json.encode(_data(picture, changes)).decode().replace("<", "\\u003c")
    yield from page.replace("{{title}}", escape(title)).replace("{{data}}", data).split("\n")


def _data(picture: Picture, changes: bool) -> dict[str, Any]:
    """Names, distinct sets of flows, and per cell which set it has."""
    arrows: dict[str, list[tuple[str, tuple[Flow, ...]]]] = {}
    for arrow in picture.arrows:
        arrows.setdefault(f"{arrow.source},{arrow.destination}", []).append((arrow.change, arrow.flows))
    sets: dict[tuple[tuple[str, tuple[Flow, ...]], ...], int] = {}
    cells = {cell: sets.setdefault(tuple(found), len(sets)) for cell, found in arrows.items()}
    everyone = range(len(picture.nodes))
    return {
        "key": _KEY_OF_CHANGES if changes else _KEY,
        "nodes": [str(named) for named in picture.nodes],
        "rows": sorted({arrow.source for arrow in picture.arrows}) if changes else list(everyone),
        "columns": sorted({arrow.destination for arrow in picture.arrows}) if changes else list(everyone),
        "sets": [
            {"kind": _kind(found), "flows": [_flow(flow, change) for change, flows in found for flow in flows]}
            for found in sets
        ],
        "cells": cells,
    }


def _kind(found: tuple[tuple[str, tuple[Flow, ...]], ...]) -> str:
    """What a cell shows at a glance: all, some, conditional or none of the ports; or what changes."""
    changes = {change for change, _ in found}
    if changes != {""}:
        return changes.pop() if len(changes) == 1 else "changed"
    flows = [flow for _, some in found for flow in some]
    verdicts = {flow.verdict for flow in flows}
    if verdicts == {Verdict.ALLOW}:
        return "all" if len(flows) > 1 or flows[0].ports == "all" else "some"
    if verdicts == {Verdict.DENY}:
        return "none"
    return "some" if Verdict.ALLOW in verdicts else "conditional"


def _flow(flow: Flow, change: str) -> dict[str, str]:
    condition = f"if {' or '.join(flow.domains)}" if flow.domains else ""
    word = _CHANGES.get(change) or _WORDS[flow.verdict]
    return {"word": word, "ports": flow.ports, "condition": condition, "because": flow.because()}
