"""One CEL expression over `self`: compiled when it is first asked, and run on JSON values as they stand.

Property names that CEL reserves or cannot spell are escaped in rules (`self.__namespace__`, `self.a__dash__b`); here
they are turned back, so that no value has to be rewritten. Evaluation is bounded by the cost limit of the API server.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from typing import Any

import msgspec

from tierwall.cel import CostExceeded, Environment, Failure, Program
from tierwall.cel.check.structural import unescape
from tierwall.cel.syntax import ast
from tierwall.cel.types import DYN
from tierwall.cel.values import NONE

Evaluate = Callable[[Any, Any], Any]
_MOST_KEPT = 4096  # expressions; those of definitions among the objects come and go


class RuleError(Exception):
    """The expression could not be evaluated."""


class CostLimitExceeded(RuleError):
    """The expression would have cost more than it may."""


def compile_expression(expression: str) -> Evaluate:
    """A function of `self` and, for a rule on each item, of `item`; raises `RuleError`."""

    def evaluate(value: Any, item: Any) -> Any:
        try:
            return _program(expression).evaluate({"self": value, "item": item})
        except Failure as failure:
            raise RuleError(str(failure)) from None

    return evaluate


def evaluate_with_cost(expression: str, value: Any) -> tuple[Any, int]:
    """What an expression over `self` gives when an object is created, and what that cost; raises `RuleError`."""
    try:
        return _program(expression).measure({"self": value, "oldSelf": NONE})
    except CostExceeded as failure:
        raise CostLimitExceeded(str(failure)) from None
    except Failure as failure:
        raise RuleError(str(failure)) from None


@lru_cache(_MOST_KEPT)
def reads_old_self(expression: str) -> bool:
    """Whether the expression compares with what was there before: such rules are about updates."""
    return "oldSelf" in expression and any(
        isinstance(node, ast.Ident) and node.name == "oldSelf" for node in _nodes(_environment().parse(expression))
    )


@lru_cache(_MOST_KEPT)
def fields_read(expression: str) -> frozenset[str] | None:
    """The fields of `self` that the expression can see, or None if it sees `self` as a whole."""
    found: set[str] = set()
    stack: list[Any] = [_unescaped(_environment().parse(expression))]
    while stack:
        node = stack.pop()
        if _is_self(node):
            return None
        if isinstance(node, ast.Select | ast.Has) and _is_self(node.operand):
            found.add(node.field)
        else:
            stack += _inside(node)
    return frozenset(found)


def _nodes(tree: Any) -> Iterator[Any]:
    stack = [tree]
    while stack:
        node = stack.pop()
        yield node
        stack += _inside(node)


def _inside(node: Any) -> Iterable[Any]:
    if isinstance(node, tuple):
        return node
    if isinstance(node, ast.ExprNode | ast.MapEntry):
        return [getattr(node, name) for name in node.__struct_fields__]
    return ()


def _is_self(node: ast.Expr) -> bool:
    return isinstance(node, ast.Ident) and node.name == "self"


@cache
def _environment() -> Environment:
    return Environment(variables={"self": DYN, "item": DYN, "oldSelf": DYN})


@lru_cache(_MOST_KEPT)
def _program(expression: str) -> Program:
    environment = _environment()
    tree = environment.parse(expression)
    return Program(_unescaped(tree) if "__" in expression else tree, environment)


def _unescaped(node: Any) -> Any:
    """The tree with every selected field under the name that the property has."""
    if isinstance(node, tuple):
        return tuple(_unescaped(part) for part in node)
    if not isinstance(node, ast.ExprNode | ast.MapEntry):
        return node
    changes = {field: _unescaped(getattr(node, field)) for field in node.__struct_fields__}
    if isinstance(node, ast.Select | ast.Has):
        changes["field"] = unescape(node.field)
    return msgspec.structs.replace(node, **changes)
