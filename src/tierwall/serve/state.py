"""The state folder: the last good copy of each file, for a start that finds a file broken (`--state FOLDER`).

An entry is one file: a line of JSON that names the copied file, its time and the digest of its bytes, then the bytes.
It is written to a temporary file, brought to disk and renamed, so a crash at any moment leaves the old entry or the new
one. Entries of removed files are dropped, so the folder is never larger than the files themselves.

Copies decide what is in force, so nobody else may write them: the folder belongs to the user of this process and nobody
else can write there, entries are regular files under the same rule, and links are not followed. Copies may have keys in
them, so only the user can read them (folder 0700, entries 0600). A lock keeps a second process out: it would drop the
entries of the first.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Set
from typing import BinaryIO, NamedTuple

from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.resources.document import SourceText
from tierwall.resources.read import Limits

STATE_FOLDER = "TW014"
_ENDING, _TEMPORARY, _LOCK = ".copy", ".new", "lock"
_MAX_HEAD = 1 << 16
# From this number of entries on, one `sync` of all file systems takes less time than one for each entry.
_MANY = 32
_NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC


class StateEntry(NamedTuple):
    """The head of an entry: the digest of the copied bytes, and when they were copied."""

    digest: str
    time: str


class CopiedFile(NamedTuple):
    """The copy of a file, and when it was made."""

    data: bytes
    time: str


class StateFolder:
    """The copies of the files of one source, by absolute path; InputError if the folder cannot be used."""

    def __init__(self, path: str) -> None:
        self._path = path
        # The text that each entry was written from, to skip files that have not changed.
        self._saved: dict[str, SourceText] = {}
        # The files of which copies were kept last.
        self._present: frozenset[str] | None = None
        try:
            absolute = os.path.abspath(path)
            if not os.path.lexists(absolute):
                os.mkdir(absolute, 0o700)
            self._folder = os.open(absolute, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._take_possession()
            self._entries = dict(self._read_heads())
        except OSError as error:
            raise InputError([self._problem(f"cannot be used: {_reason(error)}")]) from error

    def has(self, name: str, data: bytes) -> bool:
        """Tell whether the copy of a file has these bytes."""
        entry = self._entries.get(os.path.abspath(name))
        return entry is not None and entry.digest == hashlib.sha256(data).hexdigest()

    def copy(self, name: str) -> CopiedFile | None:
        """Return the copy of a file; None without an entry that can be trusted."""
        entry = self._entries.get(os.path.abspath(name))
        if entry is None:
            return None
        try:
            with self._open(_entry_name(os.path.abspath(name))) as file:
                file.readline(_MAX_HEAD)
                data = file.read(Limits().file_bytes + 1)
        except OSError:
            return None
        return CopiedFile(data, entry.time) if hashlib.sha256(data).hexdigest() == entry.digest else None

    def names_from(self, folder: str) -> Iterator[str]:
        """Yield the names of copied files below a folder, and the folder itself if a file of its name was copied."""
        above = os.path.abspath(folder)
        for path in sorted(self._entries):
            if path == above or path.startswith(f"{above}/"):
                yield folder.rstrip("/") + path[len(above) :]

    def save(self, files: Mapping[str, SourceText], present: Set[str]) -> list[Diagnostic]:
        """Copy the files that have changed, and drop the copies of files that are not present any more."""
        problems = []
        try:
            if unwritten := self._save(
                {name: text for name, text in files.items() if self._saved.get(name) is not text}
            ):
                problems.append(self._problem(f"cannot be written: {unwritten}"))
            if present != self._present:
                self._drop({os.path.abspath(name) for name in present})
        except OSError as error:
            problems.append(self._problem(f"cannot be written: {_reason(error)}"))
        if not problems:
            self._saved, self._present = dict(files), frozenset(present)
        return problems

    def _save(self, changed: Mapping[str, SourceText]) -> str:
        """Copy files; return why some of them could not be copied: one large file must not keep the others out."""
        written: dict[str, tuple[str, StateEntry]] = {}
        unwritten = ""
        for name, text in changed.items():
            path, digest = os.path.abspath(name), hashlib.sha256(text.data).hexdigest()
            known = self._entries.get(path)
            # Standard input and pipes cannot be read again, so a start does not look for them.
            if (known is not None and known.digest == digest) or not os.path.isfile(path):
                continue
            entry = StateEntry(digest, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
            head = json.dumps({"file": path, **entry._asdict()}).encode() + b"\n"
            temporary = _entry_name(path) + _TEMPORARY
            try:
                self._write(temporary, head, text.data, to_disk=len(changed) < _MANY)
            except OSError as error:
                unwritten = f"{_reason(error)} (the copy of `{path}`)"
                self._remove(temporary)
            else:
                written[temporary] = path, entry
        if len(changed) >= _MANY and written:
            os.sync()
        for temporary, (path, entry) in written.items():
            os.rename(temporary, _entry_name(path), src_dir_fd=self._folder, dst_dir_fd=self._folder)
            self._entries[path] = entry
        if written:
            os.fsync(self._folder)
        return unwritten

    def _write(self, entry: str, head: bytes, data: bytes, *, to_disk: bool) -> None:
        self._remove(entry)
        number = os.open(entry, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o600, dir_fd=self._folder)
        with open(number, "wb") as file:
            file.write(head)
            file.write(data)
            file.flush()
            if to_disk:
                os.fsync(number)

    def _drop(self, present: Collection[str]) -> None:
        for path in [path for path in self._entries if path not in present]:
            self._remove(_entry_name(path))
            del self._entries[path]

    def _remove(self, entry: str) -> None:
        try:
            os.unlink(entry, dir_fd=self._folder)
        except FileNotFoundError:
            return

    def _take_possession(self) -> None:
        status = os.fstat(self._folder)
        if status.st_uid != os.geteuid():
            raise InputError([self._problem("belongs to another user", "name a folder of your own")])
        if status.st_mode & 0o022:
            raise InputError([self._problem("can be written by others", "remove it, or name another folder")])
        os.fchmod(self._folder, 0o700)
        self._lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT | _NO_LINK, 0o600, dir_fd=self._folder)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "give each process a folder of its own"
            raise InputError([self._problem("is in use by another process", hint)]) from None

    def _read_heads(self) -> Iterator[tuple[str, StateEntry]]:
        for name in os.listdir(self._folder):
            if name.endswith(_TEMPORARY):
                self._remove(name)
            elif name.endswith(_ENDING):
                try:
                    with self._open(name) as file:
                        head = json.loads(file.readline(_MAX_HEAD))
                    path, entry = str(head["file"]), StateEntry(str(head["digest"]), str(head["time"]))
                except (OSError, ValueError, KeyError, TypeError):
                    continue
                if _entry_name(path) == name:
                    yield path, entry

    def _open(self, name: str) -> BinaryIO:
        """Open an entry that nobody else can have written; OSError if it is anything else."""
        number = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _NO_LINK, dir_fd=self._folder)
        status = os.fstat(number)
        is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink == 1
        if not is_ours or status.st_mode & 0o022:
            os.close(number)
            raise PermissionError(f"{name} may be written by others")
        return open(number, "rb")

    def _problem(self, message: str, hint: str = "") -> Diagnostic:
        return Diagnostic(STATE_FOLDER, f"state folder `{self._path}` {message}", hint=hint)


def _entry_name(path: str) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:40] + _ENDING


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
