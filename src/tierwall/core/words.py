"""Phrases that sentences of every plane share."""

from __future__ import annotations

from collections.abc import Sequence

# A sentence names this many things and counts the rest. The document names them all.
MAX_NAMED = 3


def join_names(texts: Sequence[str], limit: int | None = MAX_NAMED) -> str:
    """Join names: `a`, `a and b`, `a, b and c`; beyond `limit` names, count the rest: `a, b, c and 7 more`."""
    shown = list(texts[:limit])
    if len(texts) > len(shown):
        shown.append(f"{len(texts) - len(shown)} more")
    *before, last = shown or [""]
    return f"{', '.join(before)} and {last}" if before else last


def count_noun(number: int, noun: str) -> str:
    """Return the number with its noun: `1 pod`, `2 pods`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def with_hint(message: str, hint: str) -> str:
    """Return `message (hint)`, or the message alone if there is no hint."""
    return f"{message} ({hint})" if hint else message
