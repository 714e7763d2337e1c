"""Connections as plain text.

`sources => destinations : ports`, one line an entry, the reasons below if there are any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tierwall.network.reach.listing import Entry

_SIGNS = {"": "", "added": "+ ", "removed": "- ", "changed": "~ "}


def lines(entries: Iterable[Entry]) -> Iterator[str]:
    """One line an entry; with reasons, one more a flow."""
    for entry in entries:
        yield f"{_SIGNS[entry.change]}{entry.sources} => {entry.destinations} : {entry.ports}"
        for flow in entry.flows:
            if because := flow.because():
                yield f"    {flow}: {because}"
