"""One CEL expression over `self`: compiled when it is first asked, and run on JSON values as they stand.

Property names that CEL reserves or cannot spell are escaped in rules (`self.__namespace__`, `self.a__dash__b`); here
they are turned back, so that no value has to be rewritten. Evaluation is bounded by the cost limit of the API server.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec

from tierwall.cel import Environment, Failure, Program, program
from tierwall.cel.check.structural import unescape
from tierwall.cel.syntax import ast
from tierwall.cel.types import DYN

Evaluate = Callable[[Any, Any], Any]


class Failed(Exception):
    """The expression could not be evaluated."""


def compile_expression(expression: str) -> Evaluate:
    """A function of `self` and, for a rule on each item, of `item`; raises `Failed`."""

    def evaluate(value: Any, item: Any) -> Any:
        try:
            return _program(expression).evaluate({"self": value, "item": item})
        except Failure as failure:
            raise Failed(str(failure)) from None

    return evaluate


@cache
def fields_read(expression: str) -> frozenset[str] | None:
    """The fields of `self` that the expression can see, or None if it sees `self` as a whole."""
    found: set[str] = set()
    stack: list[Any] = [_unescaped(_environment().parse(expression))]
    while stack:
        node = stack.pop()
        if isinstance(node, tuple):
            stack += node
        elif _is_self(node):
            return None
        elif isinstance(node, ast.Select | ast.Has) and _is_self(node.operand):
            found.add(node.field)
        elif isinstance(node, ast.Node | ast.Entry):
            stack += (getattr(node, name) for name in node.__struct_fields__)
    return frozenset(found)


def _is_self(node: ast.Expr) -> bool:
    return isinstance(node, ast.Ident) and node.name == "self"


@cache
def _environment() -> Environment:
    return Environment(variables={"self": DYN, "item": DYN})


@cache
def _program(expression: str) -> Program:
    environment = _environment()
    tree = environment.parse(expression)
    return program(_unescaped(tree) if "__" in expression else tree, environment)


def _unescaped(node: Any) -> Any:
    """The tree with every selected field under the name that the property has."""
    if isinstance(node, tuple):
        return tuple(_unescaped(part) for part in node)
    if not isinstance(node, ast.Node | ast.Entry):
        return node
    changes = {field: _unescaped(getattr(node, field)) for field in node.__struct_fields__}
    if isinstance(node, ast.Select | ast.Has):
        changes["field"] = unescape(node.field)
    return msgspec.structs.replace(node, **changes)
