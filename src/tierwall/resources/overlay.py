"""Files over a cluster (docs/clusters.md#files-over-the-cluster).

An object replaces the one with the same group, kind, namespace and name, whatever their versions; every other one is
added. What `kubectl apply` leaves alone stays: the age of the object, which breaks ties, and its status.

Pods are the cluster's own: only where a file replaces a workload of the cluster, the pods that it owns there are left
out, and those of the file's template stand in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from msgspec.structs import replace

from tierwall.resources.once import per_resource_and
from tierwall.resources.resource import Identity, Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.unlisted import UnlistedKind
from tierwall.resources.workloads import WORKLOADS, controller

# What the API server writes into `metadata`, whatever a file has there: `kubectl create --dry-run` has a null age.
_OF_SERVER = ("creationTimestamp", "uid")
# What controllers write there, and applying a file without it does not change.
_OF_CONTROLLERS = ("ownerReferences",)


def overlay(snapshot: Snapshot, resources: Iterable[Resource]) -> Snapshot:
    """Put objects over a snapshot."""
    put = tuple(_applied(snapshot, resource) for resource in resources)
    if not put:
        return snapshot
    placed = [resource for resource in put if is_put_over(snapshot, resource)]
    over = snapshot.with_changes(put=put)
    # A pod that the files have is theirs, whatever it says about its owner: it is not live any more.
    owned = list(owned_pods(over, {workload.identity for workload in placed}))
    if not owned:
        return over
    gone, owners = [pod for pod, _ in owned], {owner.identity for _, owner in owned}
    replaced = [workload for workload in placed if workload.identity in owners]
    return over.with_changes(drop=gone).with_unlisted(_replacements(replaced, gone))


def is_put_over(snapshot: Snapshot, resource: Resource) -> bool:
    """Whether an object is a workload of a file that takes the place of one of the cluster, if there is one.

    A workload that may not be listed is not there, but the pods that it owns still name it.
    """
    if resource.is_live or (resource.group, resource.kind) not in WORKLOADS:
        return False
    before = snapshot.get(*resource.identity)
    return before is None or before.is_live


def _applied(snapshot: Snapshot, resource: Resource) -> Resource:
    """Return an object of a file as the cluster would have it."""
    before = snapshot.get(*resource.identity)
    return resource if before is None or not before.is_live or resource.is_live else _applied_to(resource, before)


@per_resource_and
def _applied_to(resource: Resource, before: Resource) -> Resource:
    # The same object for the same pair: while a cluster is followed, only what has changed may differ.
    given, had = resource.metadata, before.metadata
    metadata = {
        **{key: had[key] for key in _OF_CONTROLLERS if key in had},
        **given,
        **{key: had[key] for key in _OF_SERVER if key in had},
    }
    # Only controllers write a status: applying a file leaves it alone.
    status = {"status": before.value["status"]} if "status" in before.value else {}
    return replace(resource, value={**resource.value, **status, "metadata": metadata}, _memo={})


def owned_pods(snapshot: Snapshot, workloads: Collection[Identity]) -> Iterator[tuple[Resource, Resource]]:
    """Yield the live pods that workloads own, directly or through a ReplicaSet or Job, each with its workload."""
    for namespace in sorted({workload[2] for workload in workloads}):
        for pod in snapshot.in_namespace("", "Pod", namespace):
            owner = controller(snapshot, pod) if pod.is_live else None
            while owner is not None and owner.identity not in workloads:
                owner = controller(snapshot, owner)
            if owner is not None:
                yield pod, owner


def _replacements(replaced: Iterable[Resource], gone: Iterable[Resource]) -> Iterable[UnlistedKind]:
    counts: dict[str, int] = {}
    for pod in gone:
        counts[pod.namespace] = counts.get(pod.namespace, 0) + 1
    for namespace, count in counts.items():
        workloads = sorted(str(workload.reference) for workload in replaced if workload.namespace == namespace)
        message = f"a file has {', '.join(workloads)}: the pods of its template stand in"
        yield UnlistedKind("Pod", "", "replaced", message, namespaces=(namespace,), count=count)
