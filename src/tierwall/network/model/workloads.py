"""The pods of a snapshot: `Pod` objects, and replicas of the pod templates of workloads.

Replicas are named `<name>-0 … <name>-(n-1)`, at most two a template
(docs/semantics.md#templates-stand-for-at-most-two-pods). A workload adds none where the snapshot shows
its pods themselves: when a Pod names it as controller, or when it is itself the product of another workload of the
snapshot (the ReplicaSet of a Deployment, the Job of a CronJob).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tierwall.core.reference import Reference
from tierwall.network.model.ends import End, mapping, pod_end
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

# In this order names are given out, should two workloads of one namespace share a name.
WORKLOADS = (
    ("apps", "Deployment"),
    ("apps", "StatefulSet"),
    ("apps", "DaemonSet"),
    ("apps", "ReplicaSet"),
    ("batch", "Job"),
    ("batch", "CronJob"),
)
MOST_REPLICAS = 2

_MADE_BY = {"Pod": WORKLOADS, "ReplicaSet": (("apps", "Deployment"),), "Job": (("batch", "CronJob"),)}


def pods(snapshot: Snapshot, namespaces: Mapping[str, Mapping[str, str]]) -> Iterator[End]:
    """All pods; `namespaces` has the labels of every namespace that an object is in."""
    taken: set[tuple[str, str]] = set()
    shown: set[Reference] = set()
    for resource in snapshot.of_kind("", "Pod"):
        workload: Reference | None = None
        owner = _controller(snapshot, resource)
        while owner is not None:
            workload = owner.reference
            shown.add(workload)
            owner = _controller(snapshot, owner)
        taken.add((resource.namespace, resource.name))
        status = mapping(resource.value.get("status"))
        labels = namespaces[resource.namespace]
        yield pod_end(resource.namespace, resource.name, labels, resource.metadata, resource.spec, status, workload)
    nodes = sum(1 for _ in snapshot.of_kind("", "Node"))
    for group, kind in WORKLOADS:
        for resource in snapshot.of_kind(group, kind):
            if resource.reference not in shown and _controller(snapshot, resource) is None:
                yield from _replicas(resource, namespaces[resource.namespace], nodes, taken)


def _replicas(resource: Resource, labels: Mapping[str, str], nodes: int, taken: set[tuple[str, str]]) -> Iterator[End]:
    template = _template(resource)
    metadata, spec = mapping(template.get("metadata")), mapping(template.get("spec"))
    for number in range(min(MOST_REPLICAS, _count(resource, nodes))):
        name = f"{resource.name}-{number}"
        if (resource.namespace, name) in taken:
            # Another workload's replica (or a pod) has that name: a colon, which no object's name has, tells them
            # apart.
            name = f"{resource.kind.lower()}:{name}"
        taken.add((resource.namespace, name))
        yield pod_end(resource.namespace, name, labels, metadata, spec, {}, resource.reference)


def _template(resource: Resource) -> Mapping[str, Any]:
    spec = resource.spec
    if resource.kind == "CronJob":
        spec = mapping(mapping(spec.get("jobTemplate")).get("spec"))
    return mapping(spec.get("template"))


def _count(resource: Resource, nodes: int) -> int:
    """How many pods a workload runs.

    A DaemonSet one a node (two where no Node is known), others one unless they say.
    """
    spec = resource.spec
    if resource.kind == "DaemonSet":
        return nodes or MOST_REPLICAS
    if resource.kind == "CronJob":
        spec = mapping(mapping(spec.get("jobTemplate")).get("spec"))
    count = spec.get("parallelism" if resource.kind in ("Job", "CronJob") else "replicas")
    return count if type(count) is int and count >= 0 else 1


def _controller(snapshot: Snapshot, resource: Resource) -> Resource | None:
    """The workload of the snapshot that made this object, if one did.

    INVARIANT: only steps Kubernetes takes (Pod to any workload, ReplicaSet to Deployment, Job to CronJob) count, so
    a chain of owners is at most two long, whatever the objects say.
    """
    possible = _MADE_BY.get(resource.kind, ())
    owners = resource.metadata.get("ownerReferences")
    for owner in map(mapping, owners if isinstance(owners, list) else ()):
        api_version, kind, name = owner.get("apiVersion"), owner.get("kind"), owner.get("name")
        if owner.get("controller") is True and isinstance(api_version, str) and isinstance(name, str):
            group = api_version.rpartition("/")[0]
            if (group, kind) in possible:
                return snapshot.get(group, str(kind), resource.namespace, name)
    return None
