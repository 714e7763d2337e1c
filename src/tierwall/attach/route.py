"""Find the listeners that a route attaches to: `parentRefs`, `allowedRoutes`, host names (Gateway API).

A parentRef to a Gateway means the Gateway's own listeners; a route reaches those of a ListenerSet by a parentRef to the
ListenerSet. A listener accepts a route if it allows the route's namespace and kind, and the host names overlap.
AgentgatewayModels attach to listeners in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tierwall.attach.listener import Listener, listeners, namespace_allowed, parent_gateway, shared_hostnames
from tierwall.attach.place import GATEWAY, GATEWAY_API, LISTENER_SET, MODEL, X_LISTENER_SET
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource, list_of_maps, nested_map
from tierwall.resources.snapshot import Snapshot

# The default route kinds by protocol, if `allowedRoutes.kinds` is not set.
_BY_PROTOCOL = {
    "HTTP": ("HTTPRoute", "GRPCRoute"),
    "HTTPS": ("HTTPRoute", "GRPCRoute"),
    "TLS": ("TLSRoute", "TCPRoute"),
    "TCP": ("TCPRoute",),
    "UDP": ("UDPRoute",),
}


class RouteOnListener(NamedTuple):
    """A route on a listener of a Gateway, with the host names that it serves there (empty: all)."""

    route: Resource
    parent: int
    gateway: Resource
    listener: Listener
    hostnames: tuple[str, ...]


class RefusedParentRef(NamedTuple):
    """A parentRef that does not attach the route; `reason` is the one of the Gateway API's `Accepted` condition."""

    route: Resource
    parent: int
    reason: str
    message: str


@per_snapshot
def attach_route(
    snapshot: Snapshot, route: Resource
) -> tuple[tuple[RouteOnListener, ...], tuple[RefusedParentRef, ...]]:
    """Return the listeners that a route attaches to, and the parentRefs that do not attach it."""
    attached: list[RouteOnListener] = []
    refused: list[RefusedParentRef] = []
    for index, parent in enumerate(list_of_maps(route.spec.get("parentRefs"))):
        result = _attach_to_parent(snapshot, route, index, parent)
        if isinstance(result, RefusedParentRef):
            refused.append(result)
        else:
            attached += result
    return tuple(attached), tuple(refused)


def _attach_to_parent(
    snapshot: Snapshot, route: Resource, index: int, parent: Mapping[str, Any]
) -> list[RouteOnListener] | RefusedParentRef:
    key = parent.get("group", GATEWAY_API), parent.get("kind", "Gateway")
    namespace, name = str(parent.get("namespace") or route.namespace), str(parent.get("name"))
    owner = snapshot.get(*key, namespace, name) if key in (GATEWAY, LISTENER_SET, X_LISTENER_SET) else None
    if owner is None:
        return RefusedParentRef(route, index, "NoMatchingParent", f"{key[1]} {namespace}/{name} not found")
    gateway, reason = (owner, "") if key == GATEWAY else parent_gateway(snapshot, owner)
    if gateway is None:
        return RefusedParentRef(
            route, index, "NoMatchingParent", f"{key[1]} {namespace}/{name} is not attached: {reason}"
        )
    section, port = parent.get("sectionName"), parent.get("port")
    matching = [
        listener
        for listener in listeners(owner)
        if section in (None, "", listener.name) and port in (None, 0, listener.port)
    ]
    if not matching:
        what = f"listener {section}" if section else f"port {port}" if port else "listener"
        return RefusedParentRef(route, index, "NoMatchingParent", f"no {what} in {key[1]} {namespace}/{name}")
    allowed = [listener for listener in matching if _listener_allows(snapshot, listener, route)]
    if not allowed:
        message = f"no listener of {key[1]} {namespace}/{name} allows {route.kind} from namespace {route.namespace}"
        return RefusedParentRef(route, index, "NotAllowedByListeners", message)
    names = route.spec.get("hostnames")
    hostnames = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    attached = [
        RouteOnListener(route, index, gateway, listener, served)
        for listener in allowed
        if (served := shared_hostnames(listener.hostname, hostnames)) is not None
    ]
    if not attached:
        message = f"no listener of {key[1]} {namespace}/{name} has a host name of the route"
        return RefusedParentRef(route, index, "NoMatchingListenerHostname", message)
    return attached


def _listener_allows(snapshot: Snapshot, listener: Listener, route: Resource) -> bool:
    """Whether a listener's `allowedRoutes` and protocol let a route attach."""
    rule = nested_map(listener.value, "allowedRoutes")
    if not namespace_allowed(
        snapshot, nested_map(rule, "namespaces"), "Same", listener.owner.namespace, route.namespace
    ):
        return False
    kinds = [(kind.get("group", GATEWAY_API), kind.get("kind")) for kind in list_of_maps(rule.get("kinds"))]
    if (route.group, route.kind) == MODEL:  # only if it is listed
        return listener.protocol in ("HTTP", "HTTPS") and MODEL in kinds
    by_protocol = _BY_PROTOCOL.get(listener.protocol)
    if by_protocol is not None and route.kind not in by_protocol:
        return False
    return not kinds or (route.group, route.kind) in kinds
