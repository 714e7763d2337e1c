"""Expressions of settings in Envoy's words (agentgateway, "CEL expressions").

agentgateway knows other variables than AccessPolicies do: `request.path` has no query, `jwt` are the claims of a token
that was checked, `basicAuth.username` is a checked name. Claims come from the metadata of Envoy's filter, where all
numbers are doubles. What Envoy does not know is `Unenforceable`.
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

from tierwall.cel import Environment, ParseError
from tierwall.cel.syntax import ast
from tierwall.engines.envoy.config.cel_expression import (
    ExpressionTranslator,
    Inexpressible,
    OverLimit,
    call,
    header_key,
    index,
    request_field,
    translated_by,
)
from tierwall.engines.envoy.config.names import CLAIMS, HEADER_PREFIX, JWT_METADATA, METHOD, NAME, URI, USER
from tierwall.engines.envoy.config.settings.unenforceable import Unenforceable
from tierwall.tool.request import SESSION_HEADER

_ENVIRONMENT = Environment(extensions=True)
# A header that no request has.
_ABSENT = f"{HEADER_PREFIX}absent"
# Fields of agentgateway's `request`, as Envoy calls them.
_REQUEST = {
    "method": "method",
    "path": "url_path",
    "pathAndQuery": "path",
    "host": "host",
    "scheme": "scheme",
}


@lru_cache(maxsize=4096)
def _parsed(text: str) -> ast.Expr | None:
    try:
        return _ENVIRONMENT.parse(text)
    except ParseError:
        return None


def parsed(text: object, *path: str | int) -> ast.Expr:
    """Return the tree of an expression."""
    tree = _parsed(text) if isinstance(text, str) else None
    if tree is None:
        raise Unenforceable("the expression does not parse", *path)
    return tree


def is_valid(text: object) -> bool:
    """Whether an expression parses; one that does not always fails."""
    return isinstance(text, str) and _parsed(text) is not None


@lru_cache(maxsize=4096)
def _translated(text: str, of_response: bool) -> ast.Expr | str:
    tree = _parsed(text)
    if tree is None:
        return "the expression does not parse"
    return _in_words(ResponseTranslator(), tree) if of_response else translated_tree(tree)


def translated_tree(tree: ast.Expr) -> ast.Expr | str:
    """Return an expression about a request in the words of Envoy, or why Envoy cannot evaluate it."""
    return _in_words(SettingsTranslator(), tree)


def _in_words(translator: SettingsTranslator, tree: ast.Expr) -> ast.Expr | str:
    try:
        return translated_by(translator, tree).check()
    except (Inexpressible, OverLimit) as error:
        return f"Envoy cannot evaluate it: {error}"


def translated_setting(text: object, *path: str | int, of_response: bool = False) -> ast.Expr:
    """Return an expression in the words of Envoy; `of_response` says that it may use the response, too."""
    tree = _translated(text, of_response) if isinstance(text, str) else "it is not a text"
    if isinstance(tree, str):
        raise Unenforceable(tree, *path)
    return tree


def constant(expression: object, *path: str | int) -> str:
    """Return the text that an expression is, whatever the request."""
    tree = parsed(expression, *path)
    if isinstance(tree, ast.Literal) and isinstance(tree.value, str):
        return tree.value
    raise Unenforceable("Envoy does not evaluate expressions here, only constant texts", *path)


class SettingsTranslator(ExpressionTranslator):
    """Translates agentgateway's variables."""

    def translate(self, tree: ast.Expr) -> ast.Expr:
        """Return a tree in Envoy's words; raise Inexpressible or OverLimit if Envoy cannot evaluate it."""
        match tree:
            case ast.Has(operand=operand, field=field):
                return self._presence(ast.path_of(operand), field)
            case ast.Call(function="@in", args=(ast.Literal(value=str() as key), inside)) if ast.path_of(inside) == (
                "request",
                "headers",
            ):
                return self._presence(("request", "headers"), key)
        path = ast.path_of(tree)
        return super().translate(tree) if path is None else _variable(path)

    def is_double(self, tree: ast.Expr) -> bool:
        """Whether Envoy reads a variable as a double if it is a number."""
        path = ast.path_of(tree)
        return path is not None and path[0] == "jwt"

    def _presence(self, path: tuple[str, ...] | None, field: str) -> ast.Expr:
        if path == ("request", "headers"):
            return call("@in", ast.Literal(header_key(field)), request_field("headers"))
        if path is not None and path[0] == "jwt":
            return call("@in", ast.Literal(field), _claims(path[1:]))
        raise Inexpressible("it has `has` only for headers and claims")


class ResponseTranslator(SettingsTranslator):
    """Translates expressions that are evaluated when there is a response."""

    def translate(self, tree: ast.Expr) -> ast.Expr:
        """Return a tree in Envoy's words; raise Inexpressible or OverLimit if Envoy cannot evaluate it."""
        match ast.path_of(tree):
            case ("response", "code"):
                return ast.Select(ast.Ident("response"), "code")
            case ("response", "headers", name):
                return index(ast.Select(ast.Ident("response"), "headers"), header_key(name))
        return super().translate(tree)


class ItemKind(StrEnum):
    """The kinds of items that a message may use, as `mcp` calls them."""

    TOOL = "tool"
    PROMPT = "prompt"
    RESOURCE = "resource"
    TASK = "task"


class McpTranslator(SettingsTranslator):
    """Translates expressions about a message that uses an item; reading another item is an error."""

    def __init__(self, item: ItemKind, method: str, target: str) -> None:
        super().__init__()
        self._item = item
        self._method = method
        self._target = target

    def translate(self, tree: ast.Expr) -> ast.Expr:
        """Return a tree in Envoy's words; raise Inexpressible or OverLimit if Envoy cannot evaluate it."""
        if isinstance(tree, ast.Has) and ast.path_of(tree.operand) == ("mcp",) and tree.field in tuple(ItemKind):
            return ast.Literal(tree.field == self._item)
        path = ast.path_of(tree)
        match path:
            case ("mcp", "methodName"):
                return ast.Literal(self._method) if self._method else index(request_field("headers"), METHOD)
            case ("mcp", "sessionId"):
                return index(request_field("headers"), SESSION_HEADER)
            case ("mcp", "tool" | "prompt" | "resource" as item, "name" | "target" as field):
                if item != self._item.value:
                    return index(request_field("headers"), _ABSENT)
                if field == "target":
                    return ast.Literal(self._target)
                return index(request_field("headers"), URI if item == "resource" else NAME)
        return super().translate(tree)


def translated_item(item: ItemKind, method: str, target: str, tree: ast.Expr) -> ast.Expr | str:
    """Return an expression about a message that uses an item, or why Envoy cannot evaluate it.

    `method` replaces the one that Envoy reads, if given, and `target` is the name of the server.
    """
    return _in_words(McpTranslator(item, method, target), tree)


def _variable(path: tuple[str, ...]) -> ast.Expr:
    match path:
        case ("request", "headers", name):
            return index(request_field("headers"), header_key(name))
        case ("request", field) if field in _REQUEST:
            return request_field(_REQUEST[field])
        case ("jwt", _, *_):
            return _claims(path[1:])
        case ("basicAuth", "username"):
            return index(request_field("headers"), USER)
    raise Inexpressible(f"it has no `{'.'.join(path)}`")


def _claims(path: tuple[str, ...]) -> ast.Expr:
    value = index(index(ast.Select(ast.Ident("metadata"), "filter_metadata"), JWT_METADATA), CLAIMS)
    for key in path:
        value = index(value, key)
    return value
