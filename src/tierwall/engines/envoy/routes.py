"""The routes of a listener: HTTPRoutes with the policies of the ways that they open.

Every match becomes two routes where policies are: one for POST, which must be MCP, and one for all else, which is plain
HTTP without a body. A route says which checkpoints its requests pass; what stands there is not its to say.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from envoy.config.core.v3 import base_pb2
from envoy.config.route.v3 import route_components_pb2, route_pb2
from msgspec import Struct

from tierwall.attach.backend import BackendRef, backend_refs
from tierwall.attach.listener import Listener
from tierwall.attach.place import HTTP_ROUTE, SERVICE
from tierwall.attach.route import OnListener
from tierwall.attach.section import maps, rules
from tierwall.core.diagnostics import Diagnostic
from tierwall.engines.envoy import clusters, route_filters
from tierwall.engines.envoy.guards import NO_PROTECTION, Guards, Protection, mcp_settings, open_settings, plain_settings
from tierwall.engines.envoy.names import CHECKPOINT, FACT_HEADERS, PLACE, backend_of_cluster, route_name
from tierwall.engines.envoy.options import Options
from tierwall.engines.envoy.route_match import method, precedence, route_match
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.model import BACKENDS, backend_of

UNSUPPORTED, NO_BACKEND = "TW655", "TW656"
# Some servers take the HTTP method from these.
OVERRIDE_HEADERS = ("x-http-method", "x-http-method-override", "x-method-override")


class Destination(Struct, frozen=True, eq=False):
    """Where a part of the requests of a rule goes; `cluster` is None where a reference leads nowhere."""

    cluster: str | None
    weight: int
    protection: Protection


class Routes:
    """Makes RouteConfigurations; `clusters` collects where they lead."""

    def __init__(self, snapshot: Snapshot, options: Options, guards: Guards) -> None:
        self._snapshot = snapshot
        self._options = options
        self._guards = guards
        self.clusters: dict[str, Any] = {}
        self.diagnostics: list[Diagnostic] = []

    def configuration(self, gateway: Resource, listener: Listener, attached: list[OnListener]) -> Any:
        """The RouteConfiguration of a listener with the routes that attach to it."""
        hosts: dict[str, list[tuple[tuple[Any, ...], list[Any]]]] = {}
        for on in attached:
            if (on.route.group, on.route.kind) == HTTP_ROUTE:
                entries = self._entries(gateway, listener, on.route)
                for _, made in entries:
                    for one in made:
                        one.metadata.CopyFrom(place(gateway, listener, one.route.cluster))
                for host in on.hostnames or ("*",):
                    hosts.setdefault(host, []).extend(entries)
        out = empty_configuration(route_name(gateway, listener))
        for host in sorted(hosts):
            virtual = out.virtual_hosts.add(name=host, domains=[host])
            virtual.routes.append(_ambiguous())
            for _, entries in sorted(hosts[host], key=lambda one: one[0]):
                virtual.routes.extend(entries)
        return out

    def _entries(
        self, gateway: Resource, listener: Listener, route: Resource
    ) -> list[tuple[tuple[Any, ...], list[Any]]]:
        by_rule: dict[int, list[BackendRef]] = {}
        for ref in backend_refs(route):
            by_rule.setdefault(ref.rule, []).append(ref)
        out = []
        for number, rule in enumerate(rules(route)):
            destinations = [
                self._destination(gateway, listener, one, rule) for one in by_rule.get(number, ()) if _weight(one)
            ]
            for index, match in enumerate(list(maps(rule.get("matches"))) or [{}]):
                name = f"{route.namespace}/{route.name}/{number}/{index}"
                key = precedence(route, number, index, match)
                out.append((key, self._routes(name, route, rule, match, destinations)))
        return out

    def _destination(
        self, gateway: Resource, listener: Listener, ref: BackendRef, rule: Mapping[str, Any]
    ) -> Destination:
        resource = ref.place.resource(self._snapshot) if ref.leads(self._snapshot) else None
        known = resource is not None and (resource.group, resource.kind) in (*BACKENDS, SERVICE)
        cluster = clusters.backend(resource, ref.port, self._options) if resource is not None and known else None
        if resource is None or cluster is None:
            words = f"backend {ref.place} of {ref.route.reference} leads nowhere: requests to it are answered with 500"
            self._problem(NO_BACKEND, words, ref.route, ref.path)
            return Destination(None, _weight(ref), NO_PROTECTION)
        if list(maps(ref.value.get("filters"))):
            self._problem(UNSUPPORTED, "filters of a backendRef are not supported: it answers 500", ref.route, ref.path)
            return Destination(None, _weight(ref), NO_PROTECTION)
        self.clusters[cluster.name] = cluster
        stack = self._guards.stack(gateway, listener, resource)
        protection = self._guards.protection(stack, backend_of(resource), listener.port)
        return Destination(cluster.name, _weight(ref), protection)

    def _routes(
        self,
        name: str,
        route: Resource,
        rule: Mapping[str, Any],
        match: Mapping[str, Any],
        destinations: list[Destination],
    ) -> list[Any]:
        made = route_components_pb2.Route(name=name, match=route_match(match))
        lost = route_filters.apply(made, match, rule.get("filters"))
        if lost:
            self._problem(UNSUPPORTED, f"{lost} is not supported: the rule answers 500", route, ("spec", "rules"))
        leading = [one for one in destinations if one.cluster is not None]
        if lost or (not leading and not made.HasField("redirect")):
            made.ClearField("action")
            made.direct_response.status = 500
        if made.HasField("redirect") or made.HasField("direct_response"):
            return [made]
        # A stream of events lives as long as its session: no limit unless the route says so.
        made.route.timeout.FromNanoseconds(int((_timeout(rule) or 0) * 1e9))
        return guarded(made, destinations, self._options, match.get("method"))

    def _problem(self, code: str, message: str, route: Resource, path: tuple[str | int, ...]) -> None:
        self.diagnostics.append(Diagnostic(code, message, route.position(path), subject=route.reference))


def place(gateway: Resource, listener: Listener, cluster: str) -> Any:
    """Metadata of a route that say where a request came in and where it is to go, for the decision log."""
    out = base_pb2.Metadata()
    about = {"gateway": f"{gateway.namespace}/{gateway.name}", "listener": listener.name}
    backend = backend_of_cluster(cluster)  # None where a route leads to several
    out.filter_metadata[PLACE].update(about if backend is None else {**about, "backend": backend})
    return out


def _ambiguous() -> Any:
    """The first route: `/a/..;/b` is `/b` to some servers, and normalised by none of Envoy's rules."""
    out = route_components_pb2.Route(name="ambiguous")
    out.match.safe_regex.regex = r"(?s).*/\.{1,2};.*"
    out.direct_response.status = 400
    return out


