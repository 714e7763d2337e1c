r"""RE2's patterns as trees, for languages (https://github.com/google/re2/wiki/Syntax).

Only patterns that RE2 accepts come here: what is malformed is an error of the expression before anybody asks for its
language. What a tree cannot say is `Unsupported`: flags, `\b`, Unicode classes, and anchors that are not at the ends of
a branch. `$` is the end of the text (never before a last newline), `.` is everything but a newline, and `\d`, `\w` and
`\s` are ASCII.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from tierwall.logic.unsupported import Unsupported
from tierwall.values.pattern import pattern as compiled

# Inclusive ranges of code points, in order and apart.
Ranges: TypeAlias = tuple[tuple[int, int], ...]

LAST = 0x10FFFF
# Surrogates are not characters.
EVERYTHING: Ranges = ((0, 0xD7FF), (0xE000, LAST))
_MAX_BRANCHES = 64


class CharSet(msgspec.Struct, frozen=True):
    """One character of a set."""

    ranges: Ranges


class Sequence(msgspec.Struct, frozen=True):
    """One part after another."""

    parts: tuple[Tree, ...]


class PatternChoice(msgspec.Struct, frozen=True):
    """One of some branches."""

    branches: tuple[Tree, ...]


class Repeat(msgspec.Struct, frozen=True):
    """A part so many times; `most` is None where there is no limit."""

    part: Tree
    least: int
    most: int | None


class Anchor(msgspec.Struct, frozen=True):
    """The beginning or the end of the text."""

    is_end: bool


Tree: TypeAlias = CharSet | Sequence | PatternChoice | Repeat | Anchor


class Branch(msgspec.Struct, frozen=True):
    """A way to match without anchors inside; it may have to begin or end where the text does."""

    begins: bool
    parts: tuple[Tree, ...]
    ends: bool


def union(*sets: Ranges) -> Ranges:
    """Return the characters of all sets."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(item for ranges in sets for item in ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return common(tuple(merged), EVERYTHING)


def common(left: Ranges, right: Ranges) -> Ranges:
    """Return the characters of both sets."""
    pairs = ((max(a, c), min(b, d)) for a, b in left for c, d in right)
    return tuple(sorted((low, high) for low, high in pairs if low <= high))


def without(ranges: Ranges) -> Ranges:
    """Return every other character."""
    result, start = [], 0
    for low, high in ranges:
        if start < low:
            result.append((start, low - 1))
        start = high + 1
    if start <= LAST:
        result.append((start, LAST))
    return common(tuple(result), EVERYTHING)


def _ascii(text: str) -> Ranges:
    return union(*(((ord(pair[0]), ord(pair[-1])),) for pair in text.split()))


_CLASSES = {"d": _ascii("09"), "w": _ascii("09 AZ az _"), "s": union(((9, 10),), ((12, 13),), ((32, 32),))}
_NAMED = {
    "alnum": _ascii("09 AZ az"),
    "alpha": _ascii("AZ az"),
    "ascii": ((0, 127),),
    "blank": ((9, 9), (32, 32)),
    "cntrl": ((0, 31), (127, 127)),
    "digit": _ascii("09"),
    "graph": ((33, 126),),
    "lower": _ascii("az"),
    "print": ((32, 126),),
    "punct": ((33, 47), (58, 64), (91, 96), (123, 126)),
    "space": ((9, 13), (32, 32)),
    "upper": _ascii("AZ"),
    "word": _CLASSES["w"],
    "xdigit": _ascii("09 AF af"),
}
_CONTROL = {"a": 7, "f": 12, "t": 9, "n": 10, "r": 13, "v": 11}
_DOT = without(((10, 10),))
_COUNT = compiled(r"\{([0-9]+)(?:(,)([0-9]*))?\}")
_GROUP = compiled(r"\((?:\?:|\?P?<\w+>|(?!\?))")
_HEX = compiled(r"x(?:([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]+)\})")
_NAMED_CLASS = compiled(r"\[:(\^?)(\w+):\]")


