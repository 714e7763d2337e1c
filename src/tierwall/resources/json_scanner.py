"""The tokens of JSON text, for what no decoder tells: how deep it is, where a value ends, which keys are set twice.

Decoders read JSON far faster than Python can look at it, so that these run only on what is unusual or asked about. The
text is JSON that a decoder has taken, except for `too_deep`, which runs before any decoder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from tierwall.values.pattern import pattern

_SPACE = pattern(rb"[ \t\n\r]*")
_STRING = rb'"(?:[^"\\]|\\.)*+"'
_ATOM = pattern(rb"%b|[^\s,\]}]*" % _STRING, re.DOTALL)
# Brackets, commas and strings; group 1 is a string that is a key.
_TOKEN = pattern(rb"(%b)[ \t\n\r]*+:|%b|[\[\]{},]" % (_STRING, _STRING), re.DOTALL)
_STEP: Final = {b"{": 1, b"[": 1, b"}": -1, b"]": -1}
_NOT_BRACKET: Final = bytes(octet for octet in range(256) if octet not in b"[]{}")
_PASSES = 64

Repeated = tuple[tuple[str | int, ...], int]


def space_end(data: bytes, at: int) -> int:
    """The first octet at or after `at` that is not white space."""
    return _SPACE.match(data, at).end()  # type: ignore[union-attr]


def string_at(data: bytes, at: int) -> tuple[str, int]:
    """The string that begins at `at`, and where it ends."""
    end = max(_ATOM.match(data, at).end(), at + 1)  # type: ignore[union-attr]
    return json.loads(data[at:end].decode("utf-8", "replace")), end


def value_end(data: bytes, at: int) -> int:
    """Where the value that begins at `at` ends."""
    if data[at : at + 1] not in (b"{", b"["):
        return max(_ATOM.match(data, at).end(), at + 1)  # type: ignore[union-attr]
    depth = 0
    for token in _TOKEN.finditer(data, at):
        depth += _STEP.get(token.group(), 0)
        if not depth:
            return token.end()
    return len(data)


def too_deep(data: bytes, max_depth: int) -> int | None:
    """Where text is nested deeper than `max_depth`, or None if it is not.

    Taking out innermost pairs of brackets level by level settles it for ordinary text; brackets inside strings may be
    left over, and only if they could hide too much depth are the strings taken out too.
    """
    brackets = data.translate(None, _NOT_BRACKET)
    for level in range(1, _PASSES):
        rest = brackets.replace(b"{}", b"").replace(b"[]", b"")
        if level + len(rest) <= max_depth:
            return None
        if len(rest) == len(brackets):
            break
        brackets = rest
    depth = 0
    for token in _TOKEN.finditer(data):
        depth += _STEP.get(token.group(), 0)
        if depth > max_depth:
            return token.start()
    return None


class _Repeated(Exception):
    """A key is set again."""


def _no_repeats(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) != len(pairs):
        raise _Repeated


def repeats_keys(data: bytes) -> bool:
    """Is a key set again in some object of this JSON text?"""
    try:
        json.loads(data.decode("utf-8", "replace"), object_pairs_hook=_no_repeats, parse_int=len, parse_float=len)
    except (_Repeated, RecursionError):
        # Text that is too deep is looked through slowly.
        return True
    return False


def repeated_keys(data: bytes, start: int, end: int, limit: int = 100) -> Iterator[Repeated]:
    """Path and offset of keys that are set again in the same object, the first `limit` of them."""
    # Of every open collection: the keys seen (None for an array), and the key or index at which we are.
    seen: list[set[str] | None] = []
    path: list[str | int] = []
    for match in _TOKEN.finditer(data, start, end):
        token = match.group()
        if token in (b"{", b"["):
            seen.append(set() if token == b"{" else None)
            path.append(0)
        elif token in (b"}", b"]"):
            seen.pop()
            path.pop()
        elif token == b",":
            if isinstance(index := path[-1], int):
                path[-1] = index + 1
        elif match.group(1) is not None and seen and (keys := seen[-1]) is not None:
            key = path[-1] = json.loads(match.group(1).decode("utf-8", "replace"))
            if key in keys:
                yield tuple(path), match.start()
                limit -= 1
                if not limit:
                    return
            keys.add(key)
