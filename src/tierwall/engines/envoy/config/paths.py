"""Paths that Envoy gives a request on its way (Gateway API, `HTTPPathModifier`).

Envoy's own packages are not needed: whoever compiles passes the action that is changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tierwall.engines.envoy.config.patterns import escaped, pattern_problem
from tierwall.resources.resource import nested_map

_NOT_IN_PATHS = re.compile(r"[\x00-\x20#\x7f]")
UNSENDABLE_PATH = "a space, a `#` or a control character in a path"


def is_sendable(path: object) -> bool:
    """Whether a path can stand in a request line: behind a space or `#`, servers read no path any more.

    Envoy refuses everything together with a path that has a line break.
    """
    return _NOT_IN_PATHS.search(str(path)) is None


def replace_path(action: Any, path: str) -> None:
    """Have requests go to this path, with the query that they have."""
    action.ClearField("prefix_rewrite")
    action.regex_rewrite.pattern.regex = "(?s)^/[^?]*"
    action.regex_rewrite.substitution = with_slash(path).replace("\\", "\\\\")


def with_slash(path: object) -> str:
    """Return a path with a leading slash."""
    value = str(path or "/")
    return value if value.startswith("/") else f"/{value}"


def prefix_problem(match: Mapping[str, Any], to: str, max_program_size: int) -> str:
    """Return why Envoy cannot replace the prefix that a match asks for, or an empty string."""
    prefix = _prefix(match)
    if prefix and not to.rstrip("/") and pattern_problem(_prefix_pattern(prefix), max_program_size):
        return f"replacing prefix `{prefix}`, which is too long for Envoy,"
    return ""


def replace_prefix(action: Any, match: Mapping[str, Any], to: str) -> None:
    """Have the prefix that a match asks for replaced."""
    prefix, to = _prefix(match), to.rstrip("/")
    if not prefix:
        action.prefix_rewrite = f"{to}/"
    elif to:
        action.prefix_rewrite = to
    else:
        # `/a` to `/`: `/a` and `/a/b` become `/` and `/b`.
        action.regex_rewrite.pattern.regex = _prefix_pattern(prefix)
        action.regex_rewrite.substitution = "/"


def _prefix(match: Mapping[str, Any]) -> str:
    return str(nested_map(match, "path").get("value") or "/").rstrip("/")


def _prefix_pattern(prefix: str) -> str:
    """Return a pattern for the prefix of a path that begins with it, and the slashes after it.

    A unique suffix of the prefix is enough to find its end. A pattern of the whole prefix could be too large.
    """
    return f"^.*?{escaped(_unique_suffix(prefix))}/*"


def _unique_suffix(prefix: str) -> str:
    """Return the shortest suffix of a string that occurs nowhere else in it."""
    return next(
        prefix[-size:] for size in range(1, len(prefix) + 1) if prefix.find(prefix[-size:]) == len(prefix) - size
    )
