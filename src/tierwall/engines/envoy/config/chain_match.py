"""The matches of a chain of rules as matches of Envoy: a request must meet all of them.

An Envoy route has one path. What that does not imply is asked of the header `:path`, which has the query string, too;
so a prefix takes three routes. Envoy cannot ask for two patterns of paths: such a chain matches nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from envoy.config.route.v3 import route_components_pb2

from tierwall.engines.envoy.config.route_matches import (
    EVERYTHING,
    PATTERN,
    PREFIX,
    Match,
    asked_methods,
    can_match,
    literal_path,
    path_of,
    path_patterns,
    unusable_pattern,
)
from tierwall.engines.envoy.config.route_rules import MATCHES_NOTHING, method_matcher, route_match


def chain_matches(matches: Sequence[Match], max_program_size: int, replaces_prefix: bool) -> list[Any]:
    """Return the matches of Envoy, at least one; `replaces_prefix` if a filter replaces the prefix of the last one."""
    literal, patterns = literal_path(matches), path_patterns(matches)
    unusable = any(unusable_pattern(match, max_program_size) for match in matches)
    if literal is None or not can_match(matches) or len(patterns) > 1 or unusable:
        return [route_components_pb2.RouteMatch(safe_regex={"regex": MATCHES_NOTHING})]
    last = path_of(matches[-1])
    if patterns:
        kind, path, asked = PATTERN, patterns[0], literal
    elif replaces_prefix:
        # Envoy replaces what its route matches.
        (kind, path), asked = last, EVERYTHING if last == literal else literal
    else:
        (kind, path), asked = literal, EVERYTHING
    out = route_match({"path": {"type": kind, "value": path}}, max_program_size)
    out.headers.extend(map(method_matcher, asked_methods(matches)))
    for match in matches:
        conditions = {name: match[name] for name in ("headers", "queryParams") if name in match}
        message = route_match(conditions, max_program_size)
        out.headers.extend(message.headers)
        out.query_parameters.extend(message.query_parameters)
    return list(_asking(out, *asked))


def _asking(message: Any, kind: str, path: str) -> Iterator[Any]:
    """Yield copies of a match that ask for a path or a prefix as well."""
    wanted = [{"exact": path}, {"prefix": f"{path}?"}, {"prefix": f"{path}/"}]
    for text in [None] if (kind, path) == EVERYTHING else wanted if kind == PREFIX else wanted[:2]:
        asking = type(message)()
        asking.CopyFrom(message)
        if text is not None:
            asking.headers.add(name=":path", string_match=text)
        yield asking
