"""Resource quantities (apiserver pkg/cel/library/quantity.go, apimachinery pkg/api/resource): `500m`, `1Gi`, `1e3`.

Kubernetes keeps a quantity as a 64-bit integer and a power of ten while it can, and only such ones are integers to it.
"""

from __future__ import annotations

import re
from typing import ClassVar

import msgspec

from tierwall.cel.errors import EvaluationError
from tierwall.cel.library import cost
from tierwall.cel.library.table import Overload, is_parsed_by, member_overloads
from tierwall.cel.types import BOOL, DOUBLE, INT, STRING, Type
from tierwall.cel.values import INT_MAX, INT_MIN, OpaqueValue
from tierwall.values.pattern import pattern

_TEXT = pattern(r"([+-]?)0*([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*[-+]?[0-9]*)", re.ASCII)
_EXPONENT = pattern(r"[eE]([+-]?[0-9]{1,9})", re.ASCII)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_NANO = -9
# Digits that always fit an int64.
_SAFE_DIGITS = 18
_MAX_DIGITS = 2_000


class Quantity(OpaqueValue, msgspec.Struct, frozen=True, gc=False):
    """A Kubernetes resource quantity: exactly `value * 10**scale`.

    `small` says that Kubernetes keeps it as a 64-bit integer and a scale; only such a quantity is ever an integer.
    """

    cel_type: ClassVar[str] = "kubernetes.Quantity"
    reader: ClassVar[str] = "quantity"
    value: int
    scale: int = 0
    small: bool = True

    def same(self, other: Quantity) -> bool:
        """Compare by amount."""
        return compare(self, other) == 0

    def notation(self) -> str:
        """Return digits and an exponent."""
        return f"{self.value}e{self.scale}" if self.scale else str(self.value)


QUANTITY = Type(Quantity.cel_type)


def compare(left: Quantity, right: Quantity) -> int:
    """Compare by amount: -1, 0 or 1."""
    a, b = left.value, right.value
    # Digits are only aligned where both are of the same magnitude, so that `1e1000000` is harmless.
    if (a > 0) - (a < 0) != (b > 0) - (b < 0) or not a:
        return (a > b) - (a < b)
    magnitude = len(str(abs(a))) + left.scale - len(str(abs(b))) - right.scale
    if magnitude:
        return 1 if (magnitude > 0) == (a > 0) else -1
    scale = min(left.scale, right.scale)
    a, b = a * pow(10, left.scale - scale), b * pow(10, right.scale - scale)
    return 1 if a > b else -1 if a < b else 0


def parse(text: str) -> Quantity:
    """Parse a signed decimal number with a suffix; anything finer than a billionth is rounded away from zero."""
    match = _TEXT.fullmatch(text)
    if not text or len(text) > _MAX_DIGITS or match is None:
        raise EvaluationError(
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        )
    sign, whole, fraction, suffix = match[1], match[2] or "0", match[3] or "", match[4]
    number = int(whole + fraction) * (-1 if sign == "-" else 1)
    if suffix in _BINARY:
        return _binary(number, whole, fraction, _BINARY[suffix])
    exponent = _DECIMAL.get(suffix)
    if exponent is None:
        power = _EXPONENT.fullmatch(suffix)
        if power is None:
            raise EvaluationError("unable to parse quantity's suffix")
        exponent = int(power[1])
    scale = exponent - len(fraction)
    if len(whole) + len(fraction) <= _SAFE_DIGITS and scale >= _NANO:
        return Quantity(number, scale)
    return _rounded(number, scale)


def _binary(number: int, whole: str, fraction: str, exponent: int) -> Quantity:
    value = number << exponent
    if not fraction and 14 - len(whole) - exponent * 3 // 10 >= 0 and abs(value) <= INT_MAX:
        return Quantity(value)
    result = _rounded(value, -len(fraction))
    limit = Quantity(INT_MAX, 0, False)
    if compare(Quantity(abs(result.value), result.scale), limit) > 0:
        return Quantity(INT_MAX if number > 0 else -INT_MAX, 0, False)
    return result


