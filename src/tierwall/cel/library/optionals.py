"""Optional values (cel-go OptionalTypes): values that may be absent, and `?.`, `[?…]` that make them."""

from __future__ import annotations

from tierwall.cel.errors import EvaluationError
from tierwall.cel.library.operators import list_place
from tierwall.cel.library.table import Overload
from tierwall.cel.types import BOOL, INT, A, B, list_of, map_of, optional_of
from tierwall.cel.values import NONE, TIMESTAMP_MIN, OptionalValue, Timestamp, Uint, map_find, no_such_overload

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


def either(left: OptionalValue, right: object) -> object:
    """`x.or(y)`. The evaluators do not evaluate y where x has a value."""
    return left if left.present else right


def or_value(optional: OptionalValue, default: object) -> object:
    """`x.orValue(y)`."""
    return optional.value if optional.present else default


def unwrap(optionals: list[object]) -> list[object]:
    """The values of those that have one."""
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
        found, value = map_find(container, key)
        return OptionalValue(value) if found else NONE
    if isinstance(container, list):
        place = list_place(container, key)
        return OptionalValue(container[place]) if place is not None else NONE
    # What has no elements at all has none of this name either, as in cel-go.
    return NONE


def index_optional(container: OptionalValue, key: object) -> OptionalValue:
    """`x[key]` of an optional container: none stays none, a missing element is none."""
    return optional_index(container, key)


def _first(items: list[object]) -> OptionalValue:
    return OptionalValue(items[0]) if items else NONE


def _last(items: list[object]) -> OptionalValue:
    return OptionalValue(items[-1]) if items else NONE


_A, _LIST, _MAP = optional_of(A), list_of(A), map_of(A, B)

OVERLOADS: tuple[Overload, ...] = (
    Overload("optional.of", "optional_of", (A,), _A, OptionalValue, since=28),
    Overload("optional.ofNonZeroValue", "optional_ofNonZeroValue", (A,), _A, of_non_zero, since=28),
    Overload("optional.none", "optional_none", (), _A, lambda: NONE, since=28),
    Overload("optional.unwrap", "optional_unwrap", (list_of(_A),), _LIST, unwrap, since=28),
    Overload("unwrapOpt", "optional_unwrapOpt", (list_of(_A),), _LIST, unwrap, member=True, since=28),
    Overload("value", "optional_value", (_A,), A, value_of, member=True, since=28),
    Overload("hasValue", "optional_hasValue", (_A,), BOOL, lambda o: o.present, member=True, since=28),
    Overload("or", "optional_or_optional", (_A, _A), _A, either, member=True, since=28),
    Overload("orValue", "optional_orValue_value", (_A, A), A, or_value, member=True, since=28),
    Overload("_[?_]", "list_optindex_optional_int", (_LIST, INT), _A, optional_index, since=28),
    Overload("_[?_]", "optional_list_optindex_optional_int", (optional_of(_LIST), INT), _A, optional_index, since=28),
    Overload("_[?_]", "map_optindex_optional_value", (_MAP, A), optional_of(B), optional_index, since=28),
    Overload(
        "_[?_]",
        "optional_map_optindex_optional_value",
        (optional_of(_MAP), A),
        optional_of(B),
        optional_index,
        since=28,
    ),
    Overload("_[_]", "optional_list_index_int", (optional_of(_LIST), INT), _A, index_optional, since=28),
    Overload("_[_]", "optional_map_index_value", (optional_of(_MAP), A), optional_of(B), index_optional, since=28),
    Overload("first", "list_first", (_LIST,), _A, _first, member=True, since=28),
    Overload("last", "list_last", (_LIST,), _A, _last, member=True, since=28),
)
