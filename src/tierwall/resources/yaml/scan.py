"""Scan text into tokens as go.yaml.in/yaml/v2 does (its port of libyaml 0.1, `scannerc.go`).

Today's libyaml reads some texts differently (flow scalars with `?` and `:`, escapes, tags, byte order marks inside a
text). Only the same scanner can tell what Kubernetes accepts. This one is exact and slow; `libyaml` says which texts
libyaml may read instead.

Offsets count code points. NULs are appended to the text, so that looking a few characters ahead needs no check. They
cannot occur in it otherwise: control characters are refused before scanning.
"""

from __future__ import annotations

import re
from collections import deque

from tierwall.resources.yaml import tokens
from tierwall.resources.yaml.errors import YamlError
from tierwall.resources.yaml.scalar_text import scan_block_scalar, scan_plain_scalar, scan_quoted_scalar
from tierwall.resources.yaml.tag import scan_directive, scan_tag
from tierwall.resources.yaml.tokens import BLANKZ, BREAKS, Token
from tierwall.values.pattern import pattern

# `exceeded max depth`: max_flow_level and max_indents of the Go scanner.
MAX_DEPTH = 10_000
_END = "\0" * 12

_SPACES = pattern(" *")
_BLANKS = pattern("[ \t]*")
COMMENT = pattern(f"[^{BREAKS}\0]*")
_NAME = pattern("[0-9A-Za-z_-]*")
# No plain scalar starts with one of these, with exceptions for `-`, `?` and `:`.
_NOT_PLAIN = frozenset(BLANKZ + "-?:,[]{}#&*!|>'\"%@`")
_AFTER_ANCHOR = frozenset(BLANKZ + "?:,]}%@`")
_FLOW_STARTS = {"[": tokens.FLOW_SEQUENCE_START, "{": tokens.FLOW_MAPPING_START}
_FLOW_ENDS = {"]": tokens.FLOW_SEQUENCE_END, "}": tokens.FLOW_MAPPING_END}


class _SimpleKey:
    """A position where a key without `?` may have begun."""

    __slots__ = ("column", "line", "number", "offset", "possible", "required")

    def __init__(self, possible: bool, required: bool, number: int, offset: int, line: int, column: int) -> None:
        self.possible = possible
        self.required = required
        self.number = number
        self.offset = offset
        self.line = line
        self.column = column


