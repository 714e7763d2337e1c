"""Operators (cel-spec, "List of Standard Definitions"): arithmetic, order, equality, membership, indexing, size.

Arithmetic never crosses types; order and equality do among numbers. Every result is in range, or an error.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from itertools import permutations

from tierwall.cel.errors import EvaluationError, no_such_key
from tierwall.cel.library import cost
from tierwall.cel.library.table import Overload
from tierwall.cel.types import BOOL, BYTES, DOUBLE, DURATION, INT, STRING, TIMESTAMP, UINT, A, B, Type, list_of, map_of
from tierwall.cel.values import (
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    Duration,
    Timestamp,
    Uint,
    compare,
    equal,
    int64,
    map_find,
    no_such_overload,
    type_name,
    uint64,
)


def logical(*operands: object) -> object:
    """`&&`, `||` and `?:` are special forms: operands are not all evaluated, so there is nothing to apply."""
    raise no_such_overload("logical", *operands)


def _timestamp(base: Timestamp, shift: int) -> Timestamp:
    ns = base.ns + shift
    if TIMESTAMP_MIN <= ns <= TIMESTAMP_MAX:
        return Timestamp(ns, base.offset)
    raise EvaluationError("timestamp overflow")


def _duration(ns: int) -> Duration:
    return Duration(int64(ns))


def _divide(left: int, right: int) -> int:
    if right == 0:
        raise EvaluationError("division by zero")
    quotient = abs(left) // abs(right)
    return -quotient if (left < 0) != (right < 0) else quotient


def _modulo(left: int, right: int) -> int:
    if right == 0:
        raise EvaluationError("modulus by zero")
    if right == -1:
        int64(-left)  # where the quotient overflows, so does this in Go
    remainder = abs(left) % abs(right)
    return -remainder if left < 0 else remainder


def _divide_double(left: float, right: float) -> float:
    if right == 0:
        if left == 0 or math.isnan(left) or math.isnan(right):
            return math.nan
        return math.copysign(math.inf, left) * math.copysign(1.0, right)
    return left / right


def list_place(items: list[object], index: object) -> int | None:
    """Return the place in a list that an int, uint or whole double means, or None if it is out of bounds."""
    if type(index) is int or type(index) is Uint or (type(index) is float and index.is_integer()):
        place = int(index)
    else:
        raise EvaluationError(f"unsupported index in list: {type_name(index)}")
    return place if 0 <= place < len(items) else None


def index_list(items: list[object], index: object) -> object:
    """`list[index]`."""
    place = list_place(items, index)
    if place is None:
        raise EvaluationError(f"index out of bounds: {index}")
    return items[place]


def index_map(mapping: dict[object, object], key: object) -> object:
    """`map[key]`."""
    is_present, value = map_find(mapping, key)
    if is_present:
        return value
    raise no_such_key(key if type(key) is not bool else str(key).lower())


def in_list(value: object, items: list[object]) -> bool:
    """`value in list`."""
    return any(equal(value, item) for item in items)


def in_map(value: object, mapping: dict[object, object]) -> bool:
    """`key in map`."""
    return map_find(mapping, value)[0]


def _ordering(accepts_sign: Callable[[int], bool]) -> Callable[[object, object], bool]:
    def ordered(left: object, right: object) -> bool:
        sign = compare(left, right)
        if sign == 2:
            raise EvaluationError("NaN values cannot be ordered")
        return accepts_sign(sign)

    return ordered


_NUMBERS = (INT, UINT, DOUBLE)
_ORDERED = (BOOL, *_NUMBERS, STRING, BYTES, TIMESTAMP, DURATION)


def _order_overloads(function: str, accepts_sign: Callable[[int], bool]) -> Iterator[Overload]:
    call = _ordering(accepts_sign)
    for kind in _ORDERED:
        yield Overload(function, (kind, kind), BOOL, call, cost=cost.scan_shorter if kind in (STRING, BYTES) else None)
    # Order across numeric types came with release 1.28.
    for pair in permutations(_NUMBERS, 2):
        yield Overload(function, pair, BOOL, call, since=28)


_ARITHMETIC = (
    Overload("_+_", (BYTES, BYTES), BYTES, operator.add, cost=cost.scan_both),
    Overload("_+_", (STRING, STRING), STRING, operator.add, cost=cost.scan_both),
    Overload("_+_", (list_of(A), list_of(A)), list_of(A), operator.add, cost=cost.concatenate),
    Overload("_+_", (DOUBLE, DOUBLE), DOUBLE, operator.add),
    Overload("_+_", (INT, INT), INT, lambda a, b: int64(a + b)),
    Overload("_+_", (UINT, UINT), UINT, lambda a, b: uint64(int(a) + int(b))),
    Overload("_+_", (DURATION, DURATION), DURATION, lambda a, b: _duration(a.ns + b.ns)),
    Overload("_+_", (DURATION, TIMESTAMP), TIMESTAMP, lambda a, b: _timestamp(b, a.ns)),
    Overload("_+_", (TIMESTAMP, DURATION), TIMESTAMP, lambda a, b: _timestamp(a, b.ns)),
    Overload("_-_", (DOUBLE, DOUBLE), DOUBLE, operator.sub),
    Overload("_-_", (INT, INT), INT, lambda a, b: int64(a - b)),
    Overload("_-_", (UINT, UINT), UINT, lambda a, b: uint64(int(a) - int(b))),
    Overload("_-_", (DURATION, DURATION), DURATION, lambda a, b: _duration(a.ns - b.ns)),
    Overload("_-_", (TIMESTAMP, DURATION), TIMESTAMP, lambda a, b: _timestamp(a, -b.ns)),
    Overload("_-_", (TIMESTAMP, TIMESTAMP), DURATION, lambda a, b: _duration(a.ns - b.ns)),
    Overload("_*_", (DOUBLE, DOUBLE), DOUBLE, operator.mul),
    Overload("_*_", (INT, INT), INT, lambda a, b: int64(a * b)),
    Overload("_*_", (UINT, UINT), UINT, lambda a, b: uint64(int(a) * int(b))),
    Overload("_/_", (DOUBLE, DOUBLE), DOUBLE, _divide_double),
    Overload("_/_", (INT, INT), INT, lambda a, b: int64(_divide(a, b))),
    Overload("_/_", (UINT, UINT), UINT, lambda a, b: Uint(_divide(a, b))),
    Overload("_%_", (INT, INT), INT, _modulo),
    Overload("_%_", (UINT, UINT), UINT, lambda a, b: Uint(_modulo(a, b))),
    Overload("-_", (DOUBLE,), DOUBLE, operator.neg),
    Overload("-_", (INT,), INT, lambda a: int64(-a)),
)
_ADD = {overload.params: overload.call for overload in _ARITHMETIC if overload.function == "_+_"}
_SUMMABLE: dict[type, Type] = {int: INT, Uint: UINT, float: DOUBLE, Duration: DURATION}


def add(left: object, right: object) -> object:
    """`+` of two numbers or durations of one type."""
    t = _SUMMABLE.get(type(left))
    if t is None or type(left) is not type(right):
        raise no_such_overload("_+_", left, right)
    return _ADD[t, t](left, right)


def _sizes() -> Iterator[Overload]:
    for kind in (BYTES, list_of(A), map_of(A, B), STRING):
        yield Overload("size", (kind,), INT, len)
        yield Overload("size", (kind,), INT, len, member=True)


OVERLOADS: tuple[Overload, ...] = (
    Overload("_?_:_", (BOOL, A, A), A, logical),
    Overload("_&&_", (BOOL, BOOL), BOOL, logical),
    Overload("_||_", (BOOL, BOOL), BOOL, logical),
    Overload("!_", (BOOL,), BOOL, operator.not_),
    Overload("_==_", (A, A), BOOL, equal, cost=cost.scan_shorter),
    Overload("_!=_", (A, A), BOOL, lambda a, b: not equal(a, b), cost=cost.scan_shorter),
    Overload("@in", (A, list_of(A)), BOOL, in_list, cost=cost.length_of_second),
    Overload("@in", (A, map_of(A, B)), BOOL, in_map),
    Overload("_[_]", (list_of(A), INT), A, index_list),
    Overload("_[_]", (map_of(A, B), A), B, index_map),
    *_order_overloads("_<_", lambda sign: sign < 0),
    *_order_overloads("_<=_", lambda sign: sign <= 0),
    *_order_overloads("_>_", lambda sign: sign > 0),
    *_order_overloads("_>=_", lambda sign: sign >= 0),
    *_ARITHMETIC,
    *_sizes(),
)
