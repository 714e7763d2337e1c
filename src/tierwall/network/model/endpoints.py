"""The endpoints of connections: pods, nodes and plain addresses.

docs/semantics.md#only-pods-are-under-policy, docs/semantics.md#any-address-of-an-end-counts.

Only a pod that is not on its host's network is under policy and can be selected by labels. Every other endpoint is
matched by its addresses alone. A pod's addresses are `status.podIP(s)`; a node's are its InternalIP and ExternalIP. A
pod without a status has no address.

The pods of a snapshot are its `Pod` objects and replicas of the pod templates of workloads. Replicas are named
`<name>-0 … <name>-(n-1)`, at most two per template (docs/semantics.md#templates-stand-for-at-most-two-pods). A workload
adds no replicas if the snapshot has its real pods or its template twice: if a Pod names it as controller, or if another
workload of the snapshot owns it (a Deployment its ReplicaSet, a CronJob its Job).

A pod that has ended (phase `Succeeded` or `Failed`) is not an endpoint: it reaches nothing, and another pod may have
its address (docs/semantics.md#a-pod-that-has-ended-reaches-nothing).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tierwall.core.reference import Reference
from tierwall.resources.once import per_resource, per_resource_and
from tierwall.resources.resource import Resource, list_of_maps, nested_map
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.workloads import WORKLOADS, controller
from tierwall.values.addresses import Address, format_address, parse_address

NAMESPACE_NAME = "kubernetes.io/metadata.name"
PROTOCOLS = ("TCP", "UDP", "SCTP")
LAST_PORT = 65535

_ENDED = ("Succeeded", "Failed")
_NONE: Mapping[str, Any] = {}


class Endpoint(Struct, frozen=True, eq=False, gc=False):
    """One endpoint of a connection. Endpoints compare by identity: a model has one object for each.

    INVARIANT: `gc=False` is safe because nothing that an endpoint refers to refers back to it.
    """

    kind: str  # "pod", "node" or "address"
    name: str
    namespace: str = ""
    labels: Mapping[str, str] = _NONE
    namespace_labels: Mapping[str, str] = _NONE
    addresses: tuple[Address, ...] = ()
    # The (protocol, number) pairs of each container port name; a name may have several.
    named_ports: Mapping[str, tuple[tuple[str, int], ...]] = _NONE
    under_policy: bool = False
    node: str = ""
    workload: Reference | None = None
    # The phase of a pod that has ended. The pods of a model have not.
    ended: str = ""

    def __str__(self) -> str:
        if self.kind == "pod":
            return f"{self.namespace}/{self.name}"
        return f"node:{self.name}" if self.kind == "node" else self.name


def address_endpoint(address: Address) -> Endpoint:
    """Return the endpoint of a plain address that does not belong to a pod."""
    return Endpoint("address", format_address(address), addresses=(address,))


def node_endpoint(resource: Resource) -> Endpoint:
    """Return the endpoint of a Node."""
    entries = list_of_maps(nested_map(resource.value, "status").get("addresses"))
    texts = (entry.get("address") for entry in entries if entry.get("type") in ("InternalIP", "ExternalIP"))
    return Endpoint("node", resource.name, labels=_strings(resource.labels), addresses=_addresses(texts))


def pod_endpoint(
    namespace: str,
    name: str,
    namespace_labels: Mapping[str, str],
    metadata: Mapping[str, Any],
    spec: Mapping[str, Any],
    status: Mapping[str, Any],
    workload: Reference | None,
) -> Endpoint:
    """Return the endpoint of a pod or of a replica of a pod template."""
    phase = status.get("phase") if status else None
    return Endpoint(
        "pod",
        name,
        namespace,
        _strings(nested_map(metadata, "labels")),
        namespace_labels,
        _addresses([status.get("podIP"), *[ip.get("ip") for ip in list_of_maps(status.get("podIPs"))]])
        if status
        else (),
        _named_ports(spec),
        spec.get("hostNetwork") is not True,
        node_name if isinstance(node_name := spec.get("nodeName"), str) else "",
        workload,
        phase if phase in _ENDED else "",
    )


def has_ended(resource: Resource) -> bool:
    """Whether a Pod has ended: its containers run no more, and its address is free for others."""
    return nested_map(resource.value, "status").get("phase") in _ENDED


def namespace_labels(name: str, resource: Resource | None) -> Mapping[str, str]:
    """Return a namespace's labels. It has the label with its name even if there is no Namespace object."""
    return _labels_of(resource) if resource is not None else {NAMESPACE_NAME: name}


@per_resource
def _labels_of(namespace: Resource) -> Mapping[str, str]:
    return {**_strings(namespace.labels), NAMESPACE_NAME: namespace.name}


@per_resource_and
def _own_endpoint(pod: Resource, namespace_labels: Mapping[str, str]) -> Endpoint:
    """Return the endpoint of a pod that no workload of the snapshot owns; models share it."""
    status = nested_map(pod.value, "status")
    return pod_endpoint(pod.namespace, pod.name, namespace_labels, pod.metadata, pod.spec, status, None)


def _strings(labels: Mapping[str, Any]) -> Mapping[str, str]:
    """Return labels with string values only; a number or boolean becomes the string that YAML shows for it."""
    if all(type(value) is str for value in labels.values()):
        return labels
    return {
        str(key): value if isinstance(value, str) else "" if value is None else str(value).lower()
        for key, value in labels.items()
    }


def _addresses(texts: Iterable[object]) -> tuple[Address, ...]:
    return tuple(sorted({address for text in texts if (address := parse_address(text)) is not None}))


