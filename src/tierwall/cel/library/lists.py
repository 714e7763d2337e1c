"""Lists: Kubernetes' own functions (apiserver pkg/cel/library/lists.go), cel-go's ext.Lists version 3 and ext.Sets.

Lists of mixed types follow the Go code: `isSorted`, `min` and `max` step over pairs that have no order.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cmp_to_key
from itertools import pairwise

from tierwall.cel.errors import EvaluationError
from tierwall.cel.library import cost
from tierwall.cel.library.operators import add, in_list
from tierwall.cel.library.table import Overload, member_overloads
from tierwall.cel.types import BOOL, BYTES, DOUBLE, DURATION, DYN, INT, STRING, TIMESTAMP, UINT, A, Type, list_of
from tierwall.cel.values import Duration, Uint, compare, equal, size_of

_COMPARABLE: tuple[Type, ...] = (INT, UINT, DOUBLE, BOOL, DURATION, TIMESTAMP, STRING, BYTES)
_SUMMABLE: tuple[Type, ...] = (INT, UINT, DOUBLE, DURATION)
_ZERO: dict[type, object] = {Uint: Uint(0), float: 0.0, Duration: Duration(0)}
_MAX_RANGE = 1_000_000
_MAX_DEPTH = 100


def _order(left: object, right: object) -> int:
    try:
        return compare(left, right)
    except EvaluationError:
        return 2


def _require_comparable(items: list[object]) -> None:
    for item in items:
        compare(item, item)


def is_sorted(items: list[object]) -> bool:
    """Whether no element is greater than the next; an element that has no order is an error once it is reached."""
    _require_comparable(items[:1])
    for left, right in pairwise(items):
        _require_comparable([right])
        if _order(left, right) == 1:
            return False
    return True


def sum_of(items: list[object]) -> object:
    """Return the sum; 0 of an empty list."""
    result = _ZERO.get(type(items[0]), 0) if items else 0
    for item in items:
        result = add(result, item)
    return result


def _extreme(name: str, sign: int, items: list[object]) -> object:
    if not items:
        raise EvaluationError(f"{name} called on empty list")
    _require_comparable(items)
    result = items[0]
    for item in items[1:]:
        if _order(result, item) == sign:
            result = item
    return result


def index_of(items: list[object], value: object) -> int:
    """Return the first place of the value, or -1."""
    return next((place for place, item in enumerate(items) if equal(item, value)), -1)


def last_index_of(items: list[object], value: object) -> int:
    """Return the last place of the value, or -1."""
    return next((place for place in range(len(items) - 1, -1, -1) if equal(items[place], value)), -1)


def includes(target: object, value: object) -> bool:
    """Whether the list has the value; of anything but a list, whether it is the value."""
    if isinstance(target, list):
        return any(equal(item, value) for item in target)
    return equal(target, value)


def slice_list(items: list[object], start: int, end: int) -> list[object]:
    """Return the elements from start up to, not including, end."""
    if not 0 <= start <= end <= len(items):
        raise EvaluationError(f"cannot slice({start}, {end}), list is length {len(items)}")
    return items[start:end]


def flatten(items: list[object], depth: int = 1) -> list[object]:
    """Return the elements of nested lists in one list, down to the depth."""
    if depth < 0:
        raise EvaluationError("level must be non-negative")
    result: list[object] = []
    for item in items:
        if isinstance(item, list) and depth > 0:
            inner = flatten(item, depth - 1)
            cost.check_list_size(len(result) + len(inner))
            result.extend(inner)
        else:
            result.append(item)
    return result


def sort_by_keys(items: list[object], keys: list[object]) -> list[object]:
    """Return the elements in the order of their keys; equal keys keep their order."""
    if len(items) != len(keys):
        raise EvaluationError(f"sortBy: {len(items)} elements, {len(keys)} keys")
    if not items:
        return items
    for key in keys:
        if type(key) is not type(keys[0]):
            raise EvaluationError("list elements must have the same type")
    try:
        compare(keys[0], keys[0])
    except EvaluationError:
        raise EvaluationError("list elements must be comparable") from None

    def order(a: tuple[object, object], b: tuple[object, object]) -> int:
        sign = _order(a[0], b[0])
        return 0 if sign == 2 else sign

    return [item for _, item in sorted(zip(keys, items, strict=True), key=cmp_to_key(order))]


def distinct(items: list[object]) -> list[object]:
    """Return the elements without repetitions, first occurrences kept."""
    result: list[object] = []
    for item in items:
        if not any(equal(item, other) for other in result):
            result.append(item)
    return result


def range_list(size: int) -> list[int]:
    """`lists.range(n)`: 0 to n-1."""
    if not 0 <= size <= _MAX_RANGE:
        raise EvaluationError(f"lists.range: size {size} is not between 0 and {_MAX_RANGE}")
    return list(range(size))


def _sort_cost(_: object, keys: object) -> int:
    return cost.self_compare(keys)


def _slice_cost(_: object, start: int, end: int) -> int:
    return cost.new_list(max(end - start, 0))


def _range_cost(size: int) -> int:
    return cost.new_list(min(max(size, 0), _MAX_RANGE))


def _flatten_cost(items: object, depth: int = 1) -> int:
    # A depth that no value reaches costs nothing.
    return (
        size_of(items) * (min(depth, _MAX_DEPTH) if depth >= 0 else 1)
        + 1
        + cost.LIST
        + cost.large_value_surcharge(items)
    )


def contains(items: list[object], part: list[object]) -> bool:
    """Whether every element of the part is among the items."""
    return all(in_list(item, items) for item in part)


def intersects(left: list[object], right: list[object]) -> bool:
    """Whether they share an element."""
    return any(in_list(item, right) for item in left)


def _twice(left: object, right: object) -> int:
    return 2 * cost.compare_all_pairs(left, right) - 1


_LIST = list_of(A)
_PAIR = (_LIST, _LIST)
_of_list = member_overloads(_LIST)
_of_list_34 = member_overloads(_LIST, since=34)


def _ordered(kind: Type) -> Iterator[Overload]:
    """Yield the functions of lists whose elements have an order."""
    items = list_of(kind)
    member, member_34 = member_overloads(items), member_overloads(items, since=34)
    yield member("isSorted", (), BOOL, is_sorted, cost=cost.traversal)
    yield member("max", (), kind, lambda items: _extreme("max", -1, items), cost=cost.traversal)
    yield member("min", (), kind, lambda items: _extreme("min", 1, items), cost=cost.traversal)
    yield member_34("sort", (), items, lambda items: sort_by_keys(items, items), cost=cost.self_compare)
    yield _of_list_34("@sortByAssociatedKeys", (items,), _LIST, sort_by_keys, cost=_sort_cost)


OVERLOADS: tuple[Overload, ...] = (
    *(overload for kind in _COMPARABLE for overload in _ordered(kind)),
    *(member_overloads(list_of(kind))("sum", (), kind, sum_of, cost=cost.traversal) for kind in _SUMMABLE),
    _of_list("indexOf", (A,), INT, index_of, cost=cost.traversal),
    _of_list("lastIndexOf", (A,), INT, last_index_of, cost=cost.traversal),
    member_overloads(DYN, since=37)("includes", (DYN,), BOOL, includes, cost=cost.traversal),
    _of_list_34("slice", (INT, INT), _LIST, slice_list, cost=_slice_cost),
    member_overloads(list_of(_LIST), since=34)("flatten", (), _LIST, flatten, cost=_flatten_cost),
    member_overloads(list_of(DYN), since=34)("flatten", (INT,), list_of(DYN), flatten, cost=_flatten_cost),
    Overload("lists.range", (INT,), list_of(INT), range_list, cost=_range_cost, since=34),
    _of_list_34("reverse", (), _LIST, lambda items: items[::-1], cost=lambda items: cost.new_list(len(items))),
    _of_list_34("distinct", (), _LIST, distinct, cost=cost.self_compare),
    Overload("sets.contains", _PAIR, BOOL, contains, cost=cost.compare_all_pairs, since=29),
    Overload("sets.equivalent", _PAIR, BOOL, lambda a, b: contains(a, b) and contains(b, a), cost=_twice, since=29),
    Overload("sets.intersects", _PAIR, BOOL, intersects, cost=cost.compare_all_pairs, since=29),
)
