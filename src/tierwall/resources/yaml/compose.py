"""From events to a tree of nodes that know where they stand; aliases point at what they name."""

from __future__ import annotations

from enum import IntEnum

from tierwall.resources.yaml.errors import YamlError
from tierwall.resources.yaml.parse import E, Parser
from tierwall.values.pattern import pattern

# Octets that the Go reader decodes ahead of the scanner (`input_raw_buffer_size`).
_READ_AHEAD = 512
# `readerc.go`: everything else is a control character or not a character.
# One range a set: Python takes forty times as long to compile them as one set.
_FORBIDDEN = pattern("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f]|[\ud800-\udfff]|[\ufffe\uffff]")


class K(IntEnum):
    """Kinds of node."""

    SCALAR = 0
    MAPPING = 1
    SEQUENCE = 2
    ALIAS = 3


class Node:
    """A node; the children of a mapping are key, value, key, value and so on."""

    __slots__ = ("children", "kind", "plain", "start", "tag", "target", "value")

    def __init__(self, kind: K, start: int, value: str = "", tag: str = "", plain: bool = False) -> None:
        self.kind = kind
        self.start = start
        self.value = value
        self.tag = tag
        self.plain = plain
        self.children: list[Node] = []
        self.target: Node | None = None


class Tree:
    """The first document of a text; `root` is None for a text without one."""

    __slots__ = ("aliases", "root")

    def __init__(self, root: Node | None, aliases: bool) -> None:
        self.root = root
        self.aliases = aliases


def compose(text: str) -> Tree:
    """The nodes of the first document of a text without a byte order mark; raises `YamlError`."""
    forbidden = _FORBIDDEN.search(text)
    if forbidden is None:
        return _compose(Parser(text))
    bad = forbidden.start()
    parser = Parser(text[:bad])
    problem = YamlError(f"found character U+{ord(text[bad]):04X}, which may not occur in YAML", bad)
    try:
        tree = _compose(parser)
    except YamlError:
        raise problem from None
    # The Go reader finds the character only if it gets that far: far behind the end of the document it is no error.
    reached = len(text[: parser.scanner.at + 4].encode())
    if len(text[:bad].encode()) < (reached // _READ_AHEAD + 1) * _READ_AHEAD:
        raise problem
    return tree


def root_offset(text: str) -> int:
    """Where the value of a document begins."""
    parser = Parser(text)
    parser.next()
    return parser.next().start


def _compose(parser: Parser) -> Tree:
    if parser.next().kind == E.STREAM_END:
        return Tree(None, False)
    root: Node | None = None
    anchors: dict[str, Node] = {}
    stack: list[Node] = []
    aliases = False
    while True:
        event = parser.next()
        kind = event.kind
        if kind == E.SCALAR:
            node = Node(K.SCALAR, event.start, event.value, event.tag, event.plain)
        elif kind == E.MAPPING_START:
            node = Node(K.MAPPING, event.start)
        elif kind == E.SEQUENCE_START:
            node = Node(K.SEQUENCE, event.start)
        elif kind == E.ALIAS:
            aliases = True
            node = Node(K.ALIAS, event.start, event.anchor)
            node.target = anchors.get(event.anchor)
            if node.target is None:
                raise YamlError(f"unknown anchor `{event.anchor}`", event.start, hint=_known(event.anchor, anchors))
        elif kind == E.DOCUMENT_END:
            return Tree(root, aliases)
        else:
            stack.pop()
            continue
        if event.anchor and kind != E.ALIAS:
            anchors[event.anchor] = node
        if stack:
            stack[-1].children.append(node)
        else:
            root = node
        if kind in (E.MAPPING_START, E.SEQUENCE_START):
            stack.append(node)


def _known(name: str, anchors: dict[str, Node]) -> str:
    from tierwall.core.diagnostics import near_miss

    return near_miss(name, anchors) or "an anchor has to stand before its aliases, in the same document"
