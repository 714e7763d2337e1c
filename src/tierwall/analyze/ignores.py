"""Findings that the manifests themselves accept (docs/adopting.md#accept-a-finding-where-it-is).

`# tierwall: ignore TW204 why` accepts the findings of a code on its line; as a comment of its own, or behind a key
whose value begins below, on the next line with content. The annotation `tierwall.io/ignore: TW204 why` accepts those of
its object, with one entry on each line. A reason is required. An entry that cannot be used, or accepts nothing, is a
finding itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import NamedTuple

from msgspec.structs import replace

from tierwall.core.catalogue import CATALOGUE
from tierwall.core.diagnostics import Diagnostic, near_miss
from tierwall.core.reference import Reference
from tierwall.core.source import Position
from tierwall.resources.document import Document, SourceText
from tierwall.resources.snapshot import Snapshot
from tierwall.values.pattern import pattern

USELESS, NOTHING = "TW032", "TW033"
ANNOTATION = "tierwall.io/ignore"
_PATH = ("metadata", "annotations", ANNOTATION)
_MARK = b"tierwall:"
_WANTED = pattern(r"#[ \t]*tierwall:")
_ENTRY = pattern(r"[ \t]*tierwall:[ \t]*(?P<verb>[^\s:]*)[: \t]*(?P<rest>.*)")
_CODE = pattern(r"(?P<code>[^\s:]+):?(?:\s+(?P<reason>\S.*))?")
_SEPARATOR = pattern(rb"^---[ \t]+#[ \t]*(?P<text>tierwall:[^\r\n]*)", re.MULTILINE)
# Scanning takes a second per megabyte: comments of larger documents, or beyond so many bytes in all, are not read.
MAX_DOCUMENT = 8 << 20
MAX_SCANNED = 64 << 20
_MAX_REASON = 500
# The most entries that are read, of one annotation and in all. Similar codes are looked up for the first problems only.
MAX_LINES = 100
MAX_ENTRIES = 100_000
_MAX_HINTS = 100


class IgnoreEntry(NamedTuple):
    """An accepted finding: its code, the reason, and where this is written; the lines or the object that it is for."""

    code: str
    reason: str
    at: Position | None
    lines: tuple[int, ...] = ()
    reference: Reference | None = None

    @property
    def by(self) -> str:
        """The form of the entry: `comment` or `annotation`."""
        return "comment" if self.lines else "annotation"


class IgnoreIndex:
    """All entries of the manifests, by what they are for, and the problems of those that cannot be used."""

    def __init__(self, entries: Iterable[IgnoreEntry | Diagnostic]) -> None:
        self.problems: list[Diagnostic] = []
        self._entries: list[IgnoreEntry] = []
        self._used: set[int] = set()
        self._by_line: dict[tuple[str, str, int], int] = {}
        self._by_object: dict[tuple[str, Reference], int] = {}
        for entry in entries:
            if isinstance(entry, Diagnostic):
                if entry.actual and len(self.problems) < _MAX_HINTS:
                    entry = replace(entry, hint=near_miss(entry.actual, CATALOGUE))
                self.problems.append(entry)
                continue
            number = len(self._entries)
            self._entries.append(entry)
            if entry.reference is not None:
                self._by_object.setdefault((entry.code, entry.reference), number)
            elif entry.at is not None:
                for line in entry.lines:
                    self._by_line.setdefault((entry.code, entry.at.file, line), number)

    def accepting(self, finding: Diagnostic) -> IgnoreEntry | None:
        """Return the entry that accepts a finding. What cannot be read is never accepted: its content is not known."""
        if finding.unreadable:
            return None
        number = None
        if finding.at is not None:
            number = self._by_line.get((finding.code, finding.at.file, finding.at.line))
        if number is None and finding.reference is not None:
            number = self._by_object.get((finding.code, finding.reference))
        if number is None:
            return None
        self._used.add(number)
        return self._entries[number]

    def unused(self) -> Iterator[Diagnostic]:
        """Yield a note for each entry that has accepted nothing."""
        for number, entry in enumerate(self._entries):
            if number not in self._used:
                where = f"at {entry.reference}" if entry.reference is not None else "on its line"
                message = f"the {entry.by} accepts nothing: there is no {entry.code} {where}"
                hint = "remove it, or put it where the finding is"
                yield Diagnostic(NOTHING, message, entry.at, hint=hint, reference=entry.reference)


def ignores(snapshot: Snapshot, documents: Iterable[Document], sources: Mapping[str, SourceText]) -> IgnoreIndex:
    """Read the comments of files and the annotations of objects."""
    entries = chain(_annotations(snapshot), _comments(documents, sources))
    return IgnoreIndex(islice(entries, MAX_ENTRIES))


def _annotations(snapshot: Snapshot) -> Iterator[IgnoreEntry | Diagnostic]:
    for resource in snapshot:
        annotations = resource.metadata.get("annotations")
        if not isinstance(annotations, dict) or ANNOTATION not in annotations:
            continue
        value, at = annotations[ANNOTATION], resource.position(_PATH)
        lines = [line.strip() for line in str(value or "").split("\n", MAX_LINES)[:MAX_LINES]]
        for line in [line for line in lines if line] or [""]:
            yield _entry(line, f"annotation `{ANNOTATION}`", at, (), resource.reference)


def _comments(documents: Iterable[Document], sources: Mapping[str, SourceText]) -> Iterator[IgnoreEntry | Diagnostic]:
    marked = {name for name, source in sources.items() if _MARK in source.data}
    if not marked:
        return
    from tierwall.resources.yaml.comments import comments
    from tierwall.resources.yaml.read import document_text

    left = MAX_SCANNED
    # The `---` at the start of a file belongs to the document below it, all others to none.
    scanned: set[tuple[str, int]] = set()
    for document in documents:
        source, size = document.source, document.end - document.start
        if source.name not in marked or document.is_json:
            continue
        if source.data.find(_MARK, document.start, document.end) < 0:
            continue
        text = document_text(source.data, document.start, document.end)
        if not _WANTED.search(text):
            continue
        left -= size
        if size > MAX_DOCUMENT or left < 0:
            message = f"comments are not read here: the document has {size:,} bytes"
            hint = "split it, or use a baseline"
            yield Diagnostic(USELESS, message, source.position(document.start), hint=hint)
            continue
        first = source.line_at(document.start) + 1
        for comment in comments(text, _WANTED):
            line = first + comment.line
            before = comment.before.rstrip()
            lines = [line] if before else []
            if comment.next_line >= 0 and (not before or before.endswith((":", "-"))):
                lines.append(first + comment.next_line)
            scanned.add((source.name, line))
            at = Position(source.name, line, comment.column + 1)
            yield from _comment(comment.text, at, tuple(lines) or (line,))
    for name in sorted(marked):
        for match in _SEPARATOR.finditer(sources[name].data):
            line = sources[name].line_at(match.start()) + 1
            if (name, line) not in scanned:
                at = Position(name, line, match.start("text") - match.start())
                yield from _comment(match["text"].decode("utf-8", "replace"), at, (line, line + 1))


def _comment(text: str, at: Position, lines: tuple[int, ...]) -> Iterator[IgnoreEntry | Diagnostic]:
    match = _ENTRY.match(text)
    if match is None:
        return
    verb = match["verb"][:80]
    if verb == "ignore":
        yield _entry(match["rest"].strip(), "comment", at, lines, None)
    elif hint := near_miss(verb, ["ignore"]):  # Otherwise it is a sentence about Tierwall.
        yield Diagnostic(USELESS, f"expected `ignore` after `tierwall:`, found `{verb}`", at, hint=hint)


def _entry(
    text: str, where: str, at: Position | None, lines: tuple[int, ...], reference: Reference | None
) -> IgnoreEntry | Diagnostic:
    match = _CODE.fullmatch(text)
    code = match["code"] if match is not None else ""
    if code not in CATALOGUE:
        message = f"expected a code such as TW204 in the {where}, found `{text[:80]}`"
        return Diagnostic(USELESS, message, at, actual=code[:80], reference=reference)
    reason = match["reason"] if match is not None else None
    if not reason:
        message = f"expected a reason after {code} in the {where}; without it, nothing is accepted"
        return Diagnostic(USELESS, message, at, hint=f"write `{code}` and why", reference=reference)
    return IgnoreEntry(code, reason.strip()[:_MAX_REASON], at, lines, reference)
