"""The pods of a Gateway, and the ports of theirs that a listener's port leads to (docs/path.md#the-pods-of-a-gateway).

GEP-1762: the pods of a Gateway are in its namespace, and they or their workload carry the label
`gateway.networking.k8s.io/gateway-name`. Others have to be named. Clients connect to a Service in front of the pods,
which may translate the port of a listener: policies see the port of the pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from tierwall.attach.place import SERVICE
from tierwall.core.labels import Selector
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.model import network_model
from tierwall.network.model.services import labelled_pods, service_targets
from tierwall.network.model.ways import GATEWAY_LABEL
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.workloads import WORKLOADS


class PodSelection(Struct, frozen=True):
    """Pods of one namespace by their labels: `gatewayPods` of a question."""

    namespace: str
    selector: Selector

    def pods(self, snapshot: Snapshot) -> tuple[Endpoint, ...]:
        """Return the selected pods, by name."""
        pods = network_model(snapshot).pods
        selected = (pod for pod in pods if pod.namespace == self.namespace and self.selector.matches(pod.labels))
        return tuple(sorted(selected, key=lambda pod: pod.name))

    def __str__(self) -> str:
        labels = f" with {self.selector}" if self.selector.requirements else ""
        return f"the pods of namespace {self.namespace}{labels}"


def gateway_pods(snapshot: Snapshot, gateway: Resource) -> tuple[Endpoint, ...]:
    """Return the pods that carry the label of a Gateway, or whose workload does, by name."""
    labelled = labelled_pods(snapshot, gateway.namespace, {GATEWAY_LABEL: gateway.name})
    workloads = _labelled_workloads(snapshot).get((gateway.namespace, gateway.name), ())
    model = network_model(snapshot)
    pods = {*labelled, *(pod for workload in workloads for pod in model.pods_of(workload.reference))}
    return tuple(sorted(pods, key=lambda pod: pod.name))


@per_snapshot
def _labelled_workloads(snapshot: Snapshot) -> Mapping[tuple[str, object], Sequence[Resource]]:
    """Return the workloads that carry the label of a Gateway, by namespace and Gateway."""
    workloads: dict[tuple[str, object], list[Resource]] = {}
    for key in WORKLOADS:
        for workload in snapshot.of_kind(*key):
            name = workload.labels.get(GATEWAY_LABEL)
            if isinstance(name, str):
                workloads.setdefault((workload.namespace, name), []).append(workload)
    return workloads


def listening_pods(
    snapshot: Snapshot, pods: Iterable[Endpoint], port: int, protocol: str
) -> tuple[tuple[Endpoint, int], ...]:
    """Return each pod with the ports of it to which a port of its Services leads; without a Service, with that port."""
    pods = tuple(pods)
    ports: dict[Endpoint, set[int]] = {}
    for namespace in dict.fromkeys(pod.namespace for pod in pods):
        for service in snapshot.in_namespace(*SERVICE, namespace):
            wanted = service_targets(snapshot, service).port(port, protocol)
            # No port is translated by a headless Service.
            if wanted is not None and service.spec.get("clusterIP") != "None":
                for number, behind in wanted.pods.items():
                    for pod in behind:
                        ports.setdefault(pod, set()).add(number)
    return tuple((pod, number) for pod in pods for number in sorted(ports.get(pod, {port})))
