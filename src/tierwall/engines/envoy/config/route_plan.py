"""Where requests can go, whatever policies say: HTTPRoutes as routes of Envoy, and the ways they open.

A plan knows nothing of policies, so that it stays as it is while policies come and go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from envoy.config.core.v3 import base_pb2
from envoy.config.route.v3 import route_components_pb2
from msgspec import Struct

from tierwall.attach.backend import BackendRef, backend_refs
from tierwall.attach.listener import Listener, narrower_hostname
from tierwall.attach.place import HTTP_ROUTE, SERVICE
from tierwall.attach.route import RouteOnListener
from tierwall.attach.section import rules
from tierwall.core.diagnostics import Diagnostic
from tierwall.engines.envoy.config import clusters
from tierwall.engines.envoy.config.names import PLACE, backend_of_cluster
from tierwall.engines.envoy.config.options import EnvoyOptions
from tierwall.engines.envoy.config.route_rules import apply_filters, precedence, route_match
from tierwall.resources.resource import Resource, list_of_maps
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.model import BACKENDS
from tierwall.values.time import parse_seconds

UNSUPPORTED, NO_BACKEND = "TW655", "TW656"


class RouteBackend(Struct, frozen=True, eq=False):
    """From a listener to a backend with a part of the requests; one without a backend leads nowhere."""

    gateway: Resource
    listener: Listener
    weight: int
    backend: Resource | None = None
    cluster: str | None = None
    # The host that requests are for there, if not the client's.
    host: str = ""


class PlannedRoute(Struct, frozen=True, eq=False):
    """One match of a rule: the route as it is without policies, the ways it opens, the one method it is for, if any."""

    route: Any
    ways: tuple[RouteBackend, ...] = ()
    only: object = None


class PlannedHost(NamedTuple):
    """A host name of a listener, and its matches in the order of the Gateway API."""

    listener: Listener
    name: str
    matches: tuple[PlannedRoute, ...]


class RoutePlan(Struct, frozen=True, eq=False):
    """All matches of the listeners that share a filter chain, by host name."""

    gateway: Resource
    name: str
    hosts: tuple[PlannedHost, ...]


class RoutePlanner:
    """Makes plans; `clusters` collects where they lead, `diagnostics` what is wrong."""

    def __init__(self, snapshot: Snapshot, options: EnvoyOptions) -> None:
        self._snapshot = snapshot
        self._options = options
        self.clusters: dict[str, Any] = {}
        self.diagnostics: list[Diagnostic] = []

    def plan(
        self, gateway: Resource, name: str, listeners: Sequence[tuple[Listener, list[RouteOnListener]]]
    ) -> RoutePlan:
        """The plan of listeners that share a filter chain, with the routes that attach to each of them.

        A request is for the one listener that has its host by the narrowest name, whatever routes others have for it.
        """
        hosts = (
            host
            for listener, attached in listeners
            for host in self._hosts(gateway, listener, attached)
            if len(listeners) == 1 or _narrowest(host.name, (other for other, _ in listeners)) is listener
        )
        return RoutePlan(gateway, name, tuple(sorted(hosts, key=lambda host: host.name)))

    def _hosts(self, gateway: Resource, listener: Listener, attached: list[RouteOnListener]) -> Iterator[PlannedHost]:
        hosts: dict[str, list[tuple[tuple[Any, ...], PlannedRoute]]] = {listener.hostname.lower() or "*": []}
        for on in attached:
            if (on.route.group, on.route.kind) == HTTP_ROUTE:
                matches = list(self._matches(gateway, listener, on.route))
                for host in on.hostnames or ("*",):
                    hosts.setdefault(host, []).extend(matches)
        by_host = {host: tuple(match for _, match in sorted(hosts[host], key=lambda entry: entry[0])) for host in hosts}
        # A host has first the matches of its own routes, then those of routes for wider names: Envoy looks at one host.
        for host in hosts:
            yield PlannedHost(listener, host, tuple(match for name in _wider(host, hosts) for match in by_host[name]))

    def _matches(
        self, gateway: Resource, listener: Listener, route: Resource
    ) -> Iterator[tuple[tuple[Any, ...], PlannedRoute]]:
        by_rule: dict[int, list[BackendRef]] = {}
        for ref in backend_refs(route):
            by_rule.setdefault(ref.rule, []).append(ref)
        for number, rule in enumerate(rules(route)):
            ways = tuple(self._way(gateway, listener, ref) for ref in by_rule.get(number, ()) if _weight(ref))
            for index, match in enumerate(list(list_of_maps(rule.get("matches"))) or [{}]):
                made = route_components_pb2.Route(
                    name=f"{route.namespace}/{route.name}/{number}/{index}",
                    match=route_match(match, self._options.largest_pattern),
                )
                made.metadata.CopyFrom(place(gateway, listener, ways))
                key = precedence(route, number, index, match)
                filters = rule.get("filters")
                lost = apply_filters(made, match, filters, listener, self._options.largest_pattern)
                yield key, self._match(made, lost, route, rule, match, ways)

    def _match(
        self,
        made: Any,
        lost: str,
        route: Resource,
        rule: Mapping[str, Any],
        match: Mapping[str, Any],
        ways: tuple[RouteBackend, ...],
    ) -> PlannedRoute:
        if lost:
            words = f"{lost} is not supported: the rule answers 500"
            self.diagnostics.append(route.diagnostic(UNSUPPORTED, words, ("spec", "rules")))
        leads = any(way.cluster is not None for way in ways)
        if lost or (not leads and not made.HasField("redirect")):
            made.ClearField("action")
            made.direct_response.status = 500
        if made.HasField("redirect") or made.HasField("direct_response"):
            return PlannedRoute(made)
        # A stream of events lives as long as its session: no limit unless the route says so.
        made.route.timeout.FromNanoseconds(int((_timeout(rule) or 0) * 1e9))
        return PlannedRoute(made, ways, match.get("method"))

    def _way(self, gateway: Resource, listener: Listener, ref: BackendRef) -> RouteBackend:
        resource = ref.place.resource(self._snapshot) if ref.leads(self._snapshot) else None
        known = resource is not None and (resource.group, resource.kind) in (*BACKENDS, SERVICE)
        cluster = (
            clusters.backend_cluster(resource, ref.port, self._options) if resource is not None and known else None
        )
        if resource is None or cluster is None:
            words = f"backend {ref.place} of {ref.route.reference} leads nowhere: requests to it are answered with 500"
            self.diagnostics.append(ref.route.diagnostic(NO_BACKEND, words, ref.path))
            return RouteBackend(gateway, listener, _weight(ref))
        if list(list_of_maps(ref.value.get("filters"))):
            words = "filters of a backendRef are not supported: it answers 500"
            self.diagnostics.append(ref.route.diagnostic(UNSUPPORTED, words, ref.path))
            return RouteBackend(gateway, listener, _weight(ref))
        self.clusters[cluster.name] = cluster
        return RouteBackend(gateway, listener, _weight(ref), resource, cluster.name, clusters.external_host(resource))


def place(gateway: Resource, listener: Listener, ways: tuple[RouteBackend, ...]) -> Any:
    """Metadata of a route that say where a request came in and where it is to go, for the decision log."""
    out = base_pb2.Metadata()
    about = {"gateway": f"{gateway.namespace}/{gateway.name}", "listener": listener.name}
    # Where a route leads to several backends, the log learns from elsewhere to which a request went.
    backend = backend_of_cluster(ways[0].cluster or "") if len(ways) == 1 else None
    out.filter_metadata[PLACE].update(about if backend is None else {**about, "backend": backend})
    return out


def _narrowest(host: str, listeners: Iterable[Listener]) -> Listener:
    """The listener that a host is for; one of them has it."""
    having = (
        listener
        for listener in listeners
        if not listener.hostname or narrower_hostname(listener.hostname, host) == host
    )
    return max(having, key=_narrowness)


def _narrowness(listener: Listener) -> tuple[bool, bool, int]:
    name = listener.hostname
    return bool(name), not name.startswith("*"), len(name)


def _wider(host: str, hosts: Collection[str]) -> Iterator[str]:
    """A host name and those with wildcards that it lies below, the longest first."""
    yield host
    name = host.removeprefix("*")
    while name:
        _, dot, rest = name[1:].partition(".")
        name = f".{rest}" if dot else ""
        if f"*{name}" in hosts:
            yield f"*{name}"


def _weight(ref: BackendRef) -> int:
    weight = ref.value.get("weight")
    return weight if type(weight) is int else 1


def _timeout(rule: Mapping[str, Any]) -> float | None:
    timeouts = rule.get("timeouts")
    # Without retries, the time for one request to the backend is the time for all.
    text = (timeouts.get("request") or timeouts.get("backendRequest")) if isinstance(timeouts, dict) else None
    return parse_seconds(text)