class Reader:
    """Reads one pattern."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0

    def read(self) -> Tree:
        """Return the tree of the whole pattern."""
        tree = self._choice(0)
        if self._place < len(self._text):
            raise self._unsupported(self._text[self._place])
        return tree

    def _choice(self, depth: int) -> Tree:
        if depth > 100:
            raise self._unsupported("deep nesting")
        branches = [self._sequence(depth)]
        while self._peek() == "|":
            self._place += 1
            branches.append(self._sequence(depth))
        return branches[0] if len(branches) == 1 else PatternChoice(tuple(branches))

    def _sequence(self, depth: int) -> Tree:
        parts: list[Tree] = []
        while (char := self._peek()) and char not in "|)":
            part = self._part(depth)
            while (times := self._times()) is not None:
                part = Repeat(part, *times)
            parts.append(part)
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _times(self) -> tuple[int, int | None] | None:
        char = self._peek()
        simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(char) if char else None
        if simple is not None:
            self._place += 1
        else:
            match = _COUNT.match(self._text, self._place)
            if match is None:
                return None
            self._place = match.end()
            least = int(match[1])
            simple = (least, least if not match[2] else int(match[3]) if match[3] else None)
        if self._peek() == "?":
            # Which match a lazy repetition prefers does not matter: only whether there is one.
            self._place += 1
        return simple

    def _part(self, depth: int) -> Tree:
        char = self._text[self._place]
        if char == "(":
            match = _GROUP.match(self._text, self._place)
            if match is None:
                raise self._unsupported(self._text[self._place : self._place + 4])
            self._place = match.end()
            inner = self._choice(depth + 1)
            self._place += 1
            return inner
        if char == "[":
            return CharSet(self._set())
        if char == "\\":
            return self._escape()
        self._place += 1
        if char in "^$":
            return Anchor(char == "$")
        return CharSet(_DOT if char == "." else ((ord(char), ord(char)),))

    def _escape(self) -> Tree:
        letter = self._text[self._place + 1]
        if letter in "Az":
            self._place += 2
            return Anchor(letter == "z")
        return CharSet(self._escaped())

    def _escaped(self) -> Ranges:
        """Read an escape that stands for characters."""
        letter = self._text[self._place + 1]
        if letter.lower() in _CLASSES:
            self._place += 2
            ranges = _CLASSES[letter.lower()]
            return ranges if letter.islower() else without(ranges)
        if letter in _CONTROL:
            self._place += 2
            return ((_CONTROL[letter], _CONTROL[letter]),)
        match = _HEX.match(self._text, self._place + 1)
        if match is not None:
            self._place = match.end()
            code = int(match[1] or match[2], 16)
            return common(((code, code),), EVERYTHING)
        if letter.isalnum():
            raise self._unsupported(f"\\{letter}")
        self._place += 2
        return ((ord(letter), ord(letter)),)

    def _set(self) -> Ranges:
        """Read `[…]`."""
        self._place += 1
        negated = self._peek() == "^"
        self._place += negated
        parts: list[Ranges] = []
        first = True
        while first or self._peek() != "]":
            first = False
            match = _NAMED_CLASS.match(self._text, self._place)
            if match is not None:
                self._place = match.end()
                named = _NAMED[match[2]]
                parts.append(without(named) if match[1] else named)
                continue
            low = self._member()
            is_range = self._peek() == "-" and self._text[self._place + 1 : self._place + 2] not in ("]", "")
            if is_range and len(low) == 1 and low[0][0] == low[0][1]:
                self._place += 1
                high = self._member()
                parts.append(((low[0][0], high[0][1]),))
            else:
                parts.append(low)
        self._place += 1
        return without(union(*parts)) if negated else union(*parts)

    def _member(self) -> Ranges:
        char = self._text[self._place]
        if char == "\\":
            return self._escaped()
        self._place += 1
        return ((ord(char), ord(char)),)

    def _peek(self) -> str:
        return self._text[self._place : self._place + 1]

    def _unsupported(self, what: str) -> Unsupported:
        return Unsupported(f"`{what}` in a regular expression")


def branches(tree: Tree) -> list[Branch]:
    """Return the ways to match a tree, with anchors at their ends turned into facts about the branch."""
    ways: list[Branch] = []
    waiting = [(False, _parts(tree), False)]
    while waiting:
        begins, parts, ends = waiting.pop()
        while parts and parts[0] == Anchor(False):
            begins, parts = True, parts[1:]
        while parts and parts[-1] == Anchor(True):
            ends, parts = True, parts[:-1]
        if len(waiting) + len(ways) > _MAX_BRANCHES:
            raise Unsupported("so many anchors in a regular expression")
        if parts and isinstance(parts[0], PatternChoice) and _has_anchor(parts[0]):
            waiting += [(begins, (*_parts(branch), *parts[1:]), ends) for branch in parts[0].branches]
        elif parts and isinstance(parts[-1], PatternChoice) and _has_anchor(parts[-1]):
            waiting += [(begins, (*parts[:-1], *_parts(branch)), ends) for branch in parts[-1].branches]
        elif any(map(_has_anchor, parts)):
            raise Unsupported("an anchor inside a regular expression")
        else:
            ways.append(Branch(begins, parts, ends))
    return ways


def _parts(tree: Tree) -> tuple[Tree, ...]:
    """Return the parts of a sequence, without sequences in sequences."""
    if not isinstance(tree, Sequence):
        return (tree,)
    return tuple(inner for part in tree.parts for inner in _parts(part))


def _has_anchor(tree: Tree) -> bool:
    match tree:
        case Anchor():
            return True
        case Sequence(parts=parts) | PatternChoice(branches=parts):
            return any(map(_has_anchor, parts))
        case Repeat(part=part):
            return _has_anchor(part)
        case _:
            return False
