"""Translates CEL expressions of rules into those that Envoy evaluates (docs/tool.md#expressions).

Envoy knows other variables than AccessPolicy does, and fewer functions: no macro except `has`, no string building, no
libraries. Anything else is `Inexpressible`: the rule is then closed, and a diagnostic reports it. `request.mcp` is read
from the results of the MCP filter: the tool name from Tierwall's own header, arguments from the filter's metadata.

All numbers in that metadata are doubles, so an integer that an argument is compared with becomes a double, too. Lists
and objects are absent from it, as if the argument were missing. Reading them is an error, and an error never makes an
expression true that would not be. `has` could, under a negation. So `has` of an argument is an error unless it is
true, and it is only allowed where an error means the same as false.

Envoy has limits, too: how deep messages nest, and how large patterns are. An expression over a limit would make it
refuse the filter with all its policies, so such an expression is `OverLimit` and never reaches it. Chains of `&&` and
`||` become balanced trees; their length does not count as depth.
"""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct

from tierwall.cel.syntax import ast
from tierwall.cel.values import Uint
from tierwall.engines.envoy.config.names import HEADER_PREFIX, MCP, NAME
from tierwall.tool.methods import CelCondition

_COMPARISONS = frozenset(("_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_"))
_OPERATORS = _COMPARISONS | {"!_", "_&&_", "_||_", "_?_:_", "@in", "_[_]"}
_METHODS = {"startsWith": 1, "endsWith": 1, "contains": 1, "matches": 1, "size": 0}
_TIME_METHODS = frozenset(
    ("getFullYear", "getMonth", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getHours", "getMinutes")
) | {"getSeconds", "getMilliseconds"}
_FUNCTIONS = {"size": 1, "matches": 2, "timestamp": 1, "duration": 1}
_REQUEST_FIELDS = frozenset(("method", "path", "url_path", "host", "time"))
# A header that no request has. Reading it is an error, as with any missing header.
_ABSENT = f"{HEADER_PREFIX}absent"
_LITERALS = frozenset((bool, Uint, int, float, str, bytes, type(None)))
_MAX_EXACT = 1 << 53

# Protobuf reads at most 100 levels of messages. An expression begins at the fourth: CelMatcher, CelExpression,
# ParsedExpr. Some levels are left for what Envoy may wrap around it.
MAX_LEVELS = 92
# An upper bound of the bytes of a node, besides strings.
_NODE_BYTES = 40
# Envoy evaluates an expression node by node, on the thread that serves other requests as well.
MAX_NODES = 10_000
# The largest program of a pattern in `matches`. No option changes it: cel-cpp's default is Envoy's.
MAX_PATTERN_PROGRAM = 100


class Inexpressible(Exception):
    """Envoy cannot express this; the message says what."""


class OverLimit(Exception):
    """Envoy would refuse this because it is over a limit; the message says which."""


class TranslatedExpression(Struct, frozen=True, eq=False):
    """An expression in Envoy's words, the tool arguments and headers that it reads, and its size there in bytes.

    Without a tree, Envoy cannot evaluate it: it has no words for it, or the expression is over a limit.
    """

    tree: ast.Expr | None = None
    arguments: frozenset[tuple[str, ...]] = frozenset()
    size: int = 0
    inexpressible: str = ""
    over_limit: str = ""
    headers: frozenset[str] = frozenset()

    def check(self) -> ast.Expr:
        """Return the tree; raise Inexpressible or OverLimit if Envoy cannot evaluate the expression."""
        if self.over_limit:
            raise OverLimit(self.over_limit)
        if self.tree is None:
            raise Inexpressible(self.inexpressible)
        return self.tree


@lru_cache(maxsize=4096)
def translated(condition: CelCondition) -> TranslatedExpression:
    """Translate a condition, once for all rules and listeners that need it."""
    return translated_by(ExpressionTranslator(), condition.program.tree)


def translated_by(translator: ExpressionTranslator, tree: ast.Expr) -> TranslatedExpression:
    """Translate a tree with the variables that a translator knows."""
    try:
        _check_has(tree)
        tree = translator.translate(tree)
        size, levels, nodes = _measure(tree)
        if nodes > MAX_NODES:
            raise OverLimit(f"the expression has {nodes} parts, expected at most {MAX_NODES}")
        if levels > MAX_LEVELS:
            raise OverLimit(f"the expression is {levels} levels deep there, expected at most {MAX_LEVELS}")
    except Inexpressible as error:
        return TranslatedExpression(inexpressible=str(error))
    except OverLimit as error:
        return TranslatedExpression(over_limit=str(error))
    return TranslatedExpression(tree, frozenset(translator.arguments), size, headers=frozenset(translator.headers))


class ExpressionTranslator:
    """Translates trees, and collects the tool arguments and headers that they read."""

    def __init__(self) -> None:
        self.arguments: set[tuple[str, ...]] = set()
        self.headers: set[str] = set()

    def translate(self, tree: ast.Expr) -> ast.Expr:
        """Return a tree in Envoy's words; raise Inexpressible or OverLimit if Envoy cannot evaluate it."""
        path = _path(tree)
        if path is not None:
            return self._variable(path)
        match tree:
            case ast.Literal(value=value):
                if type(value) not in _LITERALS:
                    raise Inexpressible(f"it has no literal `{value}`")
                return tree
            case ast.Has(operand=operand, field=field):
                return self._has(_path(operand), field)
            case ast.ListExpr(elements=elements, optional=()):
                return ast.ListExpr(tuple(map(self.translate, elements)))
            case ast.Select(operand=operand, field=field, optional=False):
                return ast.Select(self.translate(operand), field)
            case ast.Call():
                return self._call(tree)
            case ast.Comprehension(macro=macro) | ast.Bind(macro=macro):
                raise Inexpressible(f"it has no `{macro}`")
            case ast.Ident(name=name):
                raise Inexpressible(f"it has no variable `{name}`")
            case _:
                raise Inexpressible("it has no maps, messages or optional values")

    def is_double(self, tree: ast.Expr) -> bool:
        """Whether Envoy reads a variable as a double if it is a number."""
        return _is_argument(tree)

    def _variable(self, path: tuple[str, ...]) -> ast.Expr:
        """Translate `request.…` with constant keys."""
        if path[:1] == ("headers",) and len(path) == 2:
            self.headers.add(header_key(path[1]))
            return index(request_field("headers"), header_key(path[1]))
        if path == ("mcp", "tool_name"):
            return index(request_field("headers"), NAME)
        if path[:2] == ("mcp", "arguments") and len(path) > 2:
            return self._argument(path[2:-1], path[-1])
        if len(path) == 1 and path[0] in _REQUEST_FIELDS:
            return request_field(path[0])
        raise Inexpressible(f"it has no `{'.'.join(('request', *path))}`")

    def _argument(self, path: tuple[str, ...], key: str) -> ast.Expr:
        return index(self._inside(path, key), key)

    def _inside(self, path: tuple[str, ...], key: str) -> ast.Expr:
        """Return the object that holds an argument, and note that the argument is read."""
        if any("." in part or not part for part in (*path, key)):
            raise Inexpressible(f"the MCP filter cannot read argument `{'.'.join((*path, key))}`")
        self.arguments.add((*path, key))
        value = index(ast.Select(ast.Ident("metadata"), "filter_metadata"), MCP)
        for part in ("params", "arguments", *path):
            value = index(value, part)
        return value

    def _has(self, path: tuple[str, ...] | None, field: str) -> ast.Expr:
        if path == ("headers",):
            return call("@in", ast.Literal(header_key(field)), request_field("headers"))
        if path == ("mcp",) and field == "tool_name":
            return call("@in", ast.Literal(NAME), request_field("headers"))
        if path is not None and path[:2] == ("mcp", "arguments"):
            there = call("@in", ast.Literal(field), self._inside(path[2:], field))
            missing = call("_==_", index(request_field("headers"), _ABSENT), ast.Literal(""))
            return call("_?_:_", there, ast.Literal(True), missing)
        raise Inexpressible("it has `has` only for headers, the tool's name and its arguments")

    def _call(self, tree: ast.Call) -> ast.Expr:
        function, args = tree.function, tree.args
        if (presence := _presence(tree)) is not None:
            return self._has(_path(presence.operand), presence.field)
        if function in _COMPARISONS or function == "@in":
            args = tuple(map(_as_double, args)) if any(map(self.is_double, args)) else args
        elif tree.target is not None:
            if not (function in _TIME_METHODS and len(args) <= 1) and _METHODS.get(function) != len(args):
                raise Inexpressible(f"it has no function `{function}`")
        elif function not in _OPERATORS and _FUNCTIONS.get(function) != len(args):
            raise Inexpressible(f"it has no function or operator `{function}`")
        if function == "_[_]" and _path(args[0]) == ("headers",):
            raise Inexpressible("the name of a header must be written out")
        if function == "matches":
            _check_pattern(args[-1])
        if function in ast.LOGICAL:
            return _balanced(function, [self.translate(operand) for operand in _operands(tree)])
        target = self.translate(tree.target) if tree.target is not None else None
        return ast.Call(function, target, tuple(map(self.translate, args)))


def call(function: str, *args: ast.Expr) -> ast.Expr:
    """Return the call of a function or operator."""
    return ast.Call(function, None, args)


def request_field(field: str) -> ast.Expr:
    """Return a field of Envoy's `request`."""
    return ast.Select(ast.Ident("request"), field)


def index(operand: ast.Expr, key: str) -> ast.Expr:
    """Return the value of a key."""
    return call("_[_]", operand, ast.Literal(key))


def _operands(tree: ast.Expr) -> list[ast.Expr]:
    """Return the operands of a chain of `&&` or `||`, also of chains of the same operator inside it, in order."""
    assert isinstance(tree, ast.Call)
    out: list[ast.Expr] = []
    waiting: list[ast.Expr] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Call) and node.function == tree.function:
            waiting.extend(reversed(node.args))
        else:
            out.append(node)
    return out


