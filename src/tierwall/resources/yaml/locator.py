"""Find the position of a node of a YAML document on demand, by reading the document's text again.

A large document (a `List` of thousands of objects) is not read exactly as a whole. One pass over libyaml's events
records where the entries of its lists begin and end; then only the wanted entry is read exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

from tierwall.resources.yaml.decode import KeyRepeat, is_merge, key_of, read_exactly
from tierwall.resources.yaml.errors import YamlError
from tierwall.resources.yaml.parse import MAPPING, SEQUENCE, Node, parse, root_offset

# Documents up to this many characters are read as a whole.
_MAX_WHOLE = 1 << 18
# Entries of larger documents are read alone, but only up to this many characters.
_MAX_ENTRY = 1 << 20
# Merge keys are followed this deep; only attacks nest them deeper.
_MAX_MERGE_DEPTH = 32


class _Span(NamedTuple):
    """The offsets at which a value starts and ends, the column it starts in, and the offset of its key."""

    start: int
    end: int
    column: int
    key: int


_Outline: TypeAlias = dict[str, list[_Span]]


class _Reading(NamedTuple):
    """The outline of a large document, or the tree of a small one."""

    outline: _Outline | None
    root: Node | None


class YamlLocator:
    """Finds the position of nodes in one document."""

    def __init__(self, text: str) -> None:
        self._text = text
        # INVARIANT: set only when complete, because threads share this object.
        self._reading: _Reading | None = None
        # The entry of a large document that was read last.
        self._entry: tuple[tuple[str | int, int], Node | None] = (("", -1), None)

    def offset(self, path: Sequence[str | int], key: bool = False) -> int:
        """Return the offset of the node at `path` or of its key; if it does not exist, of its nearest ancestor."""
        if not path:
            return root_offset(self._text)
        if self._reading is None:
            self._reading = _read(self._text)
        outline, root = self._reading
        if outline is not None:
            return self._offset_in_entry(outline, path, key)
        return _locate(root, path, key) if root is not None else root_offset(self._text)

    def repeats(self) -> list[KeyRepeat]:
        """Return the repeated keys in the order of the text."""
        return sorted(read_exactly(self._text).repeats, key=attrgetter("offset"))

    def _offset_in_entry(self, outline: _Outline, path: Sequence[str | int], key: bool) -> int:
        """Like `offset`, but read only the entry of a large document that `path` leads into."""
        spans = outline.get(path[0]) if isinstance(path[0], str) else None
        if not spans:
            return root_offset(self._text)
        if key and len(path) == 1:
            return spans[0].key
        index = path[1] + 1 if len(path) > 1 and isinstance(path[1], int) else 0
        if not 0 < index < len(spans):
            index = 0
        within = path[2:] if index else path[1:]
        start, end, column, _ = spans[index]
        if not within or end - start > _MAX_ENTRY or (not index and len(spans) > 1):
            return start
        place, root = self._entry
        if place != (path[0], index):
            # Leading spaces keep the entry in its column.
            root = parse(" " * column + self._text[start:end]).root
            self._entry = (path[0], index), root
        return start if root is None else start - column + _locate(root, within, key)


def _read(text: str) -> _Reading:
    outline = _outline_of(text) if len(text) > _MAX_WHOLE else None
    return _Reading(outline, parse(text).root if outline is None and len(text) <= _MAX_ENTRY else None)


def _outline_of(text: str) -> _Outline | None:
    """Return for every key of a map the span of its value and, for a list, then the spans of its items.

    None if the document is not a map of scalar keys, or has anchors, which an entry read alone would not know.
    """
    from yaml.cyaml import CParser  # type: ignore[attr-defined]
    from yaml.error import YAMLError

    try:
        return _outline(CParser(text).get_event)
    except YAMLError:
        return None


def _outline(next_event: Callable[[], Any]) -> _Outline | None:
    from yaml.events import (
        AliasEvent,
        MappingEndEvent,
        MappingStartEvent,
        ScalarEvent,
        SequenceStartEvent,
        StreamEndEvent,
    )

    next_event()
    next_event()
    if next_event().__class__ is not MappingStartEvent:
        return None
    outline: _Outline = {}
    # The start events of open collections in the outline. Deeper collections are only counted.
    open_collections: list[Any] = []
    depth = 1
    key: Any = None
    while True:
        event = next_event()
        kind = event.__class__
        if kind is AliasEvent or kind is StreamEndEvent or getattr(event, "anchor", None) is not None:
            return None
        if depth == 1 and key is None:
            if kind is MappingEndEvent:
                return outline
            if kind is not ScalarEvent:
                return None
            key = event
            outline[key.value] = []
            continue
        if kind is MappingStartEvent or kind is SequenceStartEvent:
            depth += 1
            if depth <= 3:
                open_collections.append(event)
            continue
        first = event
        if kind is not ScalarEvent:
            depth -= 1
            if depth > 2:
                continue
            first = open_collections.pop()
        spans = outline[key.value]
        mark = first.start_mark
        span = _Span(mark.index, event.end_mark.index, mark.column, key.start_mark.index)
        if depth == 1:
            spans.insert(0, span)
            key = None
        elif depth == 2 and open_collections[0].__class__ is SequenceStartEvent:
            spans.append(span)


def _locate(root: Node, path: Sequence[str | int], key: bool) -> int:
    node = root
    offset = root.start
    for part in path:
        target = node.named
        if isinstance(part, str) and target.kind == MAPPING:
            entry = _entry(target, part)
            if entry is None:
                return node.start
            key_node, node = entry
            offset = key_node.start if key else node.start
        elif isinstance(part, int) and target.kind == SEQUENCE and 0 <= part < len(target.children):
            node = target.children[part]
            offset = node.start
        else:
            return node.start
    return offset


def _entry(mapping: Node, name: str, depth: int = 0) -> tuple[Node, Node] | None:
    """Return key and value of the entry that wins: the last one, whether written here or merged in."""
    last: tuple[Node, Node] | None = None
    for key_node, child in zip(mapping.children[::2], mapping.children[1::2], strict=True):
        if is_merge(key_node):
            for merged in _merged(child):
                if depth < _MAX_MERGE_DEPTH and (merged_entry := _entry(merged, name, depth + 1)):
                    last = merged_entry
                    break
        elif _key_is(key_node, name):
            last = key_node, child
    return last


def _merged(node: Node) -> Iterator[Node]:
    """Yield the maps of a merge key, highest precedence first."""
    for item in node.named.children if node.named.kind == SEQUENCE else (node,):
        if item.named.kind == MAPPING:
            yield item.named


def _key_is(node: Node, name: str) -> bool:
    try:
        return key_of(node) == name
    except YamlError:
        return False
