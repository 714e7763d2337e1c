"""HTTPRoute matches as Envoy's, and which of two comes first (Gateway API, `HTTPRouteRule.matches`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envoy.config.route.v3 import route_components_pb2
from envoy.type.matcher.v3 import regex_pb2

from tierwall.attach.section import maps
from tierwall.resources.resource import Resource

_RANK = {"Exact": 0, "RegularExpression": 1, "PathPrefix": 2}


def route_match(value: Mapping[str, Any]) -> Any:
    """One entry of `matches`; an empty one is the prefix `/`."""
    out = route_components_pb2.RouteMatch()
    kind, path = _path(value)
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
    for one in maps(value.get("headers")):
        header = out.headers.add(name=str(one.get("name")))
        _text(header.string_match, one)
    for one in maps(value.get("queryParams")):
        parameter = out.query_parameters.add(name=str(one.get("name")))
        _text(parameter.string_match, one)
    return out


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
        -len(list(maps(value.get("headers")))),
        -len(list(maps(value.get("queryParams")))),
        route.seniority,
        rule,
        number,
    )


def _path(value: Mapping[str, Any]) -> tuple[str, str]:
    path = value.get("path")
    path = path if isinstance(path, dict) else {}
    kind, text = str(path.get("type") or "PathPrefix"), str(path.get("value") or "/")
    return kind, (text.rstrip("/") or "/") if kind == "PathPrefix" else text


def _text(into: Any, value: Mapping[str, Any]) -> None:
    if value.get("type") == "RegularExpression":
        into.safe_regex.CopyFrom(_regex(str(value.get("value"))))
    else:
        into.exact = str(value.get("value"))


def _regex(pattern: str) -> Any:
    return regex_pb2.RegexMatcher(regex=pattern)
