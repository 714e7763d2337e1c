"""Writes expressions in Envoy's words as `cel.expr.ParsedExpr` (cel-spec, `syntax.proto`)."""

from __future__ import annotations

from typing import Any

from cel.expr import syntax_pb2

from tierwall.cel.syntax import ast
from tierwall.cel.values import Uint

_CONSTANTS = {
    bool: "bool_value",
    Uint: "uint64_value",
    int: "int64_value",
    float: "double_value",
    str: "string_value",
    bytes: "bytes_value",
}


def parsed_expression(tree: ast.Expr) -> Any:
    """Return an expression of `cel_expression` as a message."""
    out = syntax_pb2.ParsedExpr()
    _Writer().write(out.expr, tree)
    return out


class _Writer:
    """Writes nodes in place, because copying a message copies everything inside it."""

    def __init__(self) -> None:
        self._id = 0

    def write(self, node: Any, tree: ast.Expr) -> None:
        self._id += 1
        node.id = self._id
        match tree:
            case ast.Literal(value=None):
                node.const_expr.null_value = 0
            case ast.Literal(value=value):
                setattr(node.const_expr, _CONSTANTS[type(value)], value)
            case ast.Ident(name=name):
                node.ident_expr.name = name
            case ast.Select(operand=operand, field=field):
                node.select_expr.field = field
                self.write(node.select_expr.operand, operand)
            case ast.ListExpr(elements=elements):
                node.list_expr.SetInParent()
                for element in elements:
                    self.write(node.list_expr.elements.add(), element)
            case ast.Call(function=function, target=target, args=args):
                node.call_expr.function = function
                if target is not None:
                    self.write(node.call_expr.target, target)
                for arg in args:
                    self.write(node.call_expr.args.add(), arg)
            case _:
                raise TypeError(f"no translation makes {type(tree).__name__}")
