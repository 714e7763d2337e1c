"""The error of a value that Envoy cannot enforce."""

from __future__ import annotations

NOTHING_TO_LIMIT = "Envoy limits only requests that it forwards"


class Unenforceable(Exception):
    """Envoy cannot enforce a value of a setting; the message says why, `path` where in the value it stands."""

    def __init__(self, message: str, *path: str | int) -> None:
        super().__init__(message)
        self.path = path
