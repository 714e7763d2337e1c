"""From nodes to plain values, as go.yaml.in/yaml/v2 decodes into `interface{}` (`decode.go`) and Kubernetes reads on.

A repeated key counts last; a merge key `<<` sets its entries where it stands, overwriting what came before it. Every
use of an alias is read anew and counted, and a document in which too much comes from aliases is refused with the same
limits as in Go. Nothing here recurses, so depth costs no stack.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tierwall.resources.yaml.compose import K, Node, Tree, compose
from tierwall.resources.yaml.errors import UnfitKey, YamlError
from tierwall.resources.yaml.scalars import MERGE_TAG, Scalar, json_number, key_text, plain_scalar, tagged_scalar

# The nesting that Go's JSON reader takes, through which every document passes.
MAX_DEPTH = 10_000
_RATIO_LOW, _RATIO_HIGH = 400_000, 4_000_000


class Repeat(NamedTuple):
    """A key that is set again: the path to it and the offset of the later one."""

    path: tuple[str | int, ...]
    offset: int


class Decoded(NamedTuple):
    """A document's value and its repeated keys."""

    value: Any
    repeats: list[Repeat]


class _Frame:
    """A collection that is being read. `merge` is the offset of the `<<` whose map is read into another's entries."""

    __slots__ = ("index", "key", "merge", "node", "out")

    def __init__(self, node: Node, out: Any, merge: int = -1) -> None:
        self.node = node
        self.out = out
        self.merge = merge
        self.index = 0
        self.key: str | None = None


_NOTHING = object()


def is_merge(node: Node) -> bool:
    """Is this key the merge key?"""
    return node.kind == K.SCALAR and node.value == "<<" and (node.plain or node.tag == MERGE_TAG)


def resolve(node: Node) -> Scalar:
    """The value of a scalar node; integers may be as large as uint64."""
    if node.tag and node.tag != "!":
        return tagged_scalar(node.tag, node.value, node.start)
    return plain_scalar(node.value)[1] if node.plain and not node.tag else node.value


def key_of(node: Node) -> str:
    """The string that a key node is in JSON."""
    target = node.target if node.kind == K.ALIAS else node
    if target is None or target.kind != K.SCALAR:
        raise YamlError("a key may not be a list or a map", node.start)
    return key_text(resolve(target), node.start)


def read_exactly(text: str, max_depth: int = MAX_DEPTH) -> Decoded:
    """The value of a document's text, as Go reads it; raises `YamlError`."""
    tree = compose(text)
    return _Decoder(tree, max_depth).run() if tree.root is not None else Decoded(None, [])


