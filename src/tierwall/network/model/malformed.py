"""Reading a part of a policy that must be understood.

What is not understood is said, and makes its rule fail closed.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tierwall.core.labels import Selector, SelectorError
from tierwall.core.source import dotted


class Malformed(ValueError):
    """A part of a rule cannot be understood; the words say which and why."""


def one_of(value: object, known: Collection[str], what: str) -> tuple[str, Any]:
    """The one field of a union that is set. A field that nobody knows is passed over if a known one is there."""
    if not isinstance(value, dict):
        raise Malformed(f"{what} is not a map")
    found = [key for key in value if key in known and value[key] is not None]
    if len(found) != 1:
        names = ", ".join(f"`{key}`" for key in (found or value)) or "nothing"
        wanted = f"one of {', '.join(known)}"
        raise Malformed(f"{what} has {names}, expected {'only ' if found else ''}{wanted}")
    return found[0], value[found[0]]


def items(value: object, what: str) -> list[Any]:
    """A list with at least one item."""
    if not isinstance(value, list) or not value:
        raise Malformed(f"no list of {what}" if value else f"an empty list of {what}")
    return value


def selector(value: object, what: str) -> Selector:
    """A label selector that must be there, if only as `{}`."""
    if value is None:
        raise Malformed(f"`{what}` is missing")
    try:
        return Selector.parse(value)
    except SelectorError as error:
        raise Malformed(f"`{dotted((what, *error.path))}`: {error}") from None


def text(value: object, what: str) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value:
        raise Malformed(f"{what} `{value}` is not a text")
    return value


def number(value: object, low: int, high: int, what: str) -> int:
    """A whole number within bounds."""
    if type(value) is not int or not low <= value <= high:
        raise Malformed(f"{what} `{value}` is not a number from {low} to {high}")
    return value
