"""Decode nodes into plain values, as go.yaml.in/yaml/v2 does for `interface{}` (`decode.go`).

The last of several equal keys wins. A merge key `<<` sets its entries where it is written, and so overwrites earlier
ones. Every use of an alias is decoded again and counted; a document that consists mostly of aliases is refused by the
same limits as in Go. Nothing here recurses, so deep nesting does not use Python's own stack.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, NamedTuple, TypeAlias

from tierwall.resources.yaml.errors import UnsupportedKeyError, YamlError
from tierwall.resources.yaml.parse import MAPPING, SEQUENCE, Node, ParsedDocument, parse, parse_value
from tierwall.resources.yaml.scalars import MERGE_TAG, Scalar, json_number, key_string, plain_scalar, tagged_scalar
from tierwall.resources.yaml.tokens import ALIAS, SCALAR

# The deepest nesting that Go's JSON reader accepts; every document passes through it.
MAX_DEPTH = 10_000
_RATIO_LOW, _RATIO_HIGH = 400_000, 4_000_000


class KeyRepeat(NamedTuple):
    """A repeated key: its path, and the offset of the later key."""

    path: tuple[str | int, ...]
    offset: int


class DecodedDocument(NamedTuple):
    """A document's value and its repeated keys."""

    value: Any
    repeats: list[KeyRepeat]


# Decodes a node or the entries of a map. Each walk that it yields runs first, and its result is sent back.
_Walk: TypeAlias = Generator["_Walk", Any, Any]


def is_merge(node: Node) -> bool:
    """Whether this is the merge key `<<`."""
    return node.kind == SCALAR and node.value == "<<" and (node.plain or node.tag == MERGE_TAG)


def scalar_value(node: Node) -> Scalar:
    """Return the value of a scalar node; integers may be as large as uint64."""
    if node.tag and node.tag != "!":
        return tagged_scalar(node.tag, node.value, node.start)
    return plain_scalar(node.value)[1] if node.plain and not node.tag else node.value


def key_of(node: Node) -> str:
    """Return the JSON string of a key node."""
    if node.named.kind != SCALAR:
        raise YamlError("expected a scalar as key, found a list or a map", node.start)
    return key_string(scalar_value(node.named), node.start)


def read_exactly(text: str, max_depth: int = MAX_DEPTH) -> DecodedDocument:
    """Decode the text of a document as Go does; raise `YamlError` if it is invalid."""
    return _decoded(parse(text), max_depth)


def read_value_exactly(text: str, max_depth: int) -> DecodedDocument:
    """Decode a text that is one value and nothing after it, such as the rest of a line; otherwise raise `YamlError`."""
    return _decoded(parse_value(text), max_depth)


def _decoded(tree: ParsedDocument, max_depth: int) -> DecodedDocument:
    return _Decoder(tree, max_depth).run(tree.root) if tree.root is not None else DecodedDocument(None, [])


class _Decoder:
    def __init__(self, tree: ParsedDocument, max_depth: int) -> None:
        self.max_depth = max_depth
        self.counting = tree.has_aliases
        self.depth = 0
        # The path of the current node.
        self.path: list[str | int] = []
        self.repeats: list[KeyRepeat] = []
        self.not_finite: list[int] = []
        # Maps with a key that JSON cannot have. Like numbers that are not finite, they matter only if not overwritten.
        self.refused: list[tuple[Any, YamlError]] = []
        # Aliases whose targets are being decoded, and how many nodes were decoded in all and through aliases.
        self.active: set[Node] = set()
        self.decoded = 1
        self.through_alias = 0

    def run(self, root: Node) -> DecodedDocument:
        value: Any = None
        walks = [self._value(root)]
        while walks:
            try:
                walks.append(walks[-1].send(value))
                value = None
            except StopIteration as end:
                walks.pop()
                value = end.value
        if self.not_finite and any(isinstance(part, float) and part - part != 0 for part in _parts(value)):
            raise YamlError("a number that is not finite cannot be written as JSON", self.not_finite[0])
        if self.refused:
            maps = {id(part) for part in _parts(value) if isinstance(part, dict)}
            for out, error in self.refused:
                if id(out) in maps:
                    raise error
        return DecodedDocument(value, self.repeats)

    def _count(self, node: Node) -> None:
        if not self.counting:
            return
        self.decoded += 1
        if self.active:
            self.through_alias += 1
        if self.through_alias > 100 and self.decoded > 1000:
            scale = (self.decoded - _RATIO_LOW) / (_RATIO_HIGH - _RATIO_LOW)
            allowed = 0.99 - 0.89 * min(max(scale, 0.0), 1.0)
            if self.through_alias / self.decoded > allowed:
                raise YamlError("the document consists mostly of aliases", node.start, "TW003", "write the values out")

    def _value(self, node: Node) -> _Walk:
        self._count(node)
        if node.kind == SCALAR:
            return self._scalar(node)
        if node.kind == ALIAS:
            value = yield self._value(self._follow(node))
            self.active.discard(node)
            return value
        self.depth += 1
        if self.depth > self.max_depth:
            raise YamlError(f"nested deeper than {self.max_depth} levels", node.start, "TW003")
        out: Any = {}
        if node.kind == MAPPING:
            yield self._entries(node, out)
        else:
            out = []
            for index, child in enumerate(node.children):
                self.path.append(index)
                out.append((yield self._value(child)))
                self.path.pop()
        self.depth -= 1
        return out

    def _scalar(self, node: Node) -> Any:
        value = scalar_value(node)
        if isinstance(value, float) and value - value != 0:
            self.not_finite.append(node.start)
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return json_number(value)
        return value

    def _follow(self, alias: Node) -> Node:
        """Return what an alias names. The alias is active until that is decoded."""
        if alias in self.active:
            raise YamlError(f"the value of anchor `{alias.value}` contains itself", alias.start)
        self.active.add(alias)
        return alias.named

    def _entries(self, node: Node, out: dict[str, Any], merge: int = -1) -> _Walk:
        """Decode the entries of a map into `out`; `merge` is the offset of the `<<` that merges them in, or -1."""
        for key_node, child in zip(node.children[::2], node.children[1::2], strict=True):
            start = key_node.start if merge < 0 else merge
            if is_merge(key_node):
                yield self._merge(child, out, start)
                continue
            self._count(key_node)
            if key_node.kind == ALIAS:
                self._count(self._follow(key_node))
                self.active.discard(key_node)
            try:
                key = key_of(key_node)
            except UnsupportedKeyError as error:
                self.refused.append((out, error))
                key = f"\0{key_node.start}"
            self.path.append(key)
            value = yield self._value(child)
            if key in out:
                self.repeats.append(KeyRepeat(tuple(self.path), start))
            out[key] = value
            self.path.pop()

    def _merge(self, node: Node, out: dict[str, Any], offset: int, nested: bool = False) -> _Walk:
        """Decode the map or maps of a merge key into `out`."""
        if node.kind == SEQUENCE and not nested:
            # Earlier maps take precedence, so the last is decoded first.
            for item in reversed(node.children):
                yield self._merge(item, out, offset, nested=True)
            return
        if node.named.kind != MAPPING:
            raise YamlError("expected a map or a list of maps as `<<`", node.start)
        self._count(node)
        if node.kind == ALIAS:
            self._count(self._follow(node))
        yield self._entries(node.named, out, offset)
        self.active.discard(node)


def _parts(value: Any) -> Iterator[Any]:
    """Yield a value and everything in it."""
    todo = [value]
    while todo:
        part = todo.pop()
        yield part
        if isinstance(part, dict):
            todo += part.values()
        elif isinstance(part, list):
            todo += part
