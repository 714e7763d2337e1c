"""Translates CEL expressions of rules to `cel.expr.ParsedExpr`, which Envoy evaluates (docs/tool.md#expressions).

Envoy knows other variables than AccessPolicy does, and fewer functions: no macro except `has`, no string building, no
libraries. Anything else is `Inexpressible`: the rule is then closed, and a diagnostic reports it. `request.mcp` is read
from the results of the MCP filter: the tool name from Tierwall's own header, arguments from the filter's metadata.

All numbers in that metadata are doubles, so an integer that an argument is compared with becomes a double, too. Lists
and objects are absent from it, as if the argument were missing. Reading them is an error, and an error never makes an
expression true that would not be. `has` could, under a negation. So `has` of an argument is an error unless it is
true, and it is only allowed where an error means the same as false.
"""

from __future__ import annotations

from typing import Any

from cel.expr import syntax_pb2

from tierwall.cel.syntax import ast
from tierwall.cel.values import Uint
from tierwall.engines.envoy.config.names import HEADER_PREFIX, MCP, NAME

_COMPARISONS = frozenset(("_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_"))
_OPERATORS = _COMPARISONS | {"!_", "_&&_", "_||_", "_?_:_", "@in", "_[_]"}
_METHODS = {"startsWith": 1, "endsWith": 1, "contains": 1, "matches": 1, "size": 0}
_TIME_METHODS = frozenset(
    ("getFullYear", "getMonth", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getHours", "getMinutes")
) | {"getSeconds", "getMilliseconds"}
_CONSTANTS = {
    bool: "bool_value",
    Uint: "uint64_value",
    int: "int64_value",
    float: "double_value",
    str: "string_value",
    bytes: "bytes_value",
}
_FUNCTIONS = {"size": 1, "matches": 2, "timestamp": 1, "duration": 1}
_REQUEST_FIELDS = frozenset(("method", "path", "url_path", "host", "time"))
# A header that no request has. Reading it is an error, as with any missing header.
_ABSENT = f"{HEADER_PREFIX}absent"
_MAX_EXACT = 1 << 53
_MAX_DEPTH = 60


class Inexpressible(Exception):
    """Envoy cannot express this; the message says what."""


class ExpressionTranslator:
    """Translates one expression. `arguments` collects the tool arguments that it reads, as paths."""

    def __init__(self) -> None:
        self.arguments: set[tuple[str, ...]] = set()
        self._id = 0
        self._depth = 0

    def parsed(self, tree: ast.Expr) -> Any:
        """Return the whole expression; raise Inexpressible if Envoy cannot evaluate it."""
        _check_has(tree)
        return syntax_pb2.ParsedExpr(expr=self._expr(tree))

    def _node(self) -> Any:
        self._id += 1
        return syntax_pb2.Expr(id=self._id)

    def _expr(self, tree: ast.Expr) -> Any:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise Inexpressible(f"it is nested more than {_MAX_DEPTH} levels deep")
        try:
            return self._any(tree)
        finally:
            self._depth -= 1

    def _any(self, tree: ast.Expr) -> Any:
        path = _path(tree)
        if path is not None:
            return self._variable(path)
        match tree:
            case ast.Literal(value=value):
                return self._literal(value)
            case ast.Has(operand=operand, field=field):
                return self._has(_path(operand), field)
            case ast.ListExpr(elements=elements, optional=()):
                node = self._node()
                node.list_expr.elements.extend([self._expr(element) for element in elements])
                return node
            case ast.Select(operand=operand, field=field, optional=False):
                return self._select(self._expr(operand), field)
            case ast.Call():
                return self._call(tree)
            case ast.Comprehension(macro=macro) | ast.Bind(macro=macro):
                raise Inexpressible(f"it has no `{macro}`")
            case ast.Ident(name=name):
                raise Inexpressible(f"it has no variable `{name}`")
            case _:
                raise Inexpressible("it has no maps, messages or optional values")

    def _variable(self, path: tuple[str, ...]) -> Any:
        """Translate `request.…` with constant keys."""
        if path[:1] == ("headers",) and len(path) == 2:
            return self._index(self._request("headers"), _header_key(path[1]))
        if path == ("mcp", "tool_name"):
            return self._index(self._request("headers"), NAME)
        if path[:2] == ("mcp", "arguments") and len(path) > 2:
            return self._argument(path[2:])
        if len(path) == 1 and path[0] in _REQUEST_FIELDS:
            return self._request(path[0])
        raise Inexpressible(f"it has no `{'.'.join(('request', *path))}`")

    def _argument(self, path: tuple[str, ...]) -> Any:
        if any("." in key or not key for key in path):
            raise Inexpressible(f"the MCP filter cannot read argument `{'.'.join(path)}`")
        self.arguments.add(path)
        metadata = self._node()
        metadata.ident_expr.name = "metadata"
        value = self._index(self._select(metadata, "filter_metadata"), MCP)
        for key in ("params", "arguments", *path):
            value = self._index(value, key)
        return value

    def _has(self, path: tuple[str, ...] | None, field: str) -> Any:
        if path == ("headers",):
            return self._call_of("@in", _header_key(field), self._request("headers"))
        if path == ("mcp",) and field == "tool_name":
            return self._call_of("@in", NAME, self._request("headers"))
        if path is not None and path[:2] == ("mcp", "arguments"):
            inside, key = self._argument((*path[2:], field)).call_expr.args
            node, there, missing = self._call_of("_?_:_"), self._call_of("@in", key, inside), self._call_of("_==_")
            missing.call_expr.args.extend((self._index(self._request("headers"), _ABSENT), self._literal("")))
            node.call_expr.args.extend((there, self._literal(True), missing))
            return node
        raise Inexpressible("it has `has` only for headers, the tool's name and its arguments")

    def _call(self, tree: ast.Call) -> Any:
        function, args = tree.function, tree.args
        if (presence := _presence(tree)) is not None:
            return self._has(_path(presence.operand), presence.field)
        if function in _COMPARISONS or function == "@in":
            args = tuple(map(_as_double, args)) if any(map(_is_argument, args)) else args
        elif tree.target is not None:
            if not (function in _TIME_METHODS and len(args) <= 1) and _METHODS.get(function) != len(args):
                raise Inexpressible(f"it has no function `{function}`")
        elif function not in _OPERATORS and _FUNCTIONS.get(function) != len(args):
            raise Inexpressible(f"it has no function or operator `{function}`")
        if function == "_[_]" and _path(args[0]) == ("headers",):
            raise Inexpressible("the name of a header must be written out")
        if function in ast.LOGICAL:
            joined = self._expr(args[0])
            for operand in args[1:]:
                node = self._call_of(function, joined)
                node.call_expr.args.append(self._expr(operand))
                joined = node
            return joined
        node = self._call_of(function)
        if tree.target is not None:
            node.call_expr.target.CopyFrom(self._expr(tree.target))
        node.call_expr.args.extend([self._expr(arg) for arg in args])
        return node

    def _call_of(self, function: str, *args: Any) -> Any:
        """Return a function call; string arguments become literals."""
        node = self._node()
        node.call_expr.function = function
        node.call_expr.args.extend([self._literal(arg) if isinstance(arg, str) else arg for arg in args])
        return node

    def _literal(self, value: object) -> Any:
        node = self._node()
        if value is None:
            node.const_expr.null_value = 0
            return node
        field = _CONSTANTS.get(type(value))
        if field is None:
            raise Inexpressible(f"it has no literal `{value}`")
        setattr(node.const_expr, field, value)
        return node

    def _request(self, field: str) -> Any:
        node = self._node()
        node.ident_expr.name = "request"
        return self._select(node, field)

    def _select(self, operand: Any, field: str) -> Any:
        node = self._node()
        node.select_expr.operand.CopyFrom(operand)
        node.select_expr.field = field
        return node

    def _index(self, operand: Any, key: str) -> Any:
        return self._call_of("_[_]", operand, key)


def _path(tree: ast.Expr) -> tuple[str, ...] | None:
    """Return the fields after `request` in `request.a.b` and `request["a"].b`; None for other expressions."""
    fields: list[str] = []
    while True:
        match tree:
            case ast.Ident(name="request" | ".request"):
                return tuple(reversed(fields))
            case ast.Select(operand=operand, field=field, optional=False):
                fields.append(field)
                tree = operand
            case ast.Call(function="_[_]", args=(operand, ast.Literal(value=str() as key))):
                fields.append(key)
                tree = operand
            case _:
                return None


def _header_key(name: str) -> str:
    """Return the key of a header, or of an absent one.

    Keys are in lower case in the model, but Envoy ignores case. It also has headers that the client did not send.
    """
    return _ABSENT if name != name.lower() or name.startswith((":", HEADER_PREFIX)) else name


def _presence(tree: ast.Expr) -> ast.Has | None:
    """Return `"x" in request.headers` or `"x" in request.mcp.arguments.y` as the equivalent `has`."""
    match tree:
        case ast.Call(function="@in", args=(ast.Literal(value=str() as key), inside)):
            path = _path(inside)
            if path == ("headers",) or path == ("mcp", "arguments"):
                return ast.Has(inside, key, tree.at)
    return None


def _is_argument(tree: ast.Expr) -> bool:
    path = _path(tree)
    return path is not None and path[:2] == ("mcp", "arguments")


def _check_has(tree: ast.Expr, error_is_false: bool = True) -> None:
    """Raise Inexpressible if `has` of an argument is used elsewhere than in `&&`, `||` and branches of `?:`."""
    presence = tree if isinstance(tree, ast.Has) else _presence(tree)
    if presence is not None and not error_is_false and _is_argument(ast.Select(presence.operand, presence.field)):
        raise Inexpressible("it cannot distinguish a missing argument from a list or an object")
    inside = ast.children(tree)
    for number, child in enumerate(inside):
        logical = isinstance(tree, ast.Call) and tree.function in (*ast.LOGICAL, ast.CONDITIONAL)
        condition = isinstance(tree, ast.Call) and tree.function == ast.CONDITIONAL and number == 0
        _check_has(child, error_is_false and logical and not condition)


def _as_double(tree: ast.Expr) -> ast.Expr:
    match tree:
        case ast.Literal(value=int() as value) if not isinstance(value, bool):
            if abs(int(value)) >= _MAX_EXACT:
                raise Inexpressible(f"it reads numbers as doubles, and {value} is not exact as a double")
            return ast.Literal(float(int(value)), tree.at)
        case ast.Call(function="-_", args=(ast.Literal(value=int() as value),)) if not isinstance(value, bool):
            return _as_double(ast.Literal(-int(value), tree.at))
        case ast.ListExpr(elements=elements):
            return ast.ListExpr(tuple(map(_as_double, elements)), tree.optional, tree.at)
        case _:
            return tree
