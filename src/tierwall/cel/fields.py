"""Names, fields and constants of a tree, as both evaluators read them (cel-spec, "Field Selection")."""

from __future__ import annotations

from tierwall.cel import ast
from tierwall.cel.values import NONE, OptionalValue, no_such_overload

_MISSING = object()


def dotted_name(node: ast.Expr) -> str | None:
    """`a.b.c` if the node is nothing but names and selections."""
    fields: list[str] = []
    while type(node) is ast.Select and not node.optional:
        fields.append(node.field)
        node = node.operand
    if type(node) is not ast.Ident:
        return None
    return ".".join((node.name, *reversed(fields)))


def is_attribute(node: ast.Expr) -> bool:
    """Whether cel-go resolves the node as one attribute: a name with what is selected from it."""
    while True:
        match node:
            case ast.Ident():
                return True
            case ast.Select():
                node = node.operand
            case ast.Call(function="_[_]" | "_[?_]"):
                node = node.args[0]
            case _:
                return False


def is_selection(node: ast.Expr) -> bool:
    """Whether the node is a name or something selected."""
    return isinstance(node, ast.Ident | ast.Select) or (
        isinstance(node, ast.Call) and node.function in ("_[_]", "_[?_]", ast.CONDITIONAL)
    )


def is_constant(node: ast.Expr) -> bool:
    """Whether Kubernetes folds the node into a constant: literals, and lists and maps of nothing else."""
    match node:
        case ast.Literal():
            return True
        case ast.ListExpr():
            return not node.optional and all(map(is_constant, node.elements))
        case ast.MapExpr():
            return all(not e.optional and is_constant(e.key) and is_constant(e.value) for e in node.entries)
    return False


def optional_field(value: object, field: str) -> OptionalValue:
    """`value.?field`, and `value.field` of an optional value."""
    if type(value) is OptionalValue:
        if not value.present:
            return NONE
        value = value.value
    if type(value) is dict:
        found = value.get(field, _MISSING)
        if found is not _MISSING:
            return OptionalValue(found)
    elif type(value) is list:
        raise no_such_overload("select", value)
    return NONE


def has_field(value: object, field: str) -> bool:
    """`has(value.field)`; false for what has no fields at all, but for a list, as in cel-go."""
    if type(value) is OptionalValue:
        value = value.value
    if type(value) is list:
        raise no_such_overload("has", value)
    return type(value) is dict and field in value
