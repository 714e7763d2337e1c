"""Regions: the strings, or numbers, that the tests of a question cannot tell apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import inf, nextafter
from typing import Any

import msgspec

from tierwall.cel.values import INT_MAX, INT_MIN, UINT_MAX
from tierwall.logic.cel.unknown import Number, Unknown


class ValueRegion(msgspec.Struct, frozen=True):
    """A region of strings or numbers: the tests that it passes, members, and whether it has just one or no others."""

    passes: frozenset[Any]
    members: tuple[Any, ...]
    is_single: bool
    is_complete: bool = False

    def has(self, value: Any, passed: Mapping[Any, bool]) -> bool:
        """Whether a value that passes these tests is in the region."""
        if self.is_single:
            return value in self.members
        return all((test in self.passes) is truth for test, truth in passed.items())


def is_number(unknown: Unknown, member: Number) -> bool:
    """Whether an unknown may have a number, by its type."""
    match unknown.shape.number:
        case "int":
            return isinstance(member, int) and INT_MIN <= member <= INT_MAX
        case "uint":
            return isinstance(member, int) and 0 <= member <= UINT_MAX
    return not isinstance(member, int) or INT_MIN <= member <= INT_MAX


def number_regions(group: Sequence[Unknown]) -> list[ValueRegion]:
    """Cut numbers at the constants that the group is compared with; one near zero comes first."""
    tests = {test for unknown in group for test in unknown.comparisons}
    cuts: set[Number] = {constant for _, constant in tests}
    if any(unknown.shape.number == "uint" for unknown in group):
        cuts.add(0)
    count = len(group)
    for low, high in _gaps(cuts):
        # Between two constants there may be fewer integers than unknowns: then each is a region of its own.
        inside = _integers(low, high, count)
        if len(inside) < count:
            cuts.update(inside)
    points = [(cut, cut) for cut in sorted(cuts)]
    places: list[ValueRegion] = []
    for low, high in (*_gaps(cuts), *points):
        members: tuple[Number, ...] = (low,) if low == high else tuple(_integers(low, high, count))
        if not members:
            members = tuple(_doubles(low, high, count))
        if not members:
            continue
        example = members[0]
        passes = frozenset(
            (sign, constant) for sign, constant in tests if (example < constant if sign == "<" else example == constant)
        )
        places.append(ValueRegion(passes, members, low == high, low == high))
    return sorted(places, key=lambda place: (abs(place.members[0]), place.members[0] < 0))


def _gaps(cuts: Iterable[Number]) -> list[tuple[Number, Number]]:
    ordered = [-inf, *sorted(cuts), inf]
    return list(pairwise(ordered))


def _integers(low: Number, high: Number, count: int) -> list[int]:
    """Return up to `count` integers between, those nearest to zero first."""
    first = INT_MIN if low == -inf else int(low // 1) + 1
    last = INT_MAX if high == inf else -int(-high // 1) - 1
    if first > last:
        return []
    start = min(max(0, first), last)
    if start == last:
        return list(range(last, max(first, last - count + 1) - 1, -1))
    if start == first:
        return list(range(first, min(last, first + count - 1) + 1))
    return [number for number in (*range(count), *range(-1, -count - 1, -1)) if first <= number <= last][:count]


def _doubles(low: Number, high: Number, count: int) -> list[float]:
    """Return up to `count` doubles between two numbers without an integer between them."""
    members: list[float] = []
    middle = (low + high) / 2
    while low < middle < high and len(members) < count:
        members.append(middle)
        middle = nextafter(middle, inf)
    return members
