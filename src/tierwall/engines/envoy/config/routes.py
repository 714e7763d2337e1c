"""The routes of a listener: its route plan, with the checkpoints of the policies.

With policies, every match becomes three routes: two for POST, which must be JSON-RPC, of clients of MCP and of others,
and one for everything else, which is plain HTTP without a body. A route names the checkpoints that its requests pass;
the filters hold their policies.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from envoy.config.route.v3 import route_components_pb2, route_pb2
from msgspec import Struct

from tierwall.attach.reach import RouteRule
from tierwall.core.diagnostics import Diagnostic
from tierwall.engines.envoy.config import grpc_routes, mcp, mirrors
from tierwall.engines.envoy.config.backend_ref_filters import add_changes, move_headers
from tierwall.engines.envoy.config.checkpoints import on
from tierwall.engines.envoy.config.fence import failure
from tierwall.engines.envoy.config.header_changes import RETYPING, RETYPING_HINT, retypes
from tierwall.engines.envoy.config.names import (
    ACCEPTS,
    BODILESS,
    CHECKPOINT,
    FACT_HEADERS,
    FACTS,
    MCP,
    NOWHERE,
    OPEN,
    OVERRIDE_HEADERS,
    STRICT,
    STRICT_ARGUMENTS,
    WATCH,
    virtual_host_name,
)
from tierwall.engines.envoy.config.options import EnvoyOptions
from tierwall.engines.envoy.config.planned_backends import RouteBackend
from tierwall.engines.envoy.config.policy_compiler import NO_PROTECTION, PolicyCompiler, Protection
from tierwall.engines.envoy.config.route_plan import CLOSED, PlannedRoute, RoutePlan
from tierwall.engines.envoy.config.route_rules import method_matcher
from tierwall.engines.envoy.config.settings.filters import refuse_repeats
from tierwall.engines.envoy.config.settings.mcp_rules import MessageFilters
from tierwall.engines.envoy.config.unserved_parts import closed_rule
from tierwall.tool.model import backend_of

# The checkpoint names of each destination.
CheckpointNames = tuple[tuple[str, ...], ...]


class Destination(Struct, frozen=True, eq=False):
    """A destination of some of a rule's requests; `cluster` is None if the backend is missing."""

    cluster: str | None
    weight: int
    protection: Protection
    # The host that replaces the client's, unless the rule sets another.
    host: str = ""
    # What filters of the backendRef change.
    changes: Any | None = None
    messages: MessageFilters = MessageFilters()
    # Whether it is declared as a server of MCP.
    is_server: bool = False

    @property
    def reads_messages(self) -> bool:
        """Whether requests to it must be MCP messages that Envoy reads."""
        return self.protection.is_needed or self.messages.reads_messages

    def settings(self, plain: bool, restored: tuple[tuple[str, str], ...] = ()) -> dict[str, Any]:
        """Return the settings of filters for its requests; `restored` are headers to set, too."""
        headers = (*restored, *self.messages.headers)
        facts = {FACTS: mcp.facts(headers, plain)} if self.messages.headers else {}
        return {
            **facts,
            **self.protection.settings(plain, headers),
            **(self.messages.of_plain if plain else self.messages.of_messages),
        }


