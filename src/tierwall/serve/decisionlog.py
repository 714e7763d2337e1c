"""The decision log: one JSON object per line for each decision of an engine or a server.

Each record is flushed at once: a log that loses the last decisions before a crash is useless. Long strings are
truncated, so that a caller cannot fill the disk with one request.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

import msgspec

from tierwall.core.diagnostics import Diagnostic, InputError

MAX_STRING = 2048


class DecisionLog:
    """An append-only log that any thread may write to."""

    def __init__(self, stream: BinaryIO | None) -> None:
        self._stream = stream
        self._encoder = msgspec.json.Encoder()
        self._lock = Lock()

    @classmethod
    def open(cls, path: str | None) -> DecisionLog:
        """Open the log at a path, `-` for standard output, None to log nothing; InputError if it cannot be written."""
        if path is None:
            return cls(None)
        if path == "-":
            return cls(sys.stdout.buffer)
        try:
            return cls(Path(path).open("ab", buffering=0))
        except OSError as error:
            message = f"the decision log `{path}` cannot be written: {error.strerror}"
            raise InputError([Diagnostic("TW634", message)]) from error

    def write(self, document: Mapping[str, Any]) -> None:
        """Append one decision, as `render.engines` writes it."""
        if self._stream is None:
            return
        line = self._encoder.encode({key: _truncated(value) for key, value in document.items()}) + b"\n"
        with self._lock:
            self._stream.write(line)
            self._stream.flush()

    def close(self) -> None:
        """Close the log; standard output stays open."""
        if self._stream is not None and self._stream is not sys.stdout.buffer:
            self._stream.close()
        self._stream = None


def _truncated(value: Any) -> Any:
    if isinstance(value, str) and len(value) > MAX_STRING:
        return value[:MAX_STRING] + "…"
    return value
