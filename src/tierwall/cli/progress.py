"""One line about long work on a terminal, which is gone at the end (docs/clusters.md#progress); nothing in a pipe."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from tierwall.core.protocols import Progress

# Work that is done sooner needs no line.
PATIENCE_SECONDS = 1.0
_REDRAW_SECONDS = 0.2
_ERASE = "\r\x1b[K"


class ProgressLine:
    """A line that names the activity with the most left to do.

    Nothing is drawn before the first report: until then a credential plugin may be asking something on the terminal.
    """

    def __init__(self, stream: TextIO, patience: float) -> None:
        self._stream, self._due = stream, monotonic() + patience
        # What is done and the total, by activity.
        self._activities: dict[str, tuple[int, int]] = {}
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def report(self, activity: str, done: int, total: int) -> None:
        """Take note of an activity. 0 of 0 is one that begins, or one that ends and had nothing to do."""
        # Another thread may be looking at the activities: they are replaced, never changed.
        others = {name: state for name, state in self._activities.items() if name != activity}
        has_ended = done >= total and (total > 0 or len(others) < len(self._activities))
        self._activities = others if has_ended else {**others, activity: (done, total)}
        if self._thread is None:
            self._thread = threading.Thread(target=self._draw, name="progress", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Erase the line."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def _draw(self) -> None:
        shown = ""
        wait = self._due - monotonic()
        while not self._closing.wait(max(wait, 0)):
            line = self._line()
            if line and line != shown:
                self._stream.write(_ERASE + line)
                self._stream.flush()
                shown = line
            wait = _REDRAW_SECONDS
        if shown:
            self._stream.write(_ERASE)
            self._stream.flush()

    def _line(self) -> str:
        from tierwall.core.unprintable import printable_line

        activities = self._activities
        if not activities:
            return ""
        activity = max(activities, key=lambda name: activities[name][1] - activities[name][0])
        done, total = activities[activity]
        text = f"{activity} {done:,} of {total:,} …" if total else f"{activity} …"
        return printable_line(text)[: shutil.get_terminal_size().columns - 1]


@contextmanager
def progress_line() -> Iterator[Progress | None]:
    """Show progress on standard error while the block runs, if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    line = ProgressLine(sys.stderr, PATIENCE_SECONDS)
    try:
        yield line.report
    finally:
        line.close()
