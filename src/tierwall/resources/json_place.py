"""Where a node of a JSON text stands, found only when it is asked for.

The text is not indexed while it is loaded. A path is followed from the outside in: msgspec skips over the values of a
collection at more than a gigabyte a second and says how long each is, so the last item of a long list is found in well
under a second, and only the collections on the way are looked at.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from tierwall.resources.json_scanner import repeated_keys, space_end, string_at, value_end

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

    def repeats(self) -> Iterator[tuple[tuple[str | int, ...], int]]:
        """Path and offset of keys that are set again in the same object."""
        return repeated_keys(self._data, *self._span)

    def _object(self, start: int, end: int) -> list[_Entry]:
        if start in self._entries:
            return self._entries[start]
        data = self._data
        try:
            raw: dict[str, Any] = _OBJECT.decode(memoryview(data)[start:end])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raw = {}
        entries: list[_Entry] = []
        at = space_end(data, start + 1)
        # What follows the object is not part of it: another document, or text that no reader understands.
        while at < end and data[at : at + 1] == b'"':
            key_at = at
            key, at = string_at(data, at)
            value_at = space_end(data, space_end(data, at) + 1)
            at = self._end(value_at, raw.get(key))
            entries.append(_Entry(key, key_at, value_at, at))
            at = space_end(data, space_end(data, at) + 1)
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
        at = space_end(data, start + 1)
        while at < end - 1:
            starts.append(at)
            at = at + len(memoryview(raw[len(ends)])) if raw else self._end(at, None)
            ends.append(at)
            at = space_end(data, space_end(data, at) + 1)
        if len(starts) > _LONG:
            self._long[start] = starts, ends
        return starts, ends

    def _end(self, at: int, raw: Any) -> int:
        """Where the value at `at` ends. `raw` is what msgspec has for the key: of a repeated one the last value."""
        data = self._data
        if raw is not None:
            view = memoryview(raw)
            end = at + len(view)
            if (
                data[space_end(data, end) : space_end(data, end) + 1] in (b",", b"}")
                and memoryview(data)[at:end] == view
            ):
                return end
        return value_end(data, at)
