"""One document of one file: its plain value, and where each part of it was written.

Loading builds only plain values. Positions are found when they are asked for, by reading the document's text again; the
last few documents that were asked are remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from tierwall.core.source import Position

_BLOCK = 1 << 16
_REMEMBERED = 8
_BOM = b"\xef\xbb\xbf"


class Source:
    """A file's name and octets, and the way from octets to lines and columns. A byte order mark has no column."""

    __slots__ = ("_breaks", "data", "name")

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self.data = data
        # How many line feeds stand before each block of the text; made on first use.
        self._breaks: list[int] = []

    def position(self, offset: int) -> Position:
        """The line and column of an octet."""
        data = self.data
        offset = max(0, min(offset, len(data)))
        start = data.rfind(b"\n", 0, offset) + 1
        if not start and data.startswith(_BOM):
            start = min(len(_BOM), offset)
        return Position(self.name, self.line_at(offset) + 1, len(data[start:offset].decode("utf-8", "replace")) + 1)

    def line_at(self, offset: int) -> int:
        """The line of an octet, from 0."""
        if not self._breaks:
            total = 0
            for block in range(0, len(self.data) + 1, _BLOCK):
                self._breaks.append(total)
                total += self.data.count(b"\n", block, block + _BLOCK)
        block = offset // _BLOCK
        return self._breaks[block] + self.data.count(b"\n", block * _BLOCK, offset)

    def line(self, number: int) -> str:
        """The text of a line, counted from 1, without its end; empty if there is no such line."""
        at = 0
        if number > 1:
            self.line_at(0)
            block = _last_before(self._breaks, number - 1)
            at = block * _BLOCK
            for _ in range(number - 1 - self._breaks[block]):
                at = self.data.find(b"\n", at) + 1
                if not at:
                    return ""
        end = self.data.find(b"\n", at)
        if not at and self.data.startswith(_BOM):
            at = len(_BOM)
        found = self.data[at : end if end >= 0 else len(self.data)]
        return found.removesuffix(b"\r").decode("utf-8", "replace")


def _last_before(counts: list[int], wanted: int) -> int:
    """The last block before which fewer than `wanted` line feeds stand."""
    from bisect import bisect_left

    return max(0, bisect_left(counts, wanted) - 1)


class Repeated(NamedTuple):
    """A key that is set again in the same map; the last counts."""

    path: tuple[str | int, ...]
    position: Position


class _Places(Protocol):
    def offset(self, path: Sequence[str | int], key: bool = False) -> int: ...


_recent: OrderedDict[int, tuple[Document, _Places]] = OrderedDict()


class Document:
    """A document and where it stands in its file (octets `start` to `end`).

    `value` is exactly what Kubernetes reads: keys are strings and every integer is an int64.
    """

    __slots__ = ("_repeats", "end", "is_json", "source", "start", "value")

    def __init__(
        self, value: Any, source: Source, start: int, end: int, is_json: bool = False, repeats: bool | None = None
    ) -> None:
        self.value = value
        self.source = source
        self.start = start
        self.end = end
        self.is_json = is_json
        # Whether a key is repeated; None where nobody has looked yet.
        self._repeats = repeats

    def moved(self, source: Source, start: int, end: int) -> Document:
        """The document that has the same text elsewhere: it has the same value, which is not parsed again."""
        return Document(self.value, source, start, end, self.is_json, self._repeats)

    def position(self, path: Sequence[str | int] = (), key: bool = False) -> Position:
        """Where the node at `path`, or its key, was written; its nearest ancestor if there is no such node."""
        found = self._places().offset(path, key)
        if self.is_json:
            return self.source.position(found)
        from tierwall.resources.yaml.read import text_position

        return text_position(self.source, self.start, self.end, found)

    @property
    def repeated(self) -> tuple[Repeated, ...]:
        """The repeated keys, in the order of the text."""
        if self._repeats is False:
            return ()
        if self.is_json:
            return self._repeated_json()
        from tierwall.resources.yaml.exact import read_exactly
        from tierwall.resources.yaml.read import document_text, text_position

        repeats = read_exactly(document_text(self.source.data, self.start, self.end)).repeats
        return tuple(
            Repeated(path, text_position(self.source, self.start, self.end, offset))
            for path, offset in sorted(repeats, key=lambda one: one.offset)
        )

    def _repeated_json(self) -> tuple[Repeated, ...]:
        from tierwall.resources.json_place import JsonPlaces
        from tierwall.resources.json_text import repeats_keys

        if self._repeats is None:
            self._repeats = repeats_keys(self.source.data[self.start : self.end])
        places = self._places() if self._repeats else None
        if not isinstance(places, JsonPlaces):
            return ()
        return tuple(Repeated(path, self.source.position(offset)) for path, offset in places.repeats())

    def _places(self) -> _Places:
        known = _recent.get(id(self))
        if known is not None and known[0] is self:
            return known[1]
        places = self._find_places()
        _recent[id(self)] = self, places
        while len(_recent) > _REMEMBERED:
            _recent.popitem(last=False)
        return places

    def _find_places(self) -> _Places:
        if self.is_json:
            from tierwall.resources.json_place import JsonPlaces

            return JsonPlaces(self.source.data, self.start, self.end)
        from tierwall.resources.yaml.place import YamlPlaces
        from tierwall.resources.yaml.read import document_text

        return YamlPlaces(document_text(self.source.data, self.start, self.end))
