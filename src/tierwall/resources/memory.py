"""What was read last time, so that a file that has not changed gives the very objects it gave before.

A file is known again by what its file system says of it (`Stamp`), or else by its bytes. Every change of a file sets
the time of its last change, but in steps: two changes within one step leave the same time. A stamp therefore counts
only if the file had been left alone for longer than a step when reading began; then any change that reading has not
seen sets a later time. Until that a file is read again and its bytes are compared, which costs little beside parsing.
"""

from __future__ import annotations

import os
import time
from typing import TypeAlias

from msgspec import Struct

from tierwall.core.diagnostics import Diagnostic
from tierwall.resources.document import Document, LocatorCache, SourceText

# The coarsest clock of a file system that is in use: FAT counts the time of a change in steps of two seconds.
STEP = 2_000_000_000

Stamp: TypeAlias = tuple[int, int, int, int, int]


def stamp(status: os.stat_result) -> Stamp:
    """What tells one state of a file from another."""
    return status.st_ctime_ns, status.st_ino, status.st_mtime_ns, status.st_size, status.st_dev


class CachedFile(Struct, frozen=True):
    """A file as it was read. `stamp` is None where only the bytes tell whether it has changed."""

    stamp: Stamp | None
    source: SourceText
    documents: tuple[Document, ...]
    problems: tuple[Diagnostic, ...]


class FileCache:
    """The files of the last reading by their names; None is the name of standard input.

    `once` is what came through standard input and pipes (by device and inode), which can be read only once, or why it
    was refused: it counts for every later reading. `recent` is for finding positions in what was read.
    """

    def __init__(self) -> None:
        self.files: dict[str | None, CachedFile] = {}
        self.once: dict[tuple[int, int] | None, bytes | Diagnostic] = {}
        self.recent = LocatorCache()


def reliable_stamp(status: os.stat_result, begun: int) -> Stamp | None:
    """The stamp of a file that is read, if it is enough to know the file again; reading began at `begun`.

    INVARIANT: `status` is of the file that was opened, not of its name, which may have come to name another since.
    """
    return stamp(status) if max(status.st_ctime_ns, status.st_mtime_ns) + STEP < begun else None


def now() -> int:
    """The time by the clock that stamps are made with, in nanoseconds."""
    return time.time_ns()
