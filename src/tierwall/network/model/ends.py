"""The two ends of a connection: pods, nodes, plain addresses.

docs/semantics.md#only-pods-are-under-policy, docs/semantics.md#any-address-of-an-end-counts.

Only a pod that is not on its host's network is under policy and can be selected by labels; all else is matched by
address alone. A pod's addresses are `status.podIP(s)`, a node's are its InternalIP and ExternalIP; a pod without
one has no address.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from tierwall.core.reference import Reference
from tierwall.resources.resource import Resource
from tierwall.values.addresses import Address, parse_address, show

NAMESPACE_NAME = "kubernetes.io/metadata.name"
PROTOCOLS = ("TCP", "UDP", "SCTP")
LAST_PORT = 65535

_NONE: Mapping[str, Any] = {}


class End(Struct, frozen=True, eq=False, gc=False):
    """One end of a connection. Ends compare by identity: the model has one object for each.

    INVARIANT: `gc=False` holds because nothing an end refers to refers back to it.
    """

    kind: str  # "pod", "node" or "address"
    name: str
    namespace: str = ""
    labels: Mapping[str, str] = _NONE
    namespace_labels: Mapping[str, str] = _NONE
    addresses: tuple[Address, ...] = ()
    # What each container port name stands for: one name may stand for several (protocol, number) pairs.
    named_ports: Mapping[str, tuple[tuple[str, int], ...]] = _NONE
    under_policy: bool = False
    node: str = ""
    workload: Reference | None = None

    def __str__(self) -> str:
        if self.kind == "pod":
            return f"{self.namespace}/{self.name}"
        return f"node:{self.name}" if self.kind == "node" else self.name


def address_end(address: Address) -> End:
    """The end that a plain address is, when it is no pod's."""
    return End("address", show(address), addresses=(address,))


def node_end(resource: Resource) -> End:
    """The end that a Node is."""
    found = mapping(resource.value.get("status")).get("addresses")
    texts = (mapping(one) for one in (found if isinstance(found, list) else ()))
    addresses = _addresses(one.get("address") for one in texts if one.get("type") in ("InternalIP", "ExternalIP"))
    return End("node", resource.name, labels=strings(resource.labels), addresses=addresses)


def pod_end(
    namespace: str,
    name: str,
    namespace_labels: Mapping[str, str],
    metadata: Mapping[str, Any],
    spec: Mapping[str, Any],
    status: Mapping[str, Any],
    workload: Reference | None,
) -> End:
    """The end that a pod, or a replica of a pod template, is."""
    return End(
        "pod",
        name,
        namespace,
        strings(mapping(metadata.get("labels"))),
        namespace_labels,
        _addresses(_pod_ips(status)) if status else (),
        _named_ports(spec),
        spec.get("hostNetwork") is not True,
        node_name if isinstance(node_name := spec.get("nodeName"), str) else "",
        workload,
    )


def namespace_labels(name: str, resource: Resource | None) -> Mapping[str, str]:
    """A namespace's labels; declared or not, it has the one with its name."""
    return {**(strings(resource.labels) if resource is not None else {}), NAMESPACE_NAME: name}


def mapping(value: object) -> Mapping[str, Any]:
    """The value if it is a map, else an empty one."""
    return value if isinstance(value, dict) else _NONE


def strings(labels: Mapping[str, Any]) -> Mapping[str, str]:
    """Labels with text values only; a number or a truth value counts as the text that YAML shows for it."""
    if all(type(value) is str for value in labels.values()):
        return labels
    return {
        str(key): value if isinstance(value, str) else "" if value is None else str(value).lower()
        for key, value in labels.items()
    }


def _addresses(texts: Iterable[object]) -> tuple[Address, ...]:
    return tuple(sorted({address for text in texts if (address := parse_address(text)) is not None}))


def _pod_ips(status: Mapping[str, Any]) -> Iterator[object]:
    yield status.get("podIP")
    several = status.get("podIPs")
    for one in several if isinstance(several, list) else ():
        yield mapping(one).get("ip")


def _named_ports(spec: Mapping[str, Any]) -> Mapping[str, tuple[tuple[str, int], ...]]:
    found: dict[str, set[tuple[str, int]]] = {}
    for container in _containers(spec):
        ports = mapping(container).get("ports")
        for entry in ports if isinstance(ports, list) else ():
            port = mapping(entry)
            name, number, protocol = port.get("name"), port.get("containerPort"), port.get("protocol") or "TCP"
            if isinstance(name, str) and name and type(number) is int and protocol in PROTOCOLS:
                found.setdefault(name, set()).add((protocol, number))
    return {name: tuple(sorted(pairs)) for name, pairs in found.items()} if found else _NONE


def _containers(spec: Mapping[str, Any]) -> Iterator[object]:
    containers = spec.get("containers")
    yield from containers if isinstance(containers, list) else ()
    # A sidecar (an init container that is always restarted) serves as long as the pod does, so its ports count too.
    sidecars = spec.get("initContainers")
    for one in sidecars if isinstance(sidecars, list) else ():
        if mapping(one).get("restartPolicy") == "Always":
            yield one