def _balanced(function: str, operands: list[ast.Expr]) -> ast.Expr:
    """Join operands in their order by a binary operator, as evenly as possible.

    Both operators are associative, also where operands are errors.
    """
    if len(operands) == 1:
        return operands[0]
    middle = len(operands) // 2
    return call(function, _balanced(function, operands[:middle]), _balanced(function, operands[middle:]))


def _measure(tree: ast.Expr) -> tuple[int, int, int]:
    """Return the bytes, the levels and the nodes of an expression in Envoy: a node is two levels of messages."""
    size, levels, nodes = _NODE_BYTES, 2, 1
    match tree:
        case ast.Literal(value=str() | bytes() as value):
            size += 4 * len(value)
        case ast.Select(field=field):
            size += len(field)
    for child in ast.operands(tree):
        inner_size, inner_levels, inner_nodes = _measure(child)
        size += inner_size
        levels = max(levels, inner_levels + 2)
        nodes += inner_nodes
    return size, levels, nodes


def _check_pattern(tree: ast.Expr) -> None:
    """Raise OverLimit if a literal pattern of `matches` is larger than Envoy takes. It checks others at run time."""
    if isinstance(tree, ast.Literal) and isinstance(tree.value, str):
        size = _program_size(tree.value)
        if size is None:
            raise Inexpressible("it cannot read a pattern of `matches`")
        if size > MAX_PATTERN_PROGRAM:
            raise OverLimit(
                f"a pattern of `matches` has program size {size} there, expected at most {MAX_PATTERN_PROGRAM}"
            )


@lru_cache(maxsize=256)
def _program_size(pattern: str) -> int | None:
    """Return the size of a pattern's program, as Envoy's CEL counts it; None if it cannot be read."""
    import re2  # few rules have patterns

    options = re2.Options()
    options.log_errors = False
    try:
        size: int = re2.compile(pattern, options).programsize
    except (re2.error, UnicodeEncodeError):
        return None
    return size


def _path(tree: ast.Expr) -> tuple[str, ...] | None:
    """Return the fields after `request` in `request.a.b` and `request["a"].b`; None for other expressions."""
    path = ast.path_of(tree)
    return path[1:] if path is not None and path[0] == "request" else None


def header_key(name: str) -> str:
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
