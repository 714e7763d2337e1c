"""Cache the files of the last reading, so that an unchanged file gives the very same objects.

A file is recognised by its file system's metadata (`Stamp`), or else by its bytes. Every change sets the file's time of
last change, but clocks tick in steps: two changes within one step leave the same time. A stamp is therefore reliable
only if the last change was more than a step before reading began: then any later change sets a later time. Until then
the file is read again and its bytes are compared, which is cheap compared with parsing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from msgspec import Struct

from tierwall.core.diagnostics import Diagnostic
from tierwall.resources.document import Document, LocatorCache, SourceText

if TYPE_CHECKING:
    from tierwall.resources.settling import FileSettlement

# The coarsest clock of any file system in use: FAT counts in steps of two seconds.
CLOCK_STEP_NS = 2_000_000_000

K = TypeVar("K")
V = TypeVar("V")

Stamp: TypeAlias = tuple[int, int, int, int, int]


def stamp(status: os.stat_result) -> Stamp:
    """Return the metadata that tells one state of a file from another."""
    return status.st_ctime_ns, status.st_ino, status.st_mtime_ns, status.st_size, status.st_dev


class CachedFile(Struct, frozen=True):
    """A file as it was read. `stamp` is None if only the bytes can tell whether it has changed.

    `form` is set if the file as a whole is not read, because it does not hold objects (`resources.forms`).
    """

    stamp: Stamp | None
    source: SourceText
    documents: tuple[Document, ...]
    problems: tuple[Diagnostic, ...]
    form: str = ""


class FileCache:
    """The files of the last reading by name; None is the name of standard input.

    `unrepeatable` has the data of standard input and pipes (by device and inode), or why it was refused. They can be
    read only once, so the data counts for every later reading. `locators` caches the locators of documents. With a
    `settlement`, a changed file counts only when its change has settled.
    """

    def __init__(self) -> None:
        self.files: dict[str | None, CachedFile] = {}
        # The patterns of `.tierwallignore` files that count, by path.
        self.ignored: dict[str, bytes] = {}
        self.unrepeatable: dict[tuple[int, int] | None, bytes | Diagnostic] = {}
        self.locators = LocatorCache()
        self.settlement: FileSettlement | None = None


def reliable_stamp(status: os.stat_result, read_start: int) -> Stamp | None:
    """Return the stamp of a file if it is enough to recognise the file later; reading began at `read_start`.

    INVARIANT: `status` is that of the open file, not of its name, which may meanwhile name another file.
    """
    return stamp(status) if max(status.st_ctime_ns, status.st_mtime_ns) + CLOCK_STEP_NS < read_start else None


def put_back(files: Mapping[K, V], before: Mapping[K, V], kept: Collection[K]) -> dict[K, V]:
    """Return files with some of an earlier reading put back at their place: the order decides what counts."""
    if not kept:
        return dict(files)
    first: list[K] = []
    after: dict[K, list[K]] = {}
    group = first
    for name in before:
        if name in files:
            group = after.setdefault(name, [])
        elif name in kept:
            group.append(name)
    ordered = [*first, *(name for file in files for name in (file, *after.get(file, ())))]
    return {name: files[name] if name in files else before[name] for name in ordered}


def now() -> int:
    """Return the time of the clock that stamps are made with, in nanoseconds."""
    return time.time_ns()
