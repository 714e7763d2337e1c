"""What makes a text unreadable, and where in the text."""

from __future__ import annotations


class YamlError(Exception):
    """A document that Kubernetes would refuse to read.

    `offset` counts code points from the start of the document's text; whoever knows the file turns it into a line and
    a column.
    """

    def __init__(self, problem: str, offset: int, code: str = "TW002", hint: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.offset = offset
        self.code = code
        self.hint = hint


class UnsupportedKeyError(YamlError):
    """A key that YAML takes and JSON cannot have: Go refuses it only when the map it is in comes to JSON."""