class _Decoder:
    def __init__(self, tree: Tree, max_depth: int) -> None:
        assert tree.root is not None
        self.root = tree.root
        self.max_depth = max_depth
        self.counting = tree.aliases
        self.frames: list[_Frame] = []
        self.depth = 0
        self.repeats: list[Repeat] = []
        self.not_finite: list[int] = []
        # Maps with a key that JSON cannot have; like the above they count only if they are not overwritten.
        self.refused: list[tuple[Any, YamlError]] = []
        # Alias nodes that are being read, and how many nodes were read in all and through them.
        self.active: set[Node] = set()
        self.decoded = 1
        self.through_alias = 0

    def run(self) -> Decoded:
        value = self._enter(self.root)
        while self.frames:
            if value is not _NOTHING:
                value = self._deliver(value)
                continue
            value = self._advance(self.frames[-1])
        if self.not_finite and _has_not_finite(value):
            raise YamlError("a number that is not finite has no place in JSON", self.not_finite[0])
        if self.refused:
            left = _maps(value)
            for out, error in self.refused:
                if id(out) in left:
                    raise error
        return Decoded(value, self.repeats)

    def _count(self, node: Node) -> None:
        self.decoded += 1
        if self.active:
            self.through_alias += 1
        if self.through_alias > 100 and self.decoded > 1000:
            scale = (self.decoded - _RATIO_LOW) / (_RATIO_HIGH - _RATIO_LOW)
            allowed = 0.99 - 0.89 * min(max(scale, 0.0), 1.0)
            if self.through_alias / self.decoded > allowed:
                raise YamlError("the document consists mostly of aliases", node.start, "TW003", "write the values out")

    def _enter(self, node: Node) -> Any:
        """Begin a node: a scalar's value at once, otherwise nothing yet."""
        if self.counting:
            self._count(node)
        if node.kind == K.SCALAR:
            return self._scalar(node)
        if node.kind == K.ALIAS:
            return self._enter(self._follow(node))
        self.depth += 1
        if self.depth > self.max_depth:
            raise YamlError(f"nested deeper than {self.max_depth} levels", node.start, "TW003")
        self.frames.append(_Frame(node, {} if node.kind == K.MAPPING else []))
        return _NOTHING

    def _follow(self, alias: Node) -> Node:
        """Push an alias as a frame of its own, which is popped when what it names has been read."""
        if alias in self.active:
            raise YamlError(f"the value of anchor `{alias.value}` contains itself", alias.start)
        self.active.add(alias)
        self.frames.append(_Frame(alias, None))
        assert alias.target is not None
        return alias.target

    def _scalar(self, node: Node) -> Any:
        value = resolve(node)
        if isinstance(value, float) and value - value != 0:
            self.not_finite.append(node.start)
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return json_number(value)
        return value

    def _deliver(self, value: Any) -> Any:
        """Give a finished value to the collection it belongs to; a finished alias passes it on."""
        frame = self.frames[-1]
        kind = frame.node.kind
        if kind == K.ALIAS:
            self.active.discard(frame.node)
            self.frames.pop()
            return value
        if kind == K.SEQUENCE:
            frame.out.append(value)
        else:
            key = frame.key
            assert key is not None
            if key in frame.out:
                offset = frame.merge if frame.merge >= 0 else frame.node.children[frame.index - 2].start
                self.repeats.append(Repeat(self._path(), offset))
            frame.out[key] = value
        return _NOTHING

    def _advance(self, frame: _Frame) -> Any:
        """Begin the next child of the innermost collection, or finish it."""
        node = frame.node
        if node.kind == K.ALIAS:
            # What a merge key names has been read into the entries; there is no value to pass on.
            self.active.discard(node)
            self.frames.pop()
            return _NOTHING
        if frame.index >= len(node.children):
            self.frames.pop()
            if frame.merge >= 0:
                return _NOTHING
            self.depth -= 1
            return frame.out
        if node.kind == K.SEQUENCE:
            frame.index += 1
            if frame.merge >= 0:
                # Earlier maps take precedence, so the last is read first.
                self._merge(node.children[-frame.index], frame.out, frame.merge, nested=True)
                return _NOTHING
            return self._enter(node.children[frame.index - 1])
        key_node, child = node.children[frame.index], node.children[frame.index + 1]
        frame.index += 2
        if is_merge(key_node):
            frame.key = None
            self._merge(child, frame.out, frame.merge if frame.merge >= 0 else key_node.start)
            return _NOTHING
        if self.counting:
            self._count_key(key_node)
        try:
            frame.key = key_of(key_node)
        except UnfitKey as error:
            self.refused.append((frame.out, error))
            frame.key = f"\0{key_node.start}"
        return self._enter(child)

    def _count_key(self, node: Node) -> None:
        self._count(node)
        if node.kind == K.ALIAS and node.target is not None:
            self.active.add(node)
            self._count(node.target)
            self.active.discard(node)

    def _merge(self, node: Node, out: dict[str, Any], offset: int, nested: bool = False) -> None:
        """Read the map of a merge key into `out`."""
        target = node.target if node.kind == K.ALIAS else node
        assert target is not None
        if node.kind == K.SEQUENCE and not nested:
            self.frames.append(_Frame(node, out, offset))
            return
        if target.kind != K.MAPPING:
            raise YamlError("the value of `<<` must be a map or a list of maps", node.start)
        if self.counting:
            self._count(node)
        if node.kind == K.ALIAS:
            self._follow(node)
            if self.counting:
                self._count(target)
        self.frames.append(_Frame(target, out, offset))

    def _path(self) -> tuple[str | int, ...]:
        parts: list[str | int] = []
        for frame in self.frames:
            if frame.node.kind == K.MAPPING and frame.key is not None:
                parts.append(frame.key)
            elif frame.node.kind == K.SEQUENCE and frame.merge < 0:
                parts.append(frame.index - 1)
        return tuple(parts)


def _maps(value: Any) -> set[int]:
    """The identities of all maps in a value."""
    found: set[int] = set()
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, dict):
            found.add(id(one))
            todo += one.values()
        elif isinstance(one, list):
            todo += one
    return found


def _has_not_finite(value: Any) -> bool:
    """Did a number that is not finite stay in the value? It may have been overwritten."""
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, dict):
            todo += one.values()
        elif isinstance(one, list):
            todo += one
        elif isinstance(one, float) and one - one != 0:
            return True
    return False
