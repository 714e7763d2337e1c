"""The order of age, then name, that settles every tie outside the network plane.

docs/semantics.md#ties-go-by-age-then-name.
"""

from __future__ import annotations

from typing import TypeAlias

from tierwall.values.time import FIRST_NS, LAST_NS, parse_time

Seniority: TypeAlias = tuple[bool, int, str]


def timestamp(text: object) -> int | None:
    """An RFC 3339 time as nanoseconds since 1970, or None if the text is not one that a clock can show."""
    moment = parse_time(text)
    return moment.ns if moment is not None and FIRST_NS <= moment.ns <= LAST_NS else None


def seniority(created: object, namespace: str, name: str) -> Seniority:
    """A sort key: older first, then `namespace/name` as one string; what has no readable timestamp comes last."""
    ns = timestamp(created)
    return ns is None, ns or 0, f"{namespace}/{name}" if namespace else name
