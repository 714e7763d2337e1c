"""Read documents with one entry per line, as kubectl and most people and programs write them; the fastest reader.

    spec:
      ports:
      - name: http
        port: 80
      args: ["--v=2"]   # a comment

One regular expression splits a line, and the value of the rest of the line is remembered from earlier lines. This is
faster than handling libyaml's events. Everything else (folded blocks, flow collections over several lines, tags,
anchors, aliases, merge keys, and every mistake) is left to the other readers.

INVARIANT: where this module returns a value, `decode.read_exactly` returns the same value. Random tests check it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from typing import Any, Final, TypeAlias

from tierwall.resources.yaml.errors import YamlError
from tierwall.resources.yaml.scalars import key_string, plain_scalar, plain_value
from tierwall.values.pattern import pattern

FlowReader: TypeAlias = Callable[[bytes], tuple[Any, bool] | None]
Path: TypeAlias = tuple[str | int, ...]
Note: TypeAlias = Callable[[Path, int, int], None]

_WORD = r"[A-Za-z0-9_./$][A-Za-z0-9_./$+=~@-]*"
# Indentation, the dashes of list entries, then a key and the rest of the line, or only the rest of the line.
LINE = re.compile(rf"( *)((?:- )*)(?:({_WORD}):(?: +(.*))?|(.*))\n")
SEPARATOR = pattern(r"---(?:[ \t]+(?:#.*)?)?\n")
_NOTHING = pattern(r"(?: *(?:#.*)?\n)*+")
_QUOTED = pattern(r"""(?:"([^"\\]*)"|'([^']*)') *(?: #.*)?""")
_STRINGS = r"""|"([^"\\]*)"|'([^']*)'"""
_FLOW_KEY = pattern(rf"(?:({_WORD}){_STRINGS}): +")
_FLOW_SCALAR = pattern(rf"(?:({_WORD}(?::{_WORD})*){_STRINGS})(?= *[,\]}}])")
_FLOW_START = pattern(r"[\[{] *(?:([\]}]) *)?")
_FLOW_END = pattern(r" *([,\]}]) *")
# No plain scalar starts with one of these. A leading `-` is checked separately.
_INDICATORS: Final = frozenset(" ?:,[]{}#&*!|>'\"%@`")
# Empty lines, then the line that sets the indentation, then all lines that are empty or at least as far indented.
_BLOCK = pattern(r"((?: *\n)*+)( +)[^ \n\t].*\n(?:(?:\2.*| *)\n)*+")
_QUOTED_LINES = pattern(r"""("(?:[^"\\]|\\.)*+"|'(?:[^']|'')*+') *(?: #[^\n]*)?\n""", re.DOTALL)
_NOT_PLAIN: Final = frozenset(("", *"\"'[{|#"))
_MAX_KEY_LENGTH = 512
# A plain scalar of many lines grows line by line, and copying it takes longer every time.
_MAX_CONTINUED = 1 << 14
# The deepest nesting of a flow collection on one line.
FLOW_DEPTH = 16
_MEMO_SIZE = 1 << 16
# The bytes that need no further check. The others are control characters, `%`, and the first bytes of line breaks and
# byte order marks beyond ASCII.
_REGULAR: Final = bytes(sorted({*range(256)} - {*range(0x09), *range(0x0B, 0x20), 0x7F, *b"%\xc2\xe2\xef"}))
_IRREGULAR = pattern(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xa8\xa9]|\xef[\xbb\xbf]|(?m:^%)")

_GIVE_UP: Final = None
EMPTY: Final = object()
_UNKNOWN: Final = object()


