"""When a changed file is whole: a writer that truncates a file and writes it in parts must not be caught halfway.

Every part of such a file may be a valid, smaller file (docs/semantics.md#half-written-files-do-not-count). So a change
counts only when it has settled: when the content has been the same for `QUIET_S`. Until then the file counts as it was
before, and nothing else waits for it.

* Content with fewer lines than before may be what a writer that pauses has left halfway, and must have been the same
  for `SHORTER_S`.
* A file that changes all the time is taken after `LONGEST_S`: not as it is at that moment, which may be halfway, but
  the content with the most lines that was seen meanwhile. One that still grows towards its previous size is taken
  after `GROWING_S`.
* A file that is gone counts as removed after `QUIET_S`. Where new files are still settling, it waits for them, at most
  `LONGEST_S`: a renamed file is a removal and an addition, and both must count at once.

Only contents are compared, never times of the file system, and only the monotonic clock counts, so neither coarse time
stamps nor a clock that is set matter. Every bound is well below the two seconds within which a revocation must be in
force.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct

QUIET_S, SHORTER_S, LONGEST_S, GROWING_S = 0.15, 0.8, 1.0, 5.0


class _Change(Struct):
    """A change that has not settled: when it began, and the last content that was seen, None if the file is gone."""

    began: float
    since: float
    content: int | None
    size: int
    grows: bool = True
    # The content with the most lines so far.
    fullest: bytes = b""


class FileSettlement:
    """The changes of files that have not settled, by name. One reading at a time uses it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changes: dict[str, _Change] = {}
        self._seen: dict[str, _Change] = {}
        self._now = 0.0
        self._due: list[float] = []
        self._new_files_wait = False

    def begin(self) -> None:
        """Begin a reading: everything in it happens at one time."""
        self._now, self._due, self._seen, self._new_files_wait = self._clock(), [], {}, False

    def end(self) -> None:
        """End a reading: forget the changes that it did not meet."""
        self._changes = self._seen

    @property
    def due(self) -> float | None:
        """The time of the clock when a change may have settled."""
        return min(self._due, default=None)

    def settled(self, name: str, content: bytes, before: bytes | None) -> bytes | None:
        """Return the content of a changed file that counts now, or None if that is still `before`, or no content."""
        change = self._note(name, hash(content), len(content))
        if content.count(b"\n") >= change.fullest.count(b"\n"):
            change.fullest = content
        # Empty content is another matter: `serve.retention` keeps what was there for longer.
        is_shorter = before is not None and content != b"" and content.count(b"\n") < before.count(b"\n")
        grows = change.grows and before is not None and len(content) < len(before)
        quiet, longest = SHORTER_S if is_shorter else QUIET_S, GROWING_S if grows else LONGEST_S
        if self._waits_until(min(change.since + quiet, change.began + longest)):
            self._new_files_wait = self._new_files_wait or before is None
            return None
        del self._seen[name]
        return content if self._now >= change.since + quiet else change.fullest

    def waits_to_vanish(self, name: str) -> bool:
        """Tell whether a file that is gone still counts. Asked after every file that exists."""
        change = self._note(name, None, 0)
        return self._waits_until(change.began + LONGEST_S if self._new_files_wait else change.since + QUIET_S)

    def _note(self, name: str, content: int | None, size: int) -> _Change:
        change = self._changes.get(name)
        if change is None or (change.content is None) is not (content is None):
            change = _Change(self._now, self._now, content, size)
        elif change.content != content:
            change.since, change.content = self._now, content
            change.grows, change.size = change.grows and size > change.size, size
        self._seen[name] = change
        return change

    def _waits_until(self, due: float) -> bool:
        if self._now >= due:
            return False
        self._due.append(due)
        return True
