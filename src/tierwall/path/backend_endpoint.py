"""The endpoint of a backend: the pods behind a port of a Service, an address, or somewhere outside the cluster.

docs/path.md#where-a-backend-leads. An XBackend names a Service of its own namespace, or a host; an AgentgatewayBackend
names a host, or several MCP targets. A Service is a backend at the ports that routes of the Gateway name; if none
does, at all its ports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from tierwall.attach.backend import listening_port
from tierwall.attach.place import BACKEND, SERVICE, Place
from tierwall.attach.reach import gateway_graph
from tierwall.core.reference import Reference
from tierwall.network.ends import OUTSIDE
from tierwall.network.model.services import service_targets
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource, list_of_maps, nested_map
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.request import Backend
from tierwall.values.addresses import read_ip

CLUSTER_DOMAIN = "cluster.local"
TCP = "TCP"


class BackendEndpoint(Struct, frozen=True):
    """The end of a path: `to` and `ports` are those of network questions; `problem` says why it leads nowhere."""

    to: str | Mapping[str, str] = ""
    ports: tuple[int, ...] = ()
    # The Service behind the backend, if there is one.
    service: Reference | None = None
    # The host outside the cluster of which only DNS knows the address.
    host: str = ""
    problem: str = ""


def backend_endpoint(
    snapshot: Snapshot, backend: Resource | Backend, gateway: Resource, target: str = ""
) -> BackendEndpoint:
    """Return where a backend leads behind a Gateway; a Service that has no object is a `Backend`.

    `target` is the server that a request is for, of those that the backend joins.
    """
    if not isinstance(backend, Backend) and len(targets := _targets(backend)) > 1:
        named = next((each for each in targets if target and each.get("name") == target), None)
        if named is not None:
            return _at_address(snapshot, backend, nested_map(named, "static"))
        why = f"{backend.reference} has {len(targets)} MCP targets, and which of them is called is not known"
        return BackendEndpoint(problem=why)
    return backend_endpoints(snapshot, backend, gateway)[0]


def backend_endpoints(
    snapshot: Snapshot, backend: Resource | Backend, gateway: Resource
) -> tuple[BackendEndpoint, ...]:
    """Return where all targets of a backend lead."""
    targets = [] if isinstance(backend, Backend) else _targets(backend)
    if len(targets) < 2 or isinstance(backend, Backend):
        return (_endpoint(snapshot, backend, gateway),)
    return tuple(_at_address(snapshot, backend, nested_map(target, "static")) for target in targets)


def _endpoint(snapshot: Snapshot, backend: Resource | Backend, gateway: Resource) -> BackendEndpoint:
    if isinstance(backend, Backend):
        return BackendEndpoint(problem=f"{backend} is not among the objects")
    if (backend.group, backend.kind) == SERVICE:
        routed = _routed_ports(snapshot).get((Place.of(gateway), Place.of(backend)), ())
        return _service_end(snapshot, backend, tuple(sorted(routed)))
    if (backend.group, backend.kind) == BACKEND:
        targets = _targets(backend)
        return _at_address(snapshot, backend, nested_map(targets[0] if targets else backend.spec, "static"))
    return _at_address(snapshot, backend, nested_map(backend.spec, "mcp"))


def _at_address(snapshot: Snapshot, backend: Resource, mcp: Mapping[str, object]) -> BackendEndpoint:
    """Return where a host or Service and a port lead."""
    port, service, host = mcp.get("port"), mcp.get("serviceName"), mcp.get("hostname", mcp.get("host"))
    if type(port) is not int or not port:
        return BackendEndpoint(problem=f"{backend.reference} has no port")
    if isinstance(service, str) and service:
        return _named_service(snapshot, backend.namespace, service, port)
    if not isinstance(host, str) or not host:
        return BackendEndpoint(problem=f"{backend.reference} names neither a Service nor a host")
    if read_ip(host) is not None:
        return BackendEndpoint({"ip": host}, (port,))
    parts = host.lower().rstrip(".").removesuffix(f".{CLUSTER_DOMAIN}").split(".")
    if len(parts) == 3 and parts[2] == "svc":
        return _named_service(snapshot, parts[1], parts[0], port)
    return BackendEndpoint(OUTSIDE, (port,), host=host)


def _targets(backend: Resource) -> Sequence[Mapping[str, object]]:
    """Return the MCP targets of an AgentgatewayBackend."""
    if (backend.group, backend.kind) != BACKEND:
        return ()
    return list_of_maps(nested_map(backend.spec, "mcp").get("targets"))


def _named_service(snapshot: Snapshot, namespace: str, name: str, port: int) -> BackendEndpoint:
    service = snapshot.get(*SERVICE, namespace, name)
    if service is None:
        return BackendEndpoint(problem=f"{Place(*SERVICE, namespace, name)} is not among the objects")
    return _service_end(snapshot, service, (port,))


def _service_end(snapshot: Snapshot, service: Resource, ports: tuple[int, ...]) -> BackendEndpoint:
    targets = service_targets(snapshot, service)
    if targets.problem:
        return BackendEndpoint(service=service.reference, problem=targets.problem)
    numbers = ports or tuple(port.number for port in targets.ports if port.protocol == TCP)
    problem = "" if numbers else f"{service.reference} has no TCP port"
    numbers = tuple(dict.fromkeys(listening_port(service, number) for number in numbers))
    return BackendEndpoint(str(service.reference), numbers, service.reference, problem=problem)


@per_snapshot
def _routed_ports(snapshot: Snapshot) -> Mapping[tuple[Place, Place], frozenset[int]]:
    """Return the ports of Services that routes of a Gateway lead to, by Gateway and Service."""
    ports: dict[tuple[Place, Place], set[int]] = {}
    for path in gateway_graph(snapshot).request_paths():
        backend = path.backend
        if backend is not None and backend.place.key == SERVICE and backend.port:
            ports.setdefault((Place.of(path.gateway), backend.place), set()).add(backend.port)
    return {key: frozenset(numbers) for key, numbers in ports.items()}
