"""Changes of headers that Envoy may make for a route or a setting.

Headers that frame a message or say which host it is for stay as they are: changing one would change the meaning of the
message. Policies judge requests by Tierwall's own headers, so no route sets those. Headers of MCP say again what a
message says: policies compared both, and a server that goes by the header must find what they judged. Nor may a route
say who the caller is, that the method or path is another, or how long Envoy waits and how often it tries: such headers
may only be removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tierwall.engines.envoy.config.names import HEADER_PREFIX, OVERRIDE_HEADERS
from tierwall.resources.resource import list_of_maps, nested_map

TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_PROTECTED = frozenset(("host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer"))
_PREFIXES = (HEADER_PREFIX, "mcp-")
# Who the caller is, and what Envoy itself goes by, such as timeouts and attempts.
_ONLY_REMOVED = ("x-forwarded-client-", "x-envoy-")
_UTF_8 = re.compile(r'application/json\s*;\s*charset\s*=\s*"?utf-?8"?\s*')
# Headers that say how a body is encoded and written.
BODY_HEADERS = ("content-encoding", "content-type")
# The parts of a filter, or of a setting, that changes headers, and the filters that do.
_PARTS = ("set", "add", "remove")
_OF_REQUESTS = "RequestHeaderModifier"
_MODIFIERS = {"RequestHeaderModifier": "requestHeaderModifier", "ResponseHeaderModifier": "responseHeaderModifier"}
RETYPING = "another `Content-Encoding` or charset of messages that policies judge"
RETYPING_HINT = "leave the header out: policies have read the message as it is, in UTF-8"
REFERENCE_HINT = "write it in `filters` of the rule; backends that need different ones need rules of their own"


class HeaderProblem(NamedTuple):
    """A change that cannot be made, and where in the value it stands."""

    message: str
    path: tuple[str | int, ...]


def is_protected(name: str, removes: bool = False) -> bool:
    """Whether a header must stay as it is, or cannot be one."""
    folded = name.lower()
    if not removes and (folded in OVERRIDE_HEADERS or folded.startswith(_ONLY_REMOVED)):
        return True
    return not TOKEN.fullmatch(name) or folded in _PROTECTED or folded.startswith(_PREFIXES)


def retypes(name: str, content: str) -> bool:
    """Whether a header says that a message that was judged is encoded or written in another way.

    A server that believes it would read another message. The same is refused of clients (`strict.lua`).
    """
    name, content = name.lower(), content.lower()
    return (name == "content-encoding" and content != "identity") or (
        name == "content-type" and "charset" in content and _UTF_8.fullmatch(content) is None
    )


def retyping(value: Mapping[str, Any]) -> bool:
    """Whether a `set` or `add` of headers of requests says so."""
    headers = (header for part in ("set", "add") for header in list_of_maps(value.get(part)))
    return any(retypes(str(header.get("name")), str(header.get("value"))) for header in headers)


def retyped(filters: object) -> bool:
    """Whether filters say so of requests."""
    changes = (nested_map(each, _MODIFIERS[_OF_REQUESTS]) for each in list_of_maps(filters) if _is_of_requests(each))
    return any(map(retyping, changes))


def _is_of_requests(entry: Mapping[str, Any]) -> bool:
    return entry.get("type") == _OF_REQUESTS


def header_problems(value: Mapping[str, Any]) -> Iterator[HeaderProblem]:
    """Yield the changes of a `set`, `add` and `remove` that cannot be made."""
    for field in ("set", "add"):
        for number, header in enumerate(list_of_maps(value.get(field))):
            name, content = str(header.get("name")), str(header.get("value"))
            if is_protected(name):
                yield HeaderProblem(f"a change of header `{name}`", (field, number, "name"))
            elif CONTROL.search(content):
                yield HeaderProblem(f"a control character in header `{name}`", (field, number, "value"))
    removed = value.get("remove")
    for number, name in enumerate(removed if isinstance(removed, list) else ()):
        if is_protected(str(name), removes=True):
            yield HeaderProblem(f"a change of header `{name}`", ("remove", number))


def changes_headers(value: Mapping[str, Any]) -> bool:
    """Whether a `set`, `add` or `remove` changes anything."""
    return any(value.get(part) for part in _PARTS)


def headers_of_filter(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the changes of headers of a filter (Gateway API, `HTTPHeaderFilter`); empty for other filters."""
    return nested_map(entry, _MODIFIERS.get(str(entry.get("type")), ""))


def host_of_filter(entry: Mapping[str, Any]) -> str:
    """Return the host that a filter gives requests, or an empty string."""
    rewrite = nested_map(entry, "urlRewrite") if entry.get("type") == "URLRewrite" else {}
    return str(rewrite.get("hostname") or "")


def changes_requests(filters: object) -> bool:
    """Whether filters change headers or the host of requests or responses."""
    entries = list(list_of_maps(filters))
    return any(host_of_filter(entry) or changes_headers(headers_of_filter(entry)) for entry in entries)


def reference_problem(filters: object) -> str:
    """Return the first filter of a backendRef that Envoy cannot apply, or an empty string."""
    for entry in list_of_maps(filters):
        kind = str(entry.get("type"))
        if kind not in _MODIFIERS and (kind != "URLRewrite" or "path" in nested_map(entry, "urlRewrite")):
            return f"filter {kind} of a backendRef"
        for problem in header_problems(headers_of_filter(entry)):
            return problem.message
    return ""
