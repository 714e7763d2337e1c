"""One document of one file: its plain value, and where each part of it was written.

Loading builds only plain values. Positions are found when they are asked for, by reading the document's text again; the
last few documents of a reading that were asked are remembered. Threads may ask at the same time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from threading import Lock
from typing import Any, NamedTuple, Protocol

from tierwall.core.source import Position

_BLOCK = 1 << 16
_REMEMBERED = 8
_BOM = b"\xef\xbb\xbf"


class SourceText:
    """A file's name and bytes, and the way from bytes to lines and columns. A byte order mark has no column.

    `recent` is shared by all files of one reading.
    """

    __slots__ = ("_breaks", "data", "name", "recent")

    def __init__(self, name: str, data: bytes, recent: LocatorCache | None = None) -> None:
        self.name = name
        self.data = data
        self.recent = LocatorCache() if recent is None else recent
        self._breaks: tuple[int, ...] = ()

    def position(self, offset: int) -> Position:
        """The line and column of a byte."""
        data = self.data
        offset = max(0, min(offset, len(data)))
        start = data.rfind(b"\n", 0, offset) + 1
        if not start and data.startswith(_BOM):
            start = min(len(_BOM), offset)
        return Position(self.name, self.line_at(offset) + 1, len(data[start:offset].decode("utf-8", "replace")) + 1)

    def line_at(self, offset: int) -> int:
        """The line of a byte, from 0."""
        block = offset // _BLOCK
        return self._breaks_before()[block] + self.data.count(b"\n", block * _BLOCK, offset)

    def _breaks_before(self) -> tuple[int, ...]:
        """How many line feeds stand before each block of the text; counted on first use."""
        breaks = self._breaks
        if not breaks:
            starts = range(0, len(self.data), _BLOCK)
            counts = (self.data.count(b"\n", start, start + _BLOCK) for start in starts)
            # INVARIANT: whole or not there at all, for other threads.
            self._breaks = breaks = tuple(accumulate(counts, initial=0))
        return breaks

    def line(self, number: int) -> str:
        """The text of a line, counted from 1, without its end; empty if there is no such line."""
        at = 0
        if number > 1:
            breaks = self._breaks_before()
            # The last block before which fewer line feeds stand.
            block = max(0, bisect_left(breaks, number - 1) - 1)
            at = block * _BLOCK
            for _ in range(number - 1 - breaks[block]):
                at = self.data.find(b"\n", at) + 1
                if not at:
                    return ""
        end = self.data.find(b"\n", at)
        if not at and self.data.startswith(_BOM):
            at = len(_BOM)
        text = self.data[at : end if end >= 0 else len(self.data)]
        return text.removesuffix(b"\r").decode("utf-8", "replace")


class RepeatedKey(NamedTuple):
    """A key that is set again in the same map; the last counts."""

    path: tuple[str | int, ...]
    position: Position


class _Places(Protocol):
    def offset(self, path: Sequence[str | int], key: bool = False) -> int: ...
    def repeats(self) -> Iterable[tuple[tuple[str | int, ...], int]]: ...


class LocatorCache:
    """The places of the documents that were asked for positions last; found again for the others, to save memory."""

    __slots__ = ("_lock", "_places")

    def __init__(self) -> None:
        self._lock = Lock()
        self._places: dict[Document, _Places] = {}

    def locator(self, document: Document) -> _Places:
        """The places of a document."""
        places = self._places.get(document)
        if places is None:
            places = document.make_locator()
            with self._lock:
                places = self._places.setdefault(document, places)
                while len(self._places) > _REMEMBERED:
                    del self._places[next(iter(self._places))]
        return places


class Document:
    """A document and where it stands in its file (bytes `start` to `end`).

    `value` is exactly what Kubernetes reads: keys are strings and every integer is an int64. `content` stays the same
    object where a document moves, and no two documents share one, whatever their values are.
    """

    __slots__ = ("_repeats", "content", "end", "is_json", "source", "start", "value")

    def __init__(
        self,
        value: Any,
        source: SourceText,
        start: int,
        end: int,
        is_json: bool = False,
        repeats: bool | None = None,
        content: object = None,
    ) -> None:
        self.value = value
        self.content = object() if content is None else content
        self.source = source
        self.start = start
        self.end = end
        self.is_json = is_json
        # Whether a key is repeated; None in JSON where nobody has looked yet.
        self._repeats = repeats

    def moved_to(self, source: SourceText, start: int, end: int) -> Document:
        """The document that has the same text elsewhere: it has the same value, which is not parsed again."""
        return Document(self.value, source, start, end, self.is_json, self._repeats, self.content)

    def position(self, path: Sequence[str | int] = (), key: bool = False) -> Position:
        """Where the node at `path`, or its key, was written; its nearest ancestor if there is no such node."""
        return self._position(self.source.recent.locator(self).offset(path, key))

    def _position(self, offset: int) -> Position:
        if self.is_json:
            return self.source.position(offset)
        from tierwall.resources.yaml.read import text_position

        return text_position(self.source, self.start, self.end, offset)

    @property
    def repeated_keys(self) -> tuple[RepeatedKey, ...]:
        """The repeated keys, in the order of the text."""
        if self._repeats is None:
            from tierwall.resources.json_place import repeats_keys

            self._repeats = repeats_keys(self.source.data[self.start : self.end])
        if not self._repeats:
            return ()
        repeats = self.source.recent.locator(self).repeats()
        return tuple(RepeatedKey(path, self._position(offset)) for path, offset in repeats)

    def make_locator(self) -> _Places:
        """Read the text again, for where each node stands."""
        if self.is_json:
            from tierwall.resources.json_place import JsonLocator

            return JsonLocator(self.source.data, self.start, self.end)
        from tierwall.resources.yaml.line_place import LineLocator
        from tierwall.resources.yaml.read import document_text

        return LineLocator(document_text(self.source.data, self.start, self.end))
