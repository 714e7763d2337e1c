"""Pages in one file, for `list -o html` and `diff -o html`: the page of the explorer with its data inside.

The file needs no server and no network, and opens from a mail. It has the same security policy as the explorer, as a
`meta` element with the hashes of the only script and the only style.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import NamedTuple

from msgspec.structs import replace

from tierwall.analyze.diff import PlaneComparison
from tierwall.explore.change import comparison_body
from tierwall.explore.drawing import drawing
from tierwall.explore.fold import Unit, namespaces, unfold
from tierwall.explore.markup import Child, Markup, joined, tag
from tierwall.explore.network import entry_cells, folded_view, ways_section
from tierwall.explore.page import (
    omission_list,
    opening,
    table,
)
from tierwall.network.reach.connections import Connections
from tierwall.network.reach.listing import masked_entries
from tierwall.network.reach.naming import OUTSIDE, EndpointNames
from tierwall.network.reach.narrowing import classes_of_namespace, focused
from tierwall.network.reach.ways_in import JudgedWay
from tierwall.render.differences import summary
from tierwall.render.formats import View
from tierwall.resources.snapshot import Snapshot
from tierwall.version import __version__

# The most bytes of rows; what is beyond is counted. The most namespaces whose unfolded drawing is in the file.
MAX_ROWS_BYTES, MAX_UNFOLDED = 6 << 20, 30
_LINK = re.compile(r'<a href="/(?P<address>[^"]*)"[^>]*>(?P<content>.*?)</a>', re.DOTALL)
_FOCUS = "network?focus="


class ListedConnections(NamedTuple):
    """Everything that the page of `list` shows."""

    snapshot: Snapshot
    connections: Connections
    ways: tuple[JudgedWay, ...]
    # The values of `--focus`, `--from`, `--to` and `--port`, by name, where they are given.
    filters: dict[str, tuple[str, ...]]


def list_page(listed: ListedConnections, view: View) -> Iterator[str]:
    """Write the page of `list`."""
    reached = listed.connections
    units = namespaces(reached.matrix.classes)
    rows, left_out = _rows(reached, units)
    folded = folded_view(listed.snapshot, reached, listed.filters)
    picture = drawing(folded, "Connections between namespaces")
    can_unfold = not listed.filters and 1 < len(units) <= MAX_UNFOLDED
    templates = _unfolded(reached, units) if can_unfold else []
    unprotected = () if listed.filters else reached.unprotected()
    narrow = ", ".join(f"{name} {value}" for name, values in listed.filters.items() for value in values)
    cut = tag("p", f"{left_out:,} more groups are not in this file: narrow it with --focus, --from or --to.")
    body = joined(
        opening("Who reaches whom", f"Only {narrow}." if narrow else "All connections."),
        tag("ul", [tag("li", str(pods)) for pods in unprotected], class_="facts") if unprotected else None,
        _chooser(units) if not listed.filters and len(units) > 1 else None,
        tag("p", "", id="told", role="status", class_="summary"),
        tag("div", _without_links(picture), id="picture"),
        tag("p", "Choosing a namespace shows its rows; the drawing stays folded.", class_="hint")
        if not can_unfold and not listed.filters and len(units) > 1
        else None,
        tag(
            "section",
            tag("h2", "The same as a table"),
            cut if left_out else None,
            table(("From", "To", "Ports", "Why"), rows, "Connections", data_filter="Filter these rows"),
        ),
        ways_section(listed.ways),
        omission_list(view.not_considered),
        templates,
    )
    yield from _file("Who reaches whom", body)


def difference_page(compared: PlaneComparison, view: View) -> Iterator[str]:
    """Write the page of `diff`."""
    title = f"Changes: {summary(compared)}"
    body = joined(
        opening("What the change does"),
        comparison_body(replace(compared, not_considered=view.not_considered), size=MAX_ROWS_BYTES),
    )
    yield from _file(title, body)


def _rows(reached: Connections, units: tuple[Unit, ...]) -> tuple[list[Markup], int]:
    """Return the rows of all entries that fit, each with the units that it is about, and the number of others."""
    rows: list[Markup] = []
    size = left_out = 0
    shares: dict[int, int] = {}

    def share(mask: int) -> int:
        if mask not in shares:
            shares[mask] = sum(1 << number for number, unit in enumerate(units) if unit.classes & mask)
        return shares[mask]

    for placed in masked_entries(reached.matrix, reached.explain, reached.names):
        if size > MAX_ROWS_BYTES:
            left_out += 1
            continue
        cells = [tag("td", cell) for cell in entry_cells(placed, None)]
        bits = share(placed.sources) | share(placed.destinations)
        rows.append(joined("", tag("tr", cells, data_units=f"{bits:x}"), Markup("\n")))
        size += len(rows[-1].encode())
    return rows, left_out


def _chooser(units: tuple[Unit, ...]) -> Markup:
    options = [tag("option", unit.name, value=unit.name) for unit in units]
    label = tag("label", "Show ", tag("select", tag("option", "everything", value=""), options, id="units"))
    return tag("div", label, class_="filters only-scripted")


def _unfolded(reached: Connections, units: tuple[Unit, ...]) -> list[Markup]:
    """Return the drawing of each namespace, unfolded, for when somebody chooses it."""
    templates = []
    names = EndpointNames(reached.matrix.classes)
    for number, unit in enumerate(units):
        mask = classes_of_namespace(reached.matrix.classes, unit.name) if unit.name != OUTSIDE else None
        if mask:
            others = [other for other in units if other is not unit]
            opened = unfold(focused(reached.matrix, mask), names, [unit], others)
            picture = drawing(opened, f"Connections of {unit.name}")
            templates.append(tag("template", _without_links(picture), id=f"focus-{number}"))
    return templates


def _without_links(markup: Markup) -> Markup:
    """Keep the links that unfold a namespace; the others lead to pages that this file does not have."""

    def changed(link: re.Match[str]) -> str:
        if link["address"].startswith(_FOCUS):
            return link[0].replace(f'href="/{_FOCUS}', 'href="#focus=')
        return f"<g>{link['content']}</g>"

    return Markup(_LINK.sub(changed, markup))


def _file(title: str, body: Markup) -> Iterator[str]:
    style, script = _static("explorer.css"), _script()
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:;"
        " form-action 'none'; base-uri 'none'"
    )
    head = joined(
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
    )
    parts: tuple[Child, ...] = (
        Markup("<!doctype html>\n"),
        Markup('<html lang="en">'),
        tag("head", head, tag("style", Markup(style))),
        Markup("\n<body>"),
        tag("main", body, id="main"),
        tag("footer", tag("p", f"Made by Tierwall {__version__}. Nothing on this page is loaded from elsewhere.")),
        tag("script", Markup(script), type="module"),
        Markup("</body></html>"),
    )
    yield from joined(*parts).split("\n")


def _script() -> str:
    """Join the modules into one script: an inline module cannot import others."""
    parts = []
    for name in ("table", "drawing"):
        module = _static(f"{name}.js").replace("export function", "function")
        parts.append(f"const {name} = (() => {{\n{module}return {{ prepare }};\n}})();\n")
    return "".join([*parts, _static("one_file.js")])


def _static(name: str) -> str:
    return files("tierwall.explore").joinpath("static", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
