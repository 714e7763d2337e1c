"""Where a node of a YAML document stands, found only when it is asked for, by reading the document's text again.

A large document (a `List` of thousands of objects) is not read exactly as a whole: one pass over libyaml's events notes
where the entries of its lists begin and end, and only the entry that is asked for is then read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from yaml.cyaml import CParser  # type: ignore[attr-defined]
from yaml.error import YAMLError
from yaml.events import (
    AliasEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from tierwall.resources.yaml.compose import K, Node
from tierwall.resources.yaml.decode import is_merge, key_of
from tierwall.resources.yaml.errors import YamlError
from tierwall.resources.yaml.exact import root_offset, tree_of

# Documents up to this many characters are read as a whole.
_SMALL = 1 << 18
# Merge keys are followed this deep; deeper ones do not occur outside of attacks.
_MERGES = 32


class _Found(NamedTuple):
    key: Node | None
    node: Node


class YamlPlaces:
    """Answers for one document's text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._outline: dict[str, list[tuple[int, int, int]]] | None = None
        self._root: Node | None = None
        # The entry of a large document that was asked for last.
        self._entry: tuple[tuple[str | int, ...], Node | None, int] = ((), None, 0)
        self._read = False

    def offset(self, path: Sequence[str | int], key: bool = False) -> int:
        """The offset of the node at `path`, or of its key; of its nearest ancestor if there is none such."""
        if not path:
            return root_offset(self._text)
        if not self._read:
            self._read = True
            if len(self._text) > _SMALL:
                self._outline = _outline_of(self._text)
            if self._outline is None:
                self._root = tree_of(self._text).root
        if self._outline is None:
            return _locate(self._root, path, key) if self._root is not None else 0
        first = path[0] if path else None
        spans = self._outline.get(first) if isinstance(first, str) else None
        if not spans:
            return root_offset(self._text)
        if len(path) == 1 or not isinstance(path[1], int) or not 0 <= path[1] < len(spans) - 1:
            return spans[0][0]
        start, end, column = spans[path[1] + 1]
        if self._entry[0] != tuple(path[:2]):
            # Blanks before the entry put it into the column in which it stands.
            text = " " * column + self._text[start:end]
            self._entry = tuple(path[:2]), tree_of(text).root, column
        _, root, column = self._entry
        return start if root is None else start - column + _locate(root, path[2:], key)


def _outline_of(text: str) -> dict[str, list[tuple[int, int, int]]] | None:
    """For every key of a map its value's span, and after it, for a list, the spans of its items: start, end, column.

    None if the document is not such a map, or has anchors, which an entry read alone would not know.
    """
    try:
        return _outline(CParser(text))
    except YAMLError:
        return None


def _outline(parser: CParser) -> dict[str, list[tuple[int, int, int]]] | None:
    parser.get_event()
    parser.get_event()
    if parser.get_event().__class__ is not MappingStartEvent:
        return None
    outline: dict[str, list[tuple[int, int, int]]] = {}
    spans: list[tuple[int, int, int]] = []
    depth = 1
    key: str | None = None
    in_list = False
    begun = (0, 0)
    while True:
        event: Any = parser.get_event()
        kind = event.__class__
        if kind is AliasEvent or getattr(event, "anchor", None) is not None or kind is StreamEndEvent:
            return None
        opens = kind is MappingStartEvent or kind is SequenceStartEvent
        closes = kind is MappingEndEvent or kind is SequenceEndEvent
        if depth == 1 and kind is ScalarEvent and key is None:
            key = event.value
            continue
        if closes:
            depth -= 1
            if not depth:
                return outline
        if depth == 1 and not closes:
            if key is None:
                return None
            spans = outline[key] = [(event.start_mark.index, event.end_mark.index, event.start_mark.column)]
            in_list = kind is SequenceStartEvent
        elif depth == 2 and in_list:
            if kind is ScalarEvent:
                spans.append((event.start_mark.index, event.end_mark.index, event.start_mark.column))
            elif opens:
                begun = event.start_mark.index, event.start_mark.column
            elif closes:
                spans.append((begun[0], event.end_mark.index, begun[1]))
        if depth == 1 and (closes or kind is ScalarEvent):
            key = None
        if opens:
            depth += 1


def _locate(root: Node, path: Sequence[str | int], key: bool) -> int:
    node = root
    found = root.start
    for part in path:
        target = node.target if node.kind == K.ALIAS and node.target is not None else node
        if isinstance(part, str) and target.kind == K.MAPPING:
            entry = _entry(target, part)
            if entry is None:
                return node.start
            node = entry.node
            found = entry.key.start if key and entry.key is not None else node.start
        elif isinstance(part, int) and target.kind == K.SEQUENCE and 0 <= part < len(target.children):
            node = target.children[part]
            found = node.start
        else:
            return node.start
    return found


def _entry(mapping: Node, name: str, depth: int = 0) -> _Found | None:
    """The entry that counts: the last one, whether it is written here or merged in."""
    last: _Found | None = None
    for key_node, child in zip(mapping.children[::2], mapping.children[1::2], strict=True):
        if is_merge(key_node):
            for merged in _merged(child):
                if depth < _MERGES and (found := _entry(merged, name, depth + 1)):
                    last = found
                    break
        elif _key_is(key_node, name):
            last = _Found(key_node, child)
    return last


def _merged(node: Node) -> Iterator[Node]:
    """The maps of a merge key, the one that takes precedence first."""
    target = node.target if node.kind == K.ALIAS and node.target is not None else node
    for one in target.children if target.kind == K.SEQUENCE else (target,):
        final = one.target if one.kind == K.ALIAS and one.target is not None else one
        if final.kind == K.MAPPING:
            yield final


def _key_is(node: Node, name: str) -> bool:
    try:
        return key_of(node) == name
    except YamlError:
        return False
