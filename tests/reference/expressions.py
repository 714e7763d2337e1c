"""The meaning of the CEL expressions in random tool policies, written by hand in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class Missing(Exception):
    """A CEL error: the request does not have this part."""


def header(request: Mapping[str, Any], name: str) -> str:
    if name not in request["headers"]:
        raise Missing
    return str(request["headers"][name])


def tool(request: Mapping[str, Any]) -> str:
    if request["tool"] is None:
        raise Missing
    return str(request["tool"])


def absorbing_or(left: Callable[[], bool], right: Callable[[], bool]) -> bool:
    failed = False
    for side in (left, right):
        try:
            if side():
                return True
        except Missing:
            failed = True
    if failed:
        raise Missing
    return False


# The meaning of each expression; None if a controller would refuse it.
EXPRESSIONS: dict[str, Callable[[Mapping[str, Any]], bool] | None] = {
    "true": lambda r: True,
    "request.mcp.tool_name == 'add'": lambda r: tool(r) == "add",
    "request.mcp.tool_name.startsWith('get')": lambda r: tool(r).startswith("get"),
    "request.mcp.tool_name != 'add'": lambda r: tool(r) != "add",
    "request.headers['x-env'] == 'prod'": lambda r: header(r, "x-env") == "prod",
    "!(request.headers['x-env'] == 'prod')": lambda r: header(r, "x-env") != "prod",
    "request.headers['X-Env'] == 'prod'": lambda r: header(r, "X-Env") == "prod",
    "request.headers['x-env'] == 'prod' || request.mcp.tool_name == 'get'": lambda r: absorbing_or(
        lambda: header(r, "x-env") == "prod", lambda: tool(r) == "get"
    ),
    "has(request.mcp.tool_name) && request.mcp.tool_name in ['get', 'set']": lambda r: r["tool"] in ("get", "set"),
    "request.url_path == '/mcp' && request.method == 'POST'": lambda r: (
        r["path"].partition("?")[0] == "/mcp" and r["http_method"] == "POST"
    ),
    "request.mcp.tool_name": None,
    "1 + 1": None,
    "request.mcp.tool_name ==": None,
    "caller == 'me'": None,
    "request.user == 'me'": None,
}


def is_true(cel: Mapping[str, str], request: Mapping[str, Any]) -> bool:
    """Whether an expression is true for a request; one that fails is not."""
    meaning = EXPRESSIONS[cel["expression"]]
    assert meaning is not None
    try:
        return meaning(request)
    except Missing:
        return False
