"""One document of one file: its plain value, and the position of each part.

Loading builds only plain values. Positions are found on demand, by reading the document's text again; the locators of
the last few documents are cached. Threads may ask at the same time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, islice
from threading import Lock
from typing import Any, NamedTuple, Protocol

from tierwall.core.source import Position

_BLOCK = 1 << 16
_MAX_LOCATORS = 8
_TOP_KEYS = ("apiVersion", "kind", "metadata")
_TOP_KEYS_IN_JSON = tuple(f'"{key}"'.encode() for key in _TOP_KEYS)
_BOM = b"\xef\xbb\xbf"


class SourceText:
    """A file's name and bytes; converts byte offsets to lines and columns. A byte order mark has no column.

    All files of one reading share `locators`. `is_named` says whether the user named the file, which must then hold
    objects; a folder may hold anything.
    """

    __slots__ = ("_breaks", "data", "is_named", "locators", "name")

    def __init__(self, name: str, data: bytes, locators: LocatorCache | None = None, *, is_named: bool = True) -> None:
        self.name = name
        self.is_named = is_named
        self.data = data
        self.locators = LocatorCache() if locators is None else locators
        self._breaks: tuple[int, ...] = ()

    def position(self, offset: int) -> Position:
        """Return the line and column of a byte."""
        data = self.data
        offset = max(0, min(offset, len(data)))
        start = data.rfind(b"\n", 0, offset) + 1
        if not start and data.startswith(_BOM):
            start = min(len(_BOM), offset)
        return Position(self.name, self.line_at(offset) + 1, len(data[start:offset].decode("utf-8", "replace")) + 1)

    def line_at(self, offset: int) -> int:
        """Return the line of a byte, counted from 0."""
        block = offset // _BLOCK
        return self._breaks_before()[block] + self.data.count(b"\n", block * _BLOCK, offset)

    def _breaks_before(self) -> tuple[int, ...]:
        """Return the number of line feeds before each block of the text; counted on first use."""
        breaks = self._breaks
        if not breaks:
            starts = range(0, len(self.data), _BLOCK)
            counts = (self.data.count(b"\n", start, start + _BLOCK) for start in starts)
            # INVARIANT: set only when complete, because threads share this object.
            self._breaks = breaks = tuple(accumulate(counts, initial=0))
        return breaks

    def line(self, number: int) -> str:
        """Return a line, counted from 1, without its line break; empty if the line does not exist."""
        at = 0
        if number > 1:
            breaks = self._breaks_before()
            # The last block with fewer line feeds before it.
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
    """A repeated key of a map; the last one counts."""

    path: tuple[str | int, ...]
    position: Position


class _Locator(Protocol):
    def offset(self, path: Sequence[str | int], key: bool = False) -> int: ...
    def repeats(self) -> Iterable[tuple[tuple[str | int, ...], int]]: ...


class LocatorCache:
    """The locators of the documents that were asked for positions last. A few are kept, to save memory."""

    __slots__ = ("_locators", "_lock")

    def __init__(self) -> None:
        self._lock = Lock()
        self._locators: dict[Document, _Locator] = {}

    def locator(self, document: Document) -> _Locator:
        """Return the locator of a document."""
        locator = self._locators.get(document)
        if locator is None:
            locator = document.make_locator()
            with self._lock:
                locator = self._locators.setdefault(document, locator)
                while len(self._locators) > _MAX_LOCATORS:
                    del self._locators[next(iter(self._locators))]
        return locator


class Document:
    """A document and its place in the file (bytes `start` to `end`).

    `value` is exactly what Kubernetes reads: keys are strings and every integer is an int64. `content` identifies the
    document: it stays the same object when the document moves, and no two documents share it, even if equal.
    """

    __slots__ = ("_positions", "_repeats", "content", "end", "is_json", "source", "start", "value")

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
        # Whether a key is repeated; None for JSON that has not been checked yet.
        self._repeats = repeats
        # The positions that somebody asked for: findings name the same ones again and again.
        self._positions: dict[tuple[tuple[str | int, ...], bool], Position] | None = None

    def moved_to(self, source: SourceText, start: int, end: int) -> Document:
        """Return this document at another place, where its text is the same. The value is not parsed again."""
        return Document(self.value, source, start, end, self.is_json, self._repeats, self.content)

    def position(self, path: Sequence[str | int] = (), key: bool = False) -> Position:
        """Return the position of the node at `path` or of its key; if it does not exist, of its nearest ancestor."""
        if self._positions is None:
            self._positions = {}
        asked = tuple(path), key
        position = self._positions.get(asked)
        if position is None:
            position = self._position(self.source.locators.locator(self).offset(path, key))
            self._positions[asked] = position
        return position

    def _position(self, offset: int) -> Position:
        if self.is_json:
            return self.source.position(offset)
        from tierwall.resources.yaml.read import text_position

        return text_position(self.source, self.start, self.end, offset)

    @property
    def repeats_keys(self) -> bool:
        """Whether a key is repeated."""
        if self._repeats is None:
            from tierwall.resources.json_locator import repeats_keys

            self._repeats = repeats_keys(self.source.data[self.start : self.end])
        return self._repeats

    def second_top_key(self) -> Position | None:
        """Return the position of the second `apiVersion`, `kind` or `metadata` at the top, if there is one."""
        if self.is_json:
            # A list may be long, and nobody joins lists of JSON by mistake. In most objects each of the keys occurs
            # only once, at whatever depth.
            if isinstance(self.value, dict) and isinstance(self.value.get("items"), list):
                return None
            find, start, end = self.source.data.find, self.start, self.end
            for name in _TOP_KEYS_IN_JSON:
                first = find(name, start, end)
                if first >= 0 and find(name, first + 1, end) >= 0:
                    break
            else:
                return None
            from tierwall.resources.json_locator import JsonLocator

            seen: set[str] = set()
            for key, offset in JsonLocator(self.source.data, self.start, self.end).top_keys():
                if key in seen and key in _TOP_KEYS:
                    return self._position(offset)
                seen.add(key)
        elif self.repeats_keys:
            for path, offset in self.source.locators.locator(self).repeats():
                if len(path) == 1 and path[0] in _TOP_KEYS:
                    return self._position(offset)
        return None

    @property
    def repeated_keys(self) -> tuple[RepeatedKey, ...]:
        """The repeated keys in the order of the text."""
        return self.first_repeated_keys(None)[0]

    def first_repeated_keys(self, limit: int | None) -> tuple[tuple[RepeatedKey, ...], int]:
        """Return the first repeated keys, and how many more there are: to look up a position takes time."""
        if not self.repeats_keys:
            return (), 0
        repeats = iter(self.source.locators.locator(self).repeats())
        first = tuple(RepeatedKey(path, self._position(offset)) for path, offset in islice(repeats, limit))
        return first, sum(1 for _ in repeats)

    def make_locator(self) -> _Locator:
        """Make the object that finds nodes in the text of this document."""
        if self.is_json:
            from tierwall.resources.json_locator import JsonLocator

            return JsonLocator(self.source.data, self.start, self.end)
        from tierwall.resources.yaml.line_locator import LineLocator
        from tierwall.resources.yaml.read import document_text

        return LineLocator(document_text(self.source.data, self.start, self.end))
