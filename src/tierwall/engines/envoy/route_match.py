"""HTTPRoute matches as Envoy's, and which of two comes first (Gateway API, `HTTPRouteRule.matches`).

A pattern that Envoy would refuse must not get to it: it would refuse all routes of the listener with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import re2
from envoy.config.route.v3 import route_components_pb2
from envoy.type.matcher.v3 import regex_pb2

from tierwall.attach.section import maps
from tierwall.resources.resource import Resource

_RANK = {"Exact": 0, "RegularExpression": 1, "PathPrefix": 2}
_NEVER = r"[^\s\S]"  # no character at all


def route_match(value: Mapping[str, Any], largest_pattern: int = 100) -> Any:
    """One entry of `matches`; an empty one is the prefix `/`, one with a pattern that is unusable matches nothing."""
    out = route_components_pb2.RouteMatch()
    kind, path = _path(value)
    if unusable(value, largest_pattern):
        out.safe_regex.CopyFrom(_regex(_NEVER))
        return out
    if kind == "Exact":
        out.path = path
    elif kind == "RegularExpression":
        out.safe_regex.CopyFrom(_regex(path))
    elif path == "/":
        out.prefix = "/"
    else:
        out.path_separated_prefix = path
    if isinstance(value.get("method"), str):
        out.headers.append(method(value["method"]))
    for name, one in _by_name(value.get("headers"), fold=True):
        _text(out.headers.add(name=name).string_match, one)
    for name, one in _by_name(value.get("queryParams"), fold=False):
        _text(out.query_parameters.add(name=name).string_match, one)
    return out


def unusable(value: Mapping[str, Any], largest_pattern: int) -> str:
    """The pattern of a match that Envoy would refuse, and why; or nothing."""
    kind, path = _path(value)
    texts = [path] if kind == "RegularExpression" else []
    for field in ("headers", "queryParams"):
        texts += [str(one.get("value")) for one in maps(value.get(field)) if one.get("type") == "RegularExpression"]
    for text in texts:
        why = refused(text, largest_pattern)
        if why:
            return f"pattern `{text}`, {why},"
    return ""


def refused(pattern: str, largest_pattern: int) -> str:
    """Why Envoy would refuse a pattern, or nothing."""
    options = re2.Options()
    options.log_errors = False
    options.encoding = re2.Options.Encoding.LATIN1  # as Envoy reads patterns: byte by byte
    try:
        size = re2.compile(pattern.encode(), options).programsize
    except (re2.error, UnicodeEncodeError):
        return "which Envoy does not take for one"
    return f"whose program has size {size} of at most {largest_pattern}" if size > largest_pattern else ""


def quoted(text: str) -> str:
    """A pattern for this text only."""
    return "".join(one if one.isalnum() or one in "/_-" else f"\\{one}" for one in text)


def method(name: str, invert: bool = False) -> Any:
    """A request with this HTTP method, or with any other."""
    out = route_components_pb2.HeaderMatcher(name=":method", invert_match=invert)
    out.string_match.exact = name
    return out


def precedence(route: Resource, rule: int, number: int, value: Mapping[str, Any]) -> tuple[Any, ...]:
    """The sort key: exact paths, longer paths, a method, more headers, more parameters, older routes, earlier rules."""
    kind, path = _path(value)
    return (
        _RANK.get(kind, 3),
        -len(path),
        value.get("method") is None,
        -len(list(_by_name(value.get("headers"), fold=True))),
        -len(list(_by_name(value.get("queryParams"), fold=False))),
        route.seniority,
        rule,
        number,
    )


def _path(value: Mapping[str, Any]) -> tuple[str, str]:
    path = value.get("path")
    path = path if isinstance(path, dict) else {}
    kind, text = str(path.get("type") or "PathPrefix"), str(path.get("value") or "/")
    return kind, (text.rstrip("/") or "/") if kind == "PathPrefix" else text


def _by_name(value: object, fold: bool) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Matches by name; of those with equivalent names only the first counts."""
    seen: set[str] = set()
    for one in maps(value):
        name = str(one.get("name"))
        key = name.lower() if fold else name
        if key not in seen:
            seen.add(key)
            yield name, one


def _text(into: Any, value: Mapping[str, Any]) -> None:
    if value.get("type") == "RegularExpression":
        into.safe_regex.CopyFrom(_regex(str(value.get("value"))))
    else:
        into.exact = str(value.get("value"))


def _regex(pattern: str) -> Any:
    return regex_pb2.RegexMatcher(regex=pattern)
