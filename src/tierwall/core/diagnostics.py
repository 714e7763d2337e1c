"""What is wrong with the input: one diagnostic a problem, all of them at once, sorted by place.

The catalogue (`core.catalogue`) holds every code with its severity, its title and what follows from it; a diagnostic is
a code at a place with the words for this case. Messages are lower case without a final period; user text stands in
backticks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec

from tierwall.core.catalogue import CATALOGUE, Severity
from tierwall.core.reference import Reference
from tierwall.core.source import Position
from tierwall.core.words import with_hint
from tierwall.errors import TierwallError


class Diagnostic(msgspec.Struct, frozen=True):
    """One problem: its code, where it is, what was expected and found, and a hint for mending it."""

    code: str
    message: str
    at: Position | None = None
    expected: str = ""
    actual: str = ""
    hint: str = ""
    reference: Reference | None = None
    # Other places that belong to the finding (the rule that shadows this one, say), with a word on each.
    related: tuple[tuple[str, Position | None], ...] = ()

    @property
    def severity(self) -> Severity:
        """`error`, `warning` or `note`, as the catalogue says for this code."""
        return CATALOGUE[self.code].severity

    @property
    def unreadable(self) -> bool:
        """Whether something that was to be read was not, so that nobody knows what it says."""
        return CATALOGUE[self.code].unreadable

    @property
    def message_with_hint(self) -> str:
        """The message, and the hint in brackets if there is one."""
        return with_hint(self.message, self.hint)

    def sort_key(self) -> tuple[str, int, int, str, str, str]:
        """By place, then code, then words; what has no place comes first."""
        place = self.at or Position("", 0, 0)
        return place.file, place.line, place.column, self.code, self.message, str(self.reference or "")


class Diagnostics(tuple[Diagnostic, ...]):
    """Several diagnostics, and what they mean together; the catalogue says what each code means."""

    __slots__ = ()

    @property
    def errors(self) -> Diagnostics:
        """Those that are errors: nothing is done with input that has one."""
        return Diagnostics(diagnostic for diagnostic in self if diagnostic.severity is Severity.ERROR)

    @property
    def unreadable(self) -> Diagnostics:
        """Those that say that something was not read."""
        return Diagnostics(diagnostic for diagnostic in self if diagnostic.unreadable)

    @property
    def serious(self) -> Diagnostics:
        """Errors and warnings, without the notes."""
        return Diagnostics(diagnostic for diagnostic in self if diagnostic.severity is not Severity.NOTE)


# A diagnostic that is about what policies mean rather than about how they are written.
Finding: TypeAlias = Diagnostic


class InputError(TierwallError):
    """The input cannot be used; carries every diagnostic that says why, and the texts that they point into if known."""

    def __init__(self, diagnostics: Iterable[Diagnostic], read: Any = None) -> None:
        self.diagnostics = sorted_diagnostics(diagnostics)
        self.read = read
        super().__init__("; ".join(diagnostic.message for diagnostic in self.diagnostics[:3]))

    @property
    def summary(self) -> str:
        """Everything on one line, hints included."""
        return "; ".join(diagnostic.message_with_hint for diagnostic in self.diagnostics)


class UnknownName(InputError):
    """Nothing is wrong but names that do not exist; each diagnostic hints at the nearest that does."""


NO_SUCH_NAME = "TW704"


def unknown_name_diagnostic(message: str, hint: str = "") -> Diagnostic:
    """A problem with a name that does not exist."""
    return Diagnostic(NO_SUCH_NAME, message, hint=hint)


def input_error(problems: Iterable[Diagnostic]) -> InputError:
    """What to raise for these problems: `UnknownName` if each is a name that does not exist, else `InputError`."""
    problems = tuple(problems)
    unknown = problems and all(problem.code == NO_SUCH_NAME for problem in problems)
    return UnknownName(problems) if unknown else InputError(problems)


def sorted_diagnostics(diagnostics: Iterable[Diagnostic]) -> Diagnostics:
    """Sorted by place, repeats dropped."""
    return Diagnostics(sorted(dict.fromkeys(diagnostics), key=Diagnostic.sort_key))


def unknown_keys(code: str, given: Iterable[object], known: Iterable[str], where: str) -> list[Diagnostic]:
    """A problem for each key that is not known, with the nearest that is."""
    words = tuple(known)
    return [
        Diagnostic(code, f"unknown key `{key}` in {where}", hint=near_miss(str(key), words))
        for key in given
        if key not in words
    ]


def near_miss(word: str, known: Iterable[str], lead: str = "did you mean") -> str:
    """A hint naming the known word nearest to `word`, or nothing if none is near.

    Letters of the other case count as near; only the first 5,000 known words are looked at, so that a typing mistake in
    a cluster of 100,000 pods is still answered at once.
    """
    candidates = sorted(set(known))[:5000]
    folded = {candidate.lower(): candidate for candidate in reversed(candidates)}
    if word.lower() in folded:
        return f"{lead} `{folded[word.lower()]}`?"
    import difflib

    near = difflib.get_close_matches(word, candidates, n=1, cutoff=0.6)
    return f"{lead} `{near[0]}`?" if near else ""
