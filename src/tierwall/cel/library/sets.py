"""Lists as sets (cel-go ext.Sets)."""

from __future__ import annotations

from tierwall.cel import cost
from tierwall.cel.library.operators import in_list
from tierwall.cel.table import Overload
from tierwall.cel.types import BOOL, A, list_of


def contains(items: list[object], part: list[object]) -> bool:
    """Whether every element of the part is among the items."""
    return all(in_list(item, items) for item in part)


def equivalent(left: list[object], right: list[object]) -> bool:
    """Whether each contains the other."""
    return contains(left, right) and contains(right, left)


def intersects(left: list[object], right: list[object]) -> bool:
    """Whether they share an element."""
    return any(in_list(item, right) for item in left)


def _twice(left: object, right: object) -> int:
    return 2 * cost.product(left, right) - 1


_PAIR = (list_of(A), list_of(A))

OVERLOADS: tuple[Overload, ...] = (
    Overload("sets.contains", "list_sets_contains_list", _PAIR, BOOL, contains, cost=cost.product, since=29),
    Overload("sets.equivalent", "list_sets_equivalent_list", _PAIR, BOOL, equivalent, cost=_twice, since=29),
    Overload("sets.intersects", "list_sets_intersects_list", _PAIR, BOOL, intersects, cost=cost.product, since=29),
)
