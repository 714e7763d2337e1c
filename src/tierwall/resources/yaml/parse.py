"""From tokens to a tree of nodes that know where they stand, as go.yaml.in/yaml/v2 parses (`parserc.go`).

Only the first document of a text is read; aliases point at what they name.

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

# Octets that the Go reader decodes ahead of the scanner (`input_raw_buffer_size`).
_READ_AHEAD = 512
# `readerc.go`: everything else is a control character or not a character.
# One range a set: Python takes forty times as long to compile them as one set.
_FORBIDDEN = pattern("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f]|[\ud800-\udfff]|[\ufffe\uffff]")
_DEFAULT_TAGS = {"!": "!", "!!": "tag:yaml.org,2002:"}


class Node:
    """A SCALAR, ALIAS, MAPPING or SEQUENCE; the children of a mapping are key, value, key, value and so on.

    `plain` says that a scalar's type is to be found from its text (`implicit` in Go).
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
        """The node itself, or the one that an alias names."""
        return self.target or self


class ParsedDocument(NamedTuple):
    """The first document of a text; `root` is None for a text without one."""

    root: Node | None
    has_aliases: bool


def parse(text: str) -> ParsedDocument:
    """The nodes of the first document of a text without a byte order mark; raises `YamlError`."""
    forbidden = _FORBIDDEN.search(text)
    if forbidden is None:
        return _Parser(text).document()
    bad = forbidden.start()
    parser = _Parser(text[:bad])
    problem = YamlError(f"found character U+{ord(text[bad]):04X}, which may not occur in YAML", bad)
    try:
        tree = parser.document()
    except YamlError:
        raise problem from None
    # The Go reader finds the character only if it gets that far: far behind the end of the document it is no error.
    reached = len(text[: parser.scanner.at + 4].encode())
    if len(text[:bad].encode()) < (reached // _READ_AHEAD + 1) * _READ_AHEAD:
        raise problem
    return tree


def root_offset(text: str) -> int:
    """Where the value of a document begins; nothing behind that is read."""
    root = _Parser(text).root()
    return root.start if root is not None else 0


# Reads the entries of a collection, and yields after each so that the entry's own children are read first.
_Entries: TypeAlias = Iterator[None]


class _Parser:
    """Reads one text. Collections are read from a stack of iterators, so depth costs no stack of Python's."""

    def __init__(self, text: str) -> None:
        self.scanner = Scanner(text)
        self._tags = _DEFAULT_TAGS
        self._anchors: dict[str, Node] = {}
        self._has_aliases = False
        # The collections that are open, the innermost last.
        self._open: list[_Entries] = []

    def document(self) -> ParsedDocument:
        """The first document, and whether it has aliases."""
        root = self.root()
        while self._open:
            # Entries yield None until the collection is at its end.
            if next(self._open[-1], True):
                self._open.pop()
        # What follows the document is not read, but a token has to follow.
        self.scanner.peek()
        return ParsedDocument(root, self._has_aliases)

    def root(self) -> Node | None:
        """The root of the first document, whose children are still to be read; None for a text without a document."""
        token = self.scanner.peek()
        if token.kind == tokens.STREAM_END:
            return None
        if token.kind in (tokens.DIRECTIVE, tokens.DOCUMENT_START):
            token = self._document_start()
            if token.kind in (tokens.DIRECTIVE, tokens.DOCUMENT_START, tokens.DOCUMENT_END, tokens.STREAM_END):
                return _empty(token.start)
        return self._node(block=True)

    def _next(self) -> Token:
        """The token after the one that was peeked at."""
        self.scanner.skip()
        return self.scanner.peek()

    def _error(self, problem: str, offset: int, hint: str = "") -> YamlError:
        return YamlError(problem, min(offset, self.scanner.size), hint=hint)

    def _document_start(self) -> Token:
        """Read directives and `---`; the token that follows."""
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
            hint = "a line that starts with `%` is a directive; put it in quotes or indent it"
            raise self._error("expected `---` after a directive", token.start, hint)
        return self._next()

    # Nodes -----------------------------------------------------------------------------------------------------------

    def _node(self, block: bool = False, indentless: bool = False) -> Node:
        """Begin a node; a collection is opened, so that its entries are read next."""
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
        """What reads the collection that a token starts."""
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
            hint = hint or "an anchor has to stand before its aliases, in the same document"
            raise YamlError(f"unknown anchor `{token.value}`", token.start, hint=hint)
        return node

    def _tag(self, token: Token) -> str:
        if not token.value:
            return token.suffix
        if not (tag := self._tags[token.value] + token.suffix if token.value in self._tags else ""):
            raise self._error(f"found undefined tag handle `{token.value}`", token.start)
        return tag

    # Block collections -----------------------------------------------------------------------------------------------

    def _behind(self, indicator: Token, *nothing: str, indentless: bool = False) -> Node:
        """The node behind an indicator of a block; an empty one if the next token says that there is nothing."""
        then = self._next()
        return _empty(indicator.end) if then.kind in nothing else self._node(block=True, indentless=indentless)

    def _block_sequence(self, items: list[Node]) -> _Entries:
        token = self._next()
        while token.kind == tokens.BLOCK_ENTRY:
            items.append(self._behind(token, tokens.BLOCK_ENTRY, tokens.BLOCK_END))
            yield
            token = self.scanner.peek()
        if token.kind != tokens.BLOCK_END:
            hint = "items of one list start in the same column"
            raise self._error(f"expected `-` for the next item of a list, found {token}", token.start, hint)
        self.scanner.skip()

    def _indentless_sequence(self, items: list[Node]) -> _Entries:
        while (token := self.scanner.peek()).kind == tokens.BLOCK_ENTRY:
            items.append(self._behind(token, tokens.BLOCK_ENTRY, tokens.KEY, tokens.VALUE, tokens.BLOCK_END))
            yield

    def _block_mapping(self, children: list[Node]) -> _Entries:
        token = self._next()
        while token.kind == tokens.KEY:
            children.append(self._behind(token, tokens.KEY, tokens.VALUE, tokens.BLOCK_END, indentless=True))
            yield
            token = self.scanner.peek()
            if token.kind == tokens.VALUE:
                children.append(self._behind(token, tokens.KEY, tokens.VALUE, tokens.BLOCK_END, indentless=True))
            else:
                children.append(_empty(token.start))
            yield
            token = self.scanner.peek()
        if token.kind != tokens.BLOCK_END:
            hint = "keys of one map start in the same column"
            raise self._error(f"expected a key, found {token}", token.start, hint)
        self.scanner.skip()

    # Flow collections ------------------------------------------------------------------------------------------------

    def _after_entry(self, began: int, closing: str, what: str) -> Token:
        """Behind an entry: the token that closes the collection, or the one after a comma."""
        token = self.scanner.peek()
        if token.kind == closing:
            return token
        if token.kind == tokens.FLOW_ENTRY:
            return self._next()
        text = self.scanner.text
        earlier = text.count("\n", 0, began) != text.count("\n", 0, token.start)
        hint = f"the {what} began on an earlier line" if earlier else ""
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
        """The one entry of a map without braces: `[key: value]`."""
        token = self._next()
        if token.kind in (tokens.VALUE, tokens.FLOW_ENTRY, tokens.FLOW_SEQUENCE_END):
            # As in Go the token is lost.
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
        """What follows a key: a value, or nothing."""
        token = self.scanner.peek()
        if token.kind == tokens.VALUE:
            token = self._next()
            if token.kind not in (tokens.FLOW_ENTRY, closing):
                return self._node()
        return _empty(token.start)


def _empty(offset: int) -> Node:
    return Node(SCALAR, offset, plain=True)
