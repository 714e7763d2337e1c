"""Connections as CSV (RFC 4180): one line an entry and flow, with a heading."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator

from tierwall.network.reach.listing import Entry
from tierwall.render.formats import View

_END = "\r\n"
HEADING = ("change", "from", "to", "verdict", "ports", "domains", "egress", "ingress", "before")


def lines(entries: Iterable[Entry], view: View) -> Iterator[str]:
    """The heading, then a line a flow."""
    yield _line(HEADING)
    for entry in entries:
        sources, destinations = str(entry.sources), str(entry.destinations)
        for flow in entry.flows:
            reasons = (", ".join(map(str, settled or ())) for settled in (flow.egress, flow.ingress))
            verdict, names = str(flow.verdict), " ".join(flow.domains)
            yield _line((entry.change, sources, destinations, verdict, flow.ports, names, *reasons, flow.before()))


def _line(values: Iterable[str]) -> str:
    out = io.StringIO()
    # The writer quotes a value for what could end its line, so it must know that.
    csv.writer(out, lineterminator=_END).writerow([_tame(value) for value in values])
    return out.getvalue().removesuffix(_END)


def _tame(value: str) -> str:
    """A text that a spreadsheet would take for a formula is quoted as text."""
    return f"'{value}" if value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
