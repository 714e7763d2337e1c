"""Connections as one JSON document, written entry by entry so that a large matrix is never held as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from tierwall.network.reach.listing import Entry


def lines(entries: Iterable[Entry]) -> Iterator[str]:
    """`{"connections": […]}` with one entry a line."""
    yield '{"connections": ['
    before = ""
    for entry in entries:
        if before:
            yield f"{before},"
        before = f"  {msgspec.json.encode(entry.document()).decode()}"
    if before:
        yield before
    yield "]}"
