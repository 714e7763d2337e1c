"""Connections as a Mermaid flowchart, for Markdown pages."""

from __future__ import annotations

from collections.abc import Iterator

from tierwall.core.verdict import Verdict
from tierwall.network.reach.picture import Picture
from tierwall.render.formats import View


def lines(picture: Picture, view: View) -> Iterator[str]:
    """A flowchart; conditional arrows are dotted, changes carry a sign."""
    yield "flowchart LR"
    for number, named in enumerate(picture.nodes):
        yield f"  n{number}[{_quoted(str(named))}]"
    for arrow in picture.arrows:
        passing = [flow for flow in arrow.flows if flow.verdict is not Verdict.DENY]
        if not passing:
            continue
        sign = {"added": "+ ", "removed": "- ", "changed": "~ "}.get(arrow.change, "")
        label = _quoted(sign + ", ".join(map(str, passing)))
        dotted = all(flow.verdict is Verdict.CONDITIONAL for flow in passing)
        yield f"  n{arrow.source} {'-.->' if dotted else '-->'}|{label}| n{arrow.destination}"


def _quoted(text: str) -> str:
    escaped = text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
    return f'"{escaped}"'
