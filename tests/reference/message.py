"""A strict reader of MCP messages (docs/enforce-tools.md#what-is-refused-whatever-policies-say), with Python's parser.

It reads what servers of every kind read the same way, and raises ValueError for everything else.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from typing import Any

# Envoy reads no deeper.
DEEPEST = 100
_LONE = re.compile("[\ud800-\udfff]")


def read(body: bytes) -> Any:
    """Return the value of a body; ValueError if readers differ on it."""
    text = body.decode()
    value = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse, parse_float=_number)
    _check(value, 1)
    return value


def alike(key: str) -> str:
    """Return what keys are compared by: equal for all keys with the same NFKC form. Marks may come in any order."""
    out: list[str] = []
    for character in unicodedata.normalize("NFKD", key):
        at = len(out)
        if unicodedata.combining(character):
            while at and unicodedata.combining(out[at - 1]) and out[at - 1] > character:
                at -= 1
        out.insert(at, character)
    return "".join(out)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if "" in dict(pairs):
        raise ValueError("an empty key")
    if len({alike(key) for key, _ in pairs}) < len(pairs):
        raise ValueError("a repeated key")
    return dict(pairs)


def _number(text: str) -> float:
    if not math.isfinite(float(text)):
        raise ValueError("a number out of range")
    return float(text)


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def _check(value: Any, depth: int) -> None:
    if isinstance(value, str) and _LONE.search(value):
        raise ValueError("half a surrogate pair")
    if isinstance(value, int) and not math.isfinite(_as_float(value)):
        raise ValueError("a number out of range")
    if isinstance(value, dict | list):
        if depth > DEEPEST:
            raise ValueError("too deep")
        for part in [*value, *value.values()] if isinstance(value, dict) else value:
            _check(part, depth + 1)


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf
