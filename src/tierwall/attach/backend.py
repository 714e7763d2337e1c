"""References to backends in the rules of routes, in policies and in backends.

A reference of a route to another namespace needs a ReferenceGrant there. One of an AgentgatewayPolicy or
AgentgatewayBackend needs it only if `--backend-ref-grants` is `strict` (docs/gateway.md#where-a-policy-attaches). A
backendRef from an HTTPRoute to HTTPRoutes delegates to them (`attach.delegation`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tierwall.attach.place import AGENTGATEWAY, GATEWAY_API, HTTP_ROUTE, Place
from tierwall.attach.section import rules
from tierwall.resources.resource import Resource, list_of_maps
from tierwall.resources.snapshot import Snapshot


class BackendRef(NamedTuple):
    """One backendRef of a rule; `place` is the object that it refers to, `port` the port of a Service."""

    route: Resource
    rule: int
    number: int
    place: Place
    port: int
    value: Mapping[str, Any]

    @property
    def path(self) -> tuple[str | int, ...]:
        """The path of the reference in the route."""
        return ("spec", "rules", self.rule, "backendRefs", self.number)

    @property
    def weight(self) -> int:
        """The share of requests that go here; no requests for 0."""
        weight = self.value.get("weight")
        return weight if type(weight) is int else 1

    def resolves(self, snapshot: Snapshot) -> bool:
        """Whether the reference is permitted and its object exists. Not for one that delegates."""
        return self.place.resource(snapshot) is not None and is_permitted(snapshot, self.route, self.place)

    @property
    def delegates(self) -> bool:
        """Whether this hands requests on to other routes (`attach.delegation`)."""
        return self.place.key == HTTP_ROUTE == (self.route.group, self.route.kind)


def referenced_place(value: Mapping[str, Any], namespace: str) -> Place | None:
    """Return the place that a BackendObjectReference names; the default is a Service in the same namespace."""
    group, kind, name = value.get("group") or "", value.get("kind") or "Service", value.get("name")
    target = value.get("namespace") or namespace
    if not all(isinstance(text, str) for text in (group, kind, name, target)):
        return None
    return Place(group, kind, target, str(name))


def listening_port(service: Resource | None, port: int) -> int:
    """Return where the addresses of a Service's name listen: those of a headless one are its pods, not a port of it."""
    if service is None or service.spec.get("clusterIP") != "None":
        return port
    ports = (entry for entry in list_of_maps(service.spec.get("ports")) if entry.get("port") == port)
    target = next(ports, {}).get("targetPort")
    return target if type(target) is int and 0 < target < 65536 else port


def backend_refs(route: Resource) -> tuple[BackendRef, ...]:
    """Return the backendRefs of all rules, in the order of the document."""
    out = []
    for number, rule in enumerate(rules(route)):
        for index, value in enumerate(list_of_maps(rule.get("backendRefs"))):
            place = referenced_place(value, route.namespace)
            if place is not None:
                port = value.get("port")
                out.append(BackendRef(route, number, index, place, port if type(port) is int else 0, value))
    return tuple(out)


def is_permitted(snapshot: Snapshot, source: Resource, target: Place) -> bool:
    """Whether `source` may refer to `target`: always in its own namespace, elsewhere only with a grant there.

    Policies and backends of agentgateway need no grant, unless the mode is `strict`.
    """
    if source.namespace == target.namespace:
        return True
    if source.group == AGENTGATEWAY and snapshot.backend_ref_grants == "route":
        return True
    for grant in snapshot.in_namespace(GATEWAY_API, "ReferenceGrant", target.namespace):
        from_here = any(
            (source_rule.get("group"), source_rule.get("kind"), source_rule.get("namespace"))
            == (source.group, source.kind, source.namespace)
            for source_rule in list_of_maps(grant.spec.get("from"))
        )
        to_there = any(
            (target_rule.get("group"), target_rule.get("kind")) == target.key
            and target_rule.get("name") in (None, "", target.name)
            for target_rule in list_of_maps(grant.spec.get("to"))
        )
        if from_here and to_there:
            return True
    return False


_MAX_DEPTH = 40  # levels; every schema is less deep


class NestedBackendRef(NamedTuple):
    """A `backendRef` anywhere in an object; `port` is 0 if it has none."""

    owner: Resource
    place: Place
    port: int
    path: tuple[str | int, ...]

    def problem(self, snapshot: Snapshot) -> tuple[str, str] | None:
        """Return reason and message of `ResolvedRefs` if the reference does not resolve."""
        name = f"{self.place.kind} {self.place.namespace}/{self.place.name}"
        if not is_permitted(snapshot, self.owner, self.place):
            return "RefNotPermitted", f"no ReferenceGrant in namespace {self.place.namespace} permits {name}"
        if self.place.resource(snapshot) is None:
            return "BackendNotFound", f"{name} not found"
        return None


def nested_refs(owner: Resource) -> Iterator[NestedBackendRef]:
    """Yield every `backendRef` inside the spec of an object."""
    yield from refs_inside(owner, owner.spec, ("spec",))


def refs_inside(owner: Resource, value: object, path: tuple[str | int, ...] = ()) -> Iterator[NestedBackendRef]:
    """Yield every `backendRef` inside a value of an object."""
    if len(path) > _MAX_DEPTH:
        return
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from refs_inside(owner, item, (*path, index))
    elif isinstance(value, dict):
        for key, item in value.items():
            if key == "backendRef" and isinstance(item, dict):
                place = referenced_place(item, owner.namespace)
                if place is not None:
                    port = item.get("port", value.get("port"))  # an MCP target has its port beside the reference
                    yield NestedBackendRef(owner, place, port if type(port) is int else 0, (*path, key))
            else:
                yield from refs_inside(owner, item, (*path, key))
