"""Timestamps and durations to the nanosecond (cel-spec, "Timezones" and "List of Standard Definitions").

Strings are read as Go reads them: RFC 3339 for timestamps, `1h30m1.5s` for durations. A zone is a name of the IANA
database or an offset `±hh:mm`; without one it is UTC.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING

from tierwall.cel.errors import EvaluationError
from tierwall.cel.library.table import Overload, member_overloads
from tierwall.cel.types import DURATION, INT, STRING, TIMESTAMP
from tierwall.cel.values import NANOS, TIMESTAMP_MAX, TIMESTAMP_MIN, Duration, Timestamp
from tierwall.values import time
from tierwall.values.pattern import pattern
from tierwall.values.time import DAY, parse_time

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

_OFFSET = pattern(r"([+-]?[0-9]{1,4}):([+-]?[0-9]{1,4})", re.ASCII)


def parse_timestamp(text: str) -> Timestamp:
    """Parse RFC 3339; digits of a fraction beyond the ninth do not count."""
    moment = parse_time(text)
    if moment is None:
        raise EvaluationError("type conversion error from 'string' to 'timestamp'")
    if TIMESTAMP_MIN <= moment.ns <= TIMESTAMP_MAX:
        return Timestamp(*moment)
    raise EvaluationError("timestamp overflow")


def format_timestamp(value: Timestamp) -> str:
    """Format as RFC 3339 with the offset it was written with, and as many digits of fraction as needed."""
    seconds, fraction = divmod(value.ns, NANOS)
    days, second = divmod(seconds + value.offset, DAY)
    year, month, day = _civil(days)
    text = f"{year:04d}-{month:02d}-{day:02d}T{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
    if fraction:
        text += f".{fraction:09d}".rstrip("0")
    if not value.offset:
        return text + "Z"
    minutes = abs(value.offset) // 60
    return f"{text}{'-' if value.offset < 0 else '+'}{minutes // 60:02d}:{minutes % 60:02d}"


def parse_duration(text: str) -> Duration:
    """Parse a Go duration: signed, a sequence of decimal numbers with units."""
    ns = time.parse_duration(text)
    if ns is None:
        raise EvaluationError("type conversion error from 'string' to 'duration'")
    return Duration(ns)


def format_duration(value: Duration) -> str:
    """Format as seconds in decimal, as `strconv.FormatFloat(d.Seconds(), 'f', -1)` gives them."""
    magnitude = abs(value.ns)
    seconds = float(magnitude // NANOS) + float(magnitude % NANOS) / 1e9
    text = f"{Decimal(repr(seconds)):f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return f"{'-' if value.ns < 0 else ''}{text}s"


@lru_cache(maxsize=256)
def _zone(name: str) -> ZoneInfo | int:
    """Return the zone, or a fixed offset in seconds."""
    if ":" in name:
        match = _OFFSET.fullmatch(name)
        if match is None:
            raise EvaluationError(f"unknown time zone `{name[:80]}`")
        hours, minutes = int(match[1]), int(match[2])
        return (hours * 60 + (-minutes if name[0] == "-" else minutes)) * 60
    if name in ("", "UTC", "Local"):
        return 0
    if name in _zone_names():
        from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

        try:
            return ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            pass
    raise EvaluationError(f"unknown time zone `{name[:80]}`")


@lru_cache(maxsize=1)
def _zone_names() -> set[str]:
    from zoneinfo import available_timezones

    # Looking for a missing zone takes long, and an expression may look for many.
    return available_timezones()


def _offset(zone: ZoneInfo | int, seconds: int) -> int:
    if isinstance(zone, int):
        return zone
    # The first and last days of the range have no local time that Python could hold.
    day = 2 * DAY
    clamped = min(max(seconds, TIMESTAMP_MIN // NANOS + day), TIMESTAMP_MAX // NANOS - day)
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=clamped)
    shift = moment.astimezone(zone).utcoffset()
    return 0 if shift is None else round(shift.total_seconds())


def _civil(days: int) -> tuple[int, int, int]:
    """Return the date of a number of days since 1970-01-01; unlike `date`, also in the years 0 and 10000."""
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * shifted + 2) // 5 + 1
    month = shifted + 3 if shifted < 10 else shifted - 9
    return year_of_era + era * 400 + (month <= 2), month, day


def _day_of_year(days: int) -> int:
    year, month, day = _civil(days)
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    before = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)[month - 1]
    return before + (1 if leap and month > 2 else 0) + day - 1


# From (days since the epoch, second of the day, nanosecond), all local.
_FIELDS: dict[str, Callable[[int, int, int], int]] = {
    "getFullYear": lambda days, second, ns: _civil(days)[0],
    "getMonth": lambda days, second, ns: _civil(days)[1] - 1,
    "getDayOfYear": lambda days, second, ns: _day_of_year(days),
    "getDayOfMonth": lambda days, second, ns: _civil(days)[2] - 1,
    "getDate": lambda days, second, ns: _civil(days)[2],
    "getDayOfWeek": lambda days, second, ns: (days + 4) % 7,
    "getHours": lambda days, second, ns: second // 3600,
    "getMinutes": lambda days, second, ns: second // 60 % 60,
    "getSeconds": lambda days, second, ns: second % 60,
    "getMilliseconds": lambda days, second, ns: ns // 1_000_000,
}
_DURATION_UNITS = {"getHours": 3600 * NANOS, "getMinutes": 60 * NANOS, "getSeconds": NANOS}


def _accessor(field: Callable[[int, int, int], int]) -> Callable[..., int]:
    def get(value: Timestamp, zone: str = "") -> int:
        seconds, ns = divmod(value.ns, NANOS)
        days, second = divmod(seconds + _offset(_zone(zone), seconds), DAY)
        return field(days, second, ns)

    return get


def _in_units(unit: int) -> Callable[[Duration], int]:
    """Return the whole units of a duration, by way of a double as in Go: far from zero a nanosecond may round it up."""

    def get(value: Duration) -> int:
        whole, rest = divmod(abs(value.ns), unit)
        amount = int(float(whole) + float(rest) / float(unit))
        return -amount if value.ns < 0 else amount

    return get


def _milliseconds(value: Duration) -> int:
    whole = abs(value.ns) // 1_000_000
    return -whole if value.ns < 0 else whole


def _overloads() -> Iterator[Overload]:
    of_timestamp, of_duration = member_overloads(TIMESTAMP), member_overloads(DURATION)
    for name, field in _FIELDS.items():
        call = _accessor(field)
        yield of_timestamp(name, (), INT, call)
        yield of_timestamp(name, (STRING,), INT, call)
    for name, unit in _DURATION_UNITS.items():
        yield of_duration(name, (), INT, _in_units(unit))
    yield of_duration("getMilliseconds", (), INT, _milliseconds)


OVERLOADS: tuple[Overload, ...] = tuple(_overloads())
