"""Where a node of a JSON text stands, found only when it is asked for.

The text is not indexed while it is loaded. A path is followed from the outside in: msgspec skips over the values of a
collection at more than a gigabyte a second and says how long each is, so the last item of a long list is found in well
under a second, and only the collections on the way are looked at.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

_SPACE = re.compile(rb"[ \t\n\r]*")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_ATOM = re.compile(rb"[^\s,\]}]*")
_STRUCTURE = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
# Brackets, commas of arrays and strings; group 1 is a string that is a key.
_TOKEN = re.compile(rb'("(?:[^"\\]|\\.)*+")[ \t\n\r]*+:|"(?:[^"\\]|\\.)*+"|[\[\]{},]', re.DOTALL)
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])
# Lists longer than this are remembered, since many of their items may be asked for.
_LONG = 256


class _Entry(NamedTuple):
    key: str
    key_at: int
    start: int
    end: int


class JsonPlaces:
    """Answers for one JSON value that stands at `start` to `end` of a text."""

    def __init__(self, data: bytes, start: int, end: int) -> None:
        self._data = data
        self._span = start, end
        self._long: dict[int, tuple[array[int], array[int]]] = {}
        self._entries: dict[int, list[_Entry]] = {}

    def offset(self, path: Sequence[str | int], key: bool = False) -> int:
        """The octet offset of the node at `path`, or of its key; of its nearest ancestor if there is none such."""
        start, end = self._span
        found = start
        for part in path:
            opening = self._data[start : start + 1]
            if isinstance(part, str) and opening == b"{":
                entry = next((one for one in reversed(self._object(start, end)) if one.key == part), None)
                if entry is None:
                    return start
                start, end = entry.start, entry.end
                found = entry.key_at if key else start
            elif isinstance(part, int) and opening == b"[":
                starts, ends = self._array(start, end)
                if not 0 <= part < len(starts):
                    return start
                start, end = starts[part], ends[part]
                found = start
            else:
                return start
        return found

    def repeats(self, limit: int = 100) -> Iterator[tuple[tuple[str | int, ...], int]]:
        """Path and offset of keys that are set again in the same object, the first `limit` of them."""
        # Of every open collection: the keys seen (None for an array), and the key or index at which we are.
        seen: list[set[str] | None] = []
        path: list[str | int] = []
        given = 0
        for found in _TOKEN.finditer(self._data, *self._span):
            token = found.group()
            if token in (b"{", b"["):
                seen.append(set() if token == b"{" else None)
                path.append(0)
            elif token in (b"}", b"]"):
                seen.pop()
                path.pop()
            elif token == b",":
                if isinstance(here := path[-1], int):
                    path[-1] = here + 1
            elif found.group(1) is not None and seen and (keys := seen[-1]) is not None:
                key = path[-1] = json.loads(found.group(1).decode("utf-8", "replace"))
                if key in keys:
                    yield tuple(path), found.start()
                    given += 1
                    if given >= limit:
                        return
                keys.add(key)

    def _object(self, start: int, end: int) -> list[_Entry]:
        if start in self._entries:
            return self._entries[start]
        data = self._data
        try:
            raw: dict[str, Any] = _OBJECT.decode(memoryview(data)[start:end])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raw = {}
        entries: list[_Entry] = []
        at = _space(data, start + 1)
        # What follows the object is not part of it: another document, or text that no reader understands.
        while at < end and data[at : at + 1] == b'"':
            key_at = at
            at = _match(_STRING, data, at)
            key = json.loads(data[key_at:at].decode("utf-8", "replace"))
            value_at = _space(data, _space(data, at) + 1)
            at = self._end(value_at, raw.get(key))
            entries.append(_Entry(key, key_at, value_at, at))
            at = _space(data, _space(data, at) + 1)
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
        at = _space(data, start + 1)
        while at < end - 1:
            starts.append(at)
            at = at + len(memoryview(raw[len(ends)])) if raw else self._end(at, None)
            ends.append(at)
            at = _space(data, _space(data, at) + 1)
        if len(starts) > _LONG:
            self._long[start] = starts, ends
        return starts, ends

    def _end(self, at: int, raw: Any) -> int:
        """Where the value at `at` ends. `raw` is what msgspec has for the key: of a repeated one the last value."""
        data = self._data
        if raw is not None:
            view = memoryview(raw)
            end = at + len(view)
            if data[_space(data, end) : _space(data, end) + 1] in (b",", b"}") and memoryview(data)[at:end] == view:
                return end
        opening = data[at : at + 1]
        if opening == b'"':
            return _match(_STRING, data, at)
        if opening not in (b"{", b"["):
            return _match(_ATOM, data, at)
        depth = 0
        for found in _STRUCTURE.finditer(data, at):
            if found.group() in (b"{", b"["):
                depth += 1
            elif found.group() in (b"}", b"]"):
                depth -= 1
                if not depth:
                    return found.end()
        return len(data)


def _match(pattern: re.Pattern[bytes], data: bytes, at: int) -> int:
    found = pattern.match(data, at)
    return found.end() if found else at + 1


def _space(data: bytes, at: int) -> int:
    return _match(_SPACE, data, at)
