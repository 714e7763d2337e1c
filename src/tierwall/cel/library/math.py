"""Mathematics (cel-go ext.Math version 2). No Kubernetes environment offers it."""

from __future__ import annotations

import math
from collections.abc import Callable

from tierwall.cel.errors import EvaluationError
from tierwall.cel.library.table import EXTENSION, Overload
from tierwall.cel.types import BOOL, DOUBLE, DYN, INT, UINT, Type, list_of
from tierwall.cel.values import NUMERIC, Uint, compare, int64, no_such_overload

_MASK = (1 << 64) - 1


def _signed(bits: int) -> int:
    bits &= _MASK
    return bits - (1 << 64) if bits >> 63 else bits


def _extreme(name: str, sign: int) -> Callable[..., object]:
    def pick(*arguments: object) -> object:
        values = arguments[0] if len(arguments) == 1 and isinstance(arguments[0], list) else list(arguments)
        if not values:
            raise EvaluationError(f"math.{name}() argument must not be empty")
        for value in values:
            if type(value) not in NUMERIC:
                raise no_such_overload(f"math.{name}", value)
        result = values[0]
        for value in values[1:]:
            if compare(value, result) == sign:
                result = value
        return result

    return pick


def _rounded(call: Callable[[float], float]) -> Callable[[float], float]:
    return lambda value: call(value) if math.isfinite(value) else value


def _half_away(value: float) -> float:
    return math.copysign(math.floor(abs(value) + 0.5) if abs(value) < 2.0**52 else abs(value), value)


def _absolute(value: int | float) -> int | float:
    return value if isinstance(value, Uint) else int64(abs(value)) if isinstance(value, int) else abs(value)


def _sign(value: int | float) -> int | float:
    if isinstance(value, float):
        return value if math.isnan(value) else float((value > 0) - (value < 0))
    sign = (value > 0) - (value < 0)
    return Uint(sign) if isinstance(value, Uint) else sign


def _shift(left: bool) -> Callable[[int, int], int]:
    def shift(value: int, count: int) -> int:
        if count < 0:
            raise EvaluationError(f"math.bitShift{'Left' if left else 'Right'}() negative offset: {count}")
        bits = int(value) & _MASK
        bits = 0 if count > 63 else (bits << count) & _MASK if left else bits >> count
        return Uint(bits) if isinstance(value, Uint) else _signed(bits)

    return shift


def _bitwise(call: Callable[[int, int], int]) -> Callable[[int, int], int]:
    def combine(left: int, right: int) -> int:
        bits = call(int(left) & _MASK, int(right) & _MASK)
        return Uint(bits) if isinstance(left, Uint) else _signed(bits)

    return combine


def _invert(value: int) -> int:
    return Uint(~int(value) & _MASK) if isinstance(value, Uint) else ~value


def _overload(name: str, params: tuple[Type, ...], result: Type, call: Callable[..., object]) -> Overload:
    return Overload(f"math.{name}", params, result, call, since=EXTENSION)


def _overloads() -> list[Overload]:
    result = []
    for name, sign in (("greatest", 1), ("least", -1)):
        pick = _extreme(name, sign)
        result += [_overload(name, (DYN,) * count, DYN, pick) for count in range(1, 11)]
        result.append(_overload(name, (list_of(DYN),), DYN, pick))
    for name, call in (
        ("ceil", _rounded(math.ceil)),
        ("floor", _rounded(math.floor)),
        ("trunc", _rounded(math.trunc)),
        ("round", _rounded(_half_away)),
    ):
        result.append(_overload(name, (DOUBLE,), DOUBLE, lambda value, call=call: float(call(value))))
    for name, test in (("isNaN", math.isnan), ("isInf", math.isinf), ("isFinite", math.isfinite)):
        result.append(_overload(name, (DOUBLE,), BOOL, test))
    for kind in (INT, UINT, DOUBLE):
        result.append(_overload("abs", (kind,), kind, _absolute))
        result.append(_overload("sign", (kind,), kind, _sign))
        result.append(_overload("sqrt", (kind,), DOUBLE, lambda value: math.sqrt(value) if value >= 0 else math.nan))
    for kind in (INT, UINT):
        result.append(_overload("bitAnd", (kind, kind), kind, _bitwise(lambda a, b: a & b)))
        result.append(_overload("bitOr", (kind, kind), kind, _bitwise(lambda a, b: a | b)))
        result.append(_overload("bitXor", (kind, kind), kind, _bitwise(lambda a, b: a ^ b)))
        result.append(_overload("bitNot", (kind,), kind, _invert))
        result.append(_overload("bitShiftLeft", (kind, INT), kind, _shift(left=True)))
        result.append(_overload("bitShiftRight", (kind, INT), kind, _shift(left=False)))
    return result


OVERLOADS: tuple[Overload, ...] = tuple(_overloads())
