"""The macros of CEL and which release of Kubernetes has them (cel-go 0.29, parser/macro.go, ext/comprehensions.go).

A macro is known by its name, its number of arguments and whether it has a target. A call that matches none is an
ordinary call: `[1].all(x)` and, in Kubernetes, `[1].existsOne(x, true)` are calls of unknown functions.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tierwall.cel.syntax import ast

# Variables whose use as an iteration variable cel-go refuses, because its expansions once used them.
ACCUMULATORS = ("__result__", "@result")

Report = Callable[[int, str], None]

# Words that cannot be a field, and the longest hint.
_WORDS, _MAX_HINT = frozenset(("true", "false", "null", "in")), 300

_STANDARD = {("all", 2): 1, ("exists", 2): 1, ("exists_one", 2): 1, ("map", 2): 1, ("map", 3): 1, ("filter", 2): 1}
_TWO_VARIABLE = {
    **dict.fromkeys((("all", 3), ("exists", 3), ("exists_one", 3), ("existsOne", 3)), 2),
    **{(f"transform{what}", count): 2 for what in ("List", "Map", "MapEntry") for count in (3, 4)},
}
# ext.Lists version 3: the elements in the order of a key.
_SORTING = {("sortBy", 2): 1}


class Syntax(msgspec.Struct, frozen=True):
    """The macros and marks that an environment's parser accepts beyond the grammar."""

    # Comprehension macros: (name, number of arguments) to the number of iteration variables.
    comprehensions: dict[tuple[str, int], int]
    # `.?`, `[?_]`, `{?k: v}`, `optMap` and `optFlatMap`.
    optionals: bool = True
    # `cel.bind`, which Kubernetes does not offer.
    bindings: bool = False


def syntax_of(release: int, bindings: bool = False) -> Syntax:
    """Return the syntax of a release: optionals from 1.28, two-variable macros from 1.32, `sortBy` from 1.34."""
    comprehensions = _STANDARD | _TWO_VARIABLE if release >= 32 else _STANDARD
    if release >= 34:
        comprehensions = comprehensions | _SORTING
    return Syntax(comprehensions, release >= 28, bindings)


def expand_member(
    syntax: Syntax, target: ast.Expr, name: str, args: tuple[ast.Expr, ...], at: int, report: Report
) -> ast.Expr | None:
    """Return the macro of `target.name(args)`, or None if it is an ordinary call; bad arguments go to `report`."""
    variables = syntax.comprehensions.get((name, len(args)))
    if variables is not None:
        return _comprehension(target, name, variables, args, at, report)
    if len(args) == 2 and syntax.optionals and (name == "optMap" or name == "optFlatMap"):
        return ast.Bind(name, _variable(args[0], report), target, args[1], at)
    if len(args) == 3 and syntax.bindings and name == "bind" and type(target) is ast.Ident and target.name == "cel":
        return ast.Bind("bind", _variable(args[0], report), args[1], args[2], at)
    return None


def _comprehension(
    target: ast.Expr, name: str, variables: int, args: tuple[ast.Expr, ...], at: int, report: Report
) -> ast.Expr:
    names = tuple(_variable(arg, report) for arg in args[:variables])
    for variable, arg in zip(names, args, strict=False):
        if variable in ACCUMULATORS:
            report(arg.at, f"`{variable}` cannot be an iteration variable")
    if name == "sortBy" and isinstance(target, ast.Literal | ast.MapExpr | ast.MessageExpr):
        report(target.at, "expected a list to sort")
    if variables == 2 and names[0] == names[1]:
        report(args[1].at, f"expected two different iteration variables, found `{names[0]}` twice")
    return ast.Comprehension(name, target, names, args[variables:], at)


def _variable(arg: ast.Expr, report: Report) -> str:
    if type(arg) is ast.Ident:
        return arg.name
    report(arg.at, "expected the name of a variable as the macro's argument")
    return "_"


def expand_has(args: tuple[ast.Expr, ...], at: int, report: Report) -> ast.Expr | None:
    """Return the presence test of `has(args)`, or None if it does not have exactly one argument."""
    if len(args) != 1:
        return None
    arg = args[0]
    if type(arg) is ast.Select and not arg.optional:
        return ast.Has(arg.operand, arg.field, at)
    if type(arg) is ast.Has:
        # has(has(a.b)) is has(a.b), because cel-go's expansion of the inner one is a selection again.
        return arg
    report(arg.at, f"expected a field selection such as `a.b` as the argument of `has`{_index_hint(arg)}")
    return arg


def _index_hint(arg: ast.Expr) -> str:
    """Return what to write instead of `has(x["y"])`."""
    if type(arg) is not ast.Call or arg.function != "_[_]":
        return ""
    # Only a mistake needs the printer.
    from tierwall.cel.syntax.printer import to_text

    operand, key = to_text(arg.args[0]), arg.args[1]
    hint = f": write `{to_text(key)} in {operand}`"
    field = key.value if type(key) is ast.Literal else None
    if isinstance(field, str) and field.isascii() and field.isidentifier() and field not in _WORDS:
        hint += f" or `has({operand}.{field})`"
    return hint if len(hint) <= _MAX_HINT else ""
