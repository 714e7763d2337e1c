"""The choice of what counts of a file that is broken, suddenly empty or cannot be read.

The rule (docs/semantics.md#broken-files-keep-what-they-had):

* A file that cannot be read or parsed keeps the objects of its last readable version, until it parses or is removed.
* A file that is suddenly empty keeps them for `EMPTY_S`.
* If documents of a file are not objects any more, or have a kind, group or namespace that seems to be a typing mistake
  (`serve.lost_objects`), the objects of its last good version that it no longer has stay, until it is good again.
  Everything else in that file counts.
* A file that is removed counts at once. Files below a folder that cannot be read, or that vanished as a whole although
  it was named, are not removed: they stay as they were.

At the start nothing was read before. Then the copies in a state folder count (`serve.state`); without a copy the
diagnostics stay as they are, and the follower refuses to start. Later, a file that never could be read counts as
absent: nobody else waits for it.

Nothing is kept but what is in force, and for a broken file its last good version.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from tierwall.core.diagnostics import Diagnostic
from tierwall.core.source import Position
from tierwall.core.words import count_noun
from tierwall.resources.file_cache import CachedFile, put_back
from tierwall.resources.forms import OTHER
from tierwall.resources.kinds.misspelling import misspelled_kind
from tierwall.resources.kinds.served import storage_key, unserved_version
from tierwall.resources.load import DocumentResult, RetainedFile, RetainedResult
from tierwall.resources.read import ReadResult, read_text
from tierwall.resources.resource import Identity, Resource
from tierwall.serve.lost_objects import LostObjects

if TYPE_CHECKING:
    from tierwall.serve.state import StateFolder

EMPTY_S = 5.0
KEPT, FOLDER_KEPT, EMPTIED, NEVER_READ = "TW010", "TW011", "TW012", "TW013"
_SHOWN = 5

Objects = Callable[[CachedFile], RetainedFile]


class _Version(Struct):
    """The version of a file that counts.

    `read` is the file as it was read last, `good` its last version without any fault. `since` says since when the file
    is broken, `copied` of when the copy is that counts, `emptied` when the file was found empty (monotonic).
    """

    counts: RetainedFile
    read: CachedFile | None = None
    good: RetainedFile | None = None
    since: str = ""
    copied: str = ""
    emptied: float | None = None
    was_read: bool = True


class Retention:
    """Chooses what counts of each file, reading by reading. `roots` are the paths that the user named."""

    def __init__(
        self,
        roots: Iterable[str],
        state: StateFolder | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._roots = frozenset(roots)
        self._state = state
        self._clock = clock
        self._versions: dict[str, _Version] = {}
        self._is_first = True
        # Since when each path that cannot be read cannot be read.
        self._unread_since: dict[str, str] = {}

    @property
    def due(self) -> float | None:
        """The time of the clock when an empty file will count as empty."""
        times = [version.emptied + EMPTY_S for version in self._versions.values() if version.emptied is not None]
        return min(times, default=None)

    def retain(self, read: ReadResult, objects: Objects) -> RetainedResult:
        """Return the files that count; `objects` has the objects of a file as it is."""
        currents: dict[str, tuple[CachedFile, RetainedFile]] = {}
        for file in read.files:
            name = file.source.name
            # Standard input may have the name of a file.
            currents[name if name not in currents else f"{name}\0"] = file, objects(file)
        before = self._versions
        if self._is_first and self._state is not None:
            before = self._copies(self._state, read, currents, objects)
        versions = {name: self._version(*current, before.get(name)) for name, current in currents.items()}
        kept = {}
        if read.unread or read.absent or read.waiting:
            kept = {name: path for name in before if name not in versions and (path := _unread_above(name, read))}
            versions = put_back(versions, before, kept)
        problems, lost = self._unread_problems(read, before, kept)
        files = [version.counts for version in versions.values()]
        if self._state is not None and not any(problem.unreadable for problem in _all_problems(files, problems)):
            problems += self._state.save(
                {
                    name: version.read.source
                    for name, version in versions.items()
                    if version.counts is version.good and version.read
                },
                versions.keys(),
            )
        self._versions, self._is_first = versions, False
        return RetainedResult(files, problems, lost)

    def _version(self, file: CachedFile, current: RetainedFile, before: _Version | None) -> _Version:
        if (
            before is not None
            and before.emptied is None
            and before.read is not None
            and before.read.source is file.source
        ):
            # The usual case: nothing has changed.
            before.read = file
            return before
        if before is not None and not before.was_read:
            before = None
        if current.form and before is not None and not _is_empty(before.counts):
            problem = Diagnostic("TW002", f"file is a {current.form} now", Position(current.name, 1, 1))
            current = RetainedFile(current.name, (), (problem,))
        if any(problem.unreadable for problem in current.problems):
            return self._unreadable(file, current, before)
        if before is None:
            return _Version(current, file, current if _is_good(current) else None)
        if _is_empty(current) and not _is_empty(before.counts):
            since, emptied = (_now(), self._clock()) if before.emptied is None else (before.since, before.emptied)
            if self._clock() < emptied + EMPTY_S:
                message = f"file is empty since {since}; what was in it counts for {EMPTY_S:g} seconds more"
                problem = Diagnostic(
                    EMPTIED, message, Position(current.name, 1, 1), hint="remove the file if it is meant"
                )
                counts = RetainedFile(current.name, _without_problems(before.counts), (problem,))
                return _Version(counts, file, before.good, since, before.copied, emptied)
        missing = _missing(current, before.good)
        if not missing:
            return _Version(current, file, current if _is_good(current) else before.good)
        since = before.since if before.since and before.emptied is None else _now()
        problem = _missing_problem(current, missing, before.copied or since)
        counts = RetainedFile(current.name, (*current.documents, *missing), (*current.problems, problem))
        return _Version(counts, file, before.good, since, before.copied)

    def _unreadable(self, file: CachedFile, current: RetainedFile, before: _Version | None) -> _Version:
        """Return the version that counts of a file that cannot be parsed."""
        if before is None:
            problems = current.problems if self._is_first else tuple(map(_never_read, current.problems))
            return _Version(RetainedFile(current.name, (), problems), file, was_read=False)
        since = before.since if before.since and before.emptied is None else _now()
        problems = tuple(_kept(problem, since, before.copied) for problem in current.problems)
        counts = RetainedFile(current.name, _without_problems(before.counts), problems)
        return _Version(counts, file, before.good, since, before.copied)

    def _copies(
        self,
        state: StateFolder,
        read: ReadResult,
        currents: Mapping[str, tuple[CachedFile, RetainedFile]],
        objects: Objects,
    ) -> dict[str, _Version]:
        """Return the copies of files that have changed, and of those that cannot be read."""
        changed = [name for name, (file, _) in currents.items() if not state.has(name, file.source.data)]
        # A folder that was named must be there: nobody knows what else it holds by now.
        unread = [path for path in read.unread if path not in self._roots]
        below = [name for path in unread for name in state.names_from(path) if name not in currents]
        copies = {}
        for name in (*changed, *below):
            copy = state.copy(name)
            text = read_text(copy.data, name) if copy is not None else None
            if copy is not None and text is not None and not text.diagnostics:
                counts = objects(text.files[0])
                copies[name] = _Version(counts, None, counts, copied=copy.time)
        return copies

    def _unread_problems(
        self, read: ReadResult, before: Mapping[str, _Version], kept: Mapping[str, str]
    ) -> tuple[list[Diagnostic], tuple[Diagnostic, ...]]:
        """Return what is to be said about paths that cannot be read, and the part that is about whole named folders."""
        problems, lost = [], []
        since = {path: self._unread_since.get(path) or _now() for path in (*read.unread, *read.absent)}
        self._unread_since = since
        for path, problem in (*read.unread.items(), *read.absent.items()):
            files = sum(folder == path for folder in kept.values())
            if kept.get(path) == path:
                problems.append(_kept(problem, since[path], before[path].copied))
            elif files or (not self._is_first and path in self._roots and path not in read.absent):
                counted = (
                    f"{count_noun(files, 'file')} below it counts" if files == 1 else f"{files} files below it count"
                )
                message = f"{problem.message}; since {since[path]} the {counted} as last read"
                problems.append(replace(problem, code=FOLDER_KEPT, message=message))
                if path in self._roots:
                    lost.append(problems[-1])
            elif self._is_first:
                problems.append(problem)
            elif path in read.absent:
                problems.append(replace(problem, code=NEVER_READ, message=f"{problem.message}; it counts as removed"))
            else:
                problems.append(_never_read(problem))
        return problems, tuple(lost)


def _all_problems(files: Sequence[RetainedFile], problems: Sequence[Diagnostic]) -> Iterator[Diagnostic]:
    yield from problems
    for file in files:
        yield from file.problems


def _unread_above(name: str, read: ReadResult) -> str | None:
    """Return the path for which a file is not read: the file itself, or a folder above it.

    A file that can be read again, and has not settled, is not read either.
    """
    if name in read.unread or name in read.waiting:
        return name
    return next((path for path in (*read.unread, *read.absent) if _is_below(name, path)), None)


def _is_below(name: str, folder: str) -> bool:
    return name.startswith(folder if folder.endswith("/") else f"{folder}/")


def _is_good(file: RetainedFile) -> bool:
    # A document of no known form may have been an object.
    return not any(document.failures or document.form == OTHER for document in file.documents)


def _is_empty(file: RetainedFile) -> bool:
    """Tell whether nothing is in a file: no document, or only lists without items."""
    return not any(document.resources or document.failure_count or document.form for document in file.documents)


def _is_faulty(document: DocumentResult, known: Set[Identity]) -> bool:
    """Tell whether something in a document may have been an object: no object, or without name, version or kind."""
    return bool(document.failures or document.form == OTHER) or any(
        _identity(resource) not in known and (not resource.name or not resource.version or _is_misspelled(resource))
        for resource in document.resources
    )


def _form_count(file: RetainedFile) -> int:
    return sum(document.form_count for document in file.documents if document.form)


def _is_misspelled(resource: Resource) -> bool:
    unserved = unserved_version(resource.api_version, resource.kind)
    return unserved is not None or misspelled_kind(resource.group, resource.kind) is not None


def _identity(resource: Resource) -> Identity:
    """Return the identity of an object, by which a policy in a version that is not served is another object."""
    return *storage_key(resource.group, resource.version, resource.kind), resource.namespace, resource.name


def _missing(current: RetainedFile, good: RetainedFile | None) -> tuple[DocumentResult, ...]:
    """Return what the last good version of a file had and it has no longer, if something in it may have been that."""
    if good is None:
        return ()
    known = {_identity(resource) for document in good.documents for resource in document.resources}
    present = {_identity(resource) for document in current.documents for resource in document.resources}
    if known <= present:
        return ()
    lost = LostObjects(current, known)
    # An object that loses `apiVersion` and `kind` looks like any other document.
    is_faulty = _form_count(current) > _form_count(good) or any(
        _is_faulty(document, known) for document in current.documents
    )
    return tuple(
        DocumentResult(document.document, left)
        for document in good.documents
        if (
            left := tuple(
                [
                    resource
                    for resource in document.resources
                    if _identity(resource) not in present and (is_faulty or lost.may_be(resource))
                ]
            )
        )
    )


def _missing_problem(current: RetainedFile, missing: Sequence[DocumentResult], since: str) -> Diagnostic:
    objects = [str(resource.reference) for document in missing for resource in document.resources]
    shown = ", ".join(objects[:_SHOWN]) + (f" and {len(objects) - _SHOWN:,} more" if len(objects) > _SHOWN else "")
    message = f"some documents are not the objects that they were; since {since} the file keeps what it had: {shown}"
    return Diagnostic(KEPT, message, Position(current.name, 1, 1), hint="mend the documents, or remove them")


def _without_problems(file: RetainedFile) -> tuple[DocumentResult, ...]:
    return tuple([DocumentResult(content.document, content.resources) for content in file.documents])


def _kept(problem: Diagnostic, since: str, copied: str) -> Diagnostic:
    which = f"its copy of {copied} counts" if copied else f"since {since} its last readable version counts"
    return replace(problem, code=KEPT, message=f"{problem.message}; {which}")


def _never_read(problem: Diagnostic) -> Diagnostic:
    return replace(problem, code=NEVER_READ, message=f"{problem.message}; nothing in it counts until it can be read")


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
