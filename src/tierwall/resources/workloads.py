"""Workloads and the pods that they own (docs/semantics.md#templates-stand-for-at-most-two-pods)."""

from __future__ import annotations

from tierwall.resources.resource import Resource, list_of_maps
from tierwall.resources.snapshot import Snapshot

# If two workloads of a namespace share a name, the first kind in this list keeps it for its replicas.
WORKLOADS = (
    ("apps", "Deployment"),
    ("apps", "StatefulSet"),
    ("apps", "DaemonSet"),
    ("apps", "ReplicaSet"),
    ("", "ReplicationController"),
    ("batch", "Job"),
    ("batch", "CronJob"),
)
_CREATED_BY = {"Pod": WORKLOADS, "ReplicaSet": (("apps", "Deployment"),), "Job": (("batch", "CronJob"),)}


def controller(snapshot: Snapshot, resource: Resource) -> Resource | None:
    """Return the workload of the snapshot that created this object, if there is one.

    INVARIANT: only owners that Kubernetes itself sets (any workload of a Pod, a Deployment of a ReplicaSet, a CronJob
    of a Job) count, so a chain of owners has at most two links, whatever the objects say.
    """
    possible = _CREATED_BY.get(resource.kind, ())
    for owner in list_of_maps(resource.metadata.get("ownerReferences")):
        api_version, kind, name = owner.get("apiVersion"), owner.get("kind"), owner.get("name")
        if owner.get("controller") is True and isinstance(api_version, str) and isinstance(name, str):
            group = api_version.rpartition("/")[0]
            if (group, kind) in possible:
                return snapshot.get(group, str(kind), resource.namespace, name)
    return None
