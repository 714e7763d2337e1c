"""Matches of rules, as far as they can be read without Envoy's own packages: paths, patterns, order, chains.

An Envoy route has one path, and Envoy cannot ask for two patterns of paths: a chain that needs them matches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tierwall.engines.envoy.config.header_changes import TOKEN
from tierwall.engines.envoy.config.patterns import pattern_problem
from tierwall.resources.resource import Resource, list_of_maps, nested_map

Match = Mapping[str, Any]
PREFIX, PATTERN = "PathPrefix", "RegularExpression"
EVERYTHING = (PREFIX, "/")
SEVERAL_PATTERNS = "a chain with several patterns of paths"
_PATH_PRECEDENCE = {"Exact": 0, "RegularExpression": 1, "PathPrefix": 2}
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@%/-]{0,1023}", re.ASCII)
_PLAIN_TEXT = re.compile(r"[!-~]{1,1024}", re.ASCII)


def path_of(match: Mapping[str, Any]) -> tuple[str, str]:
    """Return the kind and the value of the path of a match, without the final slash of a prefix."""
    path = nested_map(match, "path")
    kind, value = str(path.get("type") or "PathPrefix"), str(path.get("value") or "/")
    return kind, (value.rstrip("/") or "/") if kind == "PathPrefix" else value


def is_plain(value: Mapping[str, Any]) -> bool:
    path, method = value.get("path", {}), value.get("method", "GET")
    entries = [value.get(field, []) for field in ("headers", "queryParams")]
    if not isinstance(path, dict) or not all(isinstance(entry, list) for entry in entries):
        return False
    kind, text = path.get("type", "PathPrefix"), path.get("value", "/")
    return (
        value.keys() <= {"path", "method", "headers", "queryParams"}
        and path.keys() <= {"type", "value"}
        and kind in ("Exact", "PathPrefix")
        and isinstance(text, str)
        and _PLAIN_PATH.fullmatch(text) is not None
        and isinstance(method, str)
        and TOKEN.fullmatch(method) is not None
        and all(_is_plain_entry(entry) for field in entries for entry in field)
    )


def _is_plain_entry(entry: object) -> bool:
    if not isinstance(entry, dict) or not entry.keys() <= {"type", "name", "value"}:
        return False
    name, text = entry.get("name"), entry.get("value")
    return (
        entry.get("type", "Exact") == "Exact"
        and isinstance(name, str)
        and TOKEN.fullmatch(name) is not None
        and isinstance(text, str)
        and _PLAIN_TEXT.fullmatch(text) is not None
    )


def unusable_pattern(value: Mapping[str, Any], max_program_size: int) -> str:
    """Return the first pattern of a match that Envoy would refuse, with the reason; or an empty string."""
    kind, path = path_of(value)
    patterns = [path] if kind == "RegularExpression" else []
    for field in ("headers", "queryParams"):
        entries = [entry for entry in list_of_maps(value.get(field)) if entry.get("type") == "RegularExpression"]
        patterns += [str(entry.get("value")) for entry in entries]
    for pattern in patterns:
        if problem := pattern_problem(pattern, max_program_size):
            return f"pattern `{pattern}`, {problem},"
    return ""


def precedence(route: Resource, rule: int, number: int, value: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a sort key: exact paths, longer paths, a method, more headers, more parameters, age, rule order."""
    kind, path = path_of(value)
    return (
        _PATH_PRECEDENCE.get(kind, 3),
        -len(path),
        value.get("method") is None,
        -len(list(by_name(value.get("headers"), fold_case=True))),
        -len(list(by_name(value.get("queryParams"), fold_case=False))),
        route.seniority,
        rule,
        number,
    )


def can_match(matches: Sequence[Match]) -> bool:
    """Whether some request can meet all matches, as far as literal paths and methods say."""
    return literal_path(matches) is not None and len(asked_methods(matches)) < 2


def path_problem(matches: Sequence[Match], max_program_size: int, replaces_prefix: bool) -> str:
    """Return what Envoy cannot do for a chain because of its paths; or an empty string."""
    patterns = path_patterns(matches)
    if len(patterns) > 1:
        return SEVERAL_PATTERNS
    if replaces_prefix and (patterns or path_of(matches[-1])[0] != PREFIX):
        return "replacing a prefix where the path is not one"
    return next(filter(None, (unusable_pattern(match, max_program_size) for match in matches)), "")


def literal_path(matches: Sequence[Match]) -> tuple[str, str] | None:
    """Return the narrowest path or prefix that a chain asks for beside patterns; None if no path has all of them."""
    narrowest = EVERYTHING
    for path in map(path_of, matches):
        if path[0] == PATTERN or _is_within(narrowest, path):
            continue
        if not _is_within(path, narrowest):
            return None
        narrowest = path
    return narrowest


def _is_within(path: tuple[str, str], other: tuple[str, str]) -> bool:
    """Whether every path that is meant by the first is meant by the other, too."""
    if other[0] != PREFIX:
        return path == other
    return path[1] == other[1] or path[1].startswith(other[1] if other == EVERYTHING else f"{other[1]}/")


def path_patterns(matches: Sequence[Match]) -> list[str]:
    return list(dict.fromkeys(path for kind, path in map(path_of, matches) if kind == PATTERN))


def asked_methods(matches: Sequence[Match]) -> set[str]:
    return {method for match in matches if isinstance(method := match.get("method"), str)}


def by_name(value: object, fold_case: bool) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield matches by name; of several with equivalent names only the first counts."""
    seen: set[str] = set()
    for entry in list_of_maps(value):
        name = str(entry.get("name"))
        key = name.lower() if fold_case else name
        if key not in seen:
            seen.add(key)
            yield name, entry
