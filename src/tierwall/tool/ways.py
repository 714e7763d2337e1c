"""The ways from listeners to backends: the one that a question names, and all that routes take.

A question need not name the only listener of a Gateway, but must name one of several
(docs/semantics.md#one-listener-goes-without-saying). `tierwall tools` lists the ways that routes take
(docs/tool.md#what-tierwall-tools-lists).
"""

from __future__ import annotations

from msgspec import Struct

from tierwall.attach.listener import Listener, gateway_listeners
from tierwall.attach.place import BACKEND, GATEWAY, ROUTES, SERVICE
from tierwall.attach.reach import gateway_graph
from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.core.reference import Reference
from tierwall.core.stack import Stack
from tierwall.resources.finder import ResourceFinder, name_hint
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.model import BACKENDS, backend_of, model
from tierwall.tool.request import Backend
from tierwall.tool.rules import AccessPolicy


class GuardedWay(Struct, frozen=True, eq=False):
    """The way of a request, and the policies that guard it."""

    gateway: Resource
    listener: Listener | None
    backend: Backend
    stack: Stack[AccessPolicy]


def find_way(
    snapshot: Snapshot,
    gateway: object,
    listener: object,
    backend: object,
    problems: list[Diagnostic],
    listener_set: str | None = None,
) -> GuardedWay | None:
    """Find the way that a question names, or return None and add to `problems`.

    An engine, which knows it, also names the ListenerSet whose listener it is (`namespace/name`).
    """
    is_cacheable = isinstance(gateway, str) and isinstance(listener, str | None) and isinstance(backend, str)
    if isinstance(backend, str) and backend.startswith("Service/") and _has_no_services(snapshot):
        # Questions may name any Service that has no object: keeping these ways would fill the memory.
        is_cacheable = False
    try:
        return (_cached_way if is_cacheable else _way)(snapshot, gateway, listener, backend, listener_set)
    except InputError as error:
        problems += error.diagnostics
        return None


def _way(
    snapshot: Snapshot, gateway: object, listener: object, backend: object, listener_set: str | None
) -> GuardedWay:
    finder = ResourceFinder(snapshot, [])
    gateway_object = finder.by_name("gateway", gateway, (GATEWAY,))
    gateway_listener = _listener(finder, gateway_object, listener, listener_set) if gateway_object is not None else None
    backend_object = backend_named(finder, backend)
    if finder.problems or gateway_object is None or backend_object is None:
        raise InputError(finder.problems)
    resource = backend_object if isinstance(backend_object, Resource) else None
    return GuardedWay(
        gateway_object,
        gateway_listener,
        backend_of(backend_object) if isinstance(backend_object, Resource) else backend_object,
        model(snapshot).stack(gateway_object, gateway_listener, resource),
    )


_cached_way = per_snapshot(_way)


def _listener(finder: ResourceFinder, gateway: Resource, name: object, listener_set: str | None) -> Listener | None:
    """Find a listener by name, on the Gateway before its ListenerSets; without a name, the only one there is."""
    listeners = gateway_listeners(finder.snapshot, gateway)
    if listener_set is not None:
        apart = (listener for listener in listeners if listener.owner is not gateway)
        listeners = tuple(each for each in apart if f"{each.owner.namespace}/{each.owner.name}" == listener_set)
    names = list(dict.fromkeys(listener.name for listener in listeners))
    if name is None:
        if len(listeners) > 1:
            message = (
                f"expected one of the {len(listeners)} listeners of {gateway.reference} as `listener`, found nothing"
            )
            finder.report_invalid(message, f"name one of {', '.join(names)}")
        return listeners[0] if len(listeners) == 1 else None
    named = [listener for listener in listeners if listener.name == name]
    on_gateway = [listener for listener in named if listener.owner is gateway]
    if not named:
        finder.report_missing(
            f"there is no listener `{name}` on {gateway.reference}", name_hint(name, names, "listeners")
        )
    elif not on_gateway and len(named) > 1:
        owners = ", ".join(str(listener.owner.reference) for listener in named)
        finder.report_invalid(f"listener `{name}` is ambiguous: {owners} each have a listener of this name")
    return next(iter(on_gateway or named), None)


