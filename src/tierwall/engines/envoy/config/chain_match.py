"""The matches of a chain of rules as matches of Envoy: a request must meet all of them.

An Envoy route has one path. What that does not imply is asked of the header `:path`, which has the query string, too;
so a prefix takes three routes. Envoy cannot ask for two patterns of paths: such a chain matches nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from envoy.config.route.v3 import route_components_pb2

from tierwall.engines.envoy.config.route_rules import (
    MATCHES_NOTHING,
    method_matcher,
    path_of,
    route_match,
    unusable_pattern,
)

Match = Mapping[str, Any]
_PREFIX, _PATTERN = "PathPrefix", "RegularExpression"
_EVERYTHING = (_PREFIX, "/")
SEVERAL_PATTERNS = "a chain with several patterns of paths"


def can_match(matches: Sequence[Match]) -> bool:
    """Whether some request can meet all matches, as far as literal paths and methods say."""
    return _literal(matches) is not None and len(_methods(matches)) < 2


def path_problem(matches: Sequence[Match], max_program_size: int, replaces_prefix: bool) -> str:
    """Return what Envoy cannot do for a chain because of its paths; or an empty string."""
    patterns = _patterns(matches)
    if len(patterns) > 1:
        return SEVERAL_PATTERNS
    if replaces_prefix and (patterns or path_of(matches[-1])[0] != _PREFIX):
        return "replacing a prefix where the path is not one"
    return next(filter(None, (unusable_pattern(match, max_program_size) for match in matches)), "")


def chain_matches(matches: Sequence[Match], max_program_size: int, replaces_prefix: bool) -> list[Any]:
    """Return the matches of Envoy, at least one; `replaces_prefix` if a filter replaces the prefix of the last one."""
    literal, patterns = _literal(matches), _patterns(matches)
    unusable = any(unusable_pattern(match, max_program_size) for match in matches)
    if literal is None or not can_match(matches) or len(patterns) > 1 or unusable:
        return [route_components_pb2.RouteMatch(safe_regex={"regex": MATCHES_NOTHING})]
    last = path_of(matches[-1])
    if patterns:
        kind, path, asked = _PATTERN, patterns[0], literal
    elif replaces_prefix:
        # Envoy replaces what its route matches.
        (kind, path), asked = last, _EVERYTHING if last == literal else literal
    else:
        (kind, path), asked = literal, _EVERYTHING
    out = route_match({"path": {"type": kind, "value": path}}, max_program_size)
    out.headers.extend(map(method_matcher, _methods(matches)))
    for match in matches:
        conditions = {name: match[name] for name in ("headers", "queryParams") if name in match}
        message = route_match(conditions, max_program_size)
        out.headers.extend(message.headers)
        out.query_parameters.extend(message.query_parameters)
    return list(_asking(out, *asked))


def _asking(message: Any, kind: str, path: str) -> Iterator[Any]:
    """Yield copies of a match that ask for a path or a prefix as well."""
    wanted = [{"exact": path}, {"prefix": f"{path}?"}, {"prefix": f"{path}/"}]
    for text in [None] if (kind, path) == _EVERYTHING else wanted if kind == _PREFIX else wanted[:2]:
        asking = type(message)()
        asking.CopyFrom(message)
        if text is not None:
            asking.headers.add(name=":path", string_match=text)
        yield asking


def _literal(matches: Sequence[Match]) -> tuple[str, str] | None:
    """Return the narrowest path or prefix that a chain asks for beside patterns; None if no path has all of them."""
    narrowest = _EVERYTHING
    for path in map(path_of, matches):
        if path[0] == _PATTERN or _is_within(narrowest, path):
            continue
        if not _is_within(path, narrowest):
            return None
        narrowest = path
    return narrowest


def _is_within(path: tuple[str, str], other: tuple[str, str]) -> bool:
    """Whether every path that is meant by the first is meant by the other, too."""
    if other[0] != _PREFIX:
        return path == other
    return path[1] == other[1] or path[1].startswith(other[1] if other == _EVERYTHING else f"{other[1]}/")


def _patterns(matches: Sequence[Match]) -> list[str]:
    return list(dict.fromkeys(path for kind, path in map(path_of, matches) if kind == _PATTERN))


def _methods(matches: Sequence[Match]) -> set[str]:
    return {method for match in matches if isinstance(method := match.get("method"), str)}
