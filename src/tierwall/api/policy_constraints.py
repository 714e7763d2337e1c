"""What a policy's expression demands of a request: its constant conjuncts (`cel.analysis`), by attribute.

A request that does not meet a demand makes the expression false, whatever else in it would fail, so the policy need not
be looked at. Beside `==`, `in` and `||` of such, `"text" in request.userInfo.groups` is understood.
"""

from __future__ import annotations

from collections.abc import Iterator

from tierwall.cel.analysis import constant_conjuncts, path_of
from tierwall.cel.ast import Call, Expr, Literal

# The attributes that always have exactly one string; `request.name` may be unknown and is left to evaluation.
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
    """The values one of which each attribute must have; under `groups`, those one of which the user must be in."""
    found: dict[str, frozenset[str]] = {}
    for demand in constant_conjuncts(expression):
        field = FIELDS.get(demand.path)
        if field is not None:
            # A literal of another type equals no string.
            found[field] = frozenset(value for value in demand.values if isinstance(value, str))
    for conjunct in _conjuncts(expression):
        group = _group(conjunct)
        if group is not None:
            found.setdefault(GROUPS, frozenset((group,)))
    return found


def _conjuncts(expression: Expr) -> Iterator[Expr]:
    if isinstance(expression, Call) and expression.function == "_&&_":
        for part in expression.args:
            yield from _conjuncts(part)
    else:
        yield expression


def _group(expression: Expr) -> str | None:
    if not isinstance(expression, Call) or expression.function != "@in":
        return None
    item, container = expression.args
    if path_of(container) != ("request", "userInfo", "groups") or not isinstance(item, Literal):
        return None
    return item.value if isinstance(item.value, str) else None
