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
    return int64(-quotient if (left < 0) != (right < 0) else quotient)


def _modulo(left: int, right: int) -> int:
    if right == 0:
        raise EvaluationError("modulus by zero")
    if right == -1:
        _divide(left, right)
    remainder = abs(left) % abs(right)
    return -remainder if left < 0 else remainder


def _divide_double(left: float, right: float) -> float:
    if right == 0:
        if left == 0 or math.isnan(left) or math.isnan(right):
            return math.nan
        return math.copysign(math.inf, left) * math.copysign(1.0, right)
    return left / right


def _divide_uint(left: int, right: int) -> Uint:
    if right == 0:
        raise EvaluationError("division by zero")
    return Uint(left // right)


def _modulo_uint(left: int, right: int) -> Uint:
    if right == 0:
        raise EvaluationError("modulus by zero")
    return Uint(left % right)


def list_place(items: list[object], index: object) -> int | None:
    """The place in a list that an index means, None if it is beyond; a uint or a whole double is an index too."""
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
    found, value = map_find(mapping, key)
    if found:
        return value
    raise no_such_key(key if type(key) is not bool else str(key).lower())


def in_list(value: object, items: list[object]) -> bool:
    """`value in list`."""
    return any(equal(value, item) for item in items)


def in_map(value: object, mapping: dict[object, object]) -> bool:
    """`key in map`."""
    return map_find(mapping, value)[0]


def _ordering(name: str, holds: Callable[[int], bool]) -> Callable[[object, object], bool]:
    def ordered(left: object, right: object) -> bool:
        sign = compare(left, right)
        if sign == 2:
            raise EvaluationError("NaN values cannot be ordered")
        return holds(sign)

    ordered.__name__ = name
    return ordered


_NUMBERS = {"int64": INT, "uint64": UINT, "double": DOUBLE}
_ORDERED = {"bool": BOOL, **_NUMBERS, "string": STRING, "bytes": BYTES, "timestamp": TIMESTAMP, "duration": DURATION}


def _order_overloads(function: str, name: str, holds: Callable[[int], bool]) -> Iterator[Overload]:
    call = _ordering(name, holds)
    for word, kind in _ORDERED.items():
        price = cost.scan_shorter if kind in (STRING, BYTES) else None
        yield Overload(function, f"{name}_{word}", (kind, kind), BOOL, call, cost=price)
    # Order across numeric types came with release 1.28.
    for (word, kind), (other_word, other) in permutations(_NUMBERS.items(), 2):
        yield Overload(function, f"{name}_{word}_{other_word}", (kind, other), BOOL, call, since=28)


def _arithmetic() -> list[Overload]:
    def of(function: str, id: str, left: Type, right: Type, result: Type, call: Callable[..., object]) -> Overload:
        return Overload(function, id, (left, right), result, call)

    return [
        Overload("_+_", "add_bytes", (BYTES, BYTES), BYTES, operator.add, cost=cost.scan_both),
        Overload("_+_", "add_string", (STRING, STRING), STRING, operator.add, cost=cost.scan_both),
        Overload("_+_", "add_list", (list_of(A), list_of(A)), list_of(A), operator.add, cost=cost.concatenate),
        of("_+_", "add_double", DOUBLE, DOUBLE, DOUBLE, operator.add),
        of("_+_", "add_int64", INT, INT, INT, lambda a, b: int64(a + b)),
        of("_+_", "add_uint64", UINT, UINT, UINT, lambda a, b: uint64(int(a) + int(b))),
        of("_+_", "add_duration_duration", DURATION, DURATION, DURATION, lambda a, b: _duration(a.ns + b.ns)),
        of("_+_", "add_duration_timestamp", DURATION, TIMESTAMP, TIMESTAMP, lambda a, b: _timestamp(b, a.ns)),
        of("_+_", "add_timestamp_duration", TIMESTAMP, DURATION, TIMESTAMP, lambda a, b: _timestamp(a, b.ns)),
        of("_-_", "subtract_double", DOUBLE, DOUBLE, DOUBLE, operator.sub),
        of("_-_", "subtract_int64", INT, INT, INT, lambda a, b: int64(a - b)),
        of("_-_", "subtract_uint64", UINT, UINT, UINT, lambda a, b: uint64(int(a) - int(b))),
        of("_-_", "subtract_duration_duration", DURATION, DURATION, DURATION, lambda a, b: _duration(a.ns - b.ns)),
        of("_-_", "subtract_timestamp_duration", TIMESTAMP, DURATION, TIMESTAMP, lambda a, b: _timestamp(a, -b.ns)),
        of("_-_", "subtract_timestamp_timestamp", TIMESTAMP, TIMESTAMP, DURATION, lambda a, b: _duration(a.ns - b.ns)),
        of("_*_", "multiply_double", DOUBLE, DOUBLE, DOUBLE, operator.mul),
        of("_*_", "multiply_int64", INT, INT, INT, lambda a, b: int64(a * b)),
        of("_*_", "multiply_uint64", UINT, UINT, UINT, lambda a, b: uint64(int(a) * int(b))),
        of("_/_", "divide_double", DOUBLE, DOUBLE, DOUBLE, _divide_double),
        of("_/_", "divide_int64", INT, INT, INT, _divide),
        of("_/_", "divide_uint64", UINT, UINT, UINT, _divide_uint),
        of("_%_", "modulo_int64", INT, INT, INT, _modulo),
        of("_%_", "modulo_uint64", UINT, UINT, UINT, _modulo_uint),
        Overload("-_", "negate_double", (DOUBLE,), DOUBLE, operator.neg),
        Overload("-_", "negate_int64", (INT,), INT, lambda a: int64(-a)),
    ]


_ADD = {overload.params: overload.call for overload in _arithmetic() if overload.function == "_+_"}
_SUMMABLE: dict[type, Type] = {int: INT, Uint: UINT, float: DOUBLE, Duration: DURATION}


def add(left: object, right: object) -> object:
    """`+` of two numbers or durations of one type."""
    t = _SUMMABLE.get(type(left))
    if t is None or type(left) is not type(right):
        raise no_such_overload("_+_", left, right)
    return _ADD[t, t](left, right)


def _sizes() -> Iterator[Overload]:
    for word, kind in (("bytes", BYTES), ("list", list_of(A)), ("map", map_of(A, B)), ("string", STRING)):
        yield Overload("size", f"size_{word}", (kind,), INT, len)
        yield Overload("size", f"{word}_size", (kind,), INT, len, member=True)


OVERLOADS: tuple[Overload, ...] = (
    Overload("_?_:_", "conditional", (BOOL, A, A), A, logical),
    Overload("_&&_", "logical_and", (BOOL, BOOL), BOOL, logical),
    Overload("_||_", "logical_or", (BOOL, BOOL), BOOL, logical),
    Overload("!_", "logical_not", (BOOL,), BOOL, operator.not_),
    Overload("_==_", "equals", (A, A), BOOL, equal, cost=cost.scan_shorter),
    Overload("_!=_", "not_equals", (A, A), BOOL, lambda a, b: not equal(a, b), cost=cost.scan_shorter),
    Overload("@in", "in_list", (A, list_of(A)), BOOL, in_list, cost=cost.length_of_second),
    Overload("@in", "in_map", (A, map_of(A, B)), BOOL, in_map),
    Overload("_[_]", "index_list", (list_of(A), INT), A, index_list),
    Overload("_[_]", "index_map", (map_of(A, B), A), B, index_map),
    *_order_overloads("_<_", "less", lambda sign: sign < 0),
    *_order_overloads("_<=_", "less_equals", lambda sign: sign <= 0),
    *_order_overloads("_>_", "greater", lambda sign: sign > 0),
    *_order_overloads("_>=_", "greater_equals", lambda sign: sign >= 0),
    *_arithmetic(),
    *_sizes(),
)
