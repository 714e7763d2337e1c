"""The graph from Gateways to listeners, ListenerSets, routes, delegated routes, models, backends, and their references.

A Service or AgentgatewayBackend is also reached through a policy at a reached place or through a reached backend that
refers to it: an authorization service, a rate limit service, the Services of an MCP backend. Its settings matter there,
too (docs/gateway.md#where-a-policy-attaches). Ports of a Service are reached one by one: a policy on a port that
nothing refers to leads nowhere. A reference without a port reaches all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tierwall.attach.backend import BackendRef, backend_refs, nested_refs
from tierwall.attach.delegation import children
from tierwall.attach.listener import Listener, gateway_listeners, namespace_labels
from tierwall.attach.model import model_targets, served_models
from tierwall.attach.place import BACKEND, GATEWAY, MODEL, ROUTES, SERVICE, Place
from tierwall.attach.route import RouteOnListener, attach_route
from tierwall.attach.section import rule_name, rules
from tierwall.attach.target import GATEWAY_POLICIES, attachments
from tierwall.core.labels import Selector, SelectorError
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource, list_of_maps, nested_map
from tierwall.resources.snapshot import Snapshot

# Routes may delegate to routes that delegate again; real chains are short.
MAX_CHAIN = 16
MAX_CHAINS = 16


class RouteRule(NamedTuple):
    """A rule of a route, by its number."""

    route: Resource
    rule: int

    @property
    def name(self) -> str:
        """The name of the rule, or an empty string if it has none."""
        return rule_name(rules(self.route)[self.rule])

    @property
    def label(self) -> str:
        """The name of the rule, or its number if it has no name."""
        return self.name or str(self.rule)


class RequestPath(NamedTuple):
    """The path of a request: from a listener through the rules that delegate it to a rule and its backend."""

    gateway: Resource
    listener: Listener
    # The rules of other routes that delegate to this one, outermost first.
    parents: tuple[RouteRule, ...]
    route: Resource
    rule: int
    backend: BackendRef | None


class GatewayGraph:
    """The graph of one snapshot that starts at its Gateways."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        # The Gateways that lead to an object, each with the ports that it leads to; 0 for all of them.
        self._gateways: dict[Place, dict[Place, set[int]]] = {}
        self._on: dict[tuple[Place, Place, int], list[Resource]] = {}
        self._beyond: dict[tuple[Place, int], tuple[tuple[Place, int], ...]] = {}
        self.routes_on_listeners = tuple(
            attached_route
            for key in ROUTES
            for route in sorted(snapshot.of_kind(*key), key=lambda resource: (resource.namespace, resource.name))
            for attached_route in attach_route(snapshot, route)[0]
        )
        self._models: dict[tuple[Place, Place, int], list[Resource]] = {}
        for attached_route in self.routes_on_listeners:
            self._on.setdefault(_listener_key(attached_route), []).append(attached_route.route)
        for model in sorted(snapshot.of_kind(*MODEL), key=lambda resource: (resource.namespace, resource.name)):
            for attached_model in attach_route(snapshot, model)[0]:
                self._models.setdefault(_listener_key(attached_model), []).append(model)
        self.gateways_all = tuple(
            sorted(snapshot.of_kind(*GATEWAY), key=lambda resource: (resource.namespace, resource.name))
        )
        for gateway in self.gateways_all:
            self._walk(gateway)

    def gateways(self, place: Place) -> tuple[Place, ...]:
        """Return the Gateways that lead to the object of a place; for a port of a Service, those that lead there."""
        ports = {0, int(place.section) if place.section.isdigit() else -1}
        is_port = place.key == SERVICE and bool(place.section)
        by_gateway = self._gateways.get(place.whole, {})
        return tuple(sorted(gateway for gateway, used in by_gateway.items() if not is_port or ports & used))

    def routes(self, gateway: Resource, listener: Listener) -> tuple[Resource, ...]:
        """Return the routes on a listener, by kind and name."""
        return tuple(self._on.get((Place.of(gateway), Place.of(listener.owner), listener.number), ()))

    def models(self, gateway: Resource, listener: Listener) -> tuple[Resource, ...]:
        """Return the AgentgatewayModels on a listener, by name."""
        return tuple(self._models.get((Place.of(gateway), Place.of(listener.owner), listener.number), ()))

    def request_paths(self) -> Iterator[RequestPath]:
        """Yield every path from a listener to a backend; a rule without a valid backend ends its path.

        A route that is reached through several chains of delegation has a path for each, because each has policies of
        its own. There may be exponentially many, so no route counts more than `MAX_CHAINS` of them at one listener.
        """
        for gateway in self.gateways_all:
            for listener in gateway_listeners(self._snapshot, gateway):
                chains: Counter[Resource] = Counter()
                for route in self.routes(gateway, listener):
                    yield from self._request_paths(gateway, listener, (), route, chains)

    def _request_paths(
        self,
        gateway: Resource,
        listener: Listener,
        parents: tuple[RouteRule, ...],
        route: Resource,
        chains: Counter[Resource],
    ) -> Iterator[RequestPath]:
        chains[route] += 1
        if chains[route] > MAX_CHAINS:
            return
        refs: dict[int, list[BackendRef]] = {}
        for ref in backend_refs(route):
            refs.setdefault(ref.rule, []).append(ref)
        for number in range(len(rules(route))):
            ends_here = True
            for ref in refs.get(number, ()):
                if ref.delegates:
                    if len(parents) + 1 < MAX_CHAIN:
                        here = (*parents, RouteRule(route, number))
                        above = {parent.route for parent in here}
                        for child in children(self._snapshot, ref):
                            if child not in above:
                                ends_here = False
                                yield from self._request_paths(gateway, listener, here, child, chains)
                elif ref.place.key == MODEL:
                    for model in served_models(self._snapshot, route, number):
                        ends_here = False
                        served = ref._replace(place=Place.of(model))
                        yield RequestPath(gateway, listener, parents, route, number, served)
                elif ref.resolves(self._snapshot):
                    ends_here = False
                    yield RequestPath(gateway, listener, parents, route, number, ref)
            if ends_here:
                yield RequestPath(gateway, listener, parents, route, number, None)

    def _walk(self, gateway: Resource) -> None:
        """Mark everything that one Gateway leads to."""
        gateway_place = Place.of(gateway)
        waiting = [(gateway_place, 0)]
        for listener in gateway_listeners(self._snapshot, gateway):
            waiting.append((Place.of(listener.owner), 0))
            waiting += [(Place.of(route), 0) for route in self.routes(gateway, listener)]
            waiting += [(Place.of(model), 0) for model in self.models(gateway, listener)]
        while waiting:
            place, port = waiting.pop()
            used = self._gateways.setdefault(place, {}).setdefault(gateway_place, set())
            if port in used:
                continue
            used.add(port)
            if (place, port) not in self._beyond:
                self._beyond[place, port] = tuple(dict.fromkeys(self._references(place, port)))
            # Only Services have ports that policies name.
            waiting += [
                (referred, number if referred.key == SERVICE else 0) for referred, number in self._beyond[place, port]
            ]

    def _references(self, place: Place, port: int) -> Iterator[tuple[Place, int]]:
        """Yield what a reached object, or a policy on it or its sections, refers to, other ports left out."""
        resource = place.resource(self._snapshot)
        if resource is None:
            return
        if place.key in ROUTES:
            for ref in backend_refs(resource):
                if ref.delegates:
                    yield from ((Place.of(child), 0) for child in children(self._snapshot, ref))
                elif ref.place.key == MODEL:
                    yield from ((Place.of(model), 0) for model in served_models(self._snapshot, resource, ref.rule))
                elif ref.resolves(self._snapshot):
                    yield ref.place, ref.port
        if place.key == MODEL:
            yield from _resolved_references(self._snapshot, resource)
            yield from ((target, 0) for target in model_targets(resource))
        if place.key == BACKEND:
            yield from _resolved_references(self._snapshot, resource)
            yield from _selected_services(self._snapshot, resource)
        for policy, sections in _policies_by_object(self._snapshot).get(place, {}).items():
            if place.key != SERVICE or not port or not sections.isdisjoint(("", str(port))):
                yield from _resolved_references(self._snapshot, policy)


