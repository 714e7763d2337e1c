"""Prints a tree as a person would write it, so that it parses back to the same tree (cel-spec, "Syntax").

Parentheses stand only where the grammar needs them, strings stand in double quotes, and a `&&` or `||` inside its own
kind keeps its parentheses because the tree keeps the group. Anything without a notation (an infinite double, a field
with a `$` in its name) is written as the nearest expression of the same value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from tierwall.cel.syntax import ast
from tierwall.cel.values import Uint
from tierwall.values.pattern import pattern

_CONDITIONAL, _UNARY, _MEMBER = 0, ast.PRODUCT + 1, ast.PRODUCT + 2
_BINARY = {ast.FUNCTIONS[text]: (text, level) for text, level in ast.BINARY.items()}
_RESERVED_FIELDS = frozenset(("in", "true", "false", "null"))
_QUOTED_FIELD = pattern(r"[A-Za-z0-9_.\-/ ]+")
_SPECIAL = pattern(r"[^ !#-\[\]-~]")
_ESCAPES = {char: f"\\{letter}" for char, letter in zip('"\\\a\b\f\n\r\t\v', '"\\abfnrtv', strict=True)}


def to_text(tree: ast.Expr) -> str:
    """Return the text of a tree, on one line."""
    return _at(tree, _CONDITIONAL)


def _at(node: ast.Expr, level: int) -> str:
    """Return the text of `node` where something that binds as tightly as `level` is needed."""
    text, tightness = _WRITERS[type(node)](node)
    return text if tightness >= level else f"({text})"


def _all(nodes: tuple[ast.Expr, ...]) -> str:
    # A loop instead of a comprehension, which would be one more frame for every level of the tree.
    parts = []
    for node in nodes:
        parts.append(_at(node, _CONDITIONAL))  # noqa: PERF401
    return ", ".join(parts)


def _literal(node: ast.Literal) -> tuple[str, int]:
    return literal_text(node.value), _MEMBER


def literal_text(value: object) -> str:
    """Return the text of a constant: null, bool, int, uint, double, string or bytes."""
    write = _LITERALS.get(type(value))
    if write is None:
        raise TypeError(f"no CEL literal stands for a {type(value).__name__}")
    return write(value)


def _double(value: float) -> str:
    if math.isnan(value):
        return 'double("NaN")'
    if math.isinf(value):
        return 'double("Infinity")' if value > 0 else 'double("-Infinity")'
    mantissa, exponent, power = repr(value).partition("e")
    return f"{mantissa}e{int(power)}" if exponent else mantissa


def _quoted(text: str) -> str:
    return f'"{_SPECIAL.sub(_escaped, text)}"'


def _escaped(match: re.Match[str]) -> str:
    char = match[0]
    escape = _ESCAPES.get(char)
    if escape is not None:
        return escape
    if char.isprintable():
        return char
    code = ord(char)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _bytes(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\x00"
    if all(char.isprintable() or char in _ESCAPES for char in text):
        return "b" + _quoted(text)
    parts = [_ESCAPES.get(chr(byte)) or (chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}") for byte in value]
    return f'b"{"".join(parts)}"'


_LITERALS: dict[type, Callable[[Any], str]] = {
    str: _quoted,
    int: str,
    type(None): lambda _: "null",
    bool: lambda value: "true" if value else "false",
    Uint: repr,
    float: _double,
    bytes: _bytes,
}


def _ident(node: ast.Ident) -> tuple[str, int]:
    return node.name, _MEMBER


def _field(name: str) -> str | None:
    if name.isascii() and name.isidentifier() and name not in _RESERVED_FIELDS:
        return name
    return f"`{name}`" if _QUOTED_FIELD.fullmatch(name) else None


def _select(node: ast.Select) -> tuple[str, int]:
    operand = _at(node.operand, _MEMBER)
    field = _field(node.field)
    if field is None:
        return f"{operand}[{'?' if node.optional else ''}{_quoted(node.field)}]", _MEMBER
    return f"{operand}.{'?' if node.optional else ''}{field}", _MEMBER


def _has(node: ast.Has) -> tuple[str, int]:
    field = _field(node.field)
    if field is None:
        return f"{_quoted(node.field)} in {_at(node.operand, ast.SUM)}", ast.RELATION
    return f"has({_at(node.operand, _MEMBER)}.{field})", _MEMBER


def _call(node: ast.Call) -> tuple[str, int]:
    function, args = node.function, node.args
    if node.target is not None:
        return f"{_at(node.target, _MEMBER)}.{function}({_all(args)})", _MEMBER
    binary = _BINARY.get(function)
    if binary is not None:
        operator, level = binary
        if function in ast.LOGICAL:
            return f" {operator} ".join([_at(arg, level + 1) for arg in args]), level
        return f"{_at(args[0], level)} {operator} {_at(args[1], level + 1)}", level
    match function:
        case "!_":
            return "!" + _at(args[0], _MEMBER), _UNARY
        case "-_":
            text = _at(args[0], _MEMBER)
            # `-1` would be a literal, and `--a` would be `a`.
            return (f"-({text})" if text[0] in "-0123456789" else f"-{text}"), _UNARY
        case "_[_]" | "_[?_]":
            mark = "?" if function == "_[?_]" else ""
            return f"{_at(args[0], _MEMBER)}[{mark}{_at(args[1], _CONDITIONAL)}]", _MEMBER
        case ast.CONDITIONAL:
            condition, then, other = args
            return f"{_at(condition, ast.OR)} ? {_at(then, ast.OR)} : {_at(other, _CONDITIONAL)}", _CONDITIONAL
    return f"{function}({_all(args)})", _MEMBER


def _list(node: ast.ListExpr) -> tuple[str, int]:
    if not node.optional:
        return f"[{_all(node.elements)}]", _MEMBER
    marked = set(node.optional)
    parts = [("?" if i in marked else "") + _at(element, _CONDITIONAL) for i, element in enumerate(node.elements)]
    return f"[{', '.join(parts)}]", _MEMBER


def _map(node: ast.MapExpr) -> tuple[str, int]:
    parts = [
        f"{'?' if entry.optional else ''}{_at(entry.key, _CONDITIONAL)}: {_at(entry.value, _CONDITIONAL)}"
        for entry in node.entries
    ]
    return f"{{{', '.join(parts)}}}", _MEMBER


def _message(node: ast.MessageExpr) -> tuple[str, int]:
    parts = []
    for entry in node.entries:
        assert isinstance(entry.key, ast.Literal)
        name = str(entry.key.value)
        field = _field(name) or name
        parts.append(f"{'?' if entry.optional else ''}{field}: {_at(entry.value, _CONDITIONAL)}")
    return f"{node.type_name}{{{', '.join(parts)}}}", _MEMBER


def _comprehension(node: ast.Comprehension) -> tuple[str, int]:
    return f"{_at(node.target, _MEMBER)}.{node.macro}({', '.join(node.variables)}, {_all(node.args)})", _MEMBER


def _bind(node: ast.Bind) -> tuple[str, int]:
    body = _at(node.body, _CONDITIONAL)
    if node.macro == "bind":
        return f"cel.bind({node.variable}, {_at(node.value, _CONDITIONAL)}, {body})", _MEMBER
    return f"{_at(node.value, _MEMBER)}.{node.macro}({node.variable}, {body})", _MEMBER


_WRITERS: dict[type, Callable[[Any], tuple[str, int]]] = {
    ast.Literal: _literal,
    ast.Ident: _ident,
    ast.Select: _select,
    ast.Has: _has,
    ast.Call: _call,
    ast.ListExpr: _list,
    ast.MapExpr: _map,
    ast.MessageExpr: _message,
    ast.Comprehension: _comprehension,
    ast.Bind: _bind,
}
