"""The ways in from outside: Ingresses, Routes, routes of Gateways, and what nodes and load balancers offer themselves.

docs/network.md#ways-in-from-outside.

A way leads through objects to ports of pods. Who then connects to the pods differs. A Service of type LoadBalancer or
NodePort and a `hostPort` pass on connections of clients, from their own address or from that of a node. An Ingress, an
OpenShift Route and a route of a Gateway are served by a controller, which opens connections of its own. The pods of a
Gateway are known by the label `gateway.networking.k8s.io/gateway-name` (GEP-1762); other controllers are not known. A
backend that leads to no pod is a way as well, with the reason why it ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from tierwall.attach.backend import backend_refs, is_permitted, nested_refs
from tierwall.attach.delegation import children
from tierwall.attach.place import GATEWAY, GATEWAY_API, LISTENER_SET, SERVICE, X_LISTENER_SET, Place
from tierwall.attach.reach import MAX_CHAIN
from tierwall.attach.route import attach_route
from tierwall.core.words import join_names
from tierwall.network.model.endpoints import PROTOCOLS, Endpoint, pod_spec
from tierwall.network.model.model import network_model
from tierwall.network.model.services import ServicePort, is_port, labelled_pods, service_targets
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource, list_of_maps, nested_map
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.workloads import WORKLOADS
from tierwall.values.addresses import Block, parse_cidr

ROUTES = tuple((GATEWAY_API, kind) for kind in ("HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute"))
# All groups that have served Ingress.
INGRESSES = (("networking.k8s.io", "Ingress"), ("extensions", "Ingress"))
OPENSHIFT_ROUTE = ("route.openshift.io", "Route")
GATEWAY_LABEL = "gateway.networking.k8s.io/gateway-name"
_OFFERED = ("LoadBalancer", "NodePort")


class WayTarget(NamedTuple):
    """A port of some pods to which a way leads."""

    protocol: str
    port: int
    pods: tuple[Endpoint, ...]


class IncomingWay(Struct, frozen=True, eq=False):
    """One way in: the objects that it leads through, and the pods and ports at its end."""

    through: tuple[str, ...]
    # The Service and its port at the end; empty if the way does not get that far.
    service: str = ""
    port: int | str = ""
    hosts: tuple[str, ...] = ()
    targets: tuple[WayTarget, ...] = ()
    # Why it leads to no pod, or not to all of them.
    problem: str = ""
    # Whether a controller opens the connections to the pods, and its pods if they are known.
    by_controller: bool = True
    controllers: tuple[Endpoint, ...] = ()
    # The addresses from which a load balancer takes connections; empty for all addresses.
    ranges: tuple[Block, ...] = ()
    # How the first object itself is offered: "LoadBalancer", "NodePort", "externalIPs" or "hostPort".
    offered: str = ""
    # Whether the first object, a Gateway, is not among the objects. The route is then taken to attach to it.
    is_elsewhere: bool = False

    @property
    def controller_is_unknown(self) -> bool:
        """Whether a controller opens the connections of which no pod is known."""
        return self.by_controller and not self.controllers


@per_snapshot
def incoming_ways(snapshot: Snapshot) -> tuple[IncomingWay, ...]:
    """Return all ways in, by kind and name; several rules that lead to the same port of a Service are one way."""
    ways: dict[tuple[Any, ...], IncomingWay] = {}
    for way in _all_ways(snapshot):
        key = way.through, way.service, way.port, way.problem
        earlier = ways.get(key)
        if earlier is None:
            ways[key] = way
        elif way.hosts != earlier.hosts:
            hosts = dict.fromkeys((*earlier.hosts, *way.hosts))
            # A rule without a host is about every host.
            ways[key] = replace(earlier, hosts=tuple(hosts) if earlier.hosts and way.hosts else ())
    return tuple(ways.values())


def _all_ways(snapshot: Snapshot) -> Iterator[IncomingWay]:
    for key in INGRESSES:
        for ingress in _in_order(snapshot, *key):
            yield from _of_ingress(snapshot, ingress)
    for route in _in_order(snapshot, *OPENSHIFT_ROUTE):
        yield from _of_openshift_route(snapshot, route)
    for key in ROUTES:
        for route in _in_order(snapshot, *key):
            yield from _of_route(snapshot, route)
    for service in _in_order(snapshot, *SERVICE):
        yield from _of_service(snapshot, service)
    for group, kind in (("", "Pod"), *WORKLOADS):
        for resource in _in_order(snapshot, group, kind):
            yield from _of_host_ports(snapshot, resource)


def _in_order(snapshot: Snapshot, group: str, kind: str) -> list[Resource]:
    return sorted(snapshot.of_kind(group, kind), key=lambda resource: (resource.namespace, resource.name))


class _WayEnd(NamedTuple):
    """The end of a way: a port of a Service with its targets, or the reason why it leads nowhere."""

    service: str
    port: int | str = ""
    targets: tuple[WayTarget, ...] = ()
    problem: str = ""


def _of_ingress(snapshot: Snapshot, ingress: Resource) -> Iterator[IncomingWay]:
    """Yield the ways of an Ingress: its default backend, and the backends of its rules."""
    spec = ingress.spec
    for key in ("defaultBackend", "backend"):
        if isinstance(spec.get(key), dict):
            yield _ingress_way(snapshot, ingress, spec[key], ())
    for rule in list_of_maps(spec.get("rules")):
        host = rule.get("host")
        hosts = (host,) if isinstance(host, str) and host else ()
        for path in list_of_maps(nested_map(rule, "http").get("paths")):
            yield _ingress_way(snapshot, ingress, nested_map(path, "backend"), hosts)


def _ingress_way(
    snapshot: Snapshot, ingress: Resource, backend: Mapping[str, Any], hosts: tuple[str, ...]
) -> IncomingWay:
    service, port = nested_map(backend, "service"), nested_map(backend, "service", "port")
    # Before v1, the Service stood beside its port.
    name = service.get("name") or backend.get("serviceName")
    wanted = port.get("number") or port.get("name") or backend.get("servicePort")
    through = (str(ingress.reference),)
    if not isinstance(name, str):
        other = nested_map(backend, "resource")
        problem = f"{other.get('kind')}/{other.get('name')} is not a Service" if other else "the backend has no name"
        return IncomingWay(through, hosts=hosts, problem=problem)
    end = _service_end(snapshot, ingress.namespace, name, wanted)
    return IncomingWay(through, *end[:2], hosts, *end[2:])


def _of_openshift_route(snapshot: Snapshot, route: Resource) -> Iterator[IncomingWay]:
    """Yield the ways of a Route: to its Service and to the alternate ones, on one port or on all."""
    host = route.spec.get("host")
    hosts = (host,) if isinstance(host, str) and host else ()
    wanted = nested_map(route.spec, "port").get("targetPort")
    for backend in (nested_map(route.spec, "to"), *list_of_maps(route.spec.get("alternateBackends"))):
        name = backend.get("name")
        if isinstance(name, str) and backend.get("weight") != 0:
            for end in _route_ends(snapshot, route.namespace, name, wanted):
                yield IncomingWay((str(route.reference),), *end[:2], hosts, *end[2:])


def _route_ends(snapshot: Snapshot, namespace: str, name: str, wanted: object) -> Iterator[_WayEnd]:
    service = snapshot.get(*SERVICE, namespace, name)
    behind = None if service is None else service_targets(snapshot, service)
    if behind is None or not behind.pods or isinstance(wanted, str):
        yield _service_end(snapshot, namespace, name, wanted)
        return
    # A Route counts ports of pods: a number is a target port. Without one, it leads to all ports.
    ports = [port for port in behind.ports if wanted is None or wanted in port.pods]
    for port in ports:
        yield _port_end(str(behind.service.reference), port, behind.problem)
    if not ports:
        reference = str(behind.service.reference)
        yield _WayEnd(reference, problem=f"no port of {reference} leads to port {wanted}")


def _of_service(snapshot: Snapshot, service: Resource) -> Iterator[IncomingWay]:
    """Yield the ways of a Service that nodes or load balancers offer."""
    spec = service.spec
    kind = spec.get("type")
    if kind not in _OFFERED and not spec.get("externalIPs"):
        return
    through, offered = (str(service.reference),), str(kind) if kind in _OFFERED else "externalIPs"
    written = spec.get("loadBalancerSourceRanges") if kind == "LoadBalancer" else None
    written = written if isinstance(written, list) else ()
    ranges = tuple(Block(span) for text in written if (span := parse_cidr(text)) is not None)
    behind = service_targets(snapshot, service)
    for port in behind.ports:
        end = _port_end(str(service.reference), port, behind.problem)
        yield IncomingWay(through, *end[:2], (), *end[2:], by_controller=False, ranges=ranges, offered=offered)
    if not behind.ports:
        yield IncomingWay(through, str(service.reference), problem=behind.problem, by_controller=False, offered=offered)


def _of_host_ports(snapshot: Snapshot, resource: Resource) -> Iterator[IncomingWay]:
    """Yield the ways of the ports that a pod or the pods of a workload open on their nodes."""
    spec = pod_spec(resource)
    for container in list_of_maps(spec.get("containers")):
        for port in list_of_maps(container.get("ports")):
            number, target = port.get("hostPort"), port.get("containerPort")
            protocol = port.get("protocol") or "TCP"
            is_local = str(port.get("hostIP") or "").startswith(("127.", "::1"))
            if not (is_port(number) and is_port(target)) or protocol not in PROTOCOLS or is_local:
                continue
            # A pod on its node's network is its node, and policies do not apply to it.
            if pods := tuple(pod for pod in _pods(snapshot, resource) if pod.under_policy):
                targets = (WayTarget(str(protocol), target, pods),)
                yield IncomingWay(
                    (str(resource.reference),), "", number, (), targets, by_controller=False, offered="hostPort"
                )


def _pods(snapshot: Snapshot, resource: Resource) -> Sequence[Endpoint]:
    """Return the pods of a workload, or a pod that no workload owns."""
    model = network_model(snapshot)
    if resource.kind != "Pod":
        return model.pods_of(resource.reference)
    pod = model.pod(resource.namespace, resource.name)
    return (pod,) if pod is not None and pod.workload is None else ()


def _of_route(snapshot: Snapshot, route: Resource) -> Iterator[IncomingWay]:
    """Yield the ways of a route: through each Gateway to which it attaches, or which is not among the objects."""
    attached, refused = attach_route(snapshot, route)
    gateways: dict[Resource, dict[str, None] | None] = {}
    for on_listener in attached:
        hosts = gateways.setdefault(on_listener.gateway, {})
        if not on_listener.hostnames:
            gateways[on_listener.gateway] = None  # every host
        elif hosts is not None:
            hosts.update(dict.fromkeys(on_listener.hostnames))
    for gateway, names in gateways.items():
        labels = {GATEWAY_LABEL: gateway.name}
        controllers = labelled_pods(snapshot, gateway.namespace, labels)
        yield from _through(snapshot, (str(gateway.reference),), route, tuple(names or ()), controllers)
    written = route.spec.get("hostnames")
    hostnames = tuple(name for name in written if isinstance(name, str)) if isinstance(written, list) else ()
    parents = list_of_maps(route.spec.get("parentRefs"))
    for refusal in refused:
        parent = parents[refusal.parent]
        key = parent.get("group", GATEWAY_API), parent.get("kind", "Gateway")
        place = Place(*key, str(parent.get("namespace") or route.namespace), str(parent.get("name")))
        if key not in (GATEWAY, LISTENER_SET, X_LISTENER_SET):
            continue  # a mesh, or a route that delegates to this route
        if place.resource(snapshot) is None:
            ways = _through(snapshot, (str(place.reference),), route, hostnames, ())
            yield from (replace(way, is_elsewhere=True) for way in ways)
        else:
            yield IncomingWay((str(place.reference), str(route.reference)), problem=refusal.message)


def _through(
    snapshot: Snapshot,
    through: tuple[str, ...],
    route: Resource,
    hosts: tuple[str, ...],
    controllers: tuple[Endpoint, ...],
) -> Iterator[IncomingWay]:
    """Yield the ways of a route, and of the routes that it delegates to, each once."""
    waiting = [(through, route)]
    seen: set[Resource] = set()
    while waiting:
        before, route = waiting.pop(0)
        if route in seen:
            continue
        seen.add(route)
        so_far = (*before, str(route.reference))
        for ref in backend_refs(route):
            if ref.weight == 0:
                continue
            if ref.delegates:
                if len(so_far) <= MAX_CHAIN:
                    waiting += ((so_far, child) for child in children(snapshot, ref))
                continue
            end = _backend_end(snapshot, route, ref.place, ref.port)
            yield IncomingWay(so_far, *end[:2], hosts, *end[2:], controllers=controllers)
        for mirror in nested_refs(route):
            end = _backend_end(snapshot, route, mirror.place, mirror.port)
            yield IncomingWay(so_far, *end[:2], hosts, *end[2:], controllers=controllers)


def _backend_end(snapshot: Snapshot, route: Resource, place: Place, port: int) -> _WayEnd:
    if place.key != SERVICE:
        return _WayEnd("", problem=f"{place} is not a Service: where it leads is not followed")
    if not is_permitted(snapshot, route, place):
        return _WayEnd(str(place), problem=f"no ReferenceGrant in namespace {place.namespace} permits {place}")
    return _service_end(snapshot, place.namespace, place.name, port or None)


def _service_end(snapshot: Snapshot, namespace: str, name: str, wanted: object) -> _WayEnd:
    """Return the end of a way at a port of a Service, by number or name; without a port only if it has one port."""
    service = snapshot.get(*SERVICE, namespace, name)
    reference = str(Place(*SERVICE, namespace, name))
    if service is None:
        return _WayEnd(reference, _written(wanted), problem=f"{reference} is not among the objects")
    behind = service_targets(snapshot, service)
    port = behind.port(wanted) if isinstance(wanted, int | str) else None
    if wanted is None and len(behind.ports) == 1:
        port = behind.ports[0]
    if port is None:
        known = ", ".join(map(str, behind.ports))
        problem = f"{reference} has no port {wanted}" if wanted else f"no port of {reference} is named"
        if known:
            problem += f"; it has {known}"
        return _WayEnd(reference, _written(wanted), problem=behind.problem or problem)
    return _port_end(reference, port, behind.problem)


def _port_end(reference: str, port: ServicePort, problem: str) -> _WayEnd:
    targets = tuple(WayTarget(port.protocol, number, pods) for number, pods in port.pods.items())
    if not problem and port.lacking:
        verb = "has" if len(port.lacking) == 1 else "have"
        problem = f"{join_names([str(pod) for pod in port.lacking], 1)} {verb} no port named {port.target}"
    return _WayEnd(reference, port.number, targets, problem)


def _written(port: object) -> int | str:
    return port if isinstance(port, int | str) else ""
