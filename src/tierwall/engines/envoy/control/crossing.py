"""Routes that carry their policies themselves, for a proxy that comes from another control plane.

Such a proxy may have routes with checkpoints that this control plane never had, or filters that are several changes
behind. Filters are sent one by one, so its old routes would meet unknown checkpoints, or old and new filters together.
Therefore it first gets the new routes with a copy of each policy, which Envoy uses instead of the filter's own
(`RBACPerRoute`). It takes them at once and as a whole. Then come the filters, and last the routes without copies.

There are no copies of policies that ask an authorizer: what they ask about is in filters only. With one of those, and
in configurations that would become too large, old routes are closed until the new ones arrive.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from envoy.config.route.v3 import route_components_pb2, route_pb2
from envoy.extensions.filters.http.header_mutation.v3 import header_mutation_pb2
from envoy.extensions.filters.http.rbac.v3 import rbac_pb2

from tierwall.engines.envoy.config.checkpoints import filter_names
from tierwall.engines.envoy.config.matchers import packed
from tierwall.engines.envoy.config.names import CHECKPOINT, FACTS

# The most bytes of all copies. A configuration that needs more goes without them.
MAX_COPIES = 16 * 1024 * 1024


class UncopiableError(Exception):
    """A policy cannot be copied into its routes."""


@cache
def policy_filters() -> Mapping[str, str]:
    """Return the header that names the checkpoint, for each filter that holds policies."""
    return {name: CHECKPOINT[slot.level] for slot, name in filter_names()}


def crossing_routes(routes: Mapping[str, Any], filters: Mapping[str, Any]) -> dict[str, Any]:
    """Return route configurations with the policies that these filters hold; empty if they cannot have them."""
    copies = _Copies(filters)
    out = {}
    try:
        for name, message in routes.items():
            copy = route_pb2.RouteConfiguration()
            copy.CopyFrom(message)
            for host in copy.virtual_hosts:
                for route in host.routes:
                    copies.put(route, {})
            out[name] = copy
    except UncopiableError:
        return {}
    return out


class _Copies:
    """Copies of policies, by filter and checkpoint."""

    def __init__(self, filters: Mapping[str, Any]) -> None:
        self._filters = filters
        self._read: dict[str, Any] = {}
        self._made: dict[tuple[str, str], Any] = {}
        self._size = 0

    def put(self, part: Any, outer: Mapping[str, str]) -> None:
        """Put copies into a route, or a cluster of a route; `outer` are the headers that its route sets."""
        settings = part.typed_per_filter_config
        said = dict(outer)
        if FACTS in settings:
            facts = header_mutation_pb2.HeaderMutationPerRoute.FromString(settings[FACTS].value)
            said |= {
                mutation.append.header.key: mutation.append.header.value
                for mutation in facts.mutations.request_mutations
            }
        for name in list(settings):
            if name in policy_filters():
                settings[name].CopyFrom(self._copy(name, said.get(policy_filters()[name], "")))
        if isinstance(part, route_components_pb2.Route):
            for cluster in part.route.weighted_clusters.clusters:
                self.put(cluster, said)

    def _copy(self, name: str, checkpoint: str) -> Any:
        copy = self._made.get((name, checkpoint))
        if copy is None:
            copy = self._made[name, checkpoint] = self._make(name, checkpoint)
        self._size += len(copy.value)
        if self._size > MAX_COPIES:
            raise UncopiableError
        return copy

    def _make(self, name: str, checkpoint: str) -> Any:
        if name not in self._filters:
            raise UncopiableError
        known = self._read.get(name)
        if known is None:
            known = self._read[name] = rbac_pb2.RBAC.FromString(self._filters[name].typed_config.value)
        decisions = known.matcher.matcher_tree.exact_match_map.map
        if checkpoint not in decisions or checkpoint in known.shadow_matcher.matcher_tree.exact_match_map.map:
            # What an authorizer is asked about stays in the filter.
            raise UncopiableError
        only = rbac_pb2.RBACPerRoute()
        only.rbac.rules_stat_prefix = known.rules_stat_prefix
        only.rbac.shadow_rules_stat_prefix = known.shadow_rules_stat_prefix
        only.rbac.matcher.on_no_match.CopyFrom(known.matcher.on_no_match)
        only.rbac.matcher.matcher_tree.input.CopyFrom(known.matcher.matcher_tree.input)
        only.rbac.matcher.matcher_tree.exact_match_map.map[checkpoint].CopyFrom(decisions[checkpoint])
        return packed(route_components_pb2.FilterConfig(config=packed(only)))
