"""A value as one line of JSON text, however deep it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def json_line(value: Any) -> str:
    """A value as one line of JSON text, however deep it is."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        return "".join(_pieces(value))


def _pieces(value: Any) -> Iterator[str]:
    """JSON text piece by piece. What is still to be written stands on a stack, the next on top."""
    todo: list[tuple[bool, Any]] = [(False, value)]
    while todo:
        is_text, one = todo.pop()
        if is_text:
            yield one
        elif isinstance(one, dict | list):
            opening, closing = ("{", "}") if isinstance(one, dict) else ("[", "]")
            yield opening
            inner: list[tuple[bool, Any]] = []
            for key, child in one.items() if isinstance(one, dict) else enumerate(one):
                if inner:
                    inner.append((True, ","))
                if isinstance(one, dict):
                    inner.append((True, json.dumps(key, ensure_ascii=False) + ":"))
                inner.append((False, child))
            todo.append((True, closing))
            todo += reversed(inner)
        else:
            yield json.dumps(one, ensure_ascii=False)
