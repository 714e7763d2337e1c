"""Addresses of backends, and the backendRefs that lead nowhere. Envoy's own packages are not needed."""

from __future__ import annotations

import re
from typing import NamedTuple

from tierwall.attach.backend import BackendRef, is_permitted, listening_port
from tierwall.attach.delegation import children, selected_routes
from tierwall.attach.place import BACKEND, SERVICE
from tierwall.core.words import join_names
from tierwall.engines.envoy.config.agentgateway_backends import BackendTarget, backend_target, joined_targets
from tierwall.engines.envoy.config.options import EnvoyOptions, SocketAddress
from tierwall.resources.resource import Resource, nested_map
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.model import BACKENDS
from tierwall.values.addresses import read_ip

# Backends may name any host, and definitions do not check the name.
NAME = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)*",
    re.ASCII,
)


class UnresolvedRef(NamedTuple):
    """A backendRef that leads nowhere: the reason that the status of the route has (Gateway API, `ResolvedRefs`)."""

    reason: str
    message: str


def unresolved(snapshot: Snapshot, ref: BackendRef) -> UnresolvedRef | None:
    """Return why a backendRef does not lead to a backend or to other routes, or None if it does."""
    if ref.delegates:
        return _without_children(snapshot, ref)
    if ref.place.key not in (*BACKENDS, SERVICE, BACKEND):
        words = "a backend must be a Service, an XBackend or an AgentgatewayBackend"
        return UnresolvedRef("InvalidKind", f"{ref.place}: {words}")
    if not is_permitted(snapshot, ref.route, ref.place):
        words = f"no ReferenceGrant in namespace {ref.place.namespace} permits {ref.place}"
        return UnresolvedRef("RefNotPermitted", words)
    if ref.place.resource(snapshot) is None:
        return UnresolvedRef("BackendNotFound", f"{ref.place} does not exist")
    return None


def _without_children(snapshot: Snapshot, ref: BackendRef) -> UnresolvedRef | None:
    """Return why a backendRef does not lead to any other route, or None if it does."""
    if children(snapshot, ref):
        return None
    selected = selected_routes(snapshot, ref)
    if not selected:
        return UnresolvedRef("BackendNotFound", f"{ref.place} does not exist")
    names = join_names([str(route.reference) for route in selected])
    return UnresolvedRef("RefNotPermitted", f"{ref.route.reference} is not accepted as parent by {names}")


def backend_address(
    resource: Resource, port: int, options: EnvoyOptions, service: Resource | None = None
) -> tuple[SocketAddress, bool] | None:
    """Return the address of a backend, or of a port of a Service, and whether it is reached over TLS."""
    override = options.endpoints.get(str(resource.reference))
    if override is not None:
        return override, False
    if resource.kind == "Service":
        return (service_address(resource, port, options), False) if port else None
    if (resource.group, resource.kind) == BACKEND:
        target = backend_target(resource)
        return None if isinstance(target, str) or unserved_part(resource) else (target.address, target.tls)
    mcp = nested_map(resource.spec, "mcp")
    port = mcp["port"] if type(mcp.get("port")) is int else 0
    name, host = mcp.get("serviceName"), mcp.get("hostname")
    if isinstance(name, str) and NAME.fullmatch(name) and port:
        return SocketAddress(_dns(name, resource.namespace, options), listening_port(service, port)), False
    if isinstance(host, str) and is_host(host) and port:
        return SocketAddress(host, port), True
    return None


def unserved_part(backend: Resource) -> str:
    """Return the part of an AgentgatewayBackend that Envoy does not serve, or an empty string."""
    target = backend_target(backend)
    if isinstance(target, str):
        return target
    hosts = (each.address.host for each in joined_targets(backend) or (target,))
    return next((f"host `{host}`, which is not a host name," for host in hosts if not is_host(host)), "")


def is_host(host: str) -> bool:
    """Whether a text is the name or the address of a host."""
    return NAME.fullmatch(host) is not None or read_ip(host) is not None


def external_host(resource: Resource, target: BackendTarget | str = "") -> str:
    """Return the host name of a backend outside the cluster; empty for others, which get the client's host.

    `target` is one of the servers that it joins.
    """
    if (resource.group, resource.kind) == BACKEND:
        target = target or backend_target(resource)
        return "" if isinstance(target, str) or read_ip(target.address.host) is not None else target.address.host
    host = nested_map(resource.spec, "mcp").get("hostname")
    return host if isinstance(host, str) and resource.kind != "Service" else ""


def service_address(service: Resource, port: int, options: EnvoyOptions) -> SocketAddress:
    """Return the address of a port of a Service."""
    return SocketAddress(_dns(service.name, service.namespace, options), listening_port(service, port))


def _dns(service: str, namespace: str, options: EnvoyOptions) -> str:
    return f"{service}.{namespace}.svc.{options.cluster_domain}"