class RouteConfigurations(Struct, frozen=True, eq=False):
    """RouteConfigurations with their plans, and the Envoy routes of each planned route with its checkpoints."""

    by_name: Mapping[str, tuple[RoutePlan, Any]] = {}
    by_route: Mapping[PlannedRoute, tuple[CheckpointNames, list[Any]]] = {}
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def configurations(self) -> dict[str, Any]:
        """The RouteConfigurations, by name."""
        return {name: configuration for name, (_, configuration) in self.by_name.items()}

    def after(self, plans: Iterable[RoutePlan], compiler: PolicyCompiler, options: EnvoyOptions) -> RouteConfigurations:
        """Return the RouteConfigurations of these plans, and reuse the unchanged ones."""
        by_name: dict[str, tuple[RoutePlan, Any]] = {}
        by_route: dict[PlannedRoute, tuple[CheckpointNames, list[Any]]] = {}
        problems: list[Diagnostic] = []
        for plan in plans:
            is_same = True
            for route in (route for host in plan.hosts for route in host.routes if route.backends):
                known = self.by_route.get(route)
                try:
                    destinations = [_destination(backend, compiler) for backend in route.backends]
                    copies = [_destination(mirror, compiler).protection for mirror in route.mirrors]
                    is_read = any(to.reads_messages for to in destinations)
                    ways = [destination.protection for destination in destinations if destination.cluster is not None]
                    is_mirrored_past = mirrors.unpassed(copies, ways)
                    if is_mirrored_past:
                        problems.append(mirrors.refused(route.route, route.rule))
                    elif grpc_routes.is_grpc(route.route) and is_read:
                        message, path = grpc_routes.not_mcp(route.route), ("spec", "rules", route.rule)
                        problems.append(route.route.diagnostic("TW655", message, path, hint=grpc_routes.HINT))
                    is_retyped = any(to.reads_messages for to in destinations) and retypes_messages(
                        route.message, destinations
                    )
                    if is_retyped:
                        closing = closed_rule(RouteRule(route.route, route.rule), f"{RETYPING} is not supported")
                        problems.append(closing._replace(hint=RETYPING_HINT).diagnostic("TW655"))
                    # A checkpoint's name stands for everything that routes contain of it.
                    names = tuple(
                        tuple(checkpoint.name for checkpoint in protection.checkpoints)
                        for protection in (*(destination.protection for destination in destinations), *copies)
                    )
                    if known is None or known[0] != names:
                        is_same = False
                        message = copy.deepcopy(route.message)
                        if is_mirrored_past or is_retyped:
                            known = names, [_failing(message)]
                        else:
                            known = names, protected_routes(message, destinations, options, route.method)
                except Exception as error:
                    is_same = False
                    known = (), [_failing(route.message)]
                    problems.append(failure(route.route, CLOSED, error))
                by_route[route] = known
            before = self.by_name.get(plan.name)
            if before is None or before[0] is not plan or not is_same:
                before = plan, _configuration(plan, by_route)
            by_name[plan.name] = before
        return RouteConfigurations(by_name, by_route, tuple(problems))


def retypes_messages(route: Any, destinations: Iterable[Destination]) -> bool:
    """Whether a route or a backendRef says that a message that was judged is encoded or written in another way."""
    changed = (route, *(to.changes for to in destinations if to.changes is not None))
    headers = (option.header for each in changed for option in each.request_headers_to_add)
    return any(retypes(header.key, header.value) for header in headers)


def _configuration(plan: RoutePlan, by_route: Mapping[PlannedRoute, tuple[CheckpointNames, list[Any]]]) -> Any:
    """Return the RouteConfiguration of a plan."""
    out = empty_configuration(plan.name)
    for host in plan.hosts:
        name = virtual_host_name(plan.gateway, host.listener, host.name)
        virtual = out.virtual_hosts.add(name=name, domains=[host.name])
        virtual.routes.append(_ambiguous())
        for route in host.routes:
            virtual.routes.extend(by_route[route][1] if route.backends else [route.message])
    return out


def _failing(route: Any) -> Any:
    """Return a route with the same match that answers 500."""
    out = route_components_pb2.Route(name=route.name, match=route.match)
    out.direct_response.status = 500
    return out


def _destination(to: RouteBackend, compiler: PolicyCompiler) -> Destination:
    if to.backend is None:
        return Destination(None, to.weight, NO_PROTECTION)
    stack = compiler.stack(to.gateway, to.listener, to.backend)
    protection = compiler.protection(stack, backend_of(to.backend), to.listener.port)
    return Destination(
        to.cluster, to.weight, protection, to.host, to.changes, to.messages, to.backend.kind == "XBackend"
    )


def _ambiguous() -> Any:
    """Return the first route: some servers read `/a/%2e%2e;/b` as `/b`, and Envoy unescapes it but goes no further."""
    out = route_components_pb2.Route(name="ambiguous")
    out.match.safe_regex.regex = r"(?s).*/\.{1,2};.*"
    out.direct_response.status = 400
    return out


