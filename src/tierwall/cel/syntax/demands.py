"""The demands of an expression on single values, for indexing policies: `request.verb == "create"`, `x in ["a", "b"]`.

A demand is a promise about false, not about true: where its path is present and its value is none of the demanded
ones, the whole expression is false, whatever else in it would fail (`&&` absorbs errors). Where the path is missing
nothing is promised, and the expression has to be evaluated.
"""

from __future__ import annotations

import msgspec

from tierwall.cel.syntax import ast
from tierwall.cel.values import equal

Path = tuple[str, ...]
_Demands = dict[Path, tuple[object, ...]]


class Demand(msgspec.Struct, frozen=True):
    """The value at `path` (`("request", "verb")`) has to be one of `values`; with no values, nothing satisfies it."""

    path: Path
    values: tuple[object, ...]


def demands_of(tree: ast.Expr) -> tuple[Demand, ...]:
    """Return the demands of an expression, one for each path, in the order of the text."""
    return tuple(Demand(path, values) for path, values in _demands(tree).items())


def _demands(node: ast.Expr) -> _Demands:
    if type(node) is not ast.Call or node.target is not None:
        return {}
    function, args = node.function, node.args
    if function == "_&&_":
        return _both([_demands(arg) for arg in args])
    if function == "_||_":
        return _either([_demands(arg) for arg in args])
    if function == "_==_":
        return _equality(args[0], args[1]) or _equality(args[1], args[0])
    if function == "@in":
        return _membership(args[0], args[1])
    if function == "_?_:_" and type(args[2]) is ast.Literal and args[2].value is False:
        # A false condition gives false; of the branch nothing is promised, because the condition may fail first.
        return _demands(args[0])
    return {}


def _both(parts: list[_Demands]) -> _Demands:
    result: _Demands = {}
    for part in parts:
        for path, values in part.items():
            before = result.get(path)
            result[path] = values if before is None else tuple(value for value in before if _among(value, values))
    return result


def _either(parts: list[_Demands]) -> _Demands:
    result: _Demands = {}
    for path in parts[0]:
        if all(path in part for part in parts):
            union: list[object] = []
            for part in parts:
                union += [value for value in part[path] if not _among(value, union)]
            result[path] = tuple(union)
    return result


def _among(value: object, values: tuple[object, ...] | list[object]) -> bool:
    return any(equal(value, other) for other in values)


def _equality(place: ast.Expr, constant: ast.Expr) -> _Demands:
    path = ast.path_of(place)
    if path is None or type(constant) is not ast.Literal:
        return {}
    return {path: (constant.value,)}


def _membership(place: ast.Expr, constants: ast.Expr) -> _Demands:
    path = ast.path_of(place)
    if path is None or type(constants) is not ast.ListExpr or constants.optional:
        return {}
    values: list[object] = []
    for element in constants.elements:
        if type(element) is not ast.Literal:
            return {}
        if not _among(element.value, values):
            values.append(element.value)
    return {path: tuple(values)}
