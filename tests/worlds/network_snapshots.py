"""Snapshots of plain objects, like the inline objects of a policy test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tierwall.planes import ask
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

CLUSTER_SCOPED = (
    "Namespace",
    "Node",
    "AdminNetworkPolicy",
    "BaselineAdminNetworkPolicy",
    "ClusterNetworkPolicy",
)


def snapshot(objects: Sequence[Any]) -> Snapshot:
    """Return a snapshot of some objects."""
    return Snapshot.of(map(resource, objects))


def resource(value: Any) -> Resource:
    """Return one object as a resource, in `default` if its kind is namespaced and it has no namespace."""
    group, _, version = value["apiVersion"].rpartition("/")
    namespace = "" if value["kind"] in CLUSTER_SCOPED else value["metadata"].get("namespace", "default")
    return Resource(group, version, value["kind"], namespace, value["metadata"]["name"], value)


def document(of: Snapshot, question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the decision document of a network question in its YAML form."""
    return ask("network", of, question, {}).to_dict()
