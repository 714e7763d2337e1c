"""The routes of a listener: its plan, with the checkpoints that policies make of the ways.

Every match becomes two routes where policies are: one for POST, which must be MCP, and one for all else, which is plain
HTTP without a body. A route says which checkpoints its requests pass; what stands there is not its to say.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from envoy.config.route.v3 import route_components_pb2, route_pb2
from msgspec import Struct

from tierwall.engines.envoy.config import mcp
from tierwall.engines.envoy.config.checkpoints import on
from tierwall.engines.envoy.config.guards import NO_PROTECTION, PolicyCompiler, Protection
from tierwall.engines.envoy.config.names import (
    BODILESS,
    CHECKPOINT,
    FACT_HEADERS,
    FACTS,
    MCP,
    OPEN,
    STRICT,
    STRICT_ARGUMENTS,
    virtual_host_name,
)
from tierwall.engines.envoy.config.options import EnvoyOptions
from tierwall.engines.envoy.config.route_rules import method_matcher
from tierwall.engines.envoy.config.ways import PlannedRoute, RouteBackend, RoutePlan
from tierwall.tool.model import backend_of

# Some servers take the HTTP method or the path from these.
OVERRIDE_HEADERS = ("x-http-method", "x-http-method-override", "x-method-override", "x-original-url", "x-rewrite-url")
NOWHERE = "nowhere"
Names = tuple[tuple[str, ...], ...]


class Destination(Struct, frozen=True, eq=False):
    """Where a part of the requests of a rule goes; `cluster` is None where a reference leads nowhere."""

    cluster: str | None
    weight: int
    protection: Protection
    # The host that requests are for there, if not the client's and the rule says no other.
    host: str = ""


class RouteConfigurations(Struct, frozen=True, eq=False):
    """RouteConfigurations with what they were made of: their plan, and the routes of each match with checkpoints."""

    by_name: Mapping[str, tuple[RoutePlan, Any]] = {}
    by_match: Mapping[PlannedRoute, tuple[Names, list[Any]]] = {}

    @property
    def configurations(self) -> dict[str, Any]:
        """The RouteConfigurations by name."""
        return {name: configuration for name, (_, configuration) in self.by_name.items()}

    def after(self, plans: Iterable[RoutePlan], guards: PolicyCompiler, options: EnvoyOptions) -> RouteConfigurations:
        """The RouteConfigurations of these plans; what says the same is taken over from here."""
        by_name: dict[str, tuple[RoutePlan, Any]] = {}
        by_match: dict[PlannedRoute, tuple[Names, list[Any]]] = {}
        for plan in plans:
            is_same = True
            for match in (match for host in plan.hosts for match in host.matches if match.ways):
                destinations = [_destination(way, guards) for way in match.ways]
                # A checkpoint's name stands for all that routes say about it.
                names = tuple(tuple(point.name for point in to.protection.checkpoints) for to in destinations)
                made = self.by_match.get(match)
                if made is None or made[0] != names:
                    is_same = False
                    made = names, protected_routes(copy.deepcopy(match.route), destinations, options, match.only)
                by_match[match] = made
            before = self.by_name.get(plan.name)
            if before is None or before[0] is not plan or not is_same:
                before = plan, _configuration(plan, by_match)
            by_name[plan.name] = before
        return RouteConfigurations(by_name, by_match)


def _configuration(plan: RoutePlan, by_match: Mapping[PlannedRoute, tuple[Names, list[Any]]]) -> Any:
    """The RouteConfiguration of a listener."""
    out = empty_configuration(plan.name)
    for host in plan.hosts:
        name = virtual_host_name(plan.gateway, host.listener, host.name)
        virtual = out.virtual_hosts.add(name=name, domains=[host.name])
        virtual.routes.append(_ambiguous())
        for match in host.matches:
            virtual.routes.extend(by_match[match][1] if match.ways else [match.route])
    return out


def _destination(way: RouteBackend, guards: PolicyCompiler) -> Destination:
    if way.backend is None:
        return Destination(None, way.weight, NO_PROTECTION)
    stack = guards.stack(way.gateway, way.listener, way.backend)
    protection = guards.protection(stack, backend_of(way.backend), way.listener.port)
    return Destination(way.cluster, way.weight, protection, way.host)


def _ambiguous() -> Any:
    """The first route: `/a/..;/b` is `/b` to some servers, and normalised by none of Envoy's rules."""
    out = route_components_pb2.Route(name="ambiguous")
    out.match.safe_regex.regex = r"(?s).*/\.{1,2};.*"
    out.direct_response.status = 400
    return out


def empty_configuration(name: str) -> Any:
    """A RouteConfiguration without routes; headers of our own, and those that change method or path, go no further."""
    out = route_pb2.RouteConfiguration(name=name, ignore_port_in_host_matching=True)
    out.request_headers_to_remove.extend((*FACT_HEADERS, *CHECKPOINT.values(), *OVERRIDE_HEADERS))
    return out


def protected_routes(
    route: Any, destinations: list[Destination], options: EnvoyOptions, only: object = None
) -> list[Any]:
    """A route to its destinations as it must be for the policies there: one for MCP and one for plain HTTP, if any."""
    if not any(destination.protection.is_needed for destination in destinations):
        _lead(route, destinations, {OPEN: on()}, plain=False)
        return [route]
    out = []
    if only in (None, "POST"):
        message = copy.deepcopy(route)
        message.name = f"{route.name}/mcp"
        if only is None:
            message.match.headers.append(method_matcher("POST"))
        if arguments := {path for destination in destinations for path in destination.protection.arguments}:
            reading = {MCP: mcp.reading_arguments(arguments, options.largest_message), STRICT_ARGUMENTS: on()}
        else:
            reading = {MCP: on(), STRICT: on()}
        _lead(message, destinations, {**reading, FACTS: mcp.facts()}, plain=False)
        out.append(message)
    if only != "POST":
        route.name = f"{route.name}/http"
        if only is None:
            route.match.headers.append(method_matcher("POST", invert=True))
        _lead(route, destinations, {BODILESS: on(), FACTS: mcp.facts()}, plain=True)
        out.append(route)
    return out


def _lead(route: Any, destinations: list[Destination], settings: Mapping[str, Any], plain: bool) -> None:
    """Let a route lead to its destinations, each with the policies on the way there."""
    _put(route.typed_per_filter_config, settings)
    if len(destinations) == 1 and destinations[0].cluster is not None:
        route.route.cluster = destinations[0].cluster
        route.route.host_rewrite_literal = route.route.host_rewrite_literal or destinations[0].host
        _put(route.typed_per_filter_config, destinations[0].protection.settings(plain))
        return
    for destination in destinations:
        weighted = route.route.weighted_clusters.clusters.add(name=destination.cluster or NOWHERE)
        weighted.weight.value = destination.weight
        weighted.host_rewrite_literal = route.route.host_rewrite_literal or destination.host
        _put(weighted.typed_per_filter_config, destination.protection.settings(plain))


def _put(into: Any, settings: Mapping[str, Any]) -> None:
    for name in sorted(settings):
        into[name].CopyFrom(settings[name])
