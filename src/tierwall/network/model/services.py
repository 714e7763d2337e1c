"""The pods behind a Service: its ports, and the port of each selected pod that a port leads to.

docs/semantics.md#a-service-is-its-pods.

A Service selects pods of its namespace by labels. Each of its ports leads to a target port: a number, the name of a
container port with the same protocol (which may be another number on each pod), or the same number if none is given. A
Service of type ExternalName leads to a DNS name. Without a selector, it leads to addresses that others write down.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeGuard

from msgspec import Struct

from tierwall.network.model.endpoints import LAST_PORT, PROTOCOLS, Endpoint
from tierwall.network.model.model import network_model
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource, list_of_maps
from tierwall.resources.snapshot import Snapshot


class ServicePort(Struct, frozen=True, eq=False):
    """A port of a Service, and the pods that it leads to, by the port on which they listen."""

    number: int
    name: str
    protocol: str
    # The target port as it is written: a number or the name of a container port.
    target: int | str
    pods: Mapping[int, tuple[Endpoint, ...]]
    # Selected pods that do not have the target port.
    lacking: tuple[Endpoint, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} ({self.protocol} {self.number})" if self.name else f"{self.protocol} {self.number}"


class ServiceTargets(Struct, frozen=True, eq=False):
    """The ports of a Service and the pods that it selects, or the reason why it leads to no pod."""

    service: Resource
    ports: tuple[ServicePort, ...] = ()
    pods: tuple[Endpoint, ...] = ()
    problem: str = ""

    def port(self, wanted: int | str, protocol: str = "") -> ServicePort | None:
        """Return the port with this number or name, and with this protocol if one is given."""
        for port in self.ports:
            if wanted in (port.number, port.name or None) and protocol in ("", port.protocol):
                return port
        return None


@per_snapshot
def service_targets(snapshot: Snapshot, service: Resource) -> ServiceTargets:
    """Return what a Service leads to."""
    spec, reference = service.spec, service.reference
    if spec.get("type") == "ExternalName":
        return ServiceTargets(service, problem=f"{reference} is of type ExternalName: it leads to a DNS name")
    selector = spec.get("selector")
    if not isinstance(selector, dict) or not selector:
        return ServiceTargets(service, problem=f"{reference} has no selector: its addresses are not among the objects")
    labels = {str(key): str(value) for key, value in selector.items()}
    pods = labelled_pods(snapshot, service.namespace, labels)
    ports = tuple(port for value in list_of_maps(spec.get("ports")) if (port := _port(value, pods)) is not None)
    if not pods:
        return ServiceTargets(service, ports, problem=f"{reference} selects no pod")
    return ServiceTargets(service, ports, pods, "" if ports else f"{reference} has no port")


def _port(value: Mapping[str, object], pods: Iterable[Endpoint]) -> ServicePort | None:
    number, name, protocol = _number(value.get("port")), value.get("name"), value.get("protocol") or "TCP"
    if number is None or protocol not in PROTOCOLS:
        return None
    written = value.get("targetPort") or number
    target = written if isinstance(written, str) and written else _number(written)
    if target is None:
        return None
    by_port: dict[int, list[Endpoint]] = {}
    lacking: list[Endpoint] = []
    for pod in pods:
        numbers = (
            [port for with_protocol, port in pod.named_ports.get(target, ()) if with_protocol == protocol]
            if isinstance(target, str)
            else [target]
        )
        for port in numbers:
            by_port.setdefault(port, []).append(pod)
        if not numbers:
            lacking.append(pod)
    return ServicePort(
        number,
        name if isinstance(name, str) else "",
        str(protocol),
        target,
        {port: tuple(by_port[port]) for port in sorted(by_port)},
        tuple(lacking),
    )


def is_port(value: object) -> TypeGuard[int]:
    """Whether a value is the number of a port."""
    return type(value) is int and 1 <= value <= LAST_PORT


def _number(value: object) -> int | None:
    return value if is_port(value) else None


def labelled_pods(snapshot: Snapshot, namespace: str, labels: Mapping[str, str]) -> tuple[Endpoint, ...]:
    """Return the pods of a namespace that have all of these labels, by name; there must be at least one label."""
    index = _by_label(snapshot)
    candidates = min((index.get((namespace, *label), ()) for label in labels.items()), key=len)
    wanted = labels.items()
    return tuple(
        sorted((pod for pod in candidates if wanted <= pod.labels.items()), key=lambda pod: pod.name),
    )


@per_snapshot
def _by_label(snapshot: Snapshot) -> Mapping[tuple[str, str, str], tuple[Endpoint, ...]]:
    index: dict[tuple[str, str, str], list[Endpoint]] = {}
    for pod in network_model(snapshot).pods:
        for key, value in pod.labels.items():
            index.setdefault((pod.namespace, key, value), []).append(pod)
    return {label: tuple(pods) for label, pods in index.items()}
