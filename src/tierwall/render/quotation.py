"""Quotations: what stands at a position, for people who want to see the rule and not only its place.

Of a file it is a line. An object of a cluster has no lines, so its rule is written as YAML
(docs/clusters.md#where-a-rule-stands); of a long rule the first lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tierwall.core.source import ClusterPosition, Position
from tierwall.render.formats import LineLookup

# The most lines of a rule, and the most characters of a line.
MAX_LINES = 12
MAX_LINE = 100
# The most parts of a rule that are written before its lines are counted: a hostile rule has a million.
_MAX_NODES = 100
_MAX_STRING = 400


def shortened(text: str, limit: int = MAX_LINE) -> str:
    """Cut a line that is too long, with `…` at the end."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def quotation(at: Position, source: LineLookup, lines: int = MAX_LINES) -> Iterator[str]:
    """Yield the line at a position in a file, if it is known and not empty, or the rule at a place in a cluster."""
    if isinstance(at, ClusterPosition):
        yield from _rule(at, lines)
    elif text := (source(at.file, at.line) or "").strip():
        yield shortened(text)


def _rule(at: ClusterPosition, limit: int) -> Iterator[str]:
    if at.node is None:
        return
    from tierwall.render.manifests import fragment_yaml  # answers about files need no writer of YAML

    parts = [_MAX_NODES]
    node = _first_parts(at.node, parts)
    # A single value says little without its key.
    if not isinstance(node, dict | list) and at.parts:
        node = {str(at.parts[-1]): node}
    lines = fragment_yaml(node).rstrip("\n").split("\n")
    yield from (shortened(line.rstrip()) for line in lines[:limit])
    if len(lines) > limit or parts[0] < 0:
        yield "…"


def _first_parts(value: Any, left: list[int]) -> Any:
    """Copy the first parts of a value, as many as are left; the number left is below zero if there are more."""
    left[0] -= 1
    if isinstance(value, str):
        return value if len(value) <= _MAX_STRING else value[:_MAX_STRING]
    if isinstance(value, dict):
        entries: dict[str, Any] = {}
        for key, entry in value.items():
            if left[0] < 1:
                left[0] = -1
                break
            entries[key[:_MAX_STRING]] = _first_parts(entry, left)
        return entries
    if isinstance(value, list):
        items: list[Any] = []
        for item in value:
            if left[0] < 1:
                left[0] = -1
                break
            items.append(_first_parts(item, left))
        return items
    return value