class Scanner:
    """The tokens of one text, produced on demand."""

    def __init__(self, text: str) -> None:
        self.size = len(text)
        self.text = text + _END
        self.at = 0
        self.line = 0
        self.line_start = 0
        self.indent = -1
        self.flow_level = 0
        self.parsed = 0
        self.tokens: deque[Token] = deque()
        self._indents: list[int] = []
        self._available = False
        self._simple_key_allowed = True
        # One for the block, and one for each open flow collection.
        self._simple_keys = [_SimpleKey(False, False, 0, 0, 0, 0)]
        self._key_of_token: dict[int, int] = {}

    def peek(self) -> Token:
        """Return the next token."""
        if not self._available:
            self._fetch_more()
        return self.tokens[0]

    def skip(self) -> None:
        """Drop the token that `peek` returned."""
        self._available = False
        self.parsed += 1
        self.tokens.popleft()

    def take(self, run: re.Pattern[str]) -> str:
        """Consume what a pattern matches here, and return it; the empty string if it does not match."""
        match = run.match(self.text, self.at)
        if match is None:
            return ""
        self.at = match.end()
        return match.group()

    def skip_line(self) -> None:
        """Consume a line break."""
        self.at += 2 if self.text.startswith("\r\n", self.at) else 1
        self.line += 1
        self.line_start = self.at

    def read_line(self) -> str:
        """Consume a line break, and return the text that it stands for."""
        character = self.text[self.at]
        self.skip_line()
        return character if character in "\u2028\u2029" else "\n"

    def skip_blanks_and_comment(self) -> None:
        """Consume blanks and a comment up to the end of the line."""
        self.take(_BLANKS)
        if self.text[self.at] == "#":
            self.take(COMMENT)

    def at_document_indicator(self) -> bool:
        """Whether the scanner is at a `---` or `...` at the start of a line."""
        at = self.at
        return at == self.line_start and self.text[at : at + 3] in ("---", "...") and self.text[at + 3] in BLANKZ

    def _fetch_more(self) -> None:
        """Scan until it is clear whether a simple key begins at the head of the queue."""
        while True:
            if self.tokens:
                index = self._key_of_token.get(self.parsed)
                keys = self._simple_keys
                if index is None or index >= len(keys) or not self._key_is_valid(keys[index]):
                    break
            self._fetch_next()
        self._available = True

    def _fetch_next(self) -> None:
        self._to_next_token()
        self._unroll_indent(self.at - self.line_start)
        text, at = self.text, self.at
        char, then = text[at], text[at + 1]
        in_flow = self.flow_level > 0
        if char == "\0":
            return self._fetch_stream_end()
        if at == self.line_start:
            if char == "%":
                return self._fetch_directive()
            if self.at_document_indicator():
                return self._fetch_document_indicator(tokens.DOCUMENT_START if char == "-" else tokens.DOCUMENT_END)
        if char in _FLOW_STARTS:
            return self._fetch_flow_start(_FLOW_STARTS[char])
        if char in _FLOW_ENDS:
            return self._fetch_flow_end(_FLOW_ENDS[char])
        if char == ",":
            self._remove_simple_key()
            self._simple_key_allowed = True
            return self._indicator(tokens.FLOW_ENTRY)
        if char == "-" and then in BLANKZ:
            return self._fetch_block_entry()
        if char == "?" and (in_flow or then in BLANKZ):
            return self._fetch_key()
        if char == ":" and (in_flow or then in BLANKZ):
            return self._fetch_value()
        if char in "*&":
            self._start_scalar_or_property()
            self.tokens.append(self._scan_anchor(tokens.ALIAS if char == "*" else tokens.ANCHOR))
        elif char == "!":
            self._start_scalar_or_property()
            start = at
            handle, suffix = scan_tag(self)
            self.tokens.append(Token(tokens.TAG, start, self.at, handle, suffix=suffix))
        elif char in "|>" and not in_flow:
            self._remove_simple_key()
            self._simple_key_allowed = True
            value, end = scan_block_scalar(self, char == "|")
            self.tokens.append(Token(tokens.SCALAR, at, end, value))
        elif char in "'\"":
            self._start_scalar_or_property()
            value = scan_quoted_scalar(self, char)
            self.tokens.append(Token(tokens.SCALAR, at, self.at, value))
        elif (
            char not in _NOT_PLAIN
            or (char == "-" and then not in " \t")
            or (not in_flow and char in "?:" and then not in BLANKZ)
        ):
            self._start_scalar_or_property()
            value, end, ended_in_break = scan_plain_scalar(self)
            self.tokens.append(Token(tokens.SCALAR, at, end, value, True))
            if ended_in_break:
                self._simple_key_allowed = True
        else:
            hint = "indent with spaces, not tabs" if char == "\t" else f"quote the value that starts with `{char}`"
            raise YamlError(f"found {_shown(char)}, which cannot start a value", at, hint=hint)
        return None

    def _to_next_token(self) -> None:
        """Consume blanks, comments and line breaks. Tabs count as blanks only where no key may begin."""
        text = self.text
        while True:
            if self.at == self.line_start and text[0] == "\ufeff":
                # The Go scanner looks for a byte order mark at the start of its buffer, not at its current position.
                self.at += 1
            self.take(_BLANKS if self.flow_level or not self._simple_key_allowed else _SPACES)
            if text[self.at] == "#":
                self.take(COMMENT)
            if text[self.at] not in BREAKS:
                return
            self.skip_line()
            if not self.flow_level:
                self._simple_key_allowed = True

    # Simple keys -----------------------------------------------------------------------------------------------------

    def _key_is_valid(self, key: _SimpleKey) -> bool:
        """Whether this may still be a simple key: it has to end on its line, within 1024 characters."""
        if not key.possible:
            return False
        if key.line < self.line or key.offset + 1024 < self.at:
            if key.required:
                raise self._no_colon(key)
            key.possible = False
            return False
        return True

    def _no_colon(self, key: _SimpleKey) -> YamlError:
        return YamlError("could not find expected `:` after a key", min(self.at, self.size), hint=self._began(key))

    def _began(self, key: _SimpleKey) -> str:
        text = self.text[key.offset : key.offset + 24].split("\n", 1)[0].rstrip("\0")
        where = " on an earlier line" if key.line < self.line else ""
        return f"write `:` after the key that begins with `{text}`{where}"

    def _save_simple_key(self) -> None:
        column = self.at - self.line_start
        if self._simple_key_allowed:
            number = self.parsed + len(self.tokens)
            required = not self.flow_level and self.indent == column
            self._remove_simple_key()
            self._simple_keys[-1] = _SimpleKey(True, required, number, self.at, self.line, column)
            self._key_of_token[number] = len(self._simple_keys) - 1

    def _remove_simple_key(self) -> None:
        key = self._simple_keys[-1]
        if key.possible:
            if key.required:
                raise self._no_colon(key)
            key.possible = False
            self._key_of_token.pop(key.number, None)

    def _start_scalar_or_property(self) -> None:
        self._save_simple_key()
        self._simple_key_allowed = False

    # Indentation -----------------------------------------------------------------------------------------------------

    def _roll_indent(self, column: int, number: int, kind: str, offset: int) -> None:
        if self.flow_level or self.indent >= column:
            return
        self._indents.append(self.indent)
        self.indent = column
        if len(self._indents) > MAX_DEPTH:
            raise YamlError(f"nested deeper than {MAX_DEPTH} levels", offset, "TW003")
        self._insert(number - self.parsed if number >= 0 else -1, Token(kind, offset, offset))

    def _unroll_indent(self, column: int) -> None:
        if self.flow_level:
            return
        while self.indent > column:
            self.tokens.append(Token(tokens.BLOCK_END, self.at, self.at))
            self.indent = self._indents.pop()

    # One method per token ---------------------------------------------------------------------------------------------

    def _indicator(self, kind: str, length: int = 1) -> None:
        start = self.at
        self.at += length
        self.tokens.append(Token(kind, start, self.at))

    def _insert(self, index: int, token: Token) -> None:
        """Insert a token into the queue; as in the Go scanner, at the end if its place has already been read."""
        if index < 0:
            self.tokens.append(token)
        else:
            self.tokens.insert(index, token)

    def _reset_block(self) -> None:
        self._unroll_indent(-1)
        self._remove_simple_key()
        self._simple_key_allowed = False

    def _fetch_stream_end(self) -> None:
        if self.at != self.line_start:
            self.line += 1
        self._reset_block()
        self.tokens.append(Token(tokens.STREAM_END, self.at, self.at))

    def _fetch_directive(self) -> None:
        self._reset_block()
        start = self.at
        value, suffix = scan_directive(self)
        self.tokens.append(Token(tokens.DIRECTIVE, start, self.at, value, suffix=suffix))

    def _fetch_document_indicator(self, kind: str) -> None:
        self._reset_block()
        self._indicator(kind, 3)

    def _fetch_flow_start(self, kind: str) -> None:
        self._save_simple_key()
        number = self.parsed + len(self.tokens)
        self._simple_keys.append(_SimpleKey(False, False, number, self.at, self.line, self.at - self.line_start))
        self.flow_level += 1
        if self.flow_level > MAX_DEPTH:
            raise YamlError(f"nested deeper than {MAX_DEPTH} levels", self.at, "TW003")
        self._simple_key_allowed = True
        self._indicator(kind)

    def _fetch_flow_end(self, kind: str) -> None:
        self._remove_simple_key()
        if self.flow_level:
            self.flow_level -= 1
            self._key_of_token.pop(self._simple_keys.pop().number, None)
        self._simple_key_allowed = False
        self._indicator(kind)

    def _fetch_block_entry(self) -> None:
        if not self.flow_level:
            if not self._simple_key_allowed:
                raise YamlError("block sequence entries are not allowed in this context", self.at)
            self._roll_indent(self.at - self.line_start, -1, tokens.BLOCK_SEQUENCE_START, self.at)
        self._remove_simple_key()
        self._simple_key_allowed = True
        self._indicator(tokens.BLOCK_ENTRY)

    def _fetch_key(self) -> None:
        if not self.flow_level:
            if not self._simple_key_allowed:
                raise YamlError("mapping keys are not allowed in this context", self.at)
            self._roll_indent(self.at - self.line_start, -1, tokens.BLOCK_MAPPING_START, self.at)
        self._remove_simple_key()
        self._simple_key_allowed = not self.flow_level
        self._indicator(tokens.KEY)

    def _fetch_value(self) -> None:
        key = self._simple_keys[-1]
        if self._key_is_valid(key):
            self._insert(key.number - self.parsed, Token(tokens.KEY, key.offset, key.offset))
            self._roll_indent(key.column, key.number, tokens.BLOCK_MAPPING_START, key.offset)
            key.possible = False
            self._key_of_token.pop(key.number, None)
            self._simple_key_allowed = False
        else:
            if not self.flow_level:
                if not self._simple_key_allowed:
                    hint = "quote the value, or start the key on its own line"
                    raise YamlError("mapping values are not allowed in this context", self.at, hint=hint)
                self._roll_indent(self.at - self.line_start, -1, tokens.BLOCK_MAPPING_START, self.at)
            self._simple_key_allowed = not self.flow_level
        self._indicator(tokens.VALUE)

    def _scan_anchor(self, kind: str) -> Token:
        start = self.at
        self.at += 1
        name = self.take(_NAME)
        if not name or self.text[self.at] not in _AFTER_ANCHOR:
            problem = f"expected a letter or digit while scanning {kind}, found {_shown(self.text[self.at])}"
            hint = f"quote the value that starts with `{self.text[start]}`"
            raise YamlError(problem, min(self.at, self.size), hint=hint)
        return Token(kind, start, self.at, name)


def _shown(char: str) -> str:
    return {"\t": "a tab", "\0": "the end"}.get(char) or (f"`{char}`" if char.isprintable() else f"U+{ord(char):04X}")
