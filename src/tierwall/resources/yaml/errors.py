"""Errors in YAML text."""

from __future__ import annotations


class YamlError(Exception):
    """Kubernetes would refuse to read the document.

    `offset` counts code points from the start of the document's text. The caller turns it into a line and a column.
    """

    def __init__(self, problem: str, offset: int, code: str = "TW002", hint: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.offset = offset
        self.code = code
        self.hint = hint


class UnsupportedKeyError(YamlError):
    """YAML accepts the key and JSON does not. Go refuses it only when it converts the map to JSON."""
