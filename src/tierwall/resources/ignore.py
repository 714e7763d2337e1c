"""Patterns of files to leave out, in the syntax of `.gitignore` (docs/reference/sources.md#leaving-files-out).

The last pattern that matches decides; `!` takes a file back in. A pattern with a slash before its end belongs to the
folder of its file, any other one to names at any depth. `*`, `?` and `[…]` match no slash; `**` between slashes matches
any number of folders. Names are bytes, as for git: `?` is one byte.

Patterns without wildcards are looked up, patterns that begin or end with plain bytes are found by these; only the rest
is tried one by one. Each is one regular expression without backtracking: the bytes between two wildcards are matched at
the first place where they occur, because an earlier match leaves more to match with.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec import Struct

_BOM = b"\xef\xbb\xbf"
_WILD = b"*?[\\"
_DIGITS, _LOWER, _UPPER = b"0123456789", b"abcdefghijklmnopqrstuvwxyz", b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_GRAPHIC = bytes(range(0x21, 0x7F))
_CLASSES = {
    b"alnum": _DIGITS + _LOWER + _UPPER,
    b"alpha": _LOWER + _UPPER,
    b"blank": b" \t",
    b"cntrl": bytes([*range(0x20), 0x7F]),
    b"digit": _DIGITS,
    b"graph": _GRAPHIC,
    b"lower": _LOWER,
    b"print": b" " + _GRAPHIC,
    b"punct": bytes(set(_GRAPHIC) - set(_DIGITS + _LOWER + _UPPER)),
    b"space": b" \t\n\r",
    b"upper": _UPPER,
    b"xdigit": b"0123456789abcdefABCDEF",
}
_NEVER = rb"(?!)"


class IgnoreRule(Struct, frozen=True):
    """One pattern: `glob` as written, without its marks."""

    number: int
    glob: bytes
    excludes: bool
    folders_only: bool
    by_name: bool
    is_wild: bool


class IgnoreRules:
    """The patterns of one file, or of the command line; the last one that matches decides."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._patterns: list[IgnoreRule] = []
        # By the whole of a name or path, and by what a name or path begins or ends with; numbers of patterns.
        self._exact: dict[tuple[bool, bytes], list[int]] = {}
        self._begins: dict[tuple[bool, bytes], list[int]] = {}
        self._ends: dict[tuple[bool, bytes], list[int]] = {}
        self._others: list[int] = []
        self._expressions: dict[int, re.Pattern[bytes]] = {}
        for line in lines:
            self._add(line)
        self._lengths = {
            (begins, by_name): sorted({len(text) for is_name, text in index if is_name is by_name})
            for begins, index in ((True, self._begins), (False, self._ends))
            for by_name in (True, False)
        }

    @classmethod
    def read(cls, data: bytes) -> IgnoreRules:
        """Read the patterns of a file."""
        return cls(line.removesuffix(b"\r") for line in data.removeprefix(_BOM).split(b"\n"))

    @property
    def slow(self) -> int:
        """The number of patterns that are tried one by one."""
        return len(self._others)

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def excludes(self, path: bytes, is_folder: bool) -> bool | None:
        """Tell whether a file or folder below the folder of these patterns is left out; None if no pattern matches."""
        if not self._patterns:
            return None
        name = path.rpartition(b"/")[2]
        for number in sorted(self._candidates(name, path), reverse=True):
            pattern = self._patterns[number]
            if pattern.folders_only and not is_folder:
                continue
            if self._matches(pattern, name if pattern.by_name else path):
                return pattern.excludes
        return None

    def _candidates(self, name: bytes, path: bytes) -> Iterator[int]:
        for by_name, text in ((True, name), (False, path)):
            yield from self._exact.get((by_name, text), ())
            for length in self._lengths[True, by_name]:
                yield from self._begins.get((by_name, text[:length]), ()) if length <= len(text) else ()
            for length in self._lengths[False, by_name]:
                yield from self._ends.get((by_name, text[-length:]), ()) if length <= len(text) else ()
        yield from self._others

    def _matches(self, pattern: IgnoreRule, text: bytes) -> bool:
        return self._expression(pattern).fullmatch(text) is not None if pattern.is_wild else pattern.glob == text

    def _expression(self, pattern: IgnoreRule) -> re.Pattern[bytes]:
        expression = self._expressions.get(pattern.number)
        if expression is None:
            text = _expression(pattern.glob, pattern.by_name)
            expression = self._expressions[pattern.number] = re.compile(text, re.DOTALL)
        return expression

    def _add(self, line: bytes) -> None:
        if line.startswith(b"#"):
            return
        glob = _without_trailing_spaces(line)
        excludes = not glob.startswith(b"!")
        glob = glob if excludes else glob[1:]
        folders_only = glob.endswith(b"/")
        glob = glob[:-1] if folders_only else glob
        by_name = b"/" not in glob
        glob = glob.removeprefix(b"/")
        if not glob:
            return
        number = len(self._patterns)
        wild = [at for at, byte in enumerate(glob) if byte in _WILD]
        self._patterns.append(IgnoreRule(number, glob, excludes, folders_only, by_name, bool(wild)))
        # What `**/` ends with may be the whole path, without the slash.
        ending = glob[wild[-1] + 1 :].removeprefix(b"/") if wild and glob[wild[-1]] in b"*?" else b""
        if not wild:
            self._exact.setdefault((by_name, glob), []).append(number)
        elif wild[0]:
            self._begins.setdefault((by_name, glob[: wild[0]]), []).append(number)
        elif ending:
            self._ends.setdefault((by_name, ending), []).append(number)
        else:
            self._others.append(number)


