"""Diagnostics: one per problem with the input, all reported at once, sorted by position.

At most `MAX_OF_FILE` of one file or of one object of a cluster, and `MAX_SHOWN` in all, are shown, errors first; the
rest is counted (docs/semantics.md#diagnostics-are-complete-up-to-a-bound). Where a file may have very many problems of
one sort, the last diagnostic stands for all that would not be shown (`Diagnostic.count`).

The catalogue (`core.catalogue`) has the severity, title and consequences of every code. A diagnostic is a code at a
position with a message. Messages are lower case without a final full stop and quote user input in backticks.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import msgspec

from tierwall.core.catalogue import CATALOGUE, Severity
from tierwall.core.reference import Reference
from tierwall.core.source import Position
from tierwall.core.words import with_hint
from tierwall.errors import TierwallError


class Diagnostic(msgspec.Struct, frozen=True):
    """One problem: its code, its position, what was expected, what was found, and a hint how to fix it."""

    code: str
    message: str
    at: Position | None = None
    expected: str = ""
    actual: str = ""
    hint: str = ""
    reference: Reference | None = None
    # Other positions that belong to the problem (such as the rule that shadows this one), each with a label.
    related: tuple[tuple[str, Position | None], ...] = ()
    # How many problems this stands for.
    count: int = 1
    # The places in the object that the problem is about: `ingress[0]`; several if it stands for several rules.
    places: tuple[str, ...] = ()
    # The other objects that the problem is about, all of them; `related` shows where the first few are.
    related_objects: tuple[str, ...] = ()
    # One connection that shows the problem, as in the message; empty if the problem is not about connections.
    example: str = ""

    @property
    def severity(self) -> Severity:
        """The severity of the code in the catalogue: `error`, `warning` or `note`."""
        return CATALOGUE[self.code].severity

    @property
    def unreadable(self) -> bool:
        """Whether some input could not be read, so that its content is unknown."""
        return CATALOGUE[self.code].unreadable

    @property
    def message_with_hint(self) -> str:
        """The message, followed by the hint in brackets if there is a hint."""
        return with_hint(self.message, self.hint)

    def sort_key(self) -> tuple[Position, str, str, str]:
        """Return a sort key: position, code, message. Diagnostics without a position come first."""
        return self.at or Position("", 0, 0), self.code, self.message, str(self.reference or "")


class Diagnostics(tuple[Diagnostic, ...]):
    """A tuple of diagnostics with the groups that commands ask for."""

    __slots__ = ()

    @property
    def errors(self) -> Diagnostics:
        """The errors. Input with an error is not used."""
        return Diagnostics(diagnostic for diagnostic in self if diagnostic.severity is Severity.ERROR)

    @property
    def unreadable(self) -> Diagnostics:
        """The diagnostics about input that could not be read."""
        return Diagnostics(diagnostic for diagnostic in self if diagnostic.unreadable)

    @property
    def serious(self) -> Diagnostics:
        """The errors and warnings, without the notes."""
        return self.at_least(Severity.WARNING)

    def at_least(self, severity: Severity) -> Diagnostics:
        """Return the diagnostics of this severity and of higher ones."""
        order = list(Severity)
        chosen = order[: order.index(severity) + 1]
        return Diagnostics(diagnostic for diagnostic in self if diagnostic.severity in chosen)


MAX_OF_FILE, MAX_SHOWN = 100, 1000
# The number of characters of a message that are shown.
MAX_MESSAGE = 2000
# A line says how many problems of a file are not shown, for at most this many files.
_MAX_FILES_NAMED = 20


class ShownResult(NamedTuple):
    """The diagnostics to show, by position, and how many more there are: `(file, number)`, or "" for other files."""

    diagnostics: Diagnostics
    more: tuple[tuple[str, int], ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """A line for each file with more problems than are shown."""
        return tuple(f"{file}: and {number:,} more" if file else f"and {number:,} more" for file, number in self.more)


def shown(diagnostics: Iterable[Diagnostic]) -> ShownResult:
    """Choose what to show: errors before warnings and notes.

    At most `MAX_OF_FILE` of a file, or of an object of a cluster, and `MAX_SHOWN` in all.
    """
    given = tuple([_clipped(diagnostic) for diagnostic in diagnostics])
    if len(given) <= MAX_OF_FILE and all(diagnostic.count == 1 for diagnostic in given):
        return ShownResult(Diagnostics(given))
    by_severity: dict[Severity, list[int]] = {severity: [] for severity in Severity}
    for index, diagnostic in enumerate(given):
        by_severity[diagnostic.severity].append(index)
    chosen: set[int] = set()
    of_file: Counter[str] = Counter()
    more: Counter[str] = Counter()
    for index in chain.from_iterable(by_severity.values()):
        diagnostic = given[index]
        file = place = diagnostic.at.file if diagnostic.at is not None else ""
        if diagnostic.at is not None and diagnostic.at.is_in_cluster:
            place = diagnostic.at.without_column
        if diagnostic.count == 1 and len(chosen) < MAX_SHOWN and of_file[place] < MAX_OF_FILE:
            chosen.add(index)
            of_file[place] += 1
        else:
            more[file] += diagnostic.count
    named = [(file, number) for file, number in more.most_common(_MAX_FILES_NAMED) if file]
    others = more.total() - sum(number for _, number in named)
    return ShownResult(
        Diagnostics(diagnostic for index, diagnostic in enumerate(given) if index in chosen),
        (*named, *([("", others)] if others else ())),
    )


def _clipped(diagnostic: Diagnostic) -> Diagnostic:
    """Return a diagnostic whose message quotes no more than a few lines of the input."""
    beyond = len(diagnostic.message) - MAX_MESSAGE
    if beyond <= 0:
        return diagnostic
    message = f"{diagnostic.message[:MAX_MESSAGE]}… and {beyond:,} more characters"
    return msgspec.structs.replace(diagnostic, message=message, expected="", actual="")


# A diagnostic about what policies mean, not about how they are written.
Finding: TypeAlias = Diagnostic


class InputError(TierwallError):
    """The input cannot be used; has every diagnostic that says why and, if known, the source texts."""

    def __init__(self, diagnostics: Iterable[Diagnostic], read: Any = None) -> None:
        self.diagnostics = sorted_diagnostics(diagnostics)
        self.read = read
        super().__init__("; ".join(diagnostic.message for diagnostic in self.diagnostics[:3]))

    @property
    def summary(self) -> str:
        """The messages and hints on one line."""
        chosen = shown(self.diagnostics)
        return "; ".join((*(diagnostic.message_with_hint for diagnostic in chosen.diagnostics), *chosen.lines))


class UnknownName(InputError):
    """The only problems are names that do not exist; each diagnostic hints at the nearest known name."""


NO_SUCH_NAME = "TW704"


def unknown_name_diagnostic(message: str, hint: str = "") -> Diagnostic:
    """Make a diagnostic for a name that does not exist."""
    return Diagnostic(NO_SUCH_NAME, message, hint=hint)


def input_error(problems: Iterable[Diagnostic]) -> InputError:
    """Make the exception for these problems: `UnknownName` if all are unknown names, otherwise `InputError`."""
    problems = tuple(problems)
    unknown = problems and all(problem.code == NO_SUCH_NAME for problem in problems)
    return UnknownName(problems) if unknown else InputError(problems)


def sorted_diagnostics(diagnostics: Iterable[Diagnostic]) -> Diagnostics:
    """Sort diagnostics by position and drop repeats."""
    return Diagnostics(sorted(dict.fromkeys(diagnostics), key=Diagnostic.sort_key))


def unknown_keys(code: str, given: Iterable[object], known: Iterable[str], where: str) -> list[Diagnostic]:
    """Make a diagnostic for each unknown key, with the nearest known key as hint."""
    known_keys = tuple(known)
    return [
        Diagnostic(code, f"unknown key `{key}` in {where}", hint=near_miss(str(key), known_keys))
        for key in given
        if key not in known_keys
    ]


_FEW_WORDS = 1_000
_MAX_COMPARED = 100_000
_PAUSE_SECONDS = 10.0
# Comparisons with many words since the time beside it.
_effort = [0.0, 0.0]


def _may_compare(words: int) -> bool:
    """Return whether a word may be compared with so many words, and count it."""
    if words <= _FEW_WORDS:
        return True
    now = time.monotonic()
    if now - _effort[1] > _PAUSE_SECONDS:
        _effort[:] = [0.0, now]
    _effort[0] += words
    return _effort[0] <= _MAX_COMPARED


def near_miss(word: str, known: Iterable[str], lead: str = "did you mean") -> str:
    """Return a hint with the known word nearest to `word`, or an empty string if no word is near.

    A word that differs only in case is near. Only the first 5,000 known words are compared, so that a typing mistake in
    a cluster of 100,000 pods is still reported at once. After `_MAX_COMPARED` comparisons with many words, such hints
    are left out for a while: thousands of mistakes on purpose must not cost minutes.
    """
    words = set(known)
    if not _may_compare(len(words)):
        return ""
    candidates = sorted(words)[:5000]
    folded = {candidate.lower(): candidate for candidate in reversed(candidates)}
    if word.lower() in folded:
        return f"{lead} `{folded[word.lower()]}`?"
    import difflib

    near = difflib.get_close_matches(word, candidates, n=1, cutoff=0.6)
    return f"{lead} `{near[0]}`?" if near else ""
