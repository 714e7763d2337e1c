"""Languages of strings, and the regions into which several of them cut all strings.

A test on a string (equal to a constant, prefix, suffix, part, pattern, size) is a language. Many tests on one string
matter only by which of them hold, so the walk through the product of their derivatives (Brzozowski), over the classes
of characters that no test tells apart, finds every combination that some string has: the regions, each with its
shortest strings. The product has a limit: `contains` on one string multiplies states.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple

import msgspec

from tierwall.logic.cel.pattern import (
    EVERYTHING,
    CharSet,
    PatternChoice,
    Ranges,
    Reader,
    Repeat,
    Sequence,
    Tree,
    branches,
    common,
    union,
    without,
)
from tierwall.logic.unsupported import Unsupported, WorldLimit

MAX_STATES = 2_000
MAX_TERMS = 50_000
# Parts of unions that are looked at: counts such as `a{1000}` after `.*` make unions as long as the count.
MAX_WORK = 500_000
# What a witness should be made of, the most readable first.
_READABLE = "abcdefghijklmnopqrstuvwxyz0123456789-./:_ABCDEFGHIJKLMNOPQRSTUVWXYZ @=,;+*~!#$%&()[]{}<>?^|'`\"\\"
_RANK = {char: rank for rank, char in enumerate(_READABLE)}

NOTHING, EMPTY = 0, 1
# `#` and `?`.
_QUERY: Ranges = ((35, 35), (63, 63))


class StringView(Enum):
    """A part or form of a string: in small letters, in capitals, or the path of a URL without query and fragment."""

    LOWER = "lowerAscii"
    UPPER = "upperAscii"
    URL_PATH = "url_path"


class Region(msgspec.Struct, frozen=True):
    """Strings that pass the same tests: which, and the shortest of them.

    `is_complete` says that it has no other members than these.
    """

    passes: tuple[bool, ...]
    members: tuple[str, ...]
    is_complete: bool


class Term(NamedTuple):
    """A language in terms of others, which are numbers.

    kind: `nothing`, `empty` (the empty string alone), `chars` (one of `ranges`), `after` (the second of `parts` after
    the first), `any` (of `parts`), `star` (of the only part) and `repeat` (of the only part, `least` to `most` times).
    """

    kind: str
    parts: tuple[int, ...] = ()
    ranges: Ranges = ()
    least: int = 0
    most: int | None = None


class Languages:
    """A table of languages. Each is a number; equal ones have the same number as far as simple rules tell."""

    def __init__(self, effort: float = 1.0) -> None:
        # A share of the limits, for questions that somebody waits for.
        self._effort = effort
        self._numbers: dict[Term, int] = {}
        self._terms: list[Term] = []
        # Whether the empty string is a member.
        self._nullable: list[bool] = []
        self._derivatives: dict[tuple[int, int], int] = {}
        self._constants: dict[str, int] = {}
        # The strings of languages that are made of constants.
        self._finite: dict[int, tuple[str, ...]] = {}
        self._work = 0
        self._patterns: dict[tuple[str, bool], int] = {}
        self._make(Term("nothing"), False)
        self._make(Term("empty"), True)
        self.anything = self._star(self._chars(EVERYTHING))

    @property
    def size(self) -> int:
        """How much was asked for: what the limits are about."""
        return self._work + len(self._terms)

    def constant(self, text: str) -> int:
        """Return the language of one string."""
        if text not in self._constants:
            language = self._constants[text] = self._text_then(text, EMPTY)
            self._finite[language] = (text,)
        return self._constants[text]

    def one_of(self, texts: Iterable[str]) -> int:
        """Return the language of these strings."""
        known = tuple(dict.fromkeys(texts))
        language = self.any_of(map(self.constant, known))
        self._finite.setdefault(language, known)
        return language

    def texts(self, language: int) -> tuple[str, ...] | None:
        """Return the strings of a language that was made of constants; None of others."""
        return self._finite.get(language)

    def starting_with(self, prefix: str) -> int:
        """Return the strings with a prefix."""
        return self._text_then(prefix, self.anything)

    def ending_with(self, suffix: str) -> int:
        """Return the strings with a suffix."""
        return self._after(self.anything, self.constant(suffix))

    def containing(self, part: str) -> int:
        """Return the strings with a part."""
        return self._after(self.anything, self.starting_with(part))

    def at_most(self, size: int) -> int:
        """Return the strings of at most so many characters."""
        return NOTHING if size < 0 else self._repeat(self._chars(EVERYTHING), 0, size)

    def matching(self, text: str, *, whole: bool = False) -> int:
        """Return the strings in which a pattern matches somewhere, or which it matches as a whole."""
        key = text, whole
        if key not in self._patterns:
            self._patterns[key] = self._matching(text, whole)
        return self._patterns[key]

    def _matching(self, text: str, whole: bool) -> int:
        ways = []
        for branch in branches(Reader(text).read()):
            language = self._sequence(branch.parts)
            if not (whole or branch.ends):
                language = self._after(language, self.anything)
            if not (whole or branch.begins):
                language = self._after(self.anything, language)
            ways.append(language)
        return self.any_of(ways)

    def before(self, language: int, view: StringView) -> int:
        """Return the strings whose view is in the language."""
        if view is StringView.URL_PATH:
            query = self._after(self._chars(_QUERY), self.anything)
            return self._after(self._seen(language, view), self.any_of((EMPTY, query)))
        return self._seen(language, view)

    def _seen(self, language: int, view: StringView) -> int:
        term = self._terms[language]
        inner = [self._seen(part, view) for part in term.parts]
        match term.kind:
            case "chars":
                return self._chars(_before(term.ranges, view))
            case "after":
                return self._after(inner[0], inner[1])
            case "any":
                return self.any_of(inner)
            case "star":
                return self._star(inner[0])
            case "repeat":
                return self._repeat(inner[0], term.least, term.most)
        return language

    def has(self, language: int, text: str) -> bool:
        """Whether a string is a member."""
        for char in text:
            language = self._derive(language, ord(char))
        return self._nullable[language]

    def regions(self, tests: list[int], count: int = 1) -> list[Region]:
        """Return every combination of tests that some string passes, with up to `count` of its shortest members."""
        classes = self._classes(tests, count)
        # A state has the tests that can still pass: most constants are out after a character.
        start = tuple((place, language) for place, language in enumerate(tests) if language != NOTHING)
        visits: dict[tuple[tuple[int, int], ...], int] = {start: 1}
        members: dict[tuple[bool, ...], list[str]] = {}
        derive = self._derive
        # The shortest `count` strings that lead to a state suffice: what they lead to is found through them.
        waiting: deque[tuple[str, tuple[tuple[int, int], ...]]] = deque([("", start)])
        while waiting:
            text, state = waiting.popleft()
            passed = {place for place, language in state if self._nullable[language]}
            shortest = members.setdefault(tuple([place in passed for place in range(len(tests))]), [])
            if len(shortest) < count:
                shortest.append(text)
            for chars in classes:
                code = ord(chars[0])
                steps = [(place, derive(language, code)) for place, language in state]
                after = tuple([step for step in steps if step[1] != NOTHING])
                for char in chars:
                    seen = visits.get(after, 0)
                    if seen >= count:
                        break
                    visits[after] = seen + 1
                    waiting.append((text + char, after))
            if len(visits) > MAX_STATES * self._effort:
                raise Unsupported("so many tests on one string")
        return [Region(passes, tuple(shortest), len(shortest) < count) for passes, shortest in members.items()]

    def _classes(self, tests: list[int], count: int) -> list[str]:
        """Return some characters of each class that no test tells apart, the most readable first."""
        sets = sorted({ranges for test in tests for ranges in self._sets(test)})
        starts = sorted(
            {0, *(edge for ranges in (*sets, EVERYTHING) for low, high in ranges for edge in (low, high + 1))}
        )
        pieces: dict[tuple[bool, ...], list[tuple[int, int]]] = {}
        for low, after in zip(starts, [*starts[1:], EVERYTHING[-1][1] + 1], strict=True):
            if low < after and any(first <= low <= last for first, last in EVERYTHING):
                told = tuple(any(first <= low <= last for first, last in ranges) for ranges in sets)
                pieces.setdefault(told, []).append((low, after - 1))
        classes = ["".join(_some(ranges, count)) for ranges in pieces.values()]
        return sorted(classes, key=lambda chars: (_RANK.get(chars[0], len(_RANK)), chars))

    def _sets(self, language: int) -> Iterator[Ranges]:
        seen, waiting = {language}, [language]
        while waiting:
            term = self._terms[waiting.pop()]
            if term.ranges:
                yield term.ranges
            waiting += (part for part in term.parts if part not in seen)
            seen.update(term.parts)

    def _derive(self, language: int, code: int) -> int:
        """Return what may follow this character."""
        key = language, code
        known = self._derivatives.get(key)
        if known is None:
            known = self._derivatives[key] = self._derived(language, code)
        return known

    def _derived(self, language: int, code: int) -> int:
        term = self._terms[language]
        match term.kind:
            case "chars":
                return EMPTY if any(low <= code <= high for low, high in term.ranges) else NOTHING
            case "after":
                first, second = term.parts
                derived = self._after(self._derive(first, code), second)
                if not self._nullable[first]:
                    return derived
                return self.any_of((derived, self._derive(second, code)))
            case "any":
                return self.any_of([self._derive(part, code) for part in term.parts])
            case "star":
                return self._after(self._derive(term.parts[0], code), language)
            case "repeat":
                (part,) = term.parts
                fewer = self._repeat(part, max(term.least - 1, 0), None if term.most is None else term.most - 1)
                return self._after(self._derive(part, code), fewer)
        return NOTHING

    def _text_then(self, text: str, language: int) -> int:
        for char in reversed(text):
            language = self._after(self._chars(((ord(char), ord(char)),)), language)
        return language

    def _tree(self, tree: Tree) -> int:
        match tree:
            case CharSet(ranges=ranges):
                return self._chars(ranges)
            case Sequence(parts=parts):
                return self._sequence(parts)
            case PatternChoice(branches=parts):
                return self.any_of(map(self._tree, parts))
            case Repeat(part=part, least=least, most=most):
                return self._repeat(self._tree(part), least, most)
        raise AssertionError("anchors are gone by now")

    def _sequence(self, parts: tuple[Tree, ...]) -> int:
        language = EMPTY
        for part in reversed(parts):
            language = self._after(self._tree(part), language)
        return language

    def _chars(self, ranges: Ranges) -> int:
        return self._make(Term("chars", ranges=ranges), False) if ranges else NOTHING

    def _after(self, first: int, second: int) -> int:
        """Return the strings of the first language with one of the second after it."""
        if first == NOTHING or second == NOTHING:
            return NOTHING
        if first == EMPTY or second == EMPTY:
            return first if second == EMPTY else second
        term = self._terms[first]
        if term.kind == "after":
            return self._after(term.parts[0], self._after(term.parts[1], second))
        if first == second and term.kind == "star":
            return first
        return self._make(Term("after", (first, second)), self._nullable[first] and self._nullable[second])

    def any_of(self, languages: Iterable[int]) -> int:
        """Return the strings of some languages."""
        parts: set[int] = set()
        for language in languages:
            term = self._terms[language]
            parts.update(term.parts if term.kind == "any" else (language,))
        self._work += len(parts)
        if self._work > MAX_WORK * self._effort:
            raise WorldLimit("so large a regular expression")
        parts.discard(NOTHING)
        if self.anything in parts:
            return self.anything
        sets = [part for part in parts if self._terms[part].ranges]
        if len(sets) > 1:
            parts.difference_update(sets)
            parts.add(self._chars(union(*(self._terms[part].ranges for part in sets))))
        if len(parts) < 2:
            return parts.pop() if parts else NOTHING
        return self._make(Term("any", tuple(sorted(parts))), any(self._nullable[part] for part in parts))

    def _star(self, part: int) -> int:
        if part in (NOTHING, EMPTY):
            return EMPTY
        return part if self._terms[part].kind == "star" else self._make(Term("star", (part,)), True)

    def _repeat(self, part: int, least: int, most: int | None) -> int:
        if most == 0 or part == EMPTY:
            return EMPTY
        if part == NOTHING:
            return EMPTY if least == 0 else NOTHING
        if (least, most) == (1, 1):
            return part
        if least == 0 and most is None:
            return self._star(part)
        return self._make(Term("repeat", (part,), (), least, most), least == 0 or self._nullable[part])

    def _make(self, term: Term, nullable: bool) -> int:
        number = self._numbers.get(term)
        if number is None:
            if len(self._terms) >= MAX_TERMS * self._effort:
                raise WorldLimit("so large a regular expression")
            number = self._numbers[term] = len(self._terms)
            self._terms.append(term)
            self._nullable.append(nullable)
        return number


def by_simplicity(text: str) -> tuple[int, list[int]]:
    """Return a key that sorts strings: short ones first, and the more readable of them."""
    return len(text), [_RANK.get(char, len(_RANK) + ord(char)) for char in text]


def seen(text: str, view: StringView) -> str:
    """Return a string in a view."""
    if view is StringView.URL_PATH:
        return text.partition("#")[0].partition("?")[0]
    change = str.lower if view is StringView.LOWER else str.upper
    return "".join(change(char) if char.isascii() else char for char in text)


def _some(ranges: list[tuple[int, int]], count: int) -> list[str]:
    """Return up to `count` characters, the most readable first."""
    chosen = [char for char in _READABLE if any(low <= ord(char) <= high for low, high in ranges)][:count]
    for low, high in ranges:
        for code in range(low, high + 1):
            if len(chosen) >= count:
                return chosen
            if chr(code) not in _RANK:
                chosen.append(chr(code))
    return chosen


def _before(ranges: Ranges, view: StringView) -> Ranges:
    """Return the characters that a view makes members of a set."""
    if view is StringView.URL_PATH:
        return common(ranges, without(_QUERY))
    changed, target, shift = ((65, 90), (97, 122), 32) if view is StringView.LOWER else ((97, 122), (65, 90), -32)
    kept: list[tuple[int, int]] = []
    for low, high in ranges:
        kept += [(low, min(high, changed[0] - 1)), (max(low, changed[1] + 1), high)]
        kept.append((max(low, target[0]) - shift, min(high, target[1]) - shift))
    return union(tuple((low, high) for low, high in kept if low <= high))
