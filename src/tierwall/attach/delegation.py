"""Delegation: a backendRef from an HTTPRoute to HTTPRoutes hands requests on to child routes.

The name of the reference is a child's name, `*` for every route of the namespace, or `key=value` for those with that
label. A child that lists parentRefs must name the parent among them; so a route that lists only Gateways is nobody's
child. A child without parentRefs belongs to the parents of its own namespace; a parent elsewhere needs a ReferenceGrant
(docs/gateway.md#delegation).
"""

from __future__ import annotations

from collections.abc import Iterable

from tierwall.attach.backend import BackendRef, is_permitted
from tierwall.attach.place import GATEWAY_API, HTTP_ROUTE, Place
from tierwall.resources.resource import Resource, list_of_maps
from tierwall.resources.snapshot import Snapshot

EVERY_ROUTE = "*"


def children(snapshot: Snapshot, ref: BackendRef) -> tuple[Resource, ...]:
    """Return the routes that a delegating backendRef hands requests on to, by name."""
    return tuple(route for route in selected_routes(snapshot, ref) if accepts_parent(snapshot, route, ref.route))


def selected_routes(snapshot: Snapshot, ref: BackendRef) -> tuple[Resource, ...]:
    """Return the routes that a delegating backendRef selects, by name, whether or not they accept it."""
    named = ref.place.resource(snapshot)
    if named is not None:
        return (named,)
    key, equals, value = ref.place.name.partition("=")
    if not equals and key != EVERY_ROUTE:
        return ()
    routes: Iterable[Resource] = snapshot.in_namespace(*HTTP_ROUTE, ref.place.namespace)
    if equals:
        # A missing label counts as an empty one.
        routes = (route for route in routes if route.labels.get(key, "") == value)
    return tuple(sorted(routes, key=lambda route: route.name))


def accepts_parent(snapshot: Snapshot, child: Resource, parent: Resource) -> bool:
    """Whether a route lets another route delegate to it."""
    if not list_of_maps(child.spec.get("parentRefs")):
        return is_permitted(snapshot, parent, Place.of(child))
    return names_parent(child, parent)


def names_parent(child: Resource, parent: Resource) -> bool:
    """Whether a route lists another route among its parentRefs."""
    return any(
        (
            parent_ref.get("group", GATEWAY_API),
            parent_ref.get("kind", "Gateway"),
            parent_ref.get("namespace") or child.namespace,
            parent_ref.get("name"),
        )
        == parent.identity
        for parent_ref in list_of_maps(child.spec.get("parentRefs"))
    )
