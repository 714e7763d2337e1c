"""Lists of connections, for `list` and `diff`, as text, JSON, CSV and Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tierwall.network.reach.compare import ChangedFlow
from tierwall.network.reach.listing import ConnectionEntry, ConnectionFlow
from tierwall.network.reach.naming import NamedEndpoints
from tierwall.render.formats import View
from tierwall.render.json import decider_documents, json_line, omission_documents

SIGNS = {"": "", "added": "+ ", "removed": "- ", "changed": "~ "}
# The most reasons of a change that are shown; JSON and csv have them all.
MAX_REASONS = 6
# What a change leaves as it was, where something passes before and after.
BESIDE = {"added": " (beside what passed before)", "removed": " (the rest still passes)"}
CSV_HEADING = ("change", "from", "to", "verdict", "ports", "domains", "egress", "ingress", "before")
_CSV_END = "\r\n"


def text(entries: Iterable[ConnectionEntry], view: View) -> Iterator[str]:
    """Write `sources => destinations : ports` for each entry; with reasons, one more line for each flow."""
    for entry in entries:
        beside = BESIDE.get(entry.change, "") if entry.partial else ""
        yield f"{SIGNS[entry.change]}{entry.sources} => {entry.destinations} : {entry.ports}{beside}"
        yield from (f"    {reason}" for reason in _reasons(entry))


def _reasons(entry: ConnectionEntry) -> Iterator[str]:
    """Yield the reason of each flow. Changes of the same ports are one entry, which may have any number of reasons."""
    reasons = [f"{flow}: {deciders}" for flow in entry.flows if (deciders := flow.name_deciders())]
    shown = reasons[:MAX_REASONS] if entry.change else reasons
    yield from shown
    if len(reasons) > len(shown):
        yield f"and {len(reasons) - len(shown)} more"


class GroupTable:
    """The members of the groups that were named, each once."""

    def __init__(self, parts: Callable[[str], list[str] | None], named: Iterable[NamedEndpoints] = ()) -> None:
        """`parts` returns the members of a group, of which some may be groups themselves; None for one endpoint."""
        self._parts = parts
        self._names: dict[str, None] = {}
        for endpoints in named:
            self.add(endpoints)

    def add(self, named: NamedEndpoints) -> None:
        """Add the groups of a name."""
        self._names.update(dict.fromkeys(named.parts))

    def __iter__(self) -> Iterator[str]:
        """Yield a line of JSON for each group: first those that were named, then those in them, each in order."""
        written: set[str] = set()
        names = set(self._names)
        while names:
            inner: set[str] = set()
            for name in sorted(names):
                parts = self._parts(name)
                if parts is not None:
                    inner.update(parts)
                    yield f"{json_line(name)}: {json_line(parts)}"
            written |= names
            names = inner - written


def json(
    entries: Iterable[ConnectionEntry],
    view: View,
    more: Mapping[str, Any] | None = None,
    groups: GroupTable | None = None,
) -> Iterator[str]:
    """Write a document with one entry or group per line, so that a large matrix is never in memory as text.

    `more` has further keys of the document.
    """

    def rows() -> Iterator[str]:
        for entry in entries:
            if groups is not None:
                groups.add(entry.sources)
                groups.add(entry.destinations)
            yield json_line(_entry(entry))

    yield '{"connections": ['
    yield from separated(rows())
    last = "]"
    if groups is not None:
        yield f'{last}, "groups": {{'
        yield from separated(groups)
        last = "}"
    for key, value in (more or {}).items():
        yield f"{last},"
        last = f"{json_line(key)}: {json_line(value)}"
    yield f'{last}, "notConsidered": {json_line(omission_documents(view.not_considered))}}}'


def separated(lines: Iterable[str]) -> Iterator[str]:
    """Return the members of a list or an object of JSON, one on each line, with commas between them."""
    before = ""
    for line in lines:
        if before:
            yield f"{before},"
        before = f"  {line}"
    if before:
        yield before


def _entry(entry: ConnectionEntry) -> dict[str, Any]:
    """Return sources, destinations and flows; in a comparison, also the change."""
    change = {"change": entry.change} if entry.change else {}
    flows = [flow_document(flow) for flow in entry.flows]
    return {**change, "from": named_document(entry.sources), "to": named_document(entry.destinations), "flows": flows}


def flow_document(flow: ConnectionFlow) -> dict[str, Any]:
    """Return ports with the same verdict; `was` is the flow before a change."""
    ports = [{"protocol": ports.protocol, "first": ports.first, "last": ports.last} for ports in flow.ranges]
    document: dict[str, Any] = {"verdict": str(flow.verdict), "ports": ports}
    if flow.domains:
        document["domains"] = list(flow.domains)
    if flow.egress is not None and flow.ingress is not None:
        document["egress"] = decider_documents(flow.egress)
        document["ingress"] = decider_documents(flow.ingress)
    if isinstance(flow, ChangedFlow) and flow.was is not None:
        document["was"] = flow_document(flow.was)
    return document


def named_document(named: NamedEndpoints) -> dict[str, list[str]]:
    """Return the parts of a name that are not empty."""
    parts = (("all", named.all), ("except", named.excepts), ("ends", named.ends))
    return {key: list(names) for key, names in parts if names}


def comma_separated(entries: Iterable[ConnectionEntry], view: View) -> Iterator[str]:
    """Write CSV (RFC 4180): a heading, then one line for each flow."""
    yield _csv_line(CSV_HEADING)
    for entry in entries:
        sources, destinations = str(entry.sources), str(entry.destinations)
        for flow in entry.flows:
            reasons = (", ".join(map(str, deciders or ())) for deciders in (flow.egress, flow.ingress))
            verdict, names = str(flow.verdict), " ".join(flow.domains)
            yield _csv_line((entry.change, sources, destinations, verdict, flow.ports, names, *reasons, flow.before()))


def _csv_line(values: Iterable[str]) -> str:
    import csv
    import io

    out = io.StringIO()
    # The writer quotes values that hold its line terminator, so it must know the real one.
    csv.writer(out, lineterminator=_CSV_END).writerow([_quote_formula(value) for value in values])
    return out.getvalue().removesuffix(_CSV_END)


def _quote_formula(value: str) -> str:
    """Quote a value that a spreadsheet would take for a formula."""
    return f"'{value}" if value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def markdown(entries: Iterable[ConnectionEntry], view: View) -> Iterator[str]:
    """Write a Markdown table, with a column for reasons and one for changes if there are any."""
    heading: list[str] = []
    for entry in entries:
        if not heading:
            reasons = any(flow.name_deciders() for flow in entry.flows)
            heading = ["change"] * bool(entry.change) + ["from", "to", "ports"] + ["because"] * reasons
            yield f"| {' | '.join(heading)} |"
            yield f"|{'---|' * len(heading)}"
        cells = {
            "from": str(entry.sources),
            "to": str(entry.destinations),
            "ports": entry.ports,
            "change": entry.change,
        }
        row = [in_cell(cells[column]) for column in heading if column in cells]
        if "because" in heading:
            row.append("<br>".join(map(in_cell, _reasons(entry))))
        yield f"| {' | '.join(row)} |"
    if not heading:
        yield "No connections."


def in_cell(text: str) -> str:
    """Return a text as a cell of a Markdown table."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;").replace("](", "]\\(")
