"""Find positions in JSON text on demand: of nodes, of repeated keys, and of nesting that is too deep.

Loading does not index the text. A path is followed from the outside in. msgspec skips the values of a collection at
more than a gigabyte per second and reports their lengths, so even the last item of a long list is found in well under a
second. What no decoder reports is found from the tokens of the text, after a decoder has accepted it; only `too_deep`
runs before any decoder.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from tierwall.values.pattern import pattern

_SPACE = pattern(rb"[ \t\n\r]*")
_STRING = rb'"(?:[^"\\]|\\.)*+"'
_ATOM = pattern(rb"%b|[^\s,\]}]*" % _STRING, re.DOTALL)
# Brackets, commas and strings. Group 1 is a string that is a key.
_TOKEN = pattern(rb"(%b)[ \t\n\r]*+:|%b|[\[\]{},]" % (_STRING, _STRING), re.DOTALL)
_STEP: Final = {b"{": 1, b"[": 1, b"}": -1, b"]": -1}
_NOT_BRACKET: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_PASSES = 64
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])
# The positions of longer lists are kept, because callers may ask for many of their items.
_LONG = 256


class _Entry(NamedTuple):
    key: str
    key_at: int
    start: int
    end: int


class JsonLocator:
    """Finds nodes in the JSON value from `start` to `end` of a text."""

    def __init__(self, data: bytes, start: int, end: int) -> None:
        self._data = data
        self._span = start, end
        self._long: dict[int, tuple[array[int], array[int]]] = {}
        self._entries: dict[int, list[_Entry]] = {}

    def offset(self, path: Sequence[str | int], key: bool = False) -> int:
        """Return the byte offset of the node at `path` or of its key; if it does not exist, of its nearest ancestor."""
        start, end = self._span
        place = start
        for part in path:
            opening = self._data[start : start + 1]
            if isinstance(part, str) and opening == b"{":
                entry = next(
                    (candidate for candidate in reversed(self._object(start, end)) if candidate.key == part), None
                )
                if entry is None:
                    return start
                start, end = entry.start, entry.end
                place = entry.key_at if key else start
            elif isinstance(part, int) and opening == b"[":
                starts, ends = self._array(start, end)
                if not 0 <= part < len(starts):
                    return start
                start, end = starts[part], ends[part]
                place = start
            else:
                return start
        return place

    def repeats(self) -> Iterator[tuple[tuple[str | int, ...], int]]:
        """Yield path and offset of each repeated key, in the order of the text."""
        return _repeated_keys(self._data, *self._span)

    def top_keys(self) -> list[tuple[str, int]]:
        """Return the keys at the top with their offsets, repeated ones too."""
        return [(entry.key, entry.key_at) for entry in self._object(*self._span)]

    def _object(self, start: int, end: int) -> list[_Entry]:
        if start in self._entries:
            return self._entries[start]
        data = self._data
        try:
            raw: dict[str, Any] = _OBJECT.decode(memoryview(data)[start:end])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raw = {}
        entries: list[_Entry] = []
        at = _space_end(data, start + 1)
        # Stop at the end of the object: another document, or invalid text, may follow.
        while at < end and data[at : at + 1] == b'"':
            key_at = at
            key, at = _string_at(data, at)
            value_at = _space_end(data, _space_end(data, at) + 1)
            at = self._end(value_at, raw.get(key))
            entries.append(_Entry(key, key_at, value_at, at))
            at = _space_end(data, _space_end(data, at) + 1)
        if end - start > 1 << 16:
            self._entries[start] = entries
        return entries

    def _array(self, start: int, end: int) -> tuple[array[int], array[int]]:
        if start in self._long:
            return self._long[start]
        data = self._data
        try:
            raw: list[Any] = _ARRAY.decode(memoryview(data)[start:end])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raw = []
        starts, ends = array("q"), array("q")
        at = _space_end(data, start + 1)
        while at < end - 1:
            starts.append(at)
            at = at + len(memoryview(raw[len(ends)])) if raw else self._end(at, None)
            ends.append(at)
            at = _space_end(data, _space_end(data, at) + 1)
        if len(starts) > _LONG:
            self._long[start] = starts, ends
        return starts, ends

    def _end(self, at: int, raw: Any) -> int:
        """Return where the value at `at` ends. `raw` is msgspec's value of the key: the last one if it is repeated."""
        data = self._data
        if raw is not None:
            view = memoryview(raw)
            end = at + len(view)
            if (
                data[_space_end(data, end) : _space_end(data, end) + 1] in (b",", b"}")
                and memoryview(data)[at:end] == view
            ):
                return end
        return _value_end(data, at)


def _space_end(data: bytes, at: int) -> int:
    """Return the offset of the first byte at or after `at` that is not white space."""
    return _SPACE.match(data, at).end()  # type: ignore[union-attr]


def _string_at(data: bytes, at: int) -> tuple[str, int]:
    """Return the string that begins at `at`, and where it ends."""
    end = max(_ATOM.match(data, at).end(), at + 1)  # type: ignore[union-attr]
    return json.loads(data[at:end].decode("utf-8", "replace")), end


def _value_end(data: bytes, at: int) -> int:
    """Return where the value that begins at `at` ends."""
    if data[at : at + 1] not in (b"{", b"["):
        return max(_ATOM.match(data, at).end(), at + 1)  # type: ignore[union-attr]
    depth = 0
    for token in _TOKEN.finditer(data, at):
        depth += _STEP.get(token.group(), 0)
        if not depth:
            return token.end()
    return len(data)


def too_deep(data: bytes, max_depth: int) -> int | None:
    """Return the offset at which the nesting exceeds `max_depth`, or None.

    For ordinary text it is enough to remove the innermost pairs of brackets level by level. Brackets inside strings may
    be left over. Only if these could add up to too much depth is the text scanned token by token.
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
    """An object has a repeated key."""


def _no_repeats(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) != len(pairs):
        raise _Repeated


# To make a decoder takes longer than to read a small object.
_CHECKING = json.JSONDecoder(object_pairs_hook=_no_repeats, parse_int=len, parse_float=len)


def repeats_keys(data: bytes) -> bool:
    """Whether some object of this JSON text has a repeated key."""
    try:
        _CHECKING.decode(data.decode("utf-8", "replace"))
    except (_Repeated, RecursionError):
        # Text that is too deep for the decoder is searched token by token.
        return True
    return False


def _repeated_keys(data: bytes, start: int, end: int, limit: int = 100) -> Iterator[tuple[tuple[str | int, ...], int]]:
    """Yield path and offset of the first `limit` repeated keys."""
    # For every open collection: the keys so far (None for an array), and the current key or index.
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
