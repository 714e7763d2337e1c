"""The routes of a listener: its plan, with the checkpoints that policies make of the ways.

Every match becomes two routes where policies are: one for POST, which must be MCP, and one for all else, which is plain
HTTP without a body. A route says which checkpoints its requests pass; what stands there is not its to say.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from envoy.config.route.v3 import route_components_pb2, route_pb2
from msgspec import Struct

from tierwall.engines.envoy.guards import NO_PROTECTION, Guards, Protection, mcp_settings, open_settings, plain_settings
from tierwall.engines.envoy.names import CHECKPOINT, FACT_HEADERS, virtual_host_name
from tierwall.engines.envoy.options import Options
from tierwall.engines.envoy.route_match import method
from tierwall.engines.envoy.ways import Match, Plan, Way
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


class Routes:
    """Makes RouteConfigurations. Of the ones before it takes over what says the same."""

    def __init__(self, options: Options, guards: Guards, before: Routes | None = None) -> None:
        self._options = options
        self._guards = guards
        self._before = before
        self._matches: dict[Match, tuple[Names, list[Any]]] = {}
        self._configurations: dict[str, tuple[Plan, Any]] = {}

    def configuration(self, plan: Plan) -> Any:
        """The RouteConfiguration of a listener."""
        before = self._before._configurations.get(plan.name) if self._before is not None else None
        made = [(host, [self._routes(match) for match in host.matches]) for host in plan.hosts]
        if before is not None and before[0] is plan and all(old for _, those in made for _, old in those):
            out = before[1]
        else:
            out = empty_configuration(plan.name)
            for host, those in made:
                name = virtual_host_name(plan.gateway, host.listener, host.name)
                virtual = out.virtual_hosts.add(name=name, domains=[host.name])
                virtual.routes.append(_ambiguous())
                for routes, _ in those:
                    virtual.routes.extend(routes)
        self._configurations[plan.name] = plan, out
        return out

    def done(self) -> None:
        """Let go of the ones before."""
        self._before = None

    def _routes(self, match: Match) -> tuple[list[Any], bool]:
        """The routes of a match, and whether they are the ones from before."""
        if not match.ways:
            return [match.route], True
        destinations = [self._destination(one) for one in match.ways]
        # A checkpoint's name stands for all that routes say about it.
        names = tuple(tuple(found.name for found in one.protection.checkpoints) for one in destinations)
        kept = self._before._matches.get(match) if self._before is not None else None
        is_old = kept is not None and kept[0] == names
        if kept is None or not is_old:
            kept = names, guarded(copy.deepcopy(match.route), destinations, self._options, match.only)
        self._matches[match] = kept
        return kept[1], is_old

    def _destination(self, way: Way) -> Destination:
        if way.backend is None:
            return Destination(None, way.weight, NO_PROTECTION)
        stack = self._guards.stack(way.gateway, way.listener, way.backend)
        protection = self._guards.protection(stack, backend_of(way.backend), way.listener.port)
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
