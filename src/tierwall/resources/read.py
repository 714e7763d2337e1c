"""Read files, folders and standard input into documents and diagnostics.

Nothing here raises on bad input. Folders are walked recursively in the order of names. Files ending in .yaml, .yml and
.json are read; names that start with a dot are ignored. A file that is reached twice is read once. With a cache
(`resources.file_cache`) only files that have changed since the last reading are parsed.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import BinaryIO

from msgspec import Struct
from msgspec.structs import replace

from tierwall.core.diagnostics import Diagnostic, near_miss, sorted_diagnostics
from tierwall.core.source import Position
from tierwall.resources.document import Document, SourceText
from tierwall.resources.file_cache import CachedFile, FileCache, Stamp, now, reliable_stamp, stamp
from tierwall.resources.yaml.read import StreamReader

ENDINGS = (".yaml", ".yml", ".json")
STDIN_NAME = "stdin"
_PROBE = 8192


class Limits(Struct, frozen=True):
    """How much to read before giving up."""

    file_bytes: int = 256 << 20
    total_bytes: int = 1 << 30
    # Kubernetes accepts 10,000 levels; no meaningful object comes near 256.
    depth: int = 256
    files: int = 200_000


class ReadResult(Struct, frozen=True):
    """The documents in order, every diagnostic, and the source texts by file name."""

    documents: tuple[Document, ...]
    diagnostics: tuple[Diagnostic, ...]
    sources: Mapping[str, SourceText]

    def line(self, file: str, number: int) -> str | None:
        """Return a line of a file as it was read, to show it with a diagnostic."""
        source = self.sources.get(file)
        return source.line(number) if source is not None else None

    def plus(self, other: ReadResult) -> ReadResult:
        """Return this and another result as one."""
        sources = {**self.sources, **other.sources}
        return ReadResult((*self.documents, *other.documents), (*self.diagnostics, *other.diagnostics), sources)


NOTHING_READ = ReadResult((), (), {})
_DEFAULT = Limits()


def read_paths(
    paths: Iterable[str],
    stdin: BinaryIO | None = None,
    limits: Limits = _DEFAULT,
    cache: FileCache | None = None,
    exclude: Sequence[str] = (),
) -> ReadResult:
    """Read files, folders, glob patterns and `-` (standard input).

    `exclude` has patterns of files to leave out of folders: each is matched with a file's name and with its path below
    the folder. `cache` holds the files of the last reading, for further readings with the same limits.
    """
    cache = FileCache() if cache is None else cache
    reader = _Reader(limits, stdin, cache, exclude)
    for path in paths:
        reader.read(path)
    cache.files = reader.files
    return ReadResult(tuple(reader.documents), sorted_diagnostics(reader.problems), reader.sources)


def read_text(text: str | bytes, name: str = "input", limits: Limits = _DEFAULT) -> ReadResult:
    """Read a text that is already in memory."""
    source = SourceText(name, text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
    documents, problems = StreamReader(limits.depth).read(source)
    return ReadResult(tuple(documents), sorted_diagnostics(problems), {name: source})


def repeated_keys(documents: Iterable[Document]) -> Iterator[Diagnostic]:
    """Report the repeated keys of documents, which strict field validation refuses."""
    for document in documents:
        for path, position in document.repeated_keys:
            yield Diagnostic(
                "TW004",
                f"key `{path[-1]}` is repeated; only the last one counts",
                position,
                hint="remove one of them",
            )


class _Reader:
    def __init__(self, limits: Limits, stdin: BinaryIO | None, cache: FileCache, exclude: Sequence[str]) -> None:
        self.documents: list[Document] = []
        self.problems: list[Diagnostic] = []
        self.sources: dict[str, SourceText] = {}
        self.files: dict[str | None, CachedFile] = {}
        self._read_start = now()
        self._limits = limits
        self._stdin = stdin
        self._cache = cache
        self._exclude = exclude
        self._stream = StreamReader(limits.depth)
        self._seen: set[tuple[int, int]] = set()
        self._bytes_read = 0
        self._files = 0
        self._stdin_is_read = False

    def read(self, path: str) -> None:
        if path == "-":
            self._read_stdin()
        elif not os.path.lexists(path) and any(sign in path for sign in "*?["):
            from glob import glob

            matches = sorted(glob(path, recursive=True))
            for match in matches:
                self._read_existing(match, named=False)
            if not matches:
                self._refuse(path, "no file matches the pattern")
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
            self._refuse_os(path, error)
            return
        if stat.S_ISDIR(status.st_mode):
            for file in self._files_under(path):
                self._read_file(file, named=False)
        else:
            self._read_file(path, named)

    def _files_under(self, folder: str) -> Iterator[str]:
        """Yield the manifests in a folder in the order of names. Links to folders are not followed: they could loop."""
        todo = [folder]
        while todo:
            directory = todo.pop()
            try:
                with os.scandir(directory) as entries:
                    sorted_entries = sorted(entries, key=attrgetter("name"))
            except OSError as error:
                self._refuse_os(directory, error)
                continue
            folders: list[str] = []
            for entry in sorted_entries:
                if entry.name.startswith(".") or self._is_excluded(entry.path, folder):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.name.endswith(ENDINGS):
                    yield entry.path
            todo += reversed(folders)

    def _is_excluded(self, path: str, folder: str) -> bool:
        if not self._exclude:
            return False
        names = os.path.relpath(path, folder), os.path.basename(path)
        from fnmatch import fnmatchcase

        return any(fnmatchcase(name, pattern) for pattern in self._exclude for name in names)

    def _read_file(self, path: str, named: bool) -> None:
        self._files += 1
        if self._files > self._limits.files:
            if self._files == self._limits.files + 1:
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
                self.problems.append(self._too_large(path, status.st_size))
                return
            with open(path, "rb", buffering=0) as file:
                lasting = reliable_stamp(os.fstat(file.fileno()), self._read_start)
                self._take(path, path, self._bytes_of(path, file), lasting)
        except (OSError, ValueError) as error:
            self._refuse_os(path, error)

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

    def _take(self, key: str | None, name: str, data: bytes | Diagnostic, lasting: Stamp | None = None) -> None:
        if isinstance(data, Diagnostic):
            self.problems.append(data)
        elif self._fits(name, len(data)):
            known = self._cache.files.get(key)
            if known is not None and known.source.data == data:
                self._add(key, replace(known, stamp=lasting))
            else:
                source = SourceText(name, data, self._cache.locators)
                self._add(key, self._parse(source, known.documents if known is not None else (), lasting))

    def _fits(self, name: str, size: int) -> bool:
        self._bytes_read += size
        if self._bytes_read <= self._limits.total_bytes:
            return True
        self._problem("TW003", f"all files together have more than {_size(self._limits.total_bytes)}", name)
        return False

    def _parse(self, source: SourceText, known: Sequence[Document], lasting: Stamp | None) -> CachedFile:
        if problem := _binary(source):
            return CachedFile(lasting, source, (), (problem,))
        documents, problems = self._stream.read(source, known)
        return CachedFile(lasting, source, tuple(documents), tuple(problems))

    def _add(self, key: str | None, file: CachedFile) -> None:
        self.files[key] = file
        self.sources[file.source.name] = file.source
        self.documents += file.documents
        self.problems += file.problems

    def _too_large(self, path: str, size: int) -> Diagnostic:
        limit = _size(self._limits.file_bytes)
        message = f"file is too large: {_size(size)} or more, the limit is {limit}"
        return Diagnostic("TW003", message, Position(path, 1, 1))

    def _refuse_os(self, path: str, error: OSError | ValueError) -> None:
        if isinstance(error, OSError) and error.errno == errno.ENOENT:
            folder, name = os.path.split(path)
            try:
                near = near_miss(name, os.listdir(folder or "."))
            except OSError:
                near = ""
            self._problem("TW001", "there is no such file or folder", path, near)
            return
        reason = (error.strerror or "cannot be read") if isinstance(error, OSError) else str(error)
        self._refuse(path, reason.lower())

    def _refuse(self, path: str, reason: str) -> None:
        self._problem("TW001", reason, path)

    def _problem(self, code: str, message: str, path: str, hint: str = "") -> None:
        self.problems.append(Diagnostic(code, message, Position(path, 1, 1), hint=hint))


def _binary(source: SourceText) -> Diagnostic | None:
    """Return a diagnostic if the file is not UTF-8 text at all, which says more than the first parse error."""
    probe = source.data[:_PROBE]
    if probe.startswith((b"\xff\xfe", b"\xfe\xff")):
        return Diagnostic("TW005", "text is UTF-16", source.position(0), hint="save the file as UTF-8")
    at = probe.find(b"\0")
    if at < 0:
        return None
    return Diagnostic("TW005", "file is binary: it has a zero byte", source.position(at))


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
