"""The Gateways of class `tierwall`: those whose GatewayClass names our controller (Gateway API, "GatewayClass")."""

from __future__ import annotations

from collections.abc import Collection

from tierwall.attach.place import GATEWAY, GATEWAY_API
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.controller.desired import CONTROLLER_NAME

GATEWAY_CLASS = (GATEWAY_API, "GatewayClass")


@per_snapshot
def our_classes(snapshot: Snapshot) -> tuple[Resource, ...]:
    """Return the GatewayClasses that name our controller, by name."""
    ours = (each for each in snapshot.of_kind(*GATEWAY_CLASS) if each.spec.get("controllerName") == CONTROLLER_NAME)
    return tuple(sorted(ours, key=lambda each: each.name))


@per_snapshot
def our_gateways(snapshot: Snapshot) -> tuple[Resource, ...]:
    """Return the Gateways of our classes, by namespace and name."""
    names = {each.name for each in our_classes(snapshot)}
    ours = (gateway for gateway in snapshot.of_kind(*GATEWAY) if gateway.spec.get("gatewayClassName") in names)
    return tuple(sorted(ours, key=lambda gateway: (gateway.namespace, gateway.name)))


def served_gateways(snapshot: Snapshot, namespaces: Collection[str] | None) -> tuple[Resource, ...]:
    """Return the Gateways of our classes in these namespaces; None for all namespaces."""
    return tuple(gateway for gateway in our_gateways(snapshot) if namespaces is None or gateway.namespace in namespaces)


def full_name(gateway: Resource) -> str:
    """Return `namespace/name`."""
    return f"{gateway.namespace}/{gateway.name}"
