"""CEL expressions over `self`: compiled when first needed, and run on JSON values as they are.

Property names that CEL reserves or cannot spell are escaped in rules (`self.__namespace__`, `self.a__dash__b`); here
the escapes are undone, so that no value has to be rewritten. The API server's cost limit bounds every evaluation.
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
_MAX_CACHED = 4096  # expressions; those of installed definitions come and go


class RuleError(Exception):
    """The expression could not be evaluated."""


class CostLimitExceeded(RuleError):
    """The expression exceeds its cost limit."""


def compile_expression(expression: str) -> Evaluate:
    """Return a function of `self` and, for a rule on each item, `item`. It raises `RuleError`."""

    def evaluate(value: Any, item: Any) -> Any:
        try:
            return _program(expression).evaluate({"self": value, "item": item})
        except Failure as failure:
            raise RuleError(str(failure)) from None

    return evaluate


def evaluate_with_cost(expression: str, value: Any) -> tuple[Any, int]:
    """Evaluate an expression over `self` for a new object. Return the value and the cost; raise `RuleError`."""
    try:
        return _program(expression).measure({"self": value, "oldSelf": NONE})
    except CostExceeded as failure:
        raise CostLimitExceeded(str(failure)) from None
    except Failure as failure:
        raise RuleError(str(failure)) from None


@lru_cache(_MAX_CACHED)
def reads_old_self(expression: str) -> bool:
    """Whether the expression reads `oldSelf`, the value before an update."""
    return "oldSelf" in expression and any(
        isinstance(node, ast.Ident) and node.name == "oldSelf" for node in _nodes(_environment().parse(expression))
    )


@lru_cache(_MAX_CACHED)
def fields_read(expression: str) -> frozenset[str] | None:
    """Return the fields of `self` that the expression reads, or None if it reads `self` as a whole."""
    fields: set[str] = set()
    stack: list[Any] = [_unescaped(_environment().parse(expression))]
    while stack:
        node = stack.pop()
        if _is_self(node):
            return None
        if isinstance(node, ast.Select | ast.Has) and _is_self(node.operand):
            fields.add(node.field)
        else:
            stack += _inside(node)
    return frozenset(fields)


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


@lru_cache(_MAX_CACHED)
def _program(expression: str) -> Program:
    environment = _environment()
    tree = environment.parse(expression)
    return Program(_unescaped(tree) if "__" in expression else tree, environment)


def _unescaped(node: Any) -> Any:
    """Return the tree with the escapes in field names undone."""
    if isinstance(node, tuple):
        return tuple(_unescaped(part) for part in node)
    if not isinstance(node, ast.ExprNode | ast.MapEntry):
        return node
    changes = {field: _unescaped(getattr(node, field)) for field in node.__struct_fields__}
    if isinstance(node, ast.Select | ast.Has):
        changes["field"] = unescape(node.field)
    return msgspec.structs.replace(node, **changes)