def _rounded(value: int, scale: int) -> Quantity:
    """Return a quantity that 64 bits do not hold, rounded to the billionth away from zero."""
    if scale < _NANO:
        # Cutting more digits than there are changes nothing: the result is a billionth anyway.
        cut = min(_NANO - scale, len(str(abs(value))) + 1)
        quotient, rest = divmod(abs(value), pow(10, cut))
        quotient += 1 if rest else 0
        value, scale = quotient if value > 0 else -quotient, _NANO
    elif value and scale - _NANO <= _MAX_DIGITS:
        value, scale = value * pow(10, scale - _NANO), _NANO
    return Quantity(value, scale, False)


def _integer(quantity: Quantity) -> int | None:
    if not quantity.small or quantity.scale < 0 or quantity.scale > 40:
        return 0 if quantity.small and quantity.scale > 40 and not quantity.value else None
    value = quantity.value * 10**quantity.scale
    return value if INT_MIN <= value <= INT_MAX else None


def as_integer(quantity: Quantity) -> int:
    """Return the value, where Kubernetes holds it as an integer."""
    value = _integer(quantity)
    if value is None:
        raise EvaluationError("cannot convert value to integer")
    return value


def as_float(quantity: Quantity) -> float:
    """Return the value as a double, with the rounding of Go's `base * math.Pow10(exponent)`."""
    power = float(f"1e{min(max(quantity.scale, -400), 400)}")
    try:
        return float(quantity.value) * power if quantity.scale else float(quantity.value)
    except OverflowError:
        return float("inf") if quantity.value > 0 else float("-inf")


def sign(quantity: Quantity) -> int:
    """Return the sign: -1, 0 or 1."""
    return (quantity.value > 0) - (quantity.value < 0)


def add(left: Quantity, addend: Quantity | int) -> Quantity:
    """Return the sum with a quantity or an int."""
    right = addend if isinstance(addend, Quantity) else Quantity(addend)
    if left.small and right.small and not (left.value and right.value):
        return left if left.value else Quantity(right.value, right.scale)
    scale = min(left.scale, right.scale)
    if max(left.scale, right.scale) - scale > _MAX_DIGITS:
        raise EvaluationError("quantity out of range")
    a, b = left.value * 10 ** (left.scale - scale), right.value * 10 ** (right.scale - scale)
    fits = all(INT_MIN <= number <= INT_MAX for number in (a, b, a + b))
    return Quantity(a + b, scale, left.small and right.small and fits)


def sub(left: Quantity, right: Quantity | int) -> Quantity:
    """Return the difference from a quantity or an int."""
    other = right if isinstance(right, Quantity) else Quantity(right)
    return add(left, Quantity(-other.value, other.scale, other.small))


_member = member_overloads(QUANTITY, since=28)

OVERLOADS: tuple[Overload, ...] = (
    Overload("quantity", (STRING,), QUANTITY, parse, cost=cost.scan, since=28),
    Overload("isQuantity", (STRING,), BOOL, is_parsed_by(parse), cost=cost.scan, since=28),
    # Declared as a function, not a member, in Kubernetes.
    Overload("sign", (QUANTITY,), INT, sign, since=28),
    _member("isGreaterThan", (QUANTITY,), BOOL, lambda a, b: compare(a, b) > 0),
    _member("isLessThan", (QUANTITY,), BOOL, lambda a, b: compare(a, b) < 0),
    _member("compareTo", (QUANTITY,), INT, compare),
    _member("asApproximateFloat", (), DOUBLE, as_float),
    _member("asInteger", (), INT, as_integer),
    _member("isInteger", (), BOOL, lambda quantity: _integer(quantity) is not None),
    _member("add", (QUANTITY,), QUANTITY, add),
    _member("add", (INT,), QUANTITY, add),
    _member("sub", (QUANTITY,), QUANTITY, sub),
    _member("sub", (INT,), QUANTITY, sub),
)
