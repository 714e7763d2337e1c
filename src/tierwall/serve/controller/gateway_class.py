"""The Gateways of class `tierwall`: those whose GatewayClass names our controller (Gateway API, "GatewayClass").

Everything that runs for a Gateway has its name as a label (GEP-1762).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from hashlib import sha256

from tierwall.attach.place import GATEWAY, GATEWAY_API
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.controller.desired import CONTROLLER_NAME

GATEWAY_CLASS = (GATEWAY_API, "GatewayClass")
# The label with the name of a Gateway.
GATEWAY_LABEL = "gateway.networking.k8s.io/gateway-name"
MAX_LABEL = 63


@per_snapshot
def our_classes(snapshot: Snapshot) -> tuple[Resource, ...]:
    """Return the GatewayClasses that name our controller, by name."""
    ours = (each for each in snapshot.of_kind(*GATEWAY_CLASS) if each.spec.get("controllerName") == CONTROLLER_NAME)
    return tuple(sorted(ours, key=lambda each: each.name))


@per_snapshot
def our_gateways(snapshot: Snapshot) -> tuple[Resource, ...]:
    """Return the Gateways of our classes, by namespace and name."""
    names = {each.name for each in our_classes(snapshot)}
    ours = (gateway for gateway in snapshot.of_kind(*GATEWAY) if str(gateway.spec.get("gatewayClassName")) in names)
    return tuple(sorted(ours, key=lambda gateway: (gateway.namespace, gateway.name)))


def served_gateways(snapshot: Snapshot, namespaces: Collection[str] | None) -> tuple[Resource, ...]:
    """Return the Gateways of our classes in these namespaces; None for all namespaces."""
    return tuple(gateway for gateway in our_gateways(snapshot) if namespaces is None or gateway.namespace in namespaces)


def full_name(gateway: Resource) -> str:
    """Return `namespace/name`."""
    return f"{gateway.namespace}/{gateway.name}"


def short_name(name: str) -> str:
    """Return a name as a label value or as the name of a Service: cut, with a digest, if it is too long for that."""
    return name if len(name) <= MAX_LABEL else f"{name[:54].rstrip('-.')}-{sha256(name.encode()).hexdigest()[:8]}"


def gateway_pods(snapshot: Snapshot, gateway: Resource) -> Iterator[str]:
    """Yield the names of the running pods of a Gateway."""
    for pod in snapshot.in_namespace("", "Pod", gateway.namespace):
        if pod.labels.get(GATEWAY_LABEL) != short_name(gateway.name) or pod.metadata.get("deletionTimestamp"):
            continue
        if (pod.value.get("status") or {}).get("phase") == "Running":
            yield pod.name