def backend_named(finder: ResourceFinder, value: object) -> Resource | Backend | None:
    """Find the backend that a question names; a Service may have no object."""
    form = f"`namespace/name`, `Service/namespace/name` or `{BACKEND[1]}/namespace/name`"
    if isinstance(value, str):
        kind, _, rest = value.partition("/")
        if kind == "Service" and rest.count("/") == 1:
            if all(rest.split("/")) and _has_no_services(finder.snapshot):
                # There are no Service objects here, and the decision does not depend on them.
                namespace, _, name = rest.partition("/")
                return Backend(namespace, name, "Service")
            return finder.by_name("backend", rest, (SERVICE,), form)
        if kind == BACKEND[1] and rest.count("/") == 1:
            return finder.by_name("backend", rest, (BACKEND,), form)
        group = next((group for group, _ in BACKENDS if kind == f"XBackend.{group}"), None)
        if rest.count("/") == 1 and (kind == "XBackend" or group is not None):
            kinds = BACKENDS if group is None else ((group, "XBackend"),)
            return finder.by_name("backend", rest, kinds, form, one_only=True)
    return finder.by_name("backend", value, BACKENDS, form, one_only=True)


def _has_no_services(snapshot: Snapshot) -> bool:
    return not any(True for _ in snapshot.of_kind(*SERVICE))


class BackendWay(Struct, frozen=True, eq=False):
    """A way from a listener to a backend; `resource` is the backend's object."""

    gateway: Resource
    listener: Listener
    resource: Resource
    backend: Backend

    @property
    def listener_set(self) -> str | None:
        """The ListenerSet that has the listener (`namespace/name`); None if the Gateway has it."""
        owner = self.listener.owner
        return None if owner is self.gateway else f"{owner.namespace}/{owner.name}"


@per_snapshot
def routed_ways(snapshot: Snapshot) -> tuple[BackendWay, ...]:
    """Return every way that a route takes from a listener to an XBackend, Service or AgentgatewayBackend, by name."""
    by_name: dict[tuple[str, str, str], BackendWay] = {}
    for path in gateway_graph(snapshot).request_paths():
        place = path.backend.place if path.backend is not None else None
        resource = place.resource(snapshot) if place is not None else None
        if resource is not None and (resource.group, resource.kind) in (*BACKENDS, SERVICE, BACKEND):
            backend = backend_of(resource)
            way = BackendWay(path.gateway, path.listener, resource, backend)
            listener = f"{path.gateway.reference}#{path.listener.name}"
            by_name.setdefault((listener, f"{resource.group}/{backend}", way.listener_set or ""), way)
    return tuple(way for _, way in sorted(by_name.items()))


def unrouted_ways(snapshot: Snapshot) -> tuple[BackendWay, ...]:
    """Return the ways from every listener to every XBackend, for manifests without routes."""
    gateways = sorted(snapshot.of_kind(*GATEWAY), key=_name)
    backends = sorted((backend for kind in BACKENDS for backend in snapshot.of_kind(*kind)), key=_name)
    return tuple(
        BackendWay(gateway, listener, backend, backend_of(backend))
        for gateway in gateways
        for listener in gateway_listeners(snapshot, gateway)
        for backend in backends
    )


def _name(resource: Resource) -> tuple[str, str]:
    return resource.namespace, resource.name


def is_unrouted(snapshot: Snapshot, gateway: Reference, backend: Reference) -> bool:
    """Whether the manifests have routes, but none that leads from this Gateway to this backend."""
    return any(True for kind in ROUTES for _ in snapshot.of_kind(*kind)) and not any(
        way.gateway.reference == gateway and way.backend.reference == backend for way in routed_ways(snapshot)
    )
