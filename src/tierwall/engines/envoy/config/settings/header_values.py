"""Values of headers that are expressions, in the words of Envoy's formatter."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tierwall.cel.syntax import ast
from tierwall.cel.syntax.printer import to_text
from tierwall.engines.envoy.config.header_changes import CONTROL, is_protected
from tierwall.engines.envoy.config.settings.expressions import parsed, translated_setting
from tierwall.engines.envoy.config.settings.unenforceable import Unenforceable

# These end or begin a command of Envoy's formatter.
_COMMAND = re.compile(r"%|\)\s*:")


def check_name(name: str, *path: str | int, removes: bool = False) -> None:
    """Raise Unenforceable for headers that must stay as they are."""
    if is_protected(name, removes):
        raise Unenforceable(f"Envoy does not change header `{name}` here", *path)


def formatted(expression: object, of_response: bool, *path: str | int) -> str:
    """Return a value in the words of Envoy's formatter, which joins texts by itself."""
    parts = list(_joined(parsed(expression, *path)))
    # CEL joins texts only with texts, and has no other `+` with one.
    if len(parts) > 1 and not any(isinstance(part, ast.Literal) and isinstance(part.value, str) for part in parts):
        raise Unenforceable("Envoy joins only texts, and one of them must be constant", *path)
    return "".join(_part(part, of_response, *path) for part in parts)


def _joined(tree: ast.Expr) -> Iterator[ast.Expr]:
    match tree:
        case ast.Call(function="_+_", args=args):
            for operand in args:
                yield from _joined(operand)
        case _:
            yield tree


def _part(tree: ast.Expr, of_response: bool, *path: str | int) -> str:
    match tree:
        case ast.Literal(value=str() as text):
            if CONTROL.search(text):
                raise Unenforceable("Envoy puts no control character into a header", *path)
            return text.replace("%", "%%")
        case ast.Call(function="string", target=None, args=(operand,)):
            # The formatter makes a text of it anyway.
            tree = operand
    if of_response and ast.dotted_name(tree) == "response.code":
        # In the filters of a backend, expressions do not know it yet.
        return "%RESP(:status)%"
    text = to_text(translated_setting(to_text(tree), *path, of_response=of_response))
    if _COMMAND.search(text):
        raise Unenforceable("Envoy does not read an expression with this `%` or `:`", *path)
    return f"%CEL({text})%"