def empty_configuration(name: str) -> Any:
    """A RouteConfiguration without routes; headers of our own, and those that change the method, go no further."""
    out = route_pb2.RouteConfiguration(name=name, ignore_port_in_host_matching=True)
    out.request_headers_to_remove.extend((*FACT_HEADERS, *CHECKPOINT.values(), *OVERRIDE_HEADERS))
    return out


NOWHERE = "nowhere"


def guarded(route: Any, destinations: list[Destination], options: Options, only: object = None) -> list[Any]:
    """A route to its destinations as it must be for the policies there: one for MCP and one for plain HTTP, if any."""
    if not any(one.protection.is_needed for one in destinations):
        _lead(route, destinations, open_settings(), plain=False)
        return [route]
    arguments = frozenset(path for one in destinations for path in one.protection.arguments)
    out = []
    if only in (None, "POST"):
        message = copy.deepcopy(route)
        message.name = f"{route.name}/mcp"
        if only is None:
            message.match.headers.append(method("POST"))
        _lead(message, destinations, mcp_settings(arguments, options), plain=False)
        out.append(message)
    if only != "POST":
        route.name = f"{route.name}/http"
        if only is None:
            route.match.headers.append(method("POST", invert=True))
        _lead(route, destinations, plain_settings(), plain=True)
        out.append(route)
    return out


def _lead(route: Any, destinations: list[Destination], settings: Mapping[str, Any], plain: bool) -> None:
    """Let a route lead to its destinations, each with the policies on the way there."""
    _put(route.typed_per_filter_config, settings)
    if len(destinations) == 1 and destinations[0].cluster is not None:
        route.route.cluster = destinations[0].cluster
        _put(route.typed_per_filter_config, destinations[0].protection.settings(plain))
        return
    for destination in destinations:
        weighted = route.route.weighted_clusters.clusters.add(name=destination.cluster or NOWHERE)
        weighted.weight.value = destination.weight
        _put(weighted.typed_per_filter_config, destination.protection.settings(plain))


def _put(into: Any, settings: Mapping[str, Any]) -> None:
    for name in sorted(settings):
        into[name].CopyFrom(settings[name])


def _weight(ref: BackendRef) -> int:
    weight = ref.value.get("weight")
    return weight if type(weight) is int else 1


def _timeout(rule: Mapping[str, Any]) -> float | None:
    timeouts = rule.get("timeouts")
    text = timeouts.get("request") if isinstance(timeouts, dict) else None
    return _seconds(text) if isinstance(text, str) else None


_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def _seconds(text: str) -> float:
    """A Gateway API Duration, such as `1m30s`; admission has checked it."""
    total, number, unit = 0.0, "", ""
    for char in f"{text}0":
        if char.isdigit():
            if unit:
                total += int(number or 0) * _UNITS.get(unit, 0.0)
                number, unit = "", ""
            number += char
        else:
            unit += char
    return total
