"""From tokens to events, as go.yaml.in/yaml/v2 parses (`parserc.go`); only the first document of a text is asked for.

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

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from tierwall.resources.yaml.errors import YamlError
from tierwall.resources.yaml.scan import Scanner
from tierwall.resources.yaml.token import T, Token


class E(IntEnum):
    """Kinds of event."""

    SCALAR = 0
    MAPPING_START = 1
    MAPPING_END = 2
    SEQUENCE_START = 3
    SEQUENCE_END = 4
    ALIAS = 5
    DOCUMENT_START = 6
    DOCUMENT_END = 7
    STREAM_END = 8


class Event(NamedTuple):
    """An event; `plain` says that a scalar's type is to be found from its text (`implicit` in Go)."""

    kind: E
    start: int
    value: str = ""
    tag: str = ""
    anchor: str = ""
    plain: bool = False


_State: TypeAlias = Callable[[], Event]
_DIRECTIVES = (T.VERSION_DIRECTIVE, T.TAG_DIRECTIVE)
_DEFAULT_TAGS = {"!": "!", "!!": "tag:yaml.org,2002:"}


class Parser:
    """The events of one text, produced on demand."""

    def __init__(self, text: str) -> None:
        self.scanner = Scanner(text)
        self._states: list[_State] = []
        self._tags: dict[str, str] = {}
        # Where open collections began, for the errors of unclosed ones.
        self._marks: list[int] = []
        self.scanner.peek()
        self.scanner.skip()
        self._state: _State = self._implicit_document_start

    def next(self) -> Event:
        """The next event."""
        return self._state()

    def _peek(self) -> Token:
        return self.scanner.peek()

    def _after_skip(self) -> Token:
        self.scanner.skip()
        return self.scanner.peek()

    def _error(self, problem: str, offset: int, hint: str = "") -> YamlError:
        return YamlError(problem, min(offset, self.scanner.size), hint=hint)

    # Documents -------------------------------------------------------------------------------------------------------

    def _implicit_document_start(self) -> Event:
        token = self._peek()
        if token.kind not in (*_DIRECTIVES, T.DOCUMENT_START, T.STREAM_END):
            self._tags = dict(_DEFAULT_TAGS)
            self._states.append(self._document_end)
            self._state = self._block_node
            return Event(E.DOCUMENT_START, token.start)
        if token.kind == T.STREAM_END:
            return Event(E.STREAM_END, token.start)
        start = token.start
        self._process_directives()
        token = self._peek()
        if token.kind != T.DOCUMENT_START:
            hint = "a line that starts with `%` is a directive; put it in quotes or indent it"
            raise self._error("expected `---` after a directive", token.start, hint)
        self._states.append(self._document_end)
        self._state = self._document_content
        self.scanner.skip()
        return Event(E.DOCUMENT_START, start)

    def _process_directives(self) -> None:
        tags: dict[str, str] = {}
        version = False
        while (token := self._peek()).kind in _DIRECTIVES:
            if token.kind == T.VERSION_DIRECTIVE:
                if version:
                    raise self._error("found a second `%YAML` directive", token.start)
                if token.value != "1.1":
                    raise self._error(f"expected YAML version `1.1`, found `{token.value}`", token.start)
                version = True
            elif token.value in tags:
                raise self._error(f"found a second `%TAG` directive for `{token.value}`", token.start)
            else:
                tags[token.value] = token.suffix
            self.scanner.skip()
        self._tags = _DEFAULT_TAGS | tags

    def _document_content(self) -> Event:
        token = self._peek()
        if token.kind in (*_DIRECTIVES, T.DOCUMENT_START, T.DOCUMENT_END, T.STREAM_END):
            self._state = self._states.pop()
            return self._empty(token.start)
        return self._node(True, False)

    def _document_end(self) -> Event:
        token = self._peek()
        return Event(E.DOCUMENT_END, token.start)

    # Nodes -----------------------------------------------------------------------------------------------------------

    def _block_node(self) -> Event:
        return self._node(True, False)

    def _empty(self, offset: int) -> Event:
        return Event(E.SCALAR, offset, plain=True)

    def _node(self, block: bool, indentless: bool) -> Event:
        token = self._peek()
        kind = token.kind
        if kind == T.ALIAS:
            self._state = self._states.pop()
            self.scanner.skip()
            return Event(E.ALIAS, token.start, anchor=token.value)
        start = token.start
        anchor = tag = ""
        if kind in (T.ANCHOR, T.TAG):
            for _ in range(2):
                if token.kind == T.ANCHOR and not anchor:
                    anchor = token.value
                elif token.kind == T.TAG and not tag:
                    tag = self._tag(token)
                else:
                    break
                token = self._after_skip()
            kind = token.kind
        if indentless and kind == T.BLOCK_ENTRY:
            self._state = self._indentless_entry
            return Event(E.SEQUENCE_START, start, tag=tag, anchor=anchor)
        if kind == T.SCALAR:
            self._state = self._states.pop()
            self.scanner.skip()
            return Event(E.SCALAR, start, token.value, tag, anchor, (not tag and token.plain) or tag == "!")
        if kind == T.FLOW_SEQUENCE_START:
            self._state = self._flow_sequence_first
            return Event(E.SEQUENCE_START, start, tag=tag, anchor=anchor)
        if kind == T.FLOW_MAPPING_START:
            self._state = self._flow_mapping_first
            return Event(E.MAPPING_START, start, tag=tag, anchor=anchor)
        if block and kind == T.BLOCK_SEQUENCE_START:
            self._state = self._block_sequence_first
            return Event(E.SEQUENCE_START, start, tag=tag, anchor=anchor)
        if block and kind == T.BLOCK_MAPPING_START:
            self._state = self._block_mapping_first
            return Event(E.MAPPING_START, start, tag=tag, anchor=anchor)
        if anchor or tag:
            self._state = self._states.pop()
            return Event(E.SCALAR, start, "", tag, anchor, not tag)
        raise self._error(f"expected a value, found {_named(token)}", token.start)

    def _tag(self, token: Token) -> str:
        if not token.value:
            return token.suffix
        tag = self._tags.get(token.value, "") + token.suffix if token.value in self._tags else ""
        if not tag:
            raise self._error(f"found undefined tag handle `{token.value}`", token.start)
        return tag

    # Block collections -----------------------------------------------------------------------------------------------

    def _block_sequence_first(self) -> Event:
        self._marks.append(self._peek().start)
        self.scanner.skip()
        return self._block_sequence_entry()

    def _block_sequence_entry(self) -> Event:
        token = self._peek()
        if token.kind == T.BLOCK_ENTRY:
            then = self._after_skip()
            if then.kind not in (T.BLOCK_ENTRY, T.BLOCK_END):
                self._states.append(self._block_sequence_entry)
                return self._node(True, False)
            self._state = self._block_sequence_entry
            return self._empty(token.end)
        if token.kind == T.BLOCK_END:
            return self._collection_end(E.SEQUENCE_END)
        hint = "items of one list start in the same column"
        raise self._error(f"expected `-` for the next item of a list, found {_named(token)}", token.start, hint)

    def _indentless_entry(self) -> Event:
        token = self._peek()
        if token.kind == T.BLOCK_ENTRY:
            then = self._after_skip()
            if then.kind not in (T.BLOCK_ENTRY, T.KEY, T.VALUE, T.BLOCK_END):
                self._states.append(self._indentless_entry)
                return self._node(True, False)
            self._state = self._indentless_entry
            return self._empty(token.end)
        self._state = self._states.pop()
        return Event(E.SEQUENCE_END, token.start)

    def _block_mapping_first(self) -> Event:
        self._marks.append(self._peek().start)
        self.scanner.skip()
        return self._block_mapping_key()

    def _block_mapping_key(self) -> Event:
        token = self._peek()
        if token.kind == T.KEY:
            then = self._after_skip()
            if then.kind not in (T.KEY, T.VALUE, T.BLOCK_END):
                self._states.append(self._block_mapping_value)
                return self._node(True, True)
            self._state = self._block_mapping_value
            return self._empty(token.end)
        if token.kind == T.BLOCK_END:
            return self._collection_end(E.MAPPING_END)
        hint = "keys of one map start in the same column"
        raise self._error(f"expected a key, found {_named(token)}", token.start, hint)

    def _block_mapping_value(self) -> Event:
        token = self._peek()
        self._state = self._block_mapping_key
        if token.kind == T.VALUE:
            then = self._after_skip()
            if then.kind not in (T.KEY, T.VALUE, T.BLOCK_END):
                self._states.append(self._block_mapping_key)
                return self._node(True, True)
            return self._empty(token.end)
        return self._empty(token.start)

    def _collection_end(self, kind: E) -> Event:
        token = self._peek()
        self._state = self._states.pop()
        self._marks.pop()
        self.scanner.skip()
        return Event(kind, token.start)

    # Flow collections ------------------------------------------------------------------------------------------------

    def _flow_sequence_first(self) -> Event:
        self._marks.append(self._peek().start)
        self.scanner.skip()
        return self._flow_sequence_entry(True)

    def _flow_sequence_next(self) -> Event:
        return self._flow_sequence_entry(False)

    def _flow_sequence_entry(self, first: bool) -> Event:
        token = self._peek()
        if token.kind != T.FLOW_SEQUENCE_END:
            if not first:
                token = self._after_comma(token, "]", "list")
            if token.kind == T.KEY:
                self._state = self._flow_pair_key
                self.scanner.skip()
                return Event(E.MAPPING_START, token.start)
            if token.kind != T.FLOW_SEQUENCE_END:
                self._states.append(self._flow_sequence_next)
                return self._node(False, False)
        return self._collection_end(E.SEQUENCE_END)

    def _after_comma(self, token: Token, closing: str, what: str) -> Token:
        if token.kind == T.FLOW_ENTRY:
            return self._after_skip()
        began = self.scanner.text.count("\n", 0, self._marks[-1]) != self.scanner.text.count("\n", 0, token.start)
        hint = f"the {what} began on an earlier line" if began else ""
        raise self._error(f"expected `,` or `{closing}`, found {_named(token)}", token.start, hint)

    def _flow_pair_key(self) -> Event:
        token = self._peek()
        if token.kind not in (T.VALUE, T.FLOW_ENTRY, T.FLOW_SEQUENCE_END):
            self._states.append(self._flow_pair_value)
            return self._node(False, False)
        self.scanner.skip()
        self._state = self._flow_pair_value
        return self._empty(token.end)

    def _flow_pair_value(self) -> Event:
        token = self._peek()
        if token.kind == T.VALUE:
            token = self._after_skip()
            if token.kind not in (T.FLOW_ENTRY, T.FLOW_SEQUENCE_END):
                self._states.append(self._flow_pair_end)
                return self._node(False, False)
        self._state = self._flow_pair_end
        return self._empty(token.start)

    def _flow_pair_end(self) -> Event:
        token = self._peek()
        self._state = self._flow_sequence_next
        return Event(E.MAPPING_END, token.start)

    def _flow_mapping_first(self) -> Event:
        self._marks.append(self._peek().start)
        self.scanner.skip()
        return self._flow_mapping_entry(True)

    def _flow_mapping_next(self) -> Event:
        return self._flow_mapping_entry(False)

    def _flow_mapping_entry(self, first: bool) -> Event:
        token = self._peek()
        if token.kind != T.FLOW_MAPPING_END:
            if not first:
                token = self._after_comma(token, "}", "map")
            if token.kind == T.KEY:
                token = self._after_skip()
                if token.kind not in (T.VALUE, T.FLOW_ENTRY, T.FLOW_MAPPING_END):
                    self._states.append(self._flow_mapping_value)
                    return self._node(False, False)
                self._state = self._flow_mapping_value
                return self._empty(token.start)
            if token.kind != T.FLOW_MAPPING_END:
                self._states.append(self._flow_mapping_empty_value)
                return self._node(False, False)
        return self._collection_end(E.MAPPING_END)

    def _flow_mapping_value(self) -> Event:
        token = self._peek()
        self._state = self._flow_mapping_next
        if token.kind == T.VALUE:
            token = self._after_skip()
            if token.kind not in (T.FLOW_ENTRY, T.FLOW_MAPPING_END):
                self._states.append(self._flow_mapping_next)
                return self._node(False, False)
        return self._empty(token.start)

    def _flow_mapping_empty_value(self) -> Event:
        token = self._peek()
        self._state = self._flow_mapping_next
        return self._empty(token.start)


_NAMES = {
    T.STREAM_END: "the end of the document",
    T.BLOCK_END: "the end of the block",
    T.BLOCK_SEQUENCE_START: "a list",
    T.BLOCK_MAPPING_START: "a map",
    T.FLOW_SEQUENCE_START: "`[`",
    T.FLOW_SEQUENCE_END: "`]`",
    T.FLOW_MAPPING_START: "`{`",
    T.FLOW_MAPPING_END: "`}`",
    T.BLOCK_ENTRY: "`-`",
    T.FLOW_ENTRY: "`,`",
    T.KEY: "a key",
    T.VALUE: "`:`",
    T.DOCUMENT_START: "`---`",
    T.DOCUMENT_END: "`...`",
    T.VERSION_DIRECTIVE: "a directive",
    T.TAG_DIRECTIVE: "a directive",
    T.ALIAS: "an alias",
    T.ANCHOR: "an anchor",
    T.TAG: "a tag",
}


def _named(token: Token) -> str:
    if token.kind == T.SCALAR:
        text = token.value if len(token.value) <= 24 else token.value[:24] + "…"
        return f"`{text}`".replace("\n", " ")
    return _NAMES.get(token.kind, "something else")
