"""Where in the user's files a thing stands. Lines and columns count from 1, columns in code points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

Path: TypeAlias = Sequence[str | int]


class Position(NamedTuple):
    """A place in a file; sorts by file, then line, then column."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Origin(Protocol):
    """Anything that can say where a node of it was written.

    Positions are asked for only when something is shown to a person, so decisions carry an origin and a path, and
    nothing is looked up until then.
    """

    def position(self, path: Path = (), key: bool = False) -> Position | None:
        """The place of the node at `path` (or of its key), or of its nearest ancestor that was written."""


def format_path(path: Path) -> str:
    """A path as Kubernetes prints it: `spec.ingress[0].from[1]`; keys that are not plain words are bracketed."""
    out: list[str] = []
    for part in path:
        plain = isinstance(part, str) and (not out or part.replace("_", "").replace("-", "").isalnum())
        if not plain:
            out.append(f"[{part}]")
        else:
            out.append(f".{part}" if out else str(part))
    return "".join(out)
