"""A baseline: the findings that a repository accepts for now (docs/adopting.md#what-a-baseline-is).

A line has the code, the object, the places in it and the related objects. Lines of files, messages and severities are
not part of it, so a finding stays the same when text moves. A finding is accepted if a line covers it: the same code
and object, and no place and no related object that the line does not have. Each line accepts one finding.

Findings about input that cannot be read are never accepted, because what the input holds is not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from tierwall.core.catalogue import CATALOGUE
from tierwall.core.diagnostics import Diagnostic, InputError, near_miss
from tierwall.core.source import Position

BROKEN, GONE = "TW030", "TW031"
# Findings about accepted findings. To accept them too would hide that a baseline or a comment is out of date.
ABOUT_ACCEPTING = frozenset({BROKEN, GONE, "TW032", "TW033"})
_HEADER = "# What `tierwall check --baseline` leaves out: code, object, places in it, related objects."
_NOWHERE = "-"
_SPECIAL = frozenset(" ,%")
MAX_BYTES = 64 << 20
_MAX_PROBLEMS = 100


# Names a file in the same way wherever a repository is, such as relative to a folder of it.
FileNaming: TypeAlias = Callable[[str], str]


class FindingIdentity(NamedTuple):
    """A finding without its words and its line: what makes it the same finding in another state of the files."""

    code: str
    subject: str
    places: frozenset[str]
    related: frozenset[str]

    @classmethod
    def of(cls, finding: Diagnostic, naming: FileNaming = str) -> FindingIdentity:
        """Return the identity of a finding. A finding about no object is about its file."""
        file = naming(finding.at.file) if finding.at is not None else _NOWHERE
        subject = str(finding.reference) if finding.reference is not None else f"file:{file}"
        # What stands for many problems without naming them is another finding when their number changes.
        places = finding.places if finding.count == 1 or finding.related_objects else (f"{finding.count}-more",)
        return cls(finding.code, subject, frozenset(places), frozenset(finding.related_objects))

    def covers(self, other: FindingIdentity) -> bool:
        """Whether another finding is this one, or what is left of this one."""
        return self[:2] == other[:2] and self.places >= other.places and self.related >= other.related

    def __str__(self) -> str:
        places = ",".join(sorted(map(_quote, self.places))) or _NOWHERE
        return " ".join([self.code, _quote(self.subject), places, *sorted(map(_quote, self.related))])


class BaselineEntry(NamedTuple):
    """A line of a baseline, with its number. A baseline that is not a file has no line numbers."""

    identity: FindingIdentity
    line: int = 0


class BaselineSet(Struct, frozen=True):
    """Accepted findings. `name` is the file of the baseline, and `naming` says how it names other files."""

    entries: tuple[BaselineEntry, ...]
    name: str = ""
    naming: FileNaming = str

    @classmethod
    def of(cls, findings: Iterable[Diagnostic], naming: FileNaming = str) -> BaselineSet:
        """Return the baseline that accepts these findings, except those that no baseline accepts."""
        identities = (FindingIdentity.of(finding, naming) for finding in findings if is_acceptable(finding))
        return cls(tuple(map(BaselineEntry, identities)), "", naming)

    @classmethod
    def parse(cls, text: str | bytes, name: str = "baseline", naming: FileNaming = str) -> BaselineSet:
        """Parse the text of a baseline; `name` is its file. InputError has every line that is not an entry."""
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        if len(data) > MAX_BYTES:
            raise InputError([_problem(name, 1, f"the baseline is larger than {MAX_BYTES >> 20} MiB")])
        entries: list[BaselineEntry] = []
        problems: list[Diagnostic] = []
        for number, line in enumerate(data.decode("utf-8", "replace").split("\n"), 1):
            content = line.strip(" \t\r\ufeff")
            if not content or content.startswith("#"):
                continue
            identity = _parse_line(content)
            if isinstance(identity, FindingIdentity):
                entries.append(BaselineEntry(identity, number))
                continue
            problems.append(_problem(name, number, *identity))
            if len(problems) == _MAX_PROBLEMS:
                break
        if problems:
            raise InputError(problems)
        return cls(tuple(entries), name, naming)

    def __str__(self) -> str:
        lines = sorted(str(entry.identity) for entry in self.entries)
        return "".join(f"{line}\n" for line in (_HEADER, *lines))


class BaselineSearch:
    """A search for findings in a baseline. Each entry accepts one finding."""

    def __init__(self, baseline: BaselineSet) -> None:
        self._baseline = baseline
        self._left = [True] * len(baseline.entries)
        self._exact: dict[FindingIdentity, list[int]] = {}
        # The entries by each of their places: a finding has at least one of the places of the entry that covers it.
        self._by_place: dict[tuple[str, str, str], list[int]] = {}
        for number in reversed(range(len(baseline.entries))):
            identity = baseline.entries[number].identity
            self._exact.setdefault(identity, []).append(number)
            if len(identity.places) > 1 or identity.related:
                for place in identity.places or ("",):
                    self._by_place.setdefault((identity.code, identity.subject, place), []).append(number)

    def accepts(self, finding: Diagnostic) -> bool:
        """Whether an entry that is still left accepts a finding. The entry is then used up."""
        if not is_acceptable(finding):
            return False
        identity = FindingIdentity.of(finding, self._baseline.naming)
        exact = self._exact.get(identity, [])
        while exact:
            number = exact.pop()
            if self._left[number]:
                self._left[number] = False
                return True
        place = min(identity.places, default="")
        for number in reversed(self._by_place.get((identity.code, identity.subject, place), ())):
            if self._left[number] and self._baseline.entries[number].identity.covers(identity):
                self._left[number] = False
                return True
        return False

    def gone_findings(self) -> Iterator[Diagnostic]:
        """Yield a note for each line that accepted nothing."""
        for entry, left in zip(self._baseline.entries, self._left, strict=True):
            if left and entry.line:
                message = f"`{entry.identity}` no longer occurs"
                at = Position(self._baseline.name, entry.line, 1)
                yield Diagnostic(GONE, message, at, hint="remove the line, or write the baseline again")


def is_acceptable(finding: Diagnostic) -> bool:
    """Whether a baseline may accept a finding: what it is about can be read, and is not itself an accepted finding."""
    return not finding.unreadable and finding.code not in ABOUT_ACCEPTING


def entries_removed(before: BaselineSet, after: BaselineSet) -> int:
    """Count the entries of a baseline that another one no longer has."""
    then, now = (Counter(entry.identity for entry in baseline.entries) for baseline in (before, after))
    return (then - now).total()


def _parse_line(content: str) -> FindingIdentity | tuple[str, str]:
    """Return the entry of a line, or a message and a hint for a line without an entry."""
    code, *words = content.split()
    if code not in CATALOGUE:
        return f"expected a code such as TW204 at the start of the line, found `{code[:80]}`", near_miss(
            code[:80], CATALOGUE
        )
    if len(words) < 2:
        hint = "write the baseline again with --write-baseline"
        return f"expected the object and the places in it after `{code}`, found `{' '.join(words)[:80]}`", hint
    subject, places, *related = words
    named = [] if places == _NOWHERE else places.split(",")
    return FindingIdentity(code, _unquote(subject), frozenset(map(_unquote, named)), frozenset(map(_unquote, related)))


def _problem(name: str, line: int, message: str, hint: str = "") -> Diagnostic:
    return Diagnostic(BROKEN, message, Position(name, line, 1), hint=hint)


def _quote(text: str) -> str:
    """Return a text as one word: blanks, commas, `%` and everything unprintable as `%XX`."""
    if text.isascii() and text.isprintable() and not _SPECIAL.intersection(text) and text != _NOWHERE:
        return text
    return "".join(
        chr(byte) if 0x21 <= byte <= 0x7E and chr(byte) not in _SPECIAL and text != _NOWHERE else f"%{byte:02X}"
        for byte in text.encode("utf-8", "surrogatepass")
    )


def _unquote(word: str) -> str:
    if "%" not in word:
        return word
    from urllib.parse import unquote_to_bytes  # few words are quoted, and the module imports much

    return unquote_to_bytes(word).decode("utf-8", "surrogatepass" if word.isascii() else "replace")
