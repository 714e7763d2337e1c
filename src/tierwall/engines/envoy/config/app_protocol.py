"""How a backend wants to be spoken to: `appProtocol` of its Service's port (Gateway API, GEP-1911), and gRPC.

`https` and `kubernetes.io/wss` say that the backend has TLS, but not whose certificate to expect. Something else must
say that; otherwise the backend is not reached at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tierwall.attach.place import SERVICE
from tierwall.engines.envoy.config.settings.upstream import ClusterChange, http
from tierwall.resources.resource import Resource, list_of_maps, nested_map
from tierwall.resources.snapshot import Snapshot

H2C = "kubernetes.io/h2c"
HINT = "write a BackendTLSPolicy for the Service, with the authority of its certificate"
_WITH_TLS = ("https", "kubernetes.io/wss")


def service_port(snapshot: Snapshot, backend: Resource, port: int) -> tuple[Resource, int] | None:
    """Return the Service and port behind a backend: itself, or the one that an XBackend names."""
    if (backend.group, backend.kind) == SERVICE:
        return backend, port
    mcp = nested_map(backend.spec, "mcp")
    service = snapshot.get(*SERVICE, backend.namespace, str(mcp.get("serviceName")))
    return (service, mcp["port"]) if service is not None and type(mcp.get("port")) is int else None


def app_protocol(snapshot: Snapshot, backend: Resource, port: int) -> str:
    """Return the `appProtocol` of a backend; empty if it says none."""
    behind = service_port(snapshot, backend, port)
    if behind is None:
        return ""
    service, number = behind
    ports = (entry for entry in list_of_maps(service.spec.get("ports")) if entry.get("port") == number)
    return str(next(ports, {}).get("appProtocol") or "")


def protocol_changes(protocol: str, is_grpc: bool) -> Iterator[ClusterChange]:
    """Yield what a protocol changes in the cluster of a backend."""
    if is_grpc or protocol == H2C:
        yield http({"version": "HTTP2"})


def missing_tls(protocol: str, cluster: Any) -> str:
    """Return what is not supported about a backend that wants TLS and whose cluster has none, or an empty string."""
    return f"appProtocol `{protocol}` without TLS settings" if protocol in _WITH_TLS and not _has_tls(cluster) else ""


def _has_tls(cluster: Any) -> bool:
    has: bool = cluster.HasField("transport_socket")
    return has
