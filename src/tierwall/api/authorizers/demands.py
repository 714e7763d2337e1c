"""An index of policies by what they demand of a request, so that unrelated policies cost nothing.

The demands of an expression are its constant conjuncts (`cel.syntax.demands`), by attribute. A request that does not
meet one makes the expression false, even if the rest of it would fail, so the policy need not be evaluated. Besides
`==`, `in` and `||` of these, `"text" in request.userInfo.groups` is a demand.

Policies are grouped by the attributes that they demand something of. In each group, one lookup with the request's
values finds the policies whose demands are all met. There are few groups, however many policies there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from math import prod
from operator import attrgetter
from typing import Generic, TypeVar

from tierwall.api.algebra.request import Attributes
from tierwall.cel.syntax.ast import Call, Expr, Literal, path_of
from tierwall.cel.syntax.demands import demands_of

# The attributes that always have exactly one string; `request.name` may be unknown, so evaluation decides about it.
FIELDS = {
    ("request", "verb"): "verb",
    ("request", "apiGroup"): "group",
    ("request", "apiVersion"): "version",
    ("request", "resource"): "resource",
    ("request", "subresource"): "subresource",
    ("request", "namespace"): "namespace",
    ("request", "path"): "path",
    ("request", "userInfo", "username"): "user",
    ("request", "userInfo", "uid"): "uid",
}
GROUPS = "groups"


def demands(expression: Expr) -> dict[str, frozenset[str]]:
    """Return the values that each attribute may have; under `groups`, the user must be in one of the groups."""
    demanded: dict[str, frozenset[str]] = {}
    for demand in demands_of(expression):
        field = FIELDS.get(demand.path)
        if field is not None:
            # A literal of another type never equals a string.
            demanded[field] = frozenset(value for value in demand.values if isinstance(value, str))
    for conjunct in _conjuncts(expression):
        group = _demanded_group(conjunct)
        if group is not None:
            demanded.setdefault(GROUPS, frozenset((group,)))
    return demanded


def _conjuncts(expression: Expr) -> Iterator[Expr]:
    if isinstance(expression, Call) and expression.function == "_&&_":
        for part in expression.args:
            yield from _conjuncts(part)
    else:
        yield expression


def _demanded_group(expression: Expr) -> str | None:
    if not isinstance(expression, Call) or expression.function != "@in":
        return None
    item, container = expression.args
    if path_of(container) != ("request", "userInfo", "groups") or not isinstance(item, Literal):
        return None
    return item.value if isinstance(item.value, str) else None


T = TypeVar("T")

# A policy with wider demands than this is indexed by fewer attributes, and evaluated more often than necessary.
MAX_ENTRIES = 256


class _FieldGroup(Generic[T]):
    """The policies that demand something of the same attributes."""

    def __init__(self, fields: tuple[str, ...]) -> None:
        self._plain = tuple(field for field in fields if field != GROUPS)
        self._by_groups = GROUPS in fields
        self._read = attrgetter(*self._plain) if self._plain else None
        self.table: dict[object, list[tuple[int, T]]] = {}

    def put(self, demands: dict[str, frozenset[str]], item: tuple[int, T]) -> None:
        for values in product(*(sorted(demands[field]) for field in self._plain)):
            key: object = values[0] if len(values) == 1 else values
            if self._by_groups:
                for group in sorted(demands[GROUPS]):
                    self.table.setdefault((key, group), []).append(item)
            else:
                self.table.setdefault(key, []).append(item)

    def get(self, attributes: Attributes) -> Iterator[tuple[int, T]]:
        key = self._read(attributes) if self._read is not None else ()
        if not self._by_groups:
            yield from self.table.get(key, ())
        else:
            for group in attributes.groups:
                yield from self.table.get((key, group), ())


class PolicyIndex(Generic[T]):
    """Items by their demands."""

    def __init__(self, items: Iterable[tuple[dict[str, frozenset[str]], T]]) -> None:
        self._groups: dict[tuple[str, ...], _FieldGroup[T]] = {}
        for number, (demands, item) in enumerate(items):
            if any(not values for values in demands.values()):
                continue
            fields = indexed_fields(demands)
            if fields not in self._groups:
                self._groups[fields] = _FieldGroup(fields)
            self._groups[fields].put(demands, (number, item))

    def find(self, attributes: Attributes) -> list[T]:
        """Return the items whose indexed demands the request meets, in the order in which they were given."""
        items: dict[int, T] = {}
        for group in self._groups.values():
            items.update(group.get(attributes))
        return [items[number] for number in sorted(items)] if len(items) > 1 else list(items.values())


def indexed_fields(demands: dict[str, frozenset[str]]) -> tuple[str, ...]:
    """Return the attributes to index by: all but the widest, if the table would grow too large."""
    fields = sorted(demands, key=lambda field: (len(demands[field]), field))
    while prod(len(demands[field]) for field in fields) > MAX_ENTRIES:
        fields.pop()
    return tuple(sorted(fields))
