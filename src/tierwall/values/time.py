"""Parse times and durations as Go's `time` package does: RFC 3339 to the nanosecond, and `1h30m1.5s`."""

from __future__ import annotations

import re
from datetime import date
from typing import NamedTuple

from tierwall.values.pattern import pattern

NANOS = 1_000_000_000
DAY = 86_400
MAX_DURATION = 2**63 - 1

_EPOCH_DAY = date(1970, 1, 1).toordinal()
_RFC3339 = pattern(r"(\d{4})-(\d\d)-(\d\d)T(\d{1,2}):(\d\d):(\d\d)(?:[.,](\d+))?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII)
_UNITS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": NANOS,
    "m": 60 * NANOS,
    "h": 3600 * NANOS,
}
_PART = pattern(r"([0-9]*)(?:\.([0-9]*))?(ns|us|µs|μs|ms|s|m|h)", re.ASCII)


class ParsedTime(NamedTuple):
    """A time as nanoseconds since 1970 in UTC, and the UTC offset in seconds with which it was written."""

    ns: int
    offset: int


# The range of protobuf's Timestamp and Python's datetime: the years 1 to 9999.
FIRST_NS = (date(1, 1, 1).toordinal() - _EPOCH_DAY) * DAY * NANOS
LAST_NS = (date(9999, 12, 31).toordinal() - _EPOCH_DAY + 1) * DAY * NANOS - 1


def parse_time(text: object) -> ParsedTime | None:
    """Parse an RFC 3339 time to nine digits of fraction; None if it is invalid."""
    match = _RFC3339.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in match.group(1, 2, 3, 4, 5, 6))
    offset = 0
    if match[8]:
        zone_hour, zone_minute = int(match[9]), int(match[10])
        if zone_hour > 24 or zone_minute > 60:
            return None
        offset = (zone_hour * 60 + zone_minute) * (-60 if match[8] == "-" else 60)
    if hour > 23 or minute > 59 or second > 59:
        return None
    try:
        days = date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError:
        return None
    fraction = int((match[7] or "0")[:9].ljust(9, "0"))
    return ParsedTime((days * DAY + hour * 3600 + minute * 60 + second - offset) * NANOS + fraction, offset)


def parse_duration(text: object) -> int | None:
    """Parse a Go duration, an optional sign and decimal numbers with units, to nanoseconds; None if it is invalid."""
    if not isinstance(text, str):
        return None
    body = text[1:] if text[:1] in ("+", "-") else text
    if body == "0":
        return 0
    # Go allows any number of parts; no sensible duration has more than a few hundred characters.
    if not body or len(body) > 1000:
        return None
    total, position = 0, 0
    while position < len(body):
        match = _PART.match(body, position)
        if match is None or not (match[1] or match[2]):
            return None
        unit = _UNITS[match[3]]
        total += int(match[1] or "0") * unit
        if match[2]:
            # Go adds the fraction as a double.
            digits = match[2][:18]
            total += int(float(int(digits)) * (float(unit) / float(10 ** len(digits))))
        position = match.end()
        if total > MAX_DURATION + 1:
            return None
    if text[0] == "-":
        return -total
    return total if total <= MAX_DURATION else None


def parse_seconds(text: object) -> float | None:
    """Parse a Go duration to seconds; None if it is invalid or negative."""
    ns = parse_duration(text)
    return None if ns is None or ns < 0 else ns / NANOS


def parse_timeout(text: str) -> float | None:
    """Parse a timeout as kubectl takes it: whole seconds, or a Go duration. 0 means without limit."""
    digits = text.removeprefix("+")
    if digits.isascii() and digits.isdecimal():
        return float(digits) if len(digits) <= 18 and int(digits) * NANOS <= MAX_DURATION else None
    return parse_seconds(text)