def _without_trailing_spaces(line: bytes) -> bytes:
    """Drop spaces at the end; a space after a backslash stays."""
    end = len(line.rstrip(b" "))
    backslashes = end - len(line[:end].rstrip(b"\\"))
    return line[: end + 1] if backslashes % 2 else line[:end]


def _expression(glob: bytes, by_name: bool) -> bytes:
    """Return the regular expression of a glob."""
    parts = list(_parts(glob))
    if None in parts:
        return _NEVER
    first_wild = next((at for at, byte in enumerate(glob) if byte in _WILD), len(glob))
    out, pending, after_stars = b"", b"", b""
    for index, part in enumerate(parts):
        assert part is not None
        pieces, closing = part
        is_last = index == len(parts) - 1
        plain = len(pieces)
        while plain and pieces[plain - 1] == b"*":
            plain -= 1
        # git compares what is plain at the start first: stars after it count as the start of what is left.
        if not by_name and plain + 1 < len(pieces) and (not plain or (not index and plain == first_wild)):
            out += _joined(after_stars, pending) + b"".join(pieces[:plain])
            if is_last:
                return out + b".*"
            # An escaped slash after `**` wants a folder; a plain one takes none as well.
            pending, after_stars = b"", b"(?:[^/]*/)*" if closing == b"/" else b"(?:[^/]*/)+"
            continue
        pending += _part_expression(pieces) + (b"" if is_last else b"/")
    return out + after_stars + pending


def _joined(after_stars: bytes, pending: bytes) -> bytes:
    return b"(?>" + after_stars + b"?" + pending + b")" if after_stars else pending


def _parts(glob: bytes) -> Iterator[tuple[list[bytes], bytes] | None]:
    """Yield the parts of a glob between slashes: stars and expressions of single bytes, and how the part ends.

    None stands for what can never match: a bracket that is not closed, a backslash at the end.
    """
    pieces: list[bytes] = []
    at = 0
    while at < len(glob):
        byte = glob[at : at + 1]
        at += 1
        if byte == b"\\":
            byte = glob[at : at + 1]
            at += 1
            if not byte:
                yield None
                return
            if byte == b"/":
                yield pieces, b"\\/"
                pieces = []
            else:
                pieces.append(re.escape(byte))
        elif byte == b"/":
            yield pieces, b"/"
            pieces = []
        elif byte == b"*":
            pieces.append(b"*")
        elif byte == b"?":
            pieces.append(b"[^/]")
        elif byte == b"[":
            at, members = _members(glob, at)
            if members is None:
                yield None
                return
            pieces.append(
                b"[" + b"".join(b"\\x%02x" % member for member in sorted(members)) + b"]" if members else _NEVER
            )
        else:
            pieces.append(re.escape(byte))
    yield pieces, b"/"


def _part_expression(pieces: list[bytes]) -> bytes:
    """Return the regular expression of the part of a glob between two slashes."""
    if b"*" not in pieces:
        return b"".join(pieces)
    first = pieces.index(b"*")
    last = len(pieces) - pieces[::-1].index(b"*")
    middle: list[bytes] = [b""]
    for piece in pieces[first:last]:
        if piece != b"*":
            middle[-1] += piece
        elif middle[-1]:
            middle.append(b"")
    between = b"".join(b"(?>[^/]*?" + text + b")" for text in middle if text)
    return b"".join(pieces[:first]) + between + b"[^/]*" + b"".join(pieces[last:])


def _members(part: bytes, at: int) -> tuple[int, set[int] | None]:
    """Read `[…]` from after its bracket: where it ends, and the bytes that it matches; None if it is not closed."""
    negated = part[at : at + 1] in (b"!", b"^")
    at += negated
    members: set[int] = set()
    previous: int | None = None
    first = True
    while True:
        byte = part[at : at + 1]
        if not byte:
            return at, None
        if byte == b"]" and not first:
            break
        first = False
        if byte == b"\\":
            at += 1
            byte = part[at : at + 1]
            if not byte:
                return at, None
            members.add(byte[0])
            previous = byte[0]
        elif byte == b"-" and previous is not None and part[at + 1 : at + 2] not in (b"", b"]"):
            at += 1
            if part[at : at + 1] == b"\\":
                at += 1
            last = part[at : at + 1]
            if not last:
                return at, None
            members.update(range(previous, last[0] + 1))
            previous = None
        elif byte == b"[" and part[at + 1 : at + 2] == b":":
            close = part.find(b"]", at + 2)
            if close < 0:
                return at, None
            name = part[at + 2 : close]
            if name.endswith(b":"):
                if name[:-1] not in _CLASSES:
                    return at, None
                members.update(_CLASSES[name[:-1]])
                at, previous = close, None
            else:
                members.add(byte[0])
                previous = byte[0]
        else:
            members.add(byte[0])
            previous = byte[0]
        at += 1
    if negated:
        members = set(range(256)) - members
    return at + 1, members - {ord("/")}
