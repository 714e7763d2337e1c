"""Phrases that sentences of every plane share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# A sentence names this many things and counts the rest. The document names them all.
MAX_NAMED = 3
# The most characters of an unexpected error: its message may repeat the input.
MAX_FAILURE = 300
# The most characters that a message shows of a list or map.
MAX_GIVEN = 100


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


def failure_words(error: Exception) -> str:
    """Return the type of an unexpected error, the place in the code where it was raised, and its message, cut short."""
    import traceback  # nothing that works needs it

    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    place = f" at {frames[0].filename.rpartition('/')[2]}:{frames[0].lineno}" if frames else ""
    return f"{type(error).__name__}{place}: {error}"[:MAX_FAILURE]


def as_given(value: object, before_text: str = "") -> str:
    """Show a value as the author of a question or test wrote it, for a message: true, lists and maps are JSON."""
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return f"{before_text}`{value}`" if value else "an empty string"
    try:
        if isinstance(value, bool | list | tuple | Mapping):
            import json  # a message is rare

            text = json.dumps(value, ensure_ascii=False, default=str)
            return f"`{text if len(text) <= MAX_GIVEN else text[:MAX_GIVEN] + '…'}`"
        return f"`{value}`"
    except (TypeError, ValueError, RecursionError):
        # Programs can give what has no such form: keys that are tuples, a list that holds itself, a number too long.
        return f"a value of type `{type(value).__name__}` that cannot be shown"


def with_hint(message: str, hint: str) -> str:
    """Return `message (hint)`, or the message alone if there is no hint."""
    return f"{message} ({hint})" if hint else message
