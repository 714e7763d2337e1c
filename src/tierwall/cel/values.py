"""The values CEL expressions work on, as Python objects (cel-spec, "Values"; Kubernetes' opaque types).

null, bool, int, double, string, bytes, list and map are plain `None`, `bool`, `int`, `float`, `str`, `bytes`, `list`
and `dict`, so a JSON object is evaluated as it is. The others have a class here. Python's own rules never decide:
`True` is not 1, and equality and order are the functions below. A map whose keys are not all strings is made by
`make_map`, which keeps the key `true` apart from the key `1`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Final

import msgspec

from tierwall.cel.errors import EvaluationError

INT_MIN: Final = -(1 << 63)
INT_MAX: Final = (1 << 63) - 1
UINT_MAX: Final = (1 << 64) - 1
NANOS: Final = 1_000_000_000
# 0001-01-01T00:00:00Z and 9999-12-31T23:59:59.999999999Z.
TIMESTAMP_MIN: Final = -62_135_596_800 * NANOS
TIMESTAMP_MAX: Final = 253_402_300_800 * NANOS - 1


class Uint(int):
    """An unsigned 64-bit integer; equal to the int of the same number, as CEL has it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{int(self)}u"

    __str__ = int.__repr__


class Timestamp(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A point in time, in nanoseconds since 1970-01-01T00:00:00Z.

    `offset`, in seconds east of UTC, is how it was written and how `string()` writes it; nothing else depends on it.
    """

    ns: int
    offset: int = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Timestamp) and self.ns == other.ns

    def __hash__(self) -> int:
        return hash(self.ns)

    def __lt__(self, other: Timestamp) -> bool:
        return self.ns < other.ns

    def __gt__(self, other: Timestamp) -> bool:
        return self.ns > other.ns


class Duration(msgspec.Struct, frozen=True, order=True, gc=False):
    """A length of time in nanoseconds, signed, 64 bits as in Go."""

    ns: int

    def notation(self) -> str:
        """Return the text that reads back as the duration; `string()` goes by a double and may lose nanoseconds."""
        whole, fraction = divmod(abs(self.ns), NANOS)
        text = f"{whole}.{fraction:09d}".rstrip("0").rstrip(".") if fraction else str(whole)
        return f"{'-' if self.ns < 0 else ''}{text}s"


# The names in expressions of the types that have another name in messages.
LONG_NAMES: Final = {"timestamp": "google.protobuf.Timestamp", "duration": "google.protobuf.Duration"}


class TypeValue(msgspec.Struct, frozen=True, gc=False):
    """A type as a value: what `type(x)` gives, and what the name `int` stands for."""

    name: str

    def __str__(self) -> str:
        return self.name


class OptionalValue(msgspec.Struct, frozen=True):
    """`optional.of(value)`, or `optional.none()` if not present."""

    value: object = None
    present: bool = True


NONE: Final = OptionalValue(None, False)


class OpaqueValue:
    """A value of a type that a library defines: it has functions, but no fields.

    Comparing one with a value of another type is an error in CEL, and so it is in Python: code that compares with `==`
    cannot take it for "not equal".
    """

    __slots__ = ()
    cel_type: ClassVar[str] = "opaque"
    # The function that reads `notation`, if there is one.
    reader: ClassVar[str] = ""

    def same(self, other: Any) -> bool:
        """CEL's `==` between two values of this type."""
        return bool(msgspec.structs.astuple(self) == msgspec.structs.astuple(other))  # type: ignore[arg-type]

    def size(self) -> int:
        """Return the size that the cost model uses."""
        return 1

    def notation(self) -> str | None:
        """Return the string that stands for the value in JSON and in expressions; None if it has no such string."""
        return None

    def __eq__(self, other: object) -> bool:
        if type(self) is type(other):
            return self.same(other)
        raise no_such_overload("_==_", self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.cel_type)


class BoolKey(msgspec.Struct, frozen=True, gc=False):
    """`true` or `false` as a map key, because Python's `True` equals the key `1`."""

    value: bool


_TYPE_NAMES: Final[dict[type, str]] = {
    type(None): "null_type",
    bool: "bool",
    int: "int",
    Uint: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    list: "list",
    dict: "map",
    Timestamp: "timestamp",
    Duration: "duration",
    TypeValue: "type",
    OptionalValue: "optional_type",
}
NUMERIC: Final = frozenset((int, Uint, float))
_ORDERED: Final = frozenset((bool, str, bytes, Timestamp, Duration))


def type_name(value: object) -> str:
    """Return the CEL name of the value's type."""
    name = _TYPE_NAMES.get(type(value))
    if name is not None:
        return name
    if isinstance(value, OpaqueValue):
        return value.cel_type
    # Other mappings and sequences would bring Python's own equality and indexing with them.
    return f"unsupported ({type(value).__name__})"


def no_such_overload(function: str, *arguments: object) -> EvaluationError:
    """Return the error of a function applied to types it has no overload for."""
    return EvaluationError(f"no such overload: {function}({', '.join(map(type_name, arguments))})")


def make_map(pairs: Iterable[tuple[object, object]]) -> dict[object, object]:
    """Return a map whose keys may be of any key type."""
    result: dict[object, object] = {}
    for key, value in pairs:
        put_entry(result, key, value)
    return result


def put_entry(mapping: dict[object, object], key: object, value: object) -> None:
    """Add an entry: of equal keys the last one wins; of equal numbers of different types the first one does."""
    stored = map_key(key)
    if stored in mapping and type(stored) in NUMERIC:
        existing = next(other for other in mapping if other == stored)
        if type(existing) is not type(stored):
            return
    mapping[stored] = value


def map_key(key: object) -> object:
    """Return the key as a map literal stores it; an error where CEL allows no such key."""
    kind = type(key)
    if kind is float and key != key:
        # NaN equals nothing, but Python finds the same object again; a new one is never found.
        return float("nan")
    if kind is str or kind in NUMERIC:
        return key
    if kind is bool:
        return BoolKey(key is True)
    raise EvaluationError(f"unsupported key type: {type_name(key)}")


def map_keys(mapping: dict[object, object]) -> Iterator[object]:
    """Yield the keys as CEL sees them, in the order they were put in."""
    for key in mapping:
        yield key.value if type(key) is BoolKey else key


_MISSING: Final = object()


def map_find(mapping: dict[object, object], key: object) -> tuple[bool, object]:
    """Whether the map has the key, and its value. Numeric keys are found by number, whatever their type."""
    kind = type(key)
    if kind is bool:
        key = BoolKey(key is True)
    elif kind is not str and kind not in NUMERIC:
        return False, None
    value = _MISSING if key != key else mapping.get(key, _MISSING)
    return (False, None) if value is _MISSING else (True, value)


def equal(left: Any, right: Any) -> bool:
    """CEL's `==`: heterogeneous, numbers by value, an error only for opaque values of different types."""
    kind, other = type(left), type(right)
    if kind is other:
        if kind is list:
            return len(left) == len(right) and all(map(equal, left, right))
        if kind is dict:
            return _equal_maps(left, right)
        if kind is OptionalValue:
            return left.present is right.present and (not left.present or equal(left.value, right.value))
        if isinstance(left, OpaqueValue):
            return left.same(right)
        return left == right  # type: ignore[no-any-return]
    if kind in NUMERIC and other in NUMERIC:
        return _number(left, other) == _number(right, kind)
    if isinstance(left, OpaqueValue):
        raise no_such_overload("_==_", left, right)
    return False


def _number(value: object, other: type) -> object:
    # cel-go compares an integer with a double as doubles.
    return float(value) if other is float and type(value) is not float else value  # type: ignore[arg-type]


def _equal_maps(left: Any, right: Any) -> bool:
    if len(left) != len(right):
        return False
    for key, value in left.items():
        other = right.get(key, _MISSING)
        if other is _MISSING or not equal(value, other):
            return False
    return True


def compare(left: object, right: object) -> int:
    """Compare in CEL's order: -1, 0 or 1, or 2 with NaN; an error where the two have no order."""
    kind, other = type(left), type(right)
    if kind is other:
        if kind in NUMERIC or kind in _ORDERED:
            return _sign(left, right)
    elif kind in NUMERIC and other in NUMERIC:
        return _sign(_number(left, other), _number(right, kind))
    raise no_such_overload("compare", left, right)


def _sign(left: object, right: object) -> int:
    if left < right:  # type: ignore[operator]
        return -1
    if left > right:  # type: ignore[operator]
        return 1
    return 0 if left == right else 2


def size_of(value: object) -> int:
    """Return the size that the cost model uses: code points, bytes, elements, entries; 1 for values without a size."""
    kind = type(value)
    if kind is str or kind is list or kind is dict or kind is bytes:
        return len(value)  # type: ignore[arg-type]
    if kind is OptionalValue:
        return size_of(value.value) if value.present else 1  # type: ignore[attr-defined]
    return value.size() if isinstance(value, OpaqueValue) else 1


def int64(number: int) -> int:
    """Return the number; an error if an int cannot hold it."""
    if INT_MIN <= number <= INT_MAX:
        return number
    raise EvaluationError("integer overflow")


def uint64(number: int) -> Uint:
    """Return the number as a uint; an error if a uint cannot hold it."""
    if 0 <= number <= UINT_MAX:
        return Uint(number)
    raise EvaluationError("unsigned integer overflow")
