"""Positions in the user's files and in the objects of a cluster (docs/clusters.md#where-a-rule-stands).

Lines and columns count from 1; columns count code points.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from tierwall.core.reference import Reference

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
    def without_column(self) -> str:
        """`file:line`, or the object of a cluster: `prod: NetworkPolicy/shop/db`."""
        return f"{self.file}:{self.line}"

    @property
    def beside_object(self) -> str:
        """The position where the object is named already: `file:line`, or `prod: spec.ingress[0]`."""
        return f"{self.file}:{self.line}"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class ClusterPosition(Position):
    """A place in an object of a cluster; sorts by cluster, group, object and path.

    `node` is the value there, which text shows instead of a line.

    INVARIANT: the tuple begins with `(cluster, 0, 0)`, so that it sorts among positions in files, which stay tuples of
    three. Then come the group, the reference and the path; its parts say whether they are keys, so that they compare.
    """

    node: Any

    def __new__(
        cls, cluster: str, group: str, reference: Reference, path: Path = (), node: Any = None
    ) -> ClusterPosition:
        """Make the position; `cluster` is the name of the context or the address of the server."""
        parts = tuple((isinstance(part, str), part) for part in path)
        position: ClusterPosition = tuple.__new__(cls, (cluster, 0, 0, group, reference, parts))
        position.node = node
        return position

    def __getnewargs__(self) -> tuple[Any, ...]:
        group, reference, _ = self._object_and_place
        return self.file, group, reference, self.parts

    def __repr__(self) -> str:
        return f"<{self}>"

    @property
    def is_in_cluster(self) -> bool:
        """True."""
        return True

    @property
    def _object_and_place(self) -> tuple[str, Reference, tuple[tuple[bool, str | int], ...]]:
        # The type of the tuple is that of positions in files.
        whole: tuple[Any, ...] = tuple(self)
        return whole[3], whole[4], whole[5]

    @property
    def reference(self) -> Reference:
        """The object: `NetworkPolicy/shop/db`."""
        return self._object_and_place[1]

    @property
    def path(self) -> str:
        """The place in the object: `spec.ingress[0]`; empty for the whole object."""
        return format_path(self.parts)

    @property
    def parts(self) -> tuple[str | int, ...]:
        """The keys and indexes of the path."""
        return tuple(part for _, part in self._object_and_place[2])

    @property
    def without_column(self) -> str:
        """The object: `prod: NetworkPolicy/shop/db`."""
        return f"{self.file}: {self.reference}"

    @property
    def beside_object(self) -> str:
        """`prod: spec.ingress[0]`, or the cluster alone for the whole object."""
        return f"{self.file}: {path}" if (path := self.path) else self.file

    def __str__(self) -> str:
        return f"{self.without_column} {path}" if (path := self.path) else self.without_column


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
