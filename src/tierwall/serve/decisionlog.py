"""The decision log: one JSON object per line for each decision of an engine or a server.

Each record is flushed at once: a log that loses the last decisions before a crash is useless. Long strings are
truncated, so that a caller cannot fill the disk with one request.

The log says who called what, so only its owner can read a new one. An existing file keeps its permissions, and a
diagnostic says if others can read it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

import msgspec

from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.core.unprintable import printable_json_bytes
from tierwall.engines.private import append_private, readers

MAX_STRING = 2048


class DecisionLog:
    """An append-only log that any thread may write to."""

    def __init__(self, stream: BinaryIO | None, diagnostics: tuple[Diagnostic, ...] = ()) -> None:
        self._stream = stream
        self.diagnostics = diagnostics
        self._encoder = msgspec.json.Encoder()
        self._lock = Lock()

    @classmethod
    def open(cls, path: str | None) -> DecisionLog:
        """Open the log at a path, `-` for standard output, None to log nothing; InputError if it cannot be written."""
        if path is None:
            return cls(None)
        if path == "-":
            return cls(_standard_output())
        try:
            number = append_private(Path(path))
        except OSError as error:
            message = f"the decision log `{path}` cannot be written: {error.strerror}"
            raise InputError([Diagnostic("TW634", message)]) from error
        problems: tuple[Diagnostic, ...] = ()
        if why := readers(number):
            hint = "remove what other users may do with it, or let Tierwall create it"
            problems = (Diagnostic("TW640", f"others may read the decision log `{path}`: {why}", hint=hint),)
        return cls(os.fdopen(number, "ab", buffering=0), problems)

    def write(self, document: Mapping[str, Any]) -> None:
        """Append one decision, as `render.engines` writes it."""
        self.append((self._encoder.encode(document),))

    def append(self, encoded: Iterable[bytes]) -> None:
        """Append decisions that are written as JSON, all with one system call."""
        if self._stream is None:
            return
        lines = b"".join(map(self._line, encoded))
        with self._lock:
            self._stream.write(lines)
            self._stream.flush()

    def _line(self, line: bytes) -> bytes:
        if len(line) > MAX_STRING:
            document = msgspec.json.decode(line)
            line = self._encoder.encode({key: _truncated(value) for key, value in document.items()})
        return printable_json_bytes(line) + b"\n"

    def close(self) -> None:
        """Close the log; standard output stays open."""
        if self._stream is not None and self._stream is not _standard_output():
            self._stream.close()
        self._stream = None


def _standard_output() -> BinaryIO:
    # The stream of the process. That of a command drops what cannot be written, and a log must not lose decisions.
    return (sys.__stdout__ or sys.stdout).buffer


def _truncated(value: Any) -> Any:
    if isinstance(value, str) and len(value) > MAX_STRING:
        return value[:MAX_STRING] + "…"
    return value
