"""Parse tokens into a tree of nodes with their offsets, as go.yaml.in/yaml/v2 does (`parserc.go`).

Only the first document of a text is read. Aliases point to the nodes that they name.

block_node       ::= ALIAS | properties block_content? | block_content
flow_node        ::= ALIAS | properties flow_content? | flow_content
properties       ::= TAG ANCHOR? | ANCHOR TAG?
block_sequence   ::= BLOCK-SEQUENCE-START (BLOCK-ENTRY block_node?)* BLOCK-END
indentless_seq   ::= (BLOCK-ENTRY block_node?)+
block_mapping    ::= BLOCK-MAPPING-START ((KEY node?)? (VALUE node?)?)* BLOCK-END
flow_sequence    ::= "[" (entry ",")* entry? "]"
flow_mapping     ::= "{" (entry ",")* entry? "}"
entry            ::= flow_node | KEY flow_node? (VALUE flow_node?)?
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias

from tierwall.resources.yaml import tokens
from tierwall.resources.yaml.errors import YamlError
from tierwall.resources.yaml.scan import Scanner
from tierwall.resources.yaml.tokens import ALIAS, SCALAR, Token
from tierwall.values.pattern import pattern

MAPPING: Final = "a mapping"
SEQUENCE: Final = "a sequence"

# The Go reader decodes this many bytes ahead of the scanner (`input_raw_buffer_size`).
_READ_AHEAD = 512
# Control characters, surrogates and non-characters, which `readerc.go` refuses.
# One set per range: Python takes forty times as long to compile them as a single set.
_FORBIDDEN = pattern("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f]|[\ud800-\udfff]|[\ufffe\uffff]")
_DEFAULT_TAGS = {"!": "!", "!!": "tag:yaml.org,2002:"}


class Node:
    """A SCALAR, ALIAS, MAPPING or SEQUENCE. The children of a mapping are key, value, key, value and so on.

    `plain` means that the text of a scalar determines its type (`implicit` in Go).
    """

    __slots__ = ("children", "kind", "plain", "start", "tag", "target", "value")

    def __init__(self, kind: str, start: int, value: str = "", tag: str = "", plain: bool = False) -> None:
        self.kind = kind
        self.start = start
        self.value = value
        self.tag = tag
        self.plain = plain
        self.children: list[Node] = []
        self.target: Node | None = None

    @property
    def named(self) -> Node:
        """The node itself, or the node that an alias names."""
        return self.target or self


class ParsedDocument(NamedTuple):
    """The first document of a text; `root` is None if there is no document."""

    root: Node | None
    has_aliases: bool


def parse_value(text: str) -> ParsedDocument:
    """Parse a text that is one value and nothing after it, in a document or a part of one."""
    parser = _NodeParser(text)
    tree = parser.document()
    token = parser.scanner.peek()
    if token.kind != tokens.STREAM_END:
        raise YamlError(f"expected the end, found {token}", token.start)
    return tree


def parse(text: str) -> ParsedDocument:
    """Parse the first document of a text without a byte order mark; raise `YamlError` if it is invalid."""
    forbidden = _FORBIDDEN.search(text)
    if forbidden is None:
        return _NodeParser(text).document()
    bad = forbidden.start()
    parser = _NodeParser(text[:bad])
    problem = YamlError(f"found character U+{ord(text[bad]):04X}, which may not occur in YAML", bad)
    try:
        tree = parser.document()
    except YamlError:
        raise problem from None
    # The Go reader does not get as far as a character long after the end of the document; then it is not an error.
    reached = len(text[: parser.scanner.at + 4].encode())
    if len(text[:bad].encode()) < (reached // _READ_AHEAD + 1) * _READ_AHEAD:
        raise problem
    return tree


def root_offset(text: str) -> int:
    """Return where the value of a document begins, without reading any further."""
    root = _NodeParser(text).root()
    return root.start if root is not None else 0


# Reads the entries of a collection. It yields after each entry, so that the children of the entry are read first.
_Entries: TypeAlias = Iterator[None]


class _NodeParser:
    """Parses one text. Open collections are iterators on a list, so deep nesting does not use Python's own stack."""

    def __init__(self, text: str) -> None:
        self.scanner = Scanner(text)
        self._tags = _DEFAULT_TAGS
        self._anchors: dict[str, Node] = {}
        self._has_aliases = False
        # The open collections, innermost last.
        self._open: list[_Entries] = []

    def document(self) -> ParsedDocument:
        """Return the first document."""
        root = self.root()
        while self._open:
            # An iterator yields None until its collection ends.
            if next(self._open[-1], True):
                self._open.pop()
        # The rest of the text is not read, but its first token must be valid.
        self.scanner.peek()
        return ParsedDocument(root, self._has_aliases)

    def root(self) -> Node | None:
        """Return the root of the first document before its children are read; None if there is no document."""
        token = self.scanner.peek()
        if token.kind == tokens.STREAM_END:
            return None
        if token.kind in (tokens.DIRECTIVE, tokens.DOCUMENT_START):
            token = self._document_start()
            if token.kind in (tokens.DIRECTIVE, tokens.DOCUMENT_START, tokens.DOCUMENT_END, tokens.STREAM_END):
                return _empty(token.start)
        return self._node(block=True)

    def _next(self) -> Token:
        """Drop the current token and return the next."""
        self.scanner.skip()
        return self.scanner.peek()

    def _error(self, problem: str, offset: int, hint: str = "") -> YamlError:
        return YamlError(problem, min(offset, self.scanner.size), hint=hint)

    def _document_start(self) -> Token:
        """Read directives and `---`, and return the token that follows."""
        tags: dict[str, str] = {}
        has_version = False
        while (token := self.scanner.peek()).kind == tokens.DIRECTIVE:
            if not token.value.startswith("!"):
                if has_version:
                    raise self._error("found a second `%YAML` directive", token.start)
                if token.value != "1.1":
                    raise self._error(f"expected YAML version `1.1`, found `{token.value}`", token.start)
                has_version = True
            elif token.value in tags:
                raise self._error(f"found a second `%TAG` directive for `{token.value}`", token.start)
            else:
                tags[token.value] = token.suffix
            self.scanner.skip()
        self._tags = _DEFAULT_TAGS | tags
        if token.kind != tokens.DOCUMENT_START:
            hint = "quote or indent the line that starts with `%`; it is read as a directive"
            raise self._error("expected `---` after a directive", token.start, hint)
        return self._next()

    # Nodes -----------------------------------------------------------------------------------------------------------

    def _node(self, block: bool = False, indentless: bool = False) -> Node:
        """Begin a node. A collection is opened, so that its entries are read next."""
        token = self.scanner.peek()
        if token.kind == ALIAS:
            self.scanner.skip()
            return self._alias(token)
        start = token.start
        anchor = tag = ""
        for _ in range(2):
            if token.kind == tokens.ANCHOR and not anchor:
                anchor = token.value
            elif token.kind == tokens.TAG and not tag:
                tag = self._tag(token)
            else:
                break
            token = self._next()
        kind = token.kind
        if kind == SCALAR:
            self.scanner.skip()
            node = Node(SCALAR, start, token.value, tag, (not tag and token.plain) or tag == "!")
        elif (entries := self._collection(kind, block, indentless)) is not None:
            node = Node(MAPPING if kind in (tokens.FLOW_MAPPING_START, tokens.BLOCK_MAPPING_START) else SEQUENCE, start)
            self._open.append(entries(node.children))
        elif anchor or tag:
            node = Node(SCALAR, start, "", tag, not tag)
        else:
            raise self._error(f"expected a value, found {token}", token.start)
        if anchor:
            self._anchors[anchor] = node
        return node

    def _collection(self, kind: str, block: bool, indentless: bool) -> Callable[[list[Node]], _Entries] | None:
        """Return the method that reads the collection that a token starts, or None."""
        if kind == tokens.FLOW_SEQUENCE_START:
            return self._flow_sequence
        if kind == tokens.FLOW_MAPPING_START:
            return self._flow_mapping
        if kind == tokens.BLOCK_SEQUENCE_START and block:
            return self._block_sequence
        if kind == tokens.BLOCK_MAPPING_START and block:
            return self._block_mapping
        return self._indentless_sequence if kind == tokens.BLOCK_ENTRY and indentless else None

    def _alias(self, token: Token) -> Node:
        self._has_aliases = True
        node = Node(ALIAS, token.start, token.value)
        node.target = self._anchors.get(token.value)
        if node.target is None:
            from tierwall.core.diagnostics import near_miss

            hint = near_miss(token.value, self._anchors)
            hint = hint or "define the anchor before its aliases, in the same document"
            raise YamlError(f"unknown anchor `{token.value}`", token.start, hint=hint)
        return node

    def _tag(self, token: Token) -> str:
        if not token.value:
            return token.suffix
        if not (tag := self._tags[token.value] + token.suffix if token.value in self._tags else ""):
            raise self._error(f"found undefined tag handle `{token.value}`", token.start)
        return tag

    # Block collections -----------------------------------------------------------------------------------------------

    def _node_after(self, indicator: Token, *nothing: str, indentless: bool = False) -> Node:
        """Return the node after an indicator of a block; an empty one if the next token is one of `nothing`."""
        then = self._next()
        return _empty(indicator.end) if then.kind in nothing else self._node(block=True, indentless=indentless)

    def _block_sequence(self, items: list[Node]) -> _Entries:
        token = self._next()
        while token.kind == tokens.BLOCK_ENTRY:
            items.append(self._node_after(token, tokens.BLOCK_ENTRY, tokens.BLOCK_END))
            yield
            token = self.scanner.peek()
        if token.kind != tokens.BLOCK_END:
            hint = "start all items of a list in the same column"
            raise self._error(f"expected `-` for the next item of a list, found {token}", token.start, hint)
        self.scanner.skip()

    def _indentless_sequence(self, items: list[Node]) -> _Entries:
        while (token := self.scanner.peek()).kind == tokens.BLOCK_ENTRY:
            items.append(self._node_after(token, tokens.BLOCK_ENTRY, tokens.KEY, tokens.VALUE, tokens.BLOCK_END))
            yield

    def _block_mapping(self, children: list[Node]) -> _Entries:
        token = self._next()
        while token.kind == tokens.KEY:
            children.append(self._node_after(token, tokens.KEY, tokens.VALUE, tokens.BLOCK_END, indentless=True))
            yield
            token = self.scanner.peek()
            if token.kind == tokens.VALUE:
                children.append(self._node_after(token, tokens.KEY, tokens.VALUE, tokens.BLOCK_END, indentless=True))
            else:
                children.append(_empty(token.start))
            yield
            token = self.scanner.peek()
        if token.kind != tokens.BLOCK_END:
            hint = "start all keys of a map in the same column"
            raise self._error(f"expected a key, found {token}", token.start, hint)
        self.scanner.skip()

    # Flow collections ------------------------------------------------------------------------------------------------

    def _after_entry(self, began: int, closing: str, what: str) -> Token:
        """Return the token after an entry: the one that closes the collection, or the one that follows a comma."""
        token = self.scanner.peek()
        if token.kind == closing:
            return token
        if token.kind == tokens.FLOW_ENTRY:
            return self._next()
        text = self.scanner.text
        earlier = text.count("\n", 0, began) != text.count("\n", 0, token.start)
        hint = f"close the {what} that began on an earlier line" if earlier else ""
        raise self._error(f"expected `,` or {closing}, found {token}", token.start, hint)

    def _flow_sequence(self, items: list[Node]) -> _Entries:
        began = self.scanner.peek().start
        token = self._next()
        while token.kind != tokens.FLOW_SEQUENCE_END:
            if token.kind == tokens.KEY:
                pair = Node(MAPPING, token.start)
                items.append(pair)
                self._open.append(self._flow_pair(pair.children))
            else:
                items.append(self._node())
            yield
            token = self._after_entry(began, tokens.FLOW_SEQUENCE_END, "list")
        self.scanner.skip()

    def _flow_pair(self, children: list[Node]) -> _Entries:
        """Read the single entry of a map without braces: `[key: value]`."""
        token = self._next()
        if token.kind in (tokens.VALUE, tokens.FLOW_ENTRY, tokens.FLOW_SEQUENCE_END):
            # As in Go, the token is lost.
            self.scanner.skip()
            children.append(_empty(token.end))
        else:
            children.append(self._node())
        yield
        children.append(self._flow_value(tokens.FLOW_SEQUENCE_END))
        yield

    def _flow_mapping(self, children: list[Node]) -> _Entries:
        began = self.scanner.peek().start
        token = self._next()
        while token.kind != tokens.FLOW_MAPPING_END:
            if token.kind == tokens.KEY:
                token = self._next()
                is_empty = token.kind in (tokens.VALUE, tokens.FLOW_ENTRY, tokens.FLOW_MAPPING_END)
                children.append(_empty(token.start) if is_empty else self._node())
                yield
                children.append(self._flow_value(tokens.FLOW_MAPPING_END))
            else:
                children.append(self._node())
                yield
                children.append(_empty(self.scanner.peek().start))
            yield
            token = self._after_entry(began, tokens.FLOW_MAPPING_END, "map")
        self.scanner.skip()

    def _flow_value(self, closing: str) -> Node:
        """Return the value after a key; an empty one if it is missing."""
        token = self.scanner.peek()
        if token.kind == tokens.VALUE:
            token = self._next()
            if token.kind not in (tokens.FLOW_ENTRY, closing):
                return self._node()
        return _empty(token.start)


def _empty(offset: int) -> Node:
    return Node(SCALAR, offset, plain=True)
