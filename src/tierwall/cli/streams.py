"""The standard streams of a command: a lost reader or a full disk ends in a sentence, never in a traceback.

A character that the encoding of the terminal lacks is printed as its escape (`\\u2192`).

`tierwall list | head -1` closes the pipe early. The reader has what it wants, so the rest of the output is dropped, and
the exit code is that of the whole answer (docs/reference/exit-codes.md).
"""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO, cast


class DroppingFile(io.FileIO):
    """A file that takes everything; what cannot be written any more is dropped."""

    failure: OSError | None = None

    def write(self, data: object, /) -> int | None:  # type: ignore[override]
        """Write, or drop what cannot be written."""
        if self.failure is None:
            try:
                return super().write(data)  # type: ignore[arg-type]
            except OSError as error:
                self.failure = error
        return memoryview(data).nbytes  # type: ignore[arg-type]


def failure(stream: TextIO) -> OSError | None:
    """Return why a stream could not be written, if it could not."""
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw.failure if isinstance(raw, DroppingFile) else None


def dropping_streams() -> None:
    """Let standard output and standard error drop what cannot be written. A closed standard input is an empty one."""
    sys.stdout, sys.stderr = _dropping(sys.stdout), _dropping(sys.stderr)
    if cast(TextIO | None, sys.stdin) is None:
        sys.stdin = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")


def _dropping(stream: TextIO | None) -> TextIO:
    # Python sets a stream to None if its descriptor was closed before the process started (`>&-`).
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    buffer = io.BufferedWriter(DroppingFile(stream.fileno(), "w", closefd=False))
    return io.TextIOWrapper(
        buffer,
        encoding=stream.encoding,
        # Where the locale has no `→`, Python would raise an error.
        errors="backslashreplace" if stream.errors == "strict" else stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def exit_code(code: int) -> int:
    """Return the exit code of a command that would end with `code`, after a sentence if its output is not complete."""
    sys.stdout.flush()
    failed = failure(sys.stdout)
    if failed is None or isinstance(failed, BrokenPipeError):
        return code
    print(f"error: standard output cannot be written: {failed.strerror}", file=sys.stderr)
    return 1
