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

_KINDS = {Verdict.ALLOW: "allow", Verdict.CONDITIONAL: "conditional", Verdict.DENY: "deny"}

# A comparison shows what appears as open, what vanishes as closed.
_CHANGES = {"added": "all", "removed": "none", "changed": "conditional"}


def lines(picture: Picture, title: str = "Connections") -> Iterator[str]:
    """The page, line by line."""
    page = files("tierwall.render").joinpath("reach_page.html").read_text(encoding="utf-8")
    # `</` would end the script early, whatever the objects are called.
    data = msgspec.json.encode(_data(picture)).decode().replace("</", "<\\/").replace("<!--", "<\\!--")
    yield from page.replace("{{title}}", escape(title)).replace("{{data}}", data).split("\n")


def _data(picture: Picture) -> dict[str, Any]:
    """Names, distinct sets of flows, and per cell which set it has."""
    sets: dict[tuple[str, tuple[Flow, ...]], int] = {}
    cells: dict[str, int] = {}
    for arrow in picture.arrows:
        cells[f"{arrow.source},{arrow.destination}"] = sets.setdefault((arrow.change, arrow.flows), len(sets))
    return {
        "nodes": [str(named) for named in picture.nodes],
        "sets": [
            {"kind": _CHANGES.get(change) or _kind(flows), "flows": [_flow(flow) for flow in flows]}
            for change, flows in sets
        ],
        "cells": cells,
    }


def _kind(flows: tuple[Flow, ...]) -> str:
    """What a cell shows at a glance: all, some, conditional or none of the ports."""
    verdicts = {flow.verdict for flow in flows}
    if verdicts == {Verdict.ALLOW}:
        return "all" if len(flows) > 1 or flows[0].ports == "all" else "some"
    if verdicts == {Verdict.DENY}:
        return "none"
    return "some" if Verdict.ALLOW in verdicts else "conditional"


def _flow(flow: Flow) -> dict[str, str]:
    condition = f"if {' or '.join(flow.domains)}" if flow.domains else ""
    return {"verdict": _KINDS[flow.verdict], "ports": flow.ports, "condition": condition, "because": flow.because()}