def _named_ports(spec: Mapping[str, Any]) -> Mapping[str, tuple[tuple[str, int], ...]]:
    containers = list_of_maps(spec.get("containers"))
    if "initContainers" in spec:
        # A sidecar (an init container that is always restarted) runs as long as the pod does, so its ports count too.
        init_containers = list_of_maps(spec["initContainers"])
        sidecars = [container for container in init_containers if container.get("restartPolicy") == "Always"]
        containers = [*containers, *sidecars]
    ports: dict[str, set[tuple[str, int]]] = {}
    for container in containers:
        for port in list_of_maps(container.get("ports")):
            name, number, protocol = port.get("name"), port.get("containerPort"), port.get("protocol") or "TCP"
            if not isinstance(name, str) or not name or protocol not in PROTOCOLS:
                continue
            # No packet has another port, and no engine takes one.
            if type(number) is int and 1 <= number <= LAST_PORT:
                ports.setdefault(name, set()).add((protocol, number))
    return {name: tuple(sorted(pairs)) for name, pairs in ports.items()} if ports else _NONE


MAX_REPLICAS = 2

_GROUPS = {kind: group for group, kind in WORKLOADS}


def pods(
    snapshot: Snapshot,
    namespaces: Mapping[str, Mapping[str, str]],
    read: dict[Resource, Endpoint],
    before: Mapping[Resource, Endpoint],
) -> Iterator[Endpoint]:
    """Yield all pods, those that have ended too; `namespaces` has the labels of every namespace that has objects.

    `read` gets every Pod with its endpoint; those of `before` are taken over where nothing about them changed.
    """
    taken: set[tuple[str, str]] = set()
    shown: set[Reference] = set()
    for resource in snapshot.of_kind("", "Pod"):
        workload: Reference | None = None
        owner = controller(snapshot, resource)
        ended = owner is not None and has_ended(resource)
        while owner is not None:
            workload = owner.reference
            # Every workload but a Job goes on to make pods when its pods end, and its replicas stand for those.
            if not ended or owner.kind == "Job":
                shown.add(workload)
            owner = controller(snapshot, owner)
        taken.add((resource.namespace, resource.name))
        labels = namespaces[resource.namespace]
        endpoint = before.get(resource)
        if endpoint is None or endpoint.namespace_labels != labels or endpoint.workload != workload:
            endpoint = _own_endpoint(resource, labels)
            if workload is not None:
                endpoint = replace(endpoint, workload=workload)
        read[resource] = endpoint
        yield endpoint
    nodes = sum(1 for _ in snapshot.of_kind("", "Node"))
    for group, kind in WORKLOADS:
        for resource in snapshot.of_kind(group, kind):
            # Pods of a cluster are its own: a workload without pods has none.
            if resource.is_live:
                continue
            if resource.reference not in shown and controller(snapshot, resource) is None:
                yield from _replicas(resource, namespaces[resource.namespace], nodes, taken)


def objects_behind(snapshot: Snapshot, end: Endpoint) -> Iterator[Resource]:
    """Yield the objects that make an endpoint what it is: a pod or its workload, and its namespace; or a node."""
    keys: list[tuple[str, str, str, str]] = []
    if end.kind == "pod":
        keys = [("", "Pod", end.namespace, end.name), ("", "Namespace", "", end.namespace)]
        if end.workload is not None:
            keys.append((_GROUPS[end.workload.kind], end.workload.kind, end.namespace, end.workload.name))
    elif end.kind == "node":
        keys = [("", "Node", "", end.name)]
    return (resource for key in keys if (resource := snapshot.get(*key)) is not None)


def _replicas(
    resource: Resource, labels: Mapping[str, str], nodes: int, taken: set[tuple[str, str]]
) -> Iterator[Endpoint]:
    metadata, spec = (nested_map(pod_template(resource), key) for key in ("metadata", "spec"))
    for number in range(min(MAX_REPLICAS, _count(resource, nodes))):
        name = f"{resource.name}-{number}"
        if (resource.namespace, name) in taken:
            # A pod or another workload's replica has that name. A colon, which object names never have, tells them
            # apart.
            name = f"{resource.kind.lower()}:{name}"
        taken.add((resource.namespace, name))
        yield pod_endpoint(resource.namespace, name, labels, metadata, spec, {}, resource.reference)


def pod_spec(resource: Resource) -> Mapping[str, Any]:
    """Return the spec of a Pod, or that of the pods of a workload."""
    return resource.spec if resource.kind == "Pod" else nested_map(pod_template(resource), "spec")


def pod_template(workload: Resource) -> Mapping[str, Any]:
    """Return the pod template of a workload."""
    return nested_map(_job(workload), "template")


def runs_pods(workload: Resource) -> bool:
    """Whether a workload has not been scaled to zero."""
    return _count(workload, MAX_REPLICAS) > 0


def _job(resource: Resource) -> Mapping[str, Any]:
    """Return the part of a workload that has the pod template: its spec, or the spec of a CronJob's Jobs."""
    return nested_map(resource.spec, "jobTemplate", "spec") if resource.kind == "CronJob" else resource.spec


def _count(resource: Resource, nodes: int) -> int:
    """Return how many pods a workload runs.

    A DaemonSet runs one per node (two if the snapshot has no Nodes); others run one unless they give a number.
    """
    if resource.kind == "DaemonSet":
        return nodes or MAX_REPLICAS
    count = _job(resource).get("parallelism" if resource.kind in ("Job", "CronJob") else "replicas")
    return count if type(count) is int and count >= 0 else 1
