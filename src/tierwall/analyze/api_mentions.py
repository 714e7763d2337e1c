"""The values that expressions of the api plane compare attributes of a request with, wherever in the expression.

docs/compare.md#what-is-compared.

`demands` are values that a request must have; these are all values that can make a difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from tierwall.api.authorizers.cel_policies import CelPolicy
from tierwall.api.authorizers.demands import FIELDS, GROUPS
from tierwall.cel.partial_evaluation.tree import operands
from tierwall.cel.syntax.ast import Call, Expr, ListExpr, Literal, bound_bodies, path_of

_COMPARISONS = ("_==_", "_!=_", "@in")
_ATTRIBUTES = {**FIELDS, ("request", "name"): "name", ("request", "userInfo", "groups"): GROUPS}


class MentionedValues(Struct, frozen=True):
    """Values by attribute, in the names of `demands`."""

    by_attribute: dict[str, frozenset[str]]

    def of(self, attribute: str) -> frozenset[str]:
        """Return the values of one attribute."""
        return self.by_attribute.get(attribute, frozenset())


def mentioned_values(policies: Iterable[CelPolicy]) -> MentionedValues:
    """Return every value that an expression compares an attribute of the request with."""
    values: dict[str, set[str]] = {}
    for policy in policies:
        if policy.parsed is not None:
            for attribute, value in _mentions(policy.parsed.tree):
                values.setdefault(attribute, set()).add(value)
        if policy.namespace:
            values.setdefault("namespace", set()).add(policy.namespace)
    return MentionedValues({attribute: frozenset(found_values) for attribute, found_values in values.items()})


def _mentions(tree: Expr) -> Iterator[tuple[str, str]]:
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, Call) and node.function in _COMPARISONS and len(node.args) == 2:
            left, right = node.args
            for place, constant in ((left, right), (right, left)):
                path = path_of(place)
                attribute = _ATTRIBUTES.get(path) if path is not None else None
                if attribute is not None:
                    yield from ((attribute, text) for text in _texts(constant))
        todo.extend(operands(node))
        todo.extend(bound_bodies(node)[1])


def _texts(node: Expr) -> Iterator[str]:
    constants = node.elements if isinstance(node, ListExpr) else (node,)
    for constant in constants:
        if isinstance(constant, Literal) and isinstance(constant.value, str):
            yield constant.value
