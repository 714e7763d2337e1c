"""Which tool questions a real request can put to Envoy, and why others are skipped (docs/policy-tests.md#output)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from tierwall.core.stack import Stack
from tierwall.engines.envoy.config.guards import Protection
from tierwall.tool.question import ToolQuestion
from tierwall.tool.request import Request
from tierwall.tool.rules import Policy, Rule

METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"))
# Requests have these whatever a question says: the client must send them, or Envoy adds them.
ALWAYS = frozenset(("accept", "content-type", "content-length", "host"))
_OF_CONNECTIONS = frozenset(
    ("connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect", "proxy-connection", "via")
)
_OF_ENVOY = ("x-forwarded-", "x-envoy-", "x-request-id", "x-tierwall-", "x-http-method", "x-method-override")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^`|~-]+", re.ASCII)
_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?", re.ASCII)
_METHOD = re.compile(r"[!-~]+", re.ASCII)
_PATH = re.compile(r"(/[A-Za-z0-9._~!$&'()*+,;=:@-]*)+(\?[!-~]*)?", re.ASCII)
_SPELT = frozenset(("tools/call", "tools/list", "prompts/get", "prompts/list", "resources/read", "resources/list")) | {
    "resources/subscribe",
    "resources/unsubscribe",
    "resources/templates/list",
}


def obstacle(request: Request, stack: Stack[Policy], protection: Protection, question: ToolQuestion) -> str:
    """Why a question cannot be put to Envoy as a request, or nothing."""
    return next(_obstacles(request, stack, protection, question), "")


def _obstacles(request: Request, stack: Stack[Policy], protection: Protection, question: ToolQuestion) -> Iterator[str]:
    for one in protection.diagnostics:
        yield one.message
    if question.time is not None:
        yield "Envoy takes the time of its clock"
    if request.http_method not in METHODS:
        yield f"HTTP method `{request.http_method}` cannot be sent"
    if request.method is not None and request.http_method != "POST":
        yield f"MCP messages are sent by POST, not {request.http_method}"
    if request.method is None and request.http_method == "POST" and protection.is_needed:
        yield "where policies are, every POST must be an MCP message"
    if request.method is not None and _is_misspelt(request.method):
        yield f"method {request.method!r} is refused as a misspelling"
    if _has_empty_key(request.arguments):
        yield "arguments with empty keys are refused"
    yield from _path_obstacles(request.path)
    yield from _header_obstacles(request, stack)
    yield from _argument_obstacles(request, protection)
    for name, text in (("tool", request.tool), ("uri", request.uri), ("method", request.method)):
        if text is not None and (not text or any(ord(char) < 32 or 0xD800 <= ord(char) < 0xE000 for char in text)):
            yield f"{name} {text!r} cannot be put in a header"
        elif text is not None and (text != text.strip() or any(_is_wide_blank(char) for char in text)):
            yield f"{name} {text!r} is refused for its blanks"


def _is_misspelt(method: str) -> bool:
    return method not in _SPELT and (method.lower() in _SPELT or not _METHOD.fullmatch(method))


def _is_wide_blank(char: str) -> bool:
    return ord(char) > 127 and unicodedata.category(char) in ("Zs", "Zl", "Zp", "Cf")


def _has_empty_key(value: object) -> bool:
    if isinstance(value, Mapping):
        return "" in value or any(map(_has_empty_key, value.values()))
    return isinstance(value, list) and any(map(_has_empty_key, value))


def _path_obstacles(path: str) -> Iterator[str]:
    if not _PATH.fullmatch(path) or "//" in path or re.search(r"/\.{1,2}(/|\?|$)", path):
        yield f"path `{path}` is normalised before policies see it"


def _header_obstacles(request: Request, stack: Stack[Policy]) -> Iterator[str]:
    for name, value in request.headers.items():
        if name in _OF_CONNECTIONS or name in ("host", "content-length") or name.startswith(_OF_ENVOY):
            yield f"header `{name}` is not a caller's to send"
        elif not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            yield f"header `{name}` cannot be sent as it is"
    looked_at = mentioned(stack)
    for name in sorted(ALWAYS - request.headers.keys()):
        if name in looked_at and (name != "host" or request.host is None):
            yield f"every request has a header `{name}`"
    if any(name.startswith(_OF_ENVOY) for name in looked_at):
        yield "Envoy sets a header that a rule looks at"
    if request.host is not None and not re.fullmatch(r"[A-Za-z0-9.-]+(:[0-9]{1,5})?", request.host):
        yield f"host `{request.host}` cannot be sent"


def mentioned(stack: Stack[Policy]) -> set[str]:
    """The headers that rules look at; `host` also where they look at the host."""
    found: set[str] = set()
    for rule in _rules(stack):
        found |= {one.name for one in rule.http.headers} | ({"host"} if rule.http.hosts else set())
        for method in rule.methods:
            if method.condition is not None:
                text = method.condition.text
                found |= {name for name in ALWAYS if name in text} | {name for name in _OF_ENVOY if name in text}
                # A request without this header has no such key; with capitals it is another key.
                found |= {"accept"} if "request.headers" in text and "size" in text else set()
    return found


def _rules(stack: Stack[Policy]) -> Iterator[Rule]:
    for tier in stack:
        for policy in tier.policies:
            yield from policy.allows.all
            yield from policy.asks.all


def _argument_obstacles(request: Request, protection: Protection) -> Iterator[str]:
    for path in protection.arguments:
        value: Any = request.arguments
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, list | Mapping):
            yield f"Envoy does not read lists and objects, which argument `{'.'.join(path)}` is"
        if isinstance(value, int) and abs(value) >= 1 << 53:
            yield f"Envoy reads argument `{'.'.join(path)}` as a double"