def _listener_key(attached: RouteOnListener) -> tuple[Place, Place, int]:
    return Place.of(attached.gateway), Place.of(attached.listener.owner), attached.listener.number


@per_snapshot
def gateway_graph(snapshot: Snapshot) -> GatewayGraph:
    """Return the graph of a snapshot."""
    return GatewayGraph(snapshot)


@per_snapshot
def _policies_by_object(snapshot: Snapshot) -> Mapping[Place, Mapping[Resource, set[str]]]:
    """Return AgentgatewayPolicies by the object that they target, each with the sections that it targets."""
    index = attachments(snapshot, GATEWAY_POLICIES, admitted=True)
    by_object: dict[Place, dict[Resource, set[str]]] = {}
    for policy in index.policies:
        for target in index.of(policy):
            by_object.setdefault(target.place.whole, {}).setdefault(policy, set()).add(target.place.section)
    return by_object


def _resolved_references(snapshot: Snapshot, owner: Resource) -> Iterator[tuple[Place, int]]:
    """Yield the places that references inside an object resolve to."""
    for ref in nested_refs(owner):
        if ref.problem(snapshot) is None:
            yield ref.place, ref.port


def _selected_services(snapshot: Snapshot, backend: Resource) -> Iterator[tuple[Place, int]]:
    """Yield the Services that targets of an MCP backend select; without `namespaces`, in the backend's namespace."""
    for target in list_of_maps(nested_map(backend.spec, "mcp").get("targets")):
        selector: Any = target.get("selector")
        if not isinstance(selector, dict):
            continue
        try:
            services = Selector.parse(selector.get("services"))
            namespaces = Selector.parse(selector["namespaces"]) if "namespaces" in selector else None
        except SelectorError:
            continue
        for service in snapshot.selected(*SERVICE, services, None if namespaces else backend.namespace):
            if namespaces is None or namespaces.matches(namespace_labels(snapshot, service.namespace)):
                yield Place.of(service), 0
