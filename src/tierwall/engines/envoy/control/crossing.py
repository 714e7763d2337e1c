"""Routes that carry their policies themselves, for a proxy that comes from another control plane.

Such a proxy may have routes with checkpoints that this control plane never had, or filters that are several changes
behind. Policy filters are sent one by one, so its old routes would meet unknown checkpoints, or old and new filters
together: a restriction that has moved from one policy to another would be in neither. Therefore it first gets the new
routes with a copy of what the filters hold, which Envoy uses instead of the filter's own configuration
(`RBACPerRoute`). It takes them at once and as a whole. Then come the filters, and last the routes without copies.

The copies stand once in each RouteConfiguration, which turns their filters on for all its routes. So every route turns
those off that it does not pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from envoy.config.route.v3 import route_components_pb2, route_pb2
from envoy.extensions.filters.http.header_mutation.v3 import header_mutation_pb2
from envoy.extensions.filters.http.rbac.v3 import rbac_pb2

from tierwall.engines.envoy.config.checkpoints import filter_names
from tierwall.engines.envoy.config.matchers import packed
from tierwall.engines.envoy.config.names import CHECKPOINT, FACTS

# The most bytes of all copies. A RouteConfiguration that needs more is closed until the routes without copies come.
MAX_COPIES = 64 * 1024 * 1024


@cache
def policy_filters() -> Mapping[str, str]:
    """Return the header that names the checkpoint, for each filter that holds policies."""
    return {name: CHECKPOINT[slot.level] for slot, name in filter_names()}


def crossing_routes(routes: Mapping[str, Any], filters: Mapping[str, Any]) -> dict[str, Any]:
    """Return route configurations with the policies that these filters hold."""
    left = MAX_COPIES
    out = {}
    for name, message in routes.items():
        passed = _passed(message)
        copies = {each: _copy(filters[each], checkpoints) for each, checkpoints in passed.items()}
        size = sum(len(copy.value) for copy in copies.values())
        if size > left:
            copies = {each: _copy(filters[each], ()) for each in passed}
        else:
            left -= size
        out[name] = _carrying(message, copies)
    return out


def ended_route(name: str) -> Any:
    """Return a route configuration that serves nothing."""
    return route_pb2.RouteConfiguration(name=name)


def _passed(routes: Any) -> dict[str, set[str]]:
    """Return the policy filters that these routes turn on, with the checkpoints that are looked up there."""
    out: dict[str, set[str]] = {}
    for names, said in _ways(routes):
        for name in names & policy_filters().keys():
            out.setdefault(name, set()).add(said.get(policy_filters()[name], ""))
    return out


def _ways(routes: Any) -> Iterator[tuple[set[str], dict[str, str]]]:
    """Yield, for each route and each of its weighted clusters, the names of its settings and the headers it sets."""
    for host in routes.virtual_hosts:
        for route in host.routes:
            settings = route.typed_per_filter_config
            yield set(settings), _headers(settings)
            for cluster in route.route.weighted_clusters.clusters:
                inner = cluster.typed_per_filter_config
                yield {*settings, *inner}, _headers(settings) | _headers(inner)


def _headers(settings: Mapping[str, Any]) -> dict[str, str]:
    if FACTS not in settings:
        return {}
    facts = header_mutation_pb2.HeaderMutationPerRoute.FromString(settings[FACTS].value)
    return {mutation.append.header.key: mutation.append.header.value for mutation in facts.mutations.request_mutations}


def _copy(known: Any, checkpoints: Iterable[str]) -> Any:
    """Return a filter's configuration for routes, with these checkpoints only; it denies requests at others."""
    out = rbac_pb2.RBACPerRoute()
    out.rbac.ParseFromString(known.typed_config.value)
    for matcher in (out.rbac.matcher, out.rbac.shadow_matcher):
        decisions = matcher.matcher_tree.exact_match_map.map
        for name in set(decisions) - set(checkpoints):
            del decisions[name]
        # Envoy does not take an empty map.
        if not decisions:
            matcher.ClearField("matcher_tree")
    if not out.rbac.shadow_matcher.HasField("matcher_tree"):
        out.rbac.ClearField("shadow_matcher")
    return packed(out)


def _carrying(routes: Any, copies: Mapping[str, Any]) -> Any:
    """Return routes with these copies."""
    out = route_pb2.RouteConfiguration()
    out.CopyFrom(routes)
    for name, copy in copies.items():
        out.typed_per_filter_config[name].CopyFrom(copy)
    for host in out.virtual_hosts:
        for route in host.routes:
            for name in copies.keys() - set(route.typed_per_filter_config):
                route.typed_per_filter_config[name].CopyFrom(_off())
    return out


@cache
def _off() -> Any:
    """Return the route setting that turns a filter off."""
    return packed(route_components_pb2.FilterConfig(disabled=True))
