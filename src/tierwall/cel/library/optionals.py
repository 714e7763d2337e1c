"""Optional values (cel-go OptionalTypes): values that may be absent, and `?.`, `[?…]` that make them."""

from __future__ import annotations

from tierwall.cel.errors import EvaluationError
from tierwall.cel.library.operators import list_place
from tierwall.cel.library.table import Overload, member_overloads
from tierwall.cel.types import BOOL, INT, A, B, Type, list_of, map_of, optional_of
from tierwall.cel.values import NONE, TIMESTAMP_MIN, OptionalValue, Timestamp, Uint, map_find, no_such_overload

# Functions that evaluate their second argument only where the first, an optional, has no value.
LAZY = ("or", "orValue")
_KEYS = frozenset((bool, int, Uint, float, str))


def of_non_zero(value: object) -> OptionalValue:
    """`optional.ofNonZeroValue(x)`: none for null, false, zero and everything empty."""
    return NONE if is_zero(value) else OptionalValue(value)


def is_zero(value: object) -> bool:
    """Whether the value is its type's zero."""
    match value:
        case None | False | "" | b"":
            return True
        case int() | float():
            return value == 0
        case list() | dict():
            return not value
        case OptionalValue():
            return not value.present
        case Timestamp():
            return value.ns == TIMESTAMP_MIN
    return getattr(value, "ns", None) == 0


def value_of(optional: OptionalValue) -> object:
    """`x.value()`."""
    if optional.present:
        return optional.value
    raise EvaluationError("optional.none() dereference")


def unwrap(optionals: list[object]) -> list[object]:
    """Return the values of the optionals that have one."""
    result = []
    for item in optionals:
        if not isinstance(item, OptionalValue):
            raise no_such_overload("optional.unwrap", item)
        if item.present:
            result.append(item.value)
    return result


def optional_index(container: object, key: object) -> OptionalValue:
    """`x[?key]`: none where there is no such element; the container may itself be optional."""
    if type(key) not in _KEYS:
        raise no_such_overload("_[?_]", container, key)
    if isinstance(container, OptionalValue):
        return optional_index(container.value, key) if container.present else NONE
    if isinstance(container, dict):
        is_present, value = map_find(container, key)
        return OptionalValue(value) if is_present else NONE
    if isinstance(container, list):
        place = list_place(container, key)
        return OptionalValue(container[place]) if place is not None else NONE
    # What has no elements at all has none of this name either, as in cel-go.
    return NONE


_A, _B, _LIST, _MAP = optional_of(A), optional_of(B), list_of(A), map_of(A, B)
_of_optional, _of_list = member_overloads(_A, since=28), member_overloads(_LIST, since=28)


def _index(function: str, container: Type, key: Type, result: Type) -> Overload:
    return Overload(function, (container, key), result, optional_index, since=28)


OVERLOADS: tuple[Overload, ...] = (
    Overload("optional.of", (A,), _A, OptionalValue, since=28),
    Overload("optional.ofNonZeroValue", (A,), _A, of_non_zero, since=28),
    Overload("optional.none", (), _A, lambda: NONE, since=28),
    Overload("optional.unwrap", (list_of(_A),), _LIST, unwrap, since=28),
    member_overloads(list_of(_A), since=28)("unwrapOpt", (), _LIST, unwrap),
    _of_optional("value", (), A, value_of),
    _of_optional("hasValue", (), BOOL, lambda optional: optional.present),
    _of_optional("or", (_A,), _A, lambda optional, other: optional if optional.present else other),
    _of_optional("orValue", (A,), A, lambda optional, default: optional.value if optional.present else default),
    _index("_[?_]", _LIST, INT, _A),
    _index("_[?_]", optional_of(_LIST), INT, _A),
    _index("_[?_]", _MAP, A, _B),
    _index("_[?_]", optional_of(_MAP), A, _B),
    # A missing element of an optional container also gives `optional.none()`.
    _index("_[_]", optional_of(_LIST), INT, _A),
    _index("_[_]", optional_of(_MAP), A, _B),
    _of_list("first", (), _A, lambda items: OptionalValue(items[0]) if items else NONE),
    _of_list("last", (), _A, lambda items: OptionalValue(items[-1]) if items else NONE),
)
