"""Read files, folders and standard input into documents and diagnostics.

Nothing here raises on bad input. `resources.folder` says which files of a folder are read. A file that is reached twice
is read once. With a cache (`resources.file_cache`) only files that have changed since the last reading are parsed.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import TYPE_CHECKING, BinaryIO

from msgspec import Struct
from msgspec.structs import replace

from tierwall.core.diagnostics import MAX_OF_FILE, Diagnostic, near_miss, sorted_diagnostics
from tierwall.core.source import Position, rule_place
from tierwall.resources.document import Document, SourceText
from tierwall.resources.file_cache import CachedFile, FileCache, Stamp, now, put_back, reliable_stamp, stamp
from tierwall.resources.file_reader import FileReader
from tierwall.resources.folder import FolderSearch, exclude_patterns

if TYPE_CHECKING:
    from tierwall.resources.settling import FileSettlement

STDIN_NAME = "stdin"


class Limits(Struct, frozen=True):
    """How much to read before giving up."""

    file_bytes: int = 256 << 20
    total_bytes: int = 1 << 30
    # Kubernetes accepts 10,000 levels; no meaningful object comes near 256.
    depth: int = 256
    files: int = 200_000


class ReadSettings(Struct, frozen=True):
    """Files to leave out: of folders those that match `exclude`, and with `skip_non_manifests` all without objects.

    With `plain`, documents are read as any YAML: nothing is a template, and repeated keys are never two objects.
    """

    exclude: tuple[str, ...] = ()
    skip_non_manifests: bool = False
    plain: bool = False


class ReadResult(Struct, frozen=True):
    """The documents in order, every diagnostic, and the source texts by file name.

    `files` has each file that could be read. `unread` says why files and folders could not be read, by path, and
    `absent` does so for paths that were named and do not exist. `waiting` are files that are new, or can be read again,
    and have not settled.
    """

    documents: tuple[Document, ...]
    diagnostics: tuple[Diagnostic, ...]
    sources: Mapping[str, SourceText]
    files: tuple[CachedFile, ...] = ()
    unread: Mapping[str, Diagnostic] = {}
    absent: Mapping[str, Diagnostic] = {}
    waiting: Set[str] = frozenset()
    # Links out of a given folder, which are not followed.
    leaving: tuple[str, ...] = ()

    def line(self, file: str, number: int) -> str | None:
        """Return a line of a file as it was read, to show it with a diagnostic."""
        source = self.sources.get(file)
        return source.line(number) if source is not None else None

    def naming(self) -> Callable[[str], str]:
        """Name files relative to the folder that all of them are in: alike in two states of a repository."""
        folders = {os.path.dirname(os.path.abspath(file)) for file in self.sources}
        folder = os.path.commonpath(folders) if folders else os.curdir
        return lambda file: os.path.relpath(file, folder)

    def plus(self, other: ReadResult) -> ReadResult:
        """Return this and another result as one."""
        sources = {**self.sources, **other.sources}
        return ReadResult((*self.documents, *other.documents), (*self.diagnostics, *other.diagnostics), sources)


NOTHING_READ = ReadResult((), (), {})
_DEFAULT = Limits()
_NO_SETTINGS = ReadSettings()


def read_paths(
    paths: Iterable[str],
    stdin: BinaryIO | None = None,
    limits: Limits = _DEFAULT,
    cache: FileCache | None = None,
    settings: ReadSettings = _NO_SETTINGS,
) -> ReadResult:
    """Read files, folders, glob patterns and `-` (standard input).

    `cache` holds the files of the last reading, for further readings with the same limits.
    """
    cache = FileCache() if cache is None else cache
    reader = _Reader(limits, stdin, cache, settings)
    if cache.settlement is not None:
        cache.settlement.begin()
    for path in paths:
        reader.read(path)
    if cache.settlement is not None:
        reader.hold_vanished(cache.settlement)
        cache.settlement.end()
    cache.files, cache.ignored = reader.files, reader.ignored
    return reader.result()


def read_text(text: str | bytes, name: str = "input", limits: Limits = _DEFAULT) -> ReadResult:
    """Read a text that is already in memory."""
    source = SourceText(name, text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
    file = FileReader(limits.depth).parse_text(source)
    return ReadResult(file.documents, sorted_diagnostics(file.problems), {name: source}, (file,))


def repeated_keys(documents: Iterable[Document]) -> Iterator[Diagnostic]:
    """Report the repeated keys of documents, which strict field validation refuses."""
    left: dict[SourceText, int] = {}
    surplus: dict[SourceText, Diagnostic] = {}
    for document in documents:
        if not document.repeats_keys:
            continue
        source = document.source
        before = left.get(source, MAX_OF_FILE)
        # The documents beyond the bound count once each: nobody needs the exact number.
        first, others = document.first_repeated_keys(before) if before else ((), 1)
        for path, position in first:
            yield Diagnostic(
                "TW004",
                f"key `{path[-1]}` is repeated; only the last one counts",
                position,
                hint="remove one of them",
                places=(rule_place(path),),
            )
        left[source] = before - len(first)
        if others:
            others += surplus[source].count if source in surplus else 0
            message = f"{others:,} more keys of this file are repeated"
            surplus[source] = Diagnostic("TW004", message, source.position(document.start), count=others)
    yield from surplus.values()


class _Reader:
    def __init__(self, limits: Limits, stdin: BinaryIO | None, cache: FileCache, settings: ReadSettings) -> None:
        self.files: dict[str | None, CachedFile] = {}
        self._unread: dict[str, Diagnostic] = {}
        self._absent: dict[str, Diagnostic] = {}
        self._waiting: set[str] = set()
        self._read_start = now()
        self._limits = limits
        self._stdin = stdin
        self._cache = cache
        self._exclude = exclude_patterns(settings.exclude)
        self._skips = settings.skip_non_manifests
        self.ignored: dict[str, bytes] = {}
        self._leaving: list[str] = []
        self._parser = FileReader(limits.depth, settings.skip_non_manifests, settings.plain)
        self._seen: set[tuple[int, int]] = set()
        self._bytes_read = 0
        self._files = 0
        self._stdin_is_read = False

    def result(self) -> ReadResult:
        """Return everything that was read."""
        files = tuple(self.files.values())
        problems = [*self._unread.values(), *self._absent.values()]
        for file in files:
            problems += file.problems
        return ReadResult(
            tuple([document for file in files for document in file.documents]),
            sorted_diagnostics(problems),
            {file.source.name: file.source for file in files},
            files,
            self._unread,
            self._absent,
            self._waiting,
            tuple(self._leaving),
        )

    def hold_vanished(self, settlement: FileSettlement) -> None:
        """Put files that vanished, but not long enough ago to count as removed, back where they were."""
        before = self._cache.files
        held = {
            name for name in before if name is not None and name not in self.files and settlement.waits_to_vanish(name)
        }
        if held:
            self.files = put_back(self.files, before, held)

    def read(self, path: str) -> None:
        if path == "-":
            self._read_stdin()
        elif not os.path.lexists(path) and any(sign in path for sign in "*?["):
            from glob import glob

            matches = sorted(glob(path, recursive=True))
            for match in matches:
                self._read_existing(match, named=False)
            if not matches:
                self._problem("TW001", "no file matches the pattern", path, refused=self._absent)
        else:
            self._read_existing(path, named=True)

    def _read_stdin(self) -> None:
        if self._stdin_is_read:
            return
        self._stdin_is_read = True
        unrepeatable = self._cache.unrepeatable
        if None not in unrepeatable:
            unrepeatable[None] = self._bytes_of(STDIN_NAME, self._stdin or sys.stdin.buffer)
        self._take(None, STDIN_NAME, unrepeatable[None])

    def _read_existing(self, path: str, named: bool) -> None:
        try:
            status = os.stat(path)
        except (OSError, ValueError) as error:
            self._refuse_os(path, error, self._unread if os.path.lexists(path) else self._absent)
            return
        if stat.S_ISDIR(status.st_mode):
            for file in self._files_under(path):
                self._read_file(file, named=False)
        else:
            self._read_file(path, named)

    def _files_under(self, folder: str) -> Iterator[str]:
        """Yield the files of a folder that may hold objects."""
        walk = FolderSearch(folder, self._exclude, self._refuse_folder, self._settled_patterns)
        yield from walk.files()
        self._leaving += walk.leaving

    def _refuse_folder(self, path: str, error: OSError | Diagnostic) -> None:
        if isinstance(error, Diagnostic):
            # What is below the folder is not known, so the folder counts as one that cannot be read.
            self._unread[path] = error
        else:
            self._refuse_os(path, error)

    def _settled_patterns(self, name: str, data: bytes) -> bytes | None:
        """Return the content of an ignore file that counts: as with any file, only what has settled does."""
        settlement, before = self._cache.settlement, self._cache.ignored.get(name)
        if settlement is not None and data != before:
            settled = settlement.settled(name, data, before)
            data = settled if settled is not None else before if before is not None else b""
        self.ignored[name] = data
        return data

    def _read_file(self, path: str, named: bool) -> None:
        self._files += 1
        if self._files > self._limits.files:
            # What is known of a file that is no longer read must not be taken for removed.
            if self._files == self._limits.files + 1 or path in self._cache.files:
                self._problem("TW003", f"more than {self._limits.files} files", path)
            return
        try:
            status = os.stat(path)
            place = status.st_dev, status.st_ino
            if place in self._seen or stat.S_ISDIR(status.st_mode):
                return
            self._seen.add(place)
            known = self._cache.files.get(path)
            if known is not None and known.stamp == stamp(status):
                if self._fits(path, len(known.source.data)):
                    self._add(path, known)
                return
            # A pipe is read if the user names it (`<(helm template …)`), but not if it is found in a folder.
            if named and stat.S_ISFIFO(status.st_mode):
                self._read_pipe(path, place)
                return
            if not stat.S_ISREG(status.st_mode):
                self._refuse(path, f"expected a file, found {_kind_of(status.st_mode)}")
                return
            if status.st_size > self._limits.file_bytes:
                self._unread[path] = self._too_large(path, status.st_size)
                return
            with open(path, "rb", buffering=0) as file:
                lasting = reliable_stamp(os.fstat(file.fileno()), self._read_start)
                self._take(path, path, self._bytes_of(path, file), lasting, named=named)
        except (OSError, ValueError) as error:
            if os.path.lexists(path):
                self._refuse_os(path, error)
            elif named:
                self._refuse_os(path, error, self._absent)
            # Otherwise the file was removed from its folder before it could be read.

    def _read_pipe(self, path: str, place: tuple[int, int]) -> None:
        unrepeatable = self._cache.unrepeatable
        if place not in unrepeatable:
            with open(path, "rb", buffering=0) as pipe:
                unrepeatable[place] = self._bytes_of(path, pipe)
        self._take(path, path, unrepeatable[place])

    def _bytes_of(self, name: str, file: BinaryIO) -> bytes | Diagnostic:
        """Return the contents of a file, or a diagnostic if it is too large."""
        parts: list[bytes] = []
        size = 0
        while part := file.read(1 << 20 if size < 1 << 24 else 1 << 24):
            parts.append(part)
            size += len(part)
            if size > self._limits.file_bytes:
                return self._too_large(name, size)
        return b"".join(parts)

    def _take(
        self, key: str | None, name: str, data: bytes | Diagnostic, lasting: Stamp | None = None, *, named: bool = True
    ) -> None:
        if isinstance(data, Diagnostic):
            self._unread[name] = data
        elif self._fits(name, len(data)):
            known, settlement = self._cache.files.get(key), self._cache.settlement
            before = known.source.data if known is not None else None
            if known is not None and before == data:
                self._add(key, replace(known, stamp=lasting))
                return
            if key is not None and settlement is not None:
                settled = settlement.settled(key, data, before)
                if settled is None:
                    if known is not None:
                        self._add(key, known)
                    else:
                        self._waiting.add(name)
                    return
                # If the file changes all the time, what counts may not be what it holds by now.
                data, lasting = settled, lasting if settled is data else None
            source = SourceText(name, data, self._cache.locators, is_named=named and not self._skips)
            self._add(key, self._parser.parse(source, known.documents if known is not None else (), lasting))

    def _fits(self, name: str, size: int) -> bool:
        self._bytes_read += size
        if self._bytes_read <= self._limits.total_bytes:
            return True
        self._problem("TW003", f"all files together have more than {_size(self._limits.total_bytes)}", name)
        return False

    def _add(self, key: str | None, file: CachedFile) -> None:
        self.files[key] = file

    def _too_large(self, path: str, size: int) -> Diagnostic:
        limit = _size(self._limits.file_bytes)
        message = f"file is too large: {_size(size)} or more, the limit is {limit}"
        return Diagnostic("TW003", message, Position(path, 1, 1))

    def _refuse_os(self, path: str, error: OSError | ValueError, refused: dict[str, Diagnostic] | None = None) -> None:
        if not path:
            self._problem("TW001", "the path is empty", path, "a variable of the shell may be unset", refused)
            return
        if isinstance(error, OSError) and error.errno == errno.ENOENT:
            if os.path.islink(path):
                self._problem(
                    "TW001", f"link leads to `{os.readlink(path)}`, which does not exist", path, refused=refused
                )
                return
            folder, name = os.path.split(path)
            try:
                near = near_miss(name, os.listdir(folder or "."))
            except OSError:
                near = ""
            self._problem("TW001", "there is no such file or folder", path, near, refused)
            return
        reason = (error.strerror or "cannot be read") if isinstance(error, OSError) else str(error)
        self._problem("TW001", reason.lower(), path, refused=refused)

    def _refuse(self, path: str, reason: str) -> None:
        self._problem("TW001", reason, path)

    def _problem(
        self, code: str, message: str, path: str, hint: str = "", refused: dict[str, Diagnostic] | None = None
    ) -> None:
        refused = self._unread if refused is None else refused
        refused[path] = Diagnostic(code, message, Position(path, 1, 1), hint=hint)


def _kind_of(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "a pipe"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a device"


def _size(count: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:.4g} {name}"
    return f"{count} bytes"
