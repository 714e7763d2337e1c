"""Positions in the user's files and in the objects of a cluster (docs/clusters.md#where-a-rule-stands).

Lines and columns count from 1; columns count code points.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

Path: TypeAlias = Sequence[str | int]


class Position(NamedTuple):
    """A position in a file; sorts by file, then line, then column."""

    file: str
    line: int
    column: int

    @property
    def is_in_cluster(self) -> bool:
        """Whether this is a place in an object of a cluster: then `file` is the cluster, and there is no line."""
        return False

    @property
    def path(self) -> str:
        """The place in an object of a cluster: `spec.ingress[0]`; empty for the whole object and in files."""
        return ""

    @property
    def reference(self) -> str:
        """The object of a cluster: `NetworkPolicy/shop/db`; empty in files."""
        return ""

    @property
    def without_column(self) -> str:
        """`file:line`, or the object of a cluster: `prod: NetworkPolicy/shop/db`."""
        return f"{self.file}:{self.line}"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class ClusterPosition(Position):
    """A place in an object of a cluster; sorts by cluster, object and path.

    INVARIANT: the tuple is `(cluster, 0, 0, reference, path)`, so that it sorts among positions in files, and positions
    in files stay tuples of three.
    """

    __slots__ = ()

    def __new__(cls, cluster: str, reference: str, path: str = "") -> ClusterPosition:
        """Make the position; `cluster` is the name of the context or the address of the server."""
        return tuple.__new__(cls, (cluster, 0, 0, reference, path))

    def __getnewargs__(self) -> tuple[str, str, str]:
        return self.file, self.reference, self.path

    def __repr__(self) -> str:
        return f"ClusterPosition({self.file!r}, {self.reference!r}, {self.path!r})"

    @property
    def is_in_cluster(self) -> bool:
        """True."""
        return True

    @property
    def path(self) -> str:
        """The place in the object: `spec.ingress[0]`; empty for the whole object."""
        return str(tuple(self)[4])

    @property
    def reference(self) -> str:
        """The object: `NetworkPolicy/shop/db`."""
        return str(tuple(self)[3])

    @property
    def without_column(self) -> str:
        """The object: `prod: NetworkPolicy/shop/db`."""
        return f"{self.file}: {self.reference}"

    def __str__(self) -> str:
        return f"{self.without_column} {self.path}" if self.path else self.without_column


class Origin(Protocol):
    """An object that knows the positions of its nodes.

    Positions are needed only for output, so decisions carry an origin and a path, and look positions up late.
    """

    def position(self, path: Path = (), key: bool = False) -> Position | None:
        """Return the position of the node at `path` or of its key; if it does not exist, of its nearest ancestor."""

    def node(self, path: Path = ()) -> Any:
        """Return the value of the node at `path`; None if it does not exist."""


def value_at(value: Any, path: Path) -> Any:
    """Return the part of a JSON value at a path; None if it does not exist."""
    for part in path:
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            return None
    return value


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