class LineReader:
    """Reads documents and remembers what the rest of a line means: manifests repeat the same few thousand.

    `flow` reads quoted scalars and flow collections up to `FLOW_DEPTH` levels deep. It returns None where it gives up.
    """

    def __init__(self, max_depth: int, flow: FlowReader) -> None:
        self._max_depth = max_depth - FLOW_DEPTH
        self._flow = flow
        self._rests: dict[str | None, Any] = {}
        self._keys: dict[str, str] = {}

    def value(self, text: str) -> tuple[Any, bool] | None:
        """Return the value and whether a key is repeated in it, or None if another reader has to read the document.

        The text ends in a line feed and has no control characters except tabs and line feeds.
        """
        if len(self._rests) > _MEMO_SIZE:
            self._rests.clear()
        if len(self._keys) > _MEMO_SIZE:
            self._keys.clear()
        self._rests[None] = EMPTY
        try:
            return self._read(text)
        except YamlError:
            return _GIVE_UP

    def _read(self, text: str) -> tuple[Any, bool] | None:
        # One loop without calls for the usual line: loading spends most of its time here.
        rests, keys, match = self._rests, self._keys, LINE.match
        deepest = self._max_depth
        repeated = False
        root: list[Any] = []
        # The innermost open collection and its column; the collections around it are on the stack.
        into: Any = root
        level = -1
        stack: list[tuple[Any, int]] = []
        # The key at the end of the last line; a collection may follow as its value.
        open_key: str | None = None
        # The rest of the last line and its key, for a plain scalar that continues on the next line.
        last: str | None = None
        last_key: str | None = None
        separator = SEPARATOR.match(text)
        at = separator.end() if separator else 0
        size = len(text)
        while at < size:
            line = match(text, at)
            if line is None:
                return _GIVE_UP
            at = line.end()
            spaces, dashes, key, rest, bare = line.groups()
            column = len(spaces)
            if key is None and not dashes:
                if not bare or bare[0] == "#":
                    at = _NOTHING.match(text, at).end()  # type: ignore[union-attr]
                    last = None
                    continue
                if last is None or column <= level:
                    return _GIVE_UP
                # A plain scalar continues; even more of it may follow.
                last = _continued(last, bare)
                into[-1 if into.__class__ is list else last_key] = last
                continue
            wanted: type[Any] = list if dashes else dict
            if column != level or into.__class__ is not wanted:
                if column < level or (open_key is None and root):
                    while column < level or (column == level and into.__class__ is not wanted):
                        into, level = stack.pop()
                    if column != level:
                        return _GIVE_UP
                else:
                    # Only a key without a value, or the document itself, may be followed by a new collection.
                    stack.append((into, level))
                    child: Any = [] if dashes else {}
                    if into is root:
                        root.append(child)
                    else:
                        into[open_key] = child
                    into, level = child, column
                    if len(stack) > deepest:
                        return _GIVE_UP
            if dashes:
                # Every further dash opens a list, and a key after the last dash opens a map.
                for _ in range(len(dashes) // 2 - 1):
                    stack.append((into, level))
                    child = []
                    into.append(child)
                    into, level = child, level + 2
                if key is not None:
                    stack.append((into, level))
                    child = {}
                    into.append(child)
                    into, level = child, level + 2
                if len(stack) > deepest:
                    return _GIVE_UP
            if key is None:
                rest = bare
            else:
                try:
                    key = keys[key]
                except KeyError:
                    key = self.key(key)
                if key in into:
                    repeated = True
            open_key = None
            value = rests.get(rest, _UNKNOWN)
            if value is _UNKNOWN:
                value = rests[rest] = self.rest(rest)
            if value.__class__ is not str:
                if value is EMPTY:
                    if key is None:
                        return _GIVE_UP
                    value, open_key = None, key
                elif value.__class__ is FlowCollection:
                    value = value.copy()
                elif value.__class__ is LiteralStart:
                    value, at = value.read(text, at, level)
                elif value.__class__ is OpenQuote:
                    value, at = value.read(text, at, self._flow)
            last, last_key = rest, key
            if key is None:
                into.append(value)
            else:
                into[key] = value
        return (root[0] if root else None), repeated

    def key(self, text: str) -> str:
        """Return the string of a key that was not read before."""
        if len(text) > _MAX_KEY_LENGTH:
            raise not_for_lines()
        key = self._keys[text] = key_string(plain_scalar(text)[1], 0)
        return key

    def rest(self, rest: str) -> Any:
        """Return what the rest of a line is: a scalar, a collection or the start of a literal; otherwise raise."""
        first = rest[:1]
        if not first or first == "#":
            return EMPTY
        if first in "\"'[{":
            simple = _QUOTED.fullmatch(rest)
            if simple is not None and "\t" not in rest:
                double, single = simple.groups()
                return single if double is None else double
            if first in "[{":
                with suppress(YamlError):
                    return FlowCollection(flow_collection(rest))
            read = self._flow(rest.encode() + b"\n")
            # A flow collection or quoted string that fills the rest of a line means the same on every line.
            kind: type = {"[": list, "{": dict}.get(first, str)
            if read is None and kind is str:
                return OpenQuote(rest)
            if read is None or read[1] or read[0].__class__ is not kind:
                raise not_for_lines()
            return read[0] if kind is str else FlowCollection(read[0])
        if first == "|":
            if rest not in ("|", "|-", "|+"):
                raise not_for_lines()
            return LiteralStart(rest[1:])
        text = rest.partition(" #")[0].rstrip(" ")
        if first in _INDICATORS or "\t" in rest or ": " in text or text.endswith(":") or text[:2] in ("-", "- "):
            raise not_for_lines()
        return plain_value(text)


def flow_collection(rest: str, note: Note | None = None, path: Path = ()) -> Any:
    """Read the rest of a line that is a flow collection of plain words and quoted strings. Raise for anything else.

    `note` is called for every node with its path, the offset of its key (-1 for items) and its own offset.
    """
    value, at = _flow_collection(rest, 0, 1, note, path)
    if "\t" in rest or (at < len(rest) and (rest[at] != "#" or rest[at - 1] != " ")):
        raise not_for_lines()
    return value


def _flow_collection(text: str, at: int, depth: int, note: Note | None, path: Path) -> tuple[Any, int]:
    """Return the collection that begins at `at`, and the offset after it and the blanks that follow; or raise."""
    is_map = text[at] == "{"
    value: Any = {} if is_map else []
    end = _FLOW_START.match(text, at)
    while end is not None:
        at = end.end()
        if end[1] not in (None, ","):
            if end[1] != ("}" if is_map else "]"):
                break
            return value, at
        step: str | int = len(value)
        key_at = -1
        if is_map:
            name = _FLOW_KEY.match(text, at)
            if name is None or len(name[0]) > _MAX_KEY_LENGTH:
                break
            step, key_at, at = _flow_key(name), at, name.end()
            if step in value:
                break
        inner = path
        if note is not None:
            inner = (*path, step)
            note(inner, key_at, at)
        if text[at : at + 1] in ("[", "{") and depth < FLOW_DEPTH:
            child, at = _flow_collection(text, at, depth + 1, note, inner)
        elif (scalar := _FLOW_SCALAR.match(text, at)) is not None:
            child, at = _flow_scalar(scalar), scalar.end()
        else:
            break
        if is_map:
            value[step] = child
        else:
            value.append(child)
        # The blanks after an inner collection are already consumed.
        end = _FLOW_END.match(text, at)
    raise not_for_lines()


def _flow_key(name: re.Match[str]) -> str:
    plain, double, single = name.groups()
    return key_string(plain_scalar(plain)[1], 0) if plain is not None else single if double is None else double


def _flow_scalar(scalar: re.Match[str]) -> Any:
    plain, double, single = scalar.groups()
    return plain_value(plain) if plain is not None else single if double is None else double


def is_regular(data: bytes) -> bool:
    """Whether no character needs the exact reader: no control characters and no unusual line breaks."""
    return not data.translate(None, _REGULAR) or not _IRREGULAR.search(data)


class FlowCollection:
    """A flow collection; every use gets its own copy."""

    __slots__ = ("_deep", "_value")

    def __init__(self, value: Any) -> None:
        self._value = value
        inner = value.values() if isinstance(value, dict) else value
        self._deep = any(isinstance(item, dict | list) for item in inner)

    def copy(self) -> Any:
        return deepcopy(self._value) if self._deep else self._value.copy()


def _continued(last: str, more: str) -> str:
    """Join a plain scalar and its next line. Raise at a comment in between, or a `:` that ends a key."""
    if len(last) > _MAX_CONTINUED:
        raise not_for_lines()
    more = more.rstrip(" ")
    if last[:1] in _NOT_PLAIN or " #" in last or "\t" in more or " #" in more or ": " in more or more[-1] == ":":
        raise not_for_lines()
    return f"{last.rstrip(' ')} {more}"


class OpenQuote:
    """A quoted scalar that continues on the next lines."""

    __slots__ = ("_start",)

    def __init__(self, start: str) -> None:
        self._start = start

    def read(self, text: str, at: int, reader: FlowReader) -> tuple[str, int]:
        """Return the scalar whose first line ends before `at`, and the end of its last line."""
        quoted = _QUOTED_LINES.match(text, at - 1 - len(self._start))
        if quoted is None:
            raise not_for_lines()
        read = reader(quoted.group(1).encode() + b"\n")
        if read is None or not isinstance(read[0], str):
            raise not_for_lines()
        return read[0], quoted.end()


class LiteralStart:
    """The start of a literal block scalar: `|` with or without a chomping indicator."""

    __slots__ = ("_chomping",)

    def __init__(self, chomping: str) -> None:
        self._chomping = chomping

    def read(self, text: str, at: int, level: int) -> tuple[str, int]:
        """Return the literal that begins on the line at `at` under an entry in column `level`, and where it ends."""
        block = _BLOCK.match(text, at)
        if block is None:
            raise not_for_lines()
        blank, indent = block.groups()
        width = len(indent)
        if width <= level or (blank and max(map(len, blank.split("\n"))) > width):
            raise not_for_lines()
        # Lines shorter than the indentation are empty lines.
        rows = [row[width:] for row in block.group()[:-1].split("\n")]
        last = len(rows)
        while not rows[last - 1]:
            last -= 1
        body = "\n".join(rows[:last])
        if self._chomping == "-":
            return body, block.end()
        return body + "\n" * (1 if not self._chomping else 1 + len(rows) - last), block.end()


def not_for_lines() -> YamlError:
    """The error to raise where another reader has to take over."""
    return YamlError("not for this reader", 0)
