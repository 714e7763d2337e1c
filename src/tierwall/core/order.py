"""The order of age, then name, that settles every tie outside the network plane.

docs/semantics.md#ties-go-by-age-then-name.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

Seniority: TypeAlias = tuple[bool, datetime, int, str]

_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9})\d*)?(?:[Zz]|([+-])(\d\d):(\d\d))", re.ASCII
)
_NEVER = datetime.max.replace(tzinfo=UTC)


def timestamp(text: object) -> tuple[datetime, int] | None:
    """An RFC 3339 time as a UTC second and its nanoseconds, or None if it is not one."""
    found = _RFC3339.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in found.group(1, 2, 3, 4, 5, 6))
    nanoseconds = int((found[7] or "0").ljust(9, "0"))
    try:
        when = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
        if found[8]:
            offset = timedelta(hours=int(found[9]), minutes=int(found[10]))
            when += -offset if found[8] == "+" else offset
    except (ValueError, OverflowError):
        return None
    return when, nanoseconds


def seniority(created: object, namespace: str, name: str) -> Seniority:
    """A sort key: older first, then `namespace/name` as one string; what has no readable timestamp comes last."""
    when = timestamp(created)
    whole_name = f"{namespace}/{name}" if namespace else name
    if when is None:
        return True, _NEVER, 0, whole_name
    return False, when[0], when[1], whole_name
