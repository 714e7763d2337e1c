"""The origin of an object that was read from a cluster: it has no lines, only places inside the object.

Where a rule stands in a cluster: docs/clusters.md#where-a-rule-stands.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from tierwall.core.reference import Reference
from tierwall.core.source import ClusterPosition, Path, format_path, value_at


class ClusterOrigin(Struct, frozen=True, eq=False, gc=False):
    """The origin of one object; `cluster` is the context's name, or the server's address in a pod.

    INVARIANT: `gc=False` is safe because `value`, the object as it was read, is a JSON tree.
    """

    cluster: str
    value: dict[str, Any]

    def position(self, path: Path = (), key: bool = False) -> ClusterPosition:
        """Return the place in the object, whether or not the object has the node: a missing field is named too."""
        metadata = self.value["metadata"]
        reference = Reference(self.value["kind"], metadata.get("namespace", ""), metadata["name"])
        return ClusterPosition(self.cluster, str(reference), format_path(path))

    def node(self, path: Path = ()) -> Any:
        """Return the value of the node at `path`; None if it does not exist."""
        return value_at(self.value, path)
