"""The origin of an object that was read from a cluster: it has no lines, only places inside the object.

Where a rule stands in a cluster: docs/clusters.md#where-a-rule-stands.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from tierwall.core.reference import Reference
from tierwall.core.source import ClusterPosition, Path


class ClusterOrigin(Struct, frozen=True, eq=False, gc=False):
    """The origin of one object; `cluster` is the context's name, or the server's address in a pod.

    INVARIANT: `gc=False` is safe because `value`, the object as it was read, is a JSON tree.
    """

    cluster: str
    value: dict[str, Any]

    def position(self, path: Path = (), key: bool = False) -> ClusterPosition:
        """Return the place in the object, whether or not the object has the node: a missing field is named too."""
        kind, metadata = self.value["kind"], self.value["metadata"]
        group, slash, _ = self.value["apiVersion"].rpartition("/")
        reference = Reference(kind, metadata.get("namespace", ""), metadata.get("name", ""))
        # What a Secret holds is shown nowhere.
        node = None if kind == "Secret" else _node(self.value, path)
        return ClusterPosition(self.cluster, group if slash else "", reference, path, node)


def _node(value: Any, path: Path) -> Any:
    """Return the part of a JSON value at a path; None if it does not exist."""
    for part in path:
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            return None
    return value
