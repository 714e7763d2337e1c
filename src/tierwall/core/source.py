"""Positions in the user's files. Lines and columns count from 1; columns count code points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

Path: TypeAlias = Sequence[str | int]


class Position(NamedTuple):
    """A position in a file; sorts by file, then line, then column."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Origin(Protocol):
    """An object that knows the positions of its nodes.

    Positions are needed only for output, so decisions carry an origin and a path, and look positions up late.
    """

    def position(self, path: Path = (), key: bool = False) -> Position | None:
        """Return the position of the node at `path` or of its key; if it does not exist, of its nearest ancestor."""


def format_path(path: Path) -> str:
    """Format a path as Kubernetes does: `spec.ingress[0].from[1]`. Keys that are not plain words are in brackets."""
    out: list[str] = []
    for part in path:
        plain = isinstance(part, str) and (not out or part.replace("_", "").replace("-", "").isalnum())
        if not plain:
            out.append(f"[{part}]")
        else:
            out.append(f".{part}" if out else str(part))
    return "".join(out)


def rule_place(path: Path) -> str:
    """Return a path in an object as findings name it: `ingress[0].from[1]`, `spec`, `metadata.name`."""
    return format_path(path[1:] if len(path) > 1 and path[0] == "spec" else path)