def empty_configuration(name: str) -> Any:
    """Return a RouteConfiguration without routes that drops Tierwall's own headers and method or path overrides."""
    out = route_pb2.RouteConfiguration(name=name, ignore_port_in_host_matching=True)
    out.request_headers_to_remove.extend((*FACT_HEADERS, *CHECKPOINT.values(), *OVERRIDE_HEADERS))
    return out


def protected_routes(
    route: Any, destinations: list[Destination], options: EnvoyOptions, method: object = None
) -> list[Any]:
    """Return the routes to some destinations: with policies for MCP, other JSON-RPC and plain HTTP, otherwise one.

    A route that is limited to one HTTP method needs only some of them.
    """
    refuse_repeats(route, frozenset[str]().union(*(each.protection.headers for each in destinations)))
    if not any(destination.reads_messages for destination in destinations):
        settings = {OPEN: on()}
        if not options.static and all(destination.cluster is not None for destination in destinations):
            settings[WATCH] = mcp.watched(any(destination.is_server for destination in destinations))
        _set_destinations(route, destinations, settings, plain=False)
        return [route]
    out = []
    if method in (None, "POST"):
        rpc_route = copy.deepcopy(route)
        if method is None:
            rpc_route.match.headers.append(method_matcher("POST"))
        mcp_route = copy.deepcopy(rpc_route)
        mcp_route.name, rpc_route.name = f"{route.name}/mcp", f"{route.name}/rpc"
        for form in mcp.ACCEPTABLE:
            mcp_route.match.headers.add(name="accept").string_match.contains = form
        if arguments := {path for destination in destinations for path in destination.protection.arguments}:
            reading = {MCP: mcp.reading_arguments(arguments, options.largest_message), STRICT_ARGUMENTS: on()}
        else:
            reading = {MCP: on(), STRICT: on()}
        _set_destinations(mcp_route, destinations, {**reading, FACTS: mcp.facts()}, plain=False)
        # Clients of A2A, whose messages are JSON-RPC, too, accept only what they expect.
        reading |= {ACCEPTS: on(), FACTS: mcp.facts(mcp.ACCEPTED_AGAIN)}
        _set_destinations(rpc_route, destinations, reading, plain=False, restored=mcp.ACCEPTED_AGAIN)
        out += [mcp_route, rpc_route]
    if method != "POST":
        route.name = f"{route.name}/http"
        if method is None:
            route.match.headers.append(method_matcher("POST", invert=True))
        _set_destinations(route, destinations, {BODILESS: on(), FACTS: mcp.facts(with_path=True)}, plain=True)
        out.append(route)
    return out


def _set_destinations(
    route: Any,
    destinations: list[Destination],
    settings: Mapping[str, Any],
    plain: bool,
    restored: tuple[tuple[str, str], ...] = (),
) -> None:
    """Set the destinations of a route, each with the policies on the way there; `restored` are headers to set, too."""
    _set_filters(route.typed_per_filter_config, settings)
    if len(destinations) == 1 and destinations[0].cluster is not None:
        route.route.cluster = destinations[0].cluster
        route.route.host_rewrite_literal = _host(route, destinations[0])
        add_changes(route, destinations[0].changes)
        _set_filters(route.typed_per_filter_config, destinations[0].settings(plain, restored))
        return
    for destination in destinations:
        weighted = route.route.weighted_clusters.clusters.add(name=destination.cluster or NOWHERE)
        weighted.weight.value = destination.weight
        weighted.host_rewrite_literal = _host(route, destination)
        _set_filters(weighted.typed_per_filter_config, destination.settings(plain, restored))
    if any(destination.changes is not None for destination in destinations):
        shares = route.route.weighted_clusters.clusters
        move_headers(route, shares)
        for share, destination in zip(shares, destinations, strict=True):
            add_changes(share, destination.changes)
        route.route.ClearField("host_rewrite_literal")


def _host(route: Any, destination: Destination) -> str:
    """Return the host for a destination: that of its own filters, of the rule, or of a backend outside the cluster."""
    of_filters = destination.changes.host_rewrite_literal if destination.changes is not None else ""
    return of_filters or route.route.host_rewrite_literal or destination.host


def _set_filters(into: Any, settings: Mapping[str, Any]) -> None:
    for name in sorted(settings):
        into[name].CopyFrom(settings[name])
