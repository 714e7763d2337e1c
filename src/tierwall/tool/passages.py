"""The ways that routes take from listeners to backends (docs/tool.md#what-tierwall-tools-lists)."""

from __future__ import annotations

from msgspec import Struct

from tierwall.attach.listener import Listener, gateway_listeners
from tierwall.attach.place import GATEWAY, SERVICE
from tierwall.attach.reach import reach
from tierwall.core.reference import Reference
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.model import BACKENDS, backend_of
from tierwall.tool.request import Backend


class Passage(Struct, frozen=True, eq=False):
    """A way from a listener to a backend; `resource` is the backend's object."""

    gateway: Resource
    listener: Listener
    resource: Resource
    backend: Backend


@per_snapshot
def passages(snapshot: Snapshot) -> tuple[Passage, ...]:
    """Every way that a route takes from a listener to an XBackend or Service, each once, by name."""
    by_name: dict[tuple[str, str], Passage] = {}
    for way in reach(snapshot).ways():
        place = way.backend.place if way.backend is not None else None
        resource = place.resource(snapshot) if place is not None else None
        if resource is not None and (resource.group, resource.kind) in (*BACKENDS, SERVICE):
            backend = backend_of(resource)
            name = f"{way.gateway.reference}#{way.listener.name}", f"{resource.group}/{backend}"
            by_name.setdefault(name, Passage(way.gateway, way.listener, resource, backend))
    return tuple(passage for _, passage in sorted(by_name.items()))


def combinations(snapshot: Snapshot) -> tuple[Passage, ...]:
    """Every listener of every Gateway with every XBackend, for manifests that hold no routes."""
    gateways = sorted(snapshot.of_kind(*GATEWAY), key=_name)
    backends = sorted((backend for kind in BACKENDS for backend in snapshot.of_kind(*kind)), key=_name)
    return tuple(
        Passage(gateway, listener, backend, backend_of(backend))
        for gateway in gateways
        for listener in gateway_listeners(snapshot, gateway)
        for backend in backends
    )


def _name(resource: Resource) -> tuple[str, str]:
    return resource.namespace, resource.name


def is_unrouted(snapshot: Snapshot, gateway: Reference, backend: Reference) -> bool:
    """Whether the manifests hold routes to backends, but none from this Gateway to this backend."""
    routed = passages(snapshot)
    return bool(routed) and not any(
        passage.gateway.reference == gateway and passage.backend.reference == backend for passage in routed
    )
