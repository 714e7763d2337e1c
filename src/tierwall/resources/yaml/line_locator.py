"""Find the positions of nodes line by line in YAML documents that have one entry per line.

Most documents are written that way, and this takes a tenth of the time of reading them exactly. Everything else (nodes
of scalars over several lines, anchors, null values) is left to `locator.YamlLocator`.

INVARIANT: the offset is the one that `YamlLocator` returns. Random tests check it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING

from tierwall.resources.yaml.errors import YamlError
from tierwall.resources.yaml.lines import (
    EMPTY,
    LINE,
    SEPARATOR,
    FlowCollection,
    LineReader,
    LiteralStart,
    OpenQuote,
    Path,
    flow_collection,
    is_regular,
    not_for_lines,
)

if TYPE_CHECKING:
    from tierwall.resources.yaml.locator import YamlLocator

# Larger documents are not read as a whole to find one node, only to find many: the exact reader begins anew each time.
_MAX_SIZE = 1 << 18
_MANY_NODES = 8
# The longest path: a path has one part per level of nesting.
_MAX_DEPTH = 64


class LineLocator:
    """Finds nodes in the text of one document."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lines: _LineOffsets | None = None
        self._asked = 0
        if len(text) <= _MAX_SIZE:
            self._read_lines()

    def _read_lines(self) -> None:
        if is_regular(self._text.encode()):
            with suppress(YamlError):
                self._lines = _LineOffsets(self._text)

    @cached_property
    def _exact(self) -> YamlLocator:
        from tierwall.resources.yaml.locator import YamlLocator

        return YamlLocator(self._text)

    def offset(self, path: Sequence[str | int], key: bool = False) -> int:
        """Return the offset of the node at `path` or of its key; if it does not exist, of its nearest ancestor."""
        self._asked += 1
        if self._asked == _MANY_NODES and len(self._text) > _MAX_SIZE:
            self._read_lines()
        if self._lines is None:
            return self._exact.offset(path, key)
        nodes, keys = self._lines.nodes, self._lines.keys
        nearest = tuple(path)
        if key and nearest in keys:
            return keys[nearest]
        while nearest not in nodes:
            if nearest in keys or not nearest:
                return self._exact.offset(path, key)
            nearest = nearest[:-1]
        return nodes[nearest]

    def repeats(self) -> Iterable[tuple[Path, int]]:
        """Return the path and offset of each repeated key, in the order of the text."""
        return self._exact.repeats()


class _Collection:
    """An open block collection: its path and, for a list, how many items it has so far."""

    __slots__ = ("is_list", "items", "path")

    def __init__(self, path: Path, is_list: bool | None) -> None:
        self.path = path
        self.is_list = is_list
        self.items = 0

    def next_item(self) -> Path:
        self.items += 1
        return (*self.path, self.items - 1)


class _LineOffsets:
    """Offsets of nodes and keys by path. Null nodes are missing here: the exact reader finds them."""

    def __init__(self, text: str) -> None:
        self.nodes: dict[Path, int] = {}
        self.keys: dict[Path, int] = {}
        self._read(text)

    def _read(self, text: str) -> None:
        """Record every node, or raise if the document is not written line by line.

        The loop takes the same steps as `LineReader`, where comments give the reasons.
        """
        reader = LineReader(0, lambda data: None)
        into, level = _Collection((), None), -1
        stack: list[tuple[_Collection, int]] = []
        open_path: Path | None = ()
        separator = SEPARATOR.match(text)
        at = separator.end() if separator else 0
        while at < len(text):
            line = LINE.match(text, at)
            if line is None:
                raise not_for_lines()
            spaces, dashes, key, rest, bare = line.groups()
            column, start, at = len(spaces), line.start(2), line.end()
            if key is None and not dashes:
                if bare and bare[0] != "#":
                    raise not_for_lines()
                continue
            is_list = bool(dashes)
            if column != level or into.is_list is not is_list:
                if open_path is None or column < level:
                    while column < level or (column == level and into.is_list is not is_list):
                        into, level = stack.pop()
                    if column != level:
                        raise not_for_lines()
                else:
                    stack.append((into, level))
                    self.nodes[open_path] = start
                    into, level = _Collection(open_path, is_list), column
            if len(dashes) > _MAX_DEPTH:
                raise not_for_lines()
            path = into.path
            for number in range(2, len(dashes) + 1, 2):
                path = into.next_item()
                self.nodes[path] = start + number
                if number < len(dashes) or key is not None:
                    stack.append((into, level))
                    into, level = _Collection(path, number < len(dashes)), level + 2
            if len(stack) > _MAX_DEPTH:
                raise not_for_lines()
            place = line.start(5)
            if key is None:
                rest = bare
            else:
                path, place = (*path, reader.key(key)), line.start(4)
                if path in self.keys:
                    raise not_for_lines()
                self.keys[path] = line.start(3)
            value = EMPTY if rest is None else reader.rest(rest)
            open_path = path if value is EMPTY else None
            if value is EMPTY:
                if key is None:
                    raise not_for_lines()
                continue
            if value.__class__ in (LiteralStart, OpenQuote):
                raise not_for_lines()
            self.nodes[path] = place
            if value.__class__ is FlowCollection:
                flow_collection(rest, partial(self._note, place), path)

    def _note(self, start: int, path: Path, key: int, node: int) -> None:
        self.nodes[path] = start + node
        if key >= 0:
            self.keys[path] = start + key
