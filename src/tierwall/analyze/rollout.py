"""The pods of a cluster after a rollout, for comparing (docs/compare.md#a-change-to-a-cluster).

Where a file replaces a workload of a cluster, the pods of its template stand in for those of the cluster: other pods,
with other names. A comparison by name would find that every connection of the workload closes, and opens again. So both
sides are compared with the same pods, which have on the new side what the new template gives them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from msgspec.structs import replace

from tierwall.core.reference import Reference
from tierwall.network.model.endpoints import pod_template, runs_pods
from tierwall.resources.overlay import is_put_over, owned_pods
from tierwall.resources.resource import Resource, nested_map
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.workloads import WORKLOADS

# Labels that controllers put on pods. A template does not have them.
_OF_CONTROLLERS = (
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-completion-index",
    "batch.kubernetes.io/job-name",
    "controller-revision-hash",
    "controller-uid",
    "job-name",
    "pod-template-generation",
    "pod-template-hash",
    "statefulset.kubernetes.io/pod-name",
)


def replaced_workloads(old: Snapshot, new: Snapshot) -> dict[Reference, Resource]:
    """Return the workloads of a cluster that files replace, as the files have them."""
    placed = [
        resource for group, kind in WORKLOADS for resource in new.of_kind(group, kind) if is_put_over(old, resource)
    ]
    owners = {owner.identity for _, owner in _pods_of(old, placed)}
    return {
        resource.reference: resource
        for resource in placed
        if old.get(*resource.identity) is not None or resource.identity in owners
    }


def _pods_of(old: Snapshot, workloads: Collection[Resource]) -> Iterator[tuple[Resource, Resource]]:
    """Yield the pods that name workloads of files as their owners, also where the cluster's may not be listed."""
    unknown = [workload for workload in workloads if old.get(*workload.identity) is None]
    known = old.with_changes(put=unknown) if unknown else old
    return owned_pods(known, {workload.identity for workload in workloads})


def rolled_out(old: Snapshot, new: Snapshot) -> Snapshot:
    """Return the new side with the pods of the cluster where the pods of a template stand in for them."""
    replaced = replaced_workloads(old, new)
    if not replaced:
        return new
    pods = [
        _with_template(pod, replaced[workload.reference])
        for pod, workload in _pods_of(old, replaced.values())
        if new.get(*pod.identity) is None and runs_pods(replaced[workload.reference])
    ]
    # Nothing stands in for these pods any more.
    return new.with_changes(put=pods).without_unlisted("replaced") if pods else new


def _with_template(pod: Resource, workload: Resource) -> Resource:
    """Return a pod as the template of its workload would make it, with the name, node and addresses that it has."""
    metadata, spec = (nested_map(pod_template(workload), key) for key in ("metadata", "spec"))
    kept = {key: value for key, value in pod.labels.items() if key in _OF_CONTROLLERS}
    value: dict[str, Any] = {
        **pod.value,
        "metadata": {**pod.metadata, "labels": {**kept, **nested_map(metadata, "labels")}},
        "spec": {**({"nodeName": pod.spec["nodeName"]} if "nodeName" in pod.spec else {}), **spec},
    }
    return replace(pod, value=value, _memo={})
