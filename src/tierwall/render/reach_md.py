"""Connections as a Markdown table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tierwall.network.reach.listing import Entry
from tierwall.render.formats import View


def lines(entries: Iterable[Entry], view: View) -> Iterator[str]:
    """A table; with reasons, a column for them; with changes, a column for those."""
    started = False
    changes = reasons = False
    for entry in entries:
        if not started:
            started = True
            changes = bool(entry.change)
            reasons = any(flow.because() for flow in entry.flows)
            heading = ["change"] * changes + ["from", "to", "ports"] + ["because"] * reasons
            yield f"| {' | '.join(heading)} |"
            yield f"|{'---|' * len(heading)}"
        cells = [entry.change] * changes + [str(entry.sources), str(entry.destinations), entry.ports]
        if reasons:
            cells.append("<br>".join(_escaped(f"{flow}: {flow.because()}") for flow in entry.flows))
            yield f"| {' | '.join(map(_escaped, cells[:-1]))} | {cells[-1]} |"
        else:
            yield f"| {' | '.join(map(_escaped, cells))} |"
    if not started:
        yield "No connections."


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("<b", "&lt;b").replace("\n", " ")
