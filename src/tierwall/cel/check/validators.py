"""Expressions that Kubernetes refuses although their types fit (cel-go 0.29, cel/validator.go and ext/formatting.go).

Literal durations, timestamps and patterns that would fail whenever evaluated; lists and maps of mixed types, except
inside a call of `format`; and format strings that do not fit their arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tierwall.cel.library.conversions import int_to_timestamp
from tierwall.cel.library.regex import compile_pattern
from tierwall.cel.library.time import parse_duration, parse_timestamp
from tierwall.cel.syntax import ast
from tierwall.cel.types import Type
from tierwall.values.pattern import pattern

Report = Callable[[int, str], None]
Types = Mapping[ast.Expr, Type]

_CLAUSE = pattern(r"%(?:%|(?:\.[0-9]*)?(.?))", re.DOTALL)
_TIMES: dict[tuple[str, type], Callable[[Any], object]] = {
    ("duration", str): parse_duration,
    ("timestamp", str): parse_timestamp,
    ("timestamp", int): int_to_timestamp,
}
_SIMPLE = ("bool", "int", "uint", "double", "string", "bytes", "timestamp", "duration")
_CLAUSES = {
    "s": (*_SIMPLE, "list", "map", "type", "null_type"),
    "b": ("int", "uint", "bool"),
    **dict.fromkeys("do", ("int", "uint")),
    **dict.fromkeys("fe", ("double", "string")),
    **dict.fromkeys("xX", ("int", "uint", "string", "bytes")),
}


def validate(tree: ast.Expr, types: Types, literals: bool, report: Report) -> None:
    """Report what is refused in a checked tree; `literals`: look at durations, timestamps and patterns too."""
    stack: list[tuple[ast.Expr, bool]] = [(tree, False)]
    while stack:
        node, exempt = stack.pop()
        kind = type(node)
        if kind is ast.Call:
            assert isinstance(node, ast.Call)
            if node.function == "format":
                exempt = True
                _format(node, types, report)
            elif literals and node.args and type(node.args[0]) is ast.Literal:
                _literal(node, node.args[0].value, report)
        elif not exempt and kind is ast.ListExpr:
            _list(node, types, report)
        elif not exempt and kind is ast.MapExpr:
            _map(node, types, report)
        if kind is not ast.Literal and kind is not ast.Ident:
            stack.extend([(child, exempt) for child in ast.children(node)])


def _literal(node: ast.Call, value: object, report: Report) -> None:
    # As in cel-go, only the first argument counts: in the global form of `matches` that is the string, not the pattern.
    function = node.function
    try:
        if function == "matches" and isinstance(value, str):
            compile_pattern(value)
        elif function == "duration" or function == "timestamp":
            if value is None:
                raise ValueError("null has no time")
            read = _TIMES.get((function, type(value)))
            if read is not None:
                read(value)
    except Exception as error:
        report(node.args[0].at, f"invalid argument of `{function}`: {error}")


def _list(node: ast.Expr, types: Types, report: Report) -> None:
    assert isinstance(node, ast.ListExpr)
    first: Type | None = None
    for place, element in enumerate(node.elements):
        given = types[element]
        if node.optional and place in node.optional:
            given = _inside(given)
        if first is None:
            first = given
        elif first is not given and first != given:
            report(element.at, f"expected {first} like the elements before, found {given}")
            return


def _map(node: ast.Expr, types: Types, report: Report) -> None:
    assert isinstance(node, ast.MapExpr)
    keys: Type | None = None
    values: Type | None = None
    for entry in node.entries:
        key, value = types[entry.key], types[entry.value]
        if entry.optional:
            value = _inside(value)
        if keys is None or values is None:
            keys, values = key, value
            continue
        if key != keys:
            report(entry.key.at, f"expected a key of type {keys} like those before, found {key}")
        if value != values:
            report(entry.value.at, f"expected a value of type {values} like those before, found {value}")


def _inside(given: Type) -> Type:
    return given.params[0] if given.params else given


def _format(node: ast.Call, types: Types, report: Report) -> None:
    """Check a literal format string against a literal list of arguments."""
    target = node.target
    if type(target) is not ast.Literal or not isinstance(target.value, str) or len(node.args) != 1:
        return
    arguments = node.args[0]
    if type(arguments) is not ast.ListExpr:
        return
    used = 0
    for match in _CLAUSE.finditer(target.value):
        if match[0] == "%%":
            continue
        if used >= len(arguments.elements):
            report(node.at, f"expected an argument for `{match[0]}`, found {len(arguments.elements)} arguments")
            return
        wanted = _CLAUSES.get(match[1])
        if wanted is None or (match[0].startswith("%.") and not match[0][2].isdigit()):
            report(node.at, f"expected one of `%s %d %f %e %b %x %X %o`, found `{match[0]}`")
            return
        wrong = _unfit(arguments.elements[used], wanted, types, match[1] == "s")
        if wrong is not None:
            report(wrong.at, f"expected {' or '.join(wanted)} for `{match[0]}`, found {types[wrong]}")
            return
        used += 1
    if used < len(arguments.elements):
        report(node.at, f"expected {used} arguments for the format, found {len(arguments.elements)}")


def _unfit(node: ast.Expr, wanted: tuple[str, ...], types: Types, nested: bool) -> ast.Expr | None:
    """Return the argument, or the part of a literal list or map in it, whose type a clause does not take."""
    stack = [node]
    while stack:
        part = stack.pop()
        name = types[part].name
        if name != "dyn" and name not in wanted:
            return part
        if nested and isinstance(part, ast.ListExpr | ast.MapExpr):
            stack.extend(reversed(ast.children(part)))
    return None
