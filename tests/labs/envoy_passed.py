"""Reads a configuration as Envoy does, to find the policies that a request passes: headers, filters, lookups.

Routes and filter configurations are separate, because a proxy may have them from different states for a while.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from envoy.config.rbac.v3 import rbac_pb2 as rules_pb2
from envoy.config.route.v3 import route_components_pb2
from envoy.extensions.filters.http.header_mutation.v3 import header_mutation_pb2
from envoy.extensions.filters.http.rbac.v3 import rbac_pb2
from xds.type.matcher.v3 import matcher_pb2

from tierwall.engines.envoy.config.checkpoints import UNKNOWN, filter_names
from tierwall.engines.envoy.config.names import CHECKPOINT, FACTS

ORDER = {name: slot for slot, name in filter_names()}
POSITION = {name: number for number, name in enumerate(ORDER)}


class Policy(NamedTuple):
    """A policy that a request passes: its decision and its question, as messages; None if the lookup fails."""

    slot: tuple[str, int]
    decision: Any
    asked: Any

    @property
    def text(self) -> str:
        return str(self.decision) + str(self.asked)


class Passed(NamedTuple):
    """The effects of a route on requests: the policies, and all other filter settings except checkpoint names."""

    policies: tuple[Policy, ...]
    settings: tuple[tuple[str, bytes], ...]

    @property
    def content(self) -> tuple[Any, ...]:
        """The comparable content, without slot numbers."""
        trees = tuple((policy.slot[0], wire(policy.decision), wire(policy.asked)) for policy in self.policies)
        return trees, tuple(value for _, value in self.settings)


def wire(message: Any) -> bytes:
    return b"" if message is None else message.SerializeToString(deterministic=True)


def passed(routes: Mapping[str, Any], filters: Mapping[str, Any]) -> dict[str, Passed]:
    """Return what requests pass, by host and route, and by cluster where a route has several."""
    out = {}
    for configuration in routes.values():
        for host in configuration.virtual_hosts:
            for route in host.routes:
                for name, settings in _leads(route):
                    levels = [configuration.typed_per_filter_config, *settings]
                    out[f"{host.domains[0]} {route.name}{name}"] = _passed(levels, filters)
    return out


def _leads(route: Any) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    clusters = route.route.weighted_clusters.clusters
    for cluster in clusters:
        yield f" {cluster.name}", [route.typed_per_filter_config, cluster.typed_per_filter_config]
    if not clusters:
        yield "", [route.typed_per_filter_config]


def _passed(levels: list[Mapping[str, Any]], filters: Mapping[str, Any]) -> Passed:
    said: dict[str, str] = {}
    settings: dict[str, Any] = {}
    brought: dict[str, Any] = {}
    for level in levels:
        settings.update(level)
        brought |= {name: rbac for name in ORDER.keys() & set(level) for rbac in _brought(level[name])}
        if FACTS in level:
            facts = header_mutation_pb2.HeaderMutationPerRoute.FromString(level[FACTS].value)
            for mutation in facts.mutations.request_mutations:
                said[mutation.append.header.key] = mutation.append.header.value
    policies = []
    for name in sorted((name for name in settings if name in ORDER), key=POSITION.__getitem__):
        if _is_off(settings[name]):
            continue
        rbac = brought.get(name) or rbac_pb2.RBAC.FromString(filters[name].typed_config.value)
        where = said.get(CHECKPOINT[ORDER[name].level], "")
        policies.append(Policy(ORDER[name], _at(rbac.matcher, where), _at(rbac.shadow_matcher, where)))
    rest = sorted((name, settings[name].value) for name in settings if name not in ORDER and name != FACTS)
    # An authorizer filter follows its policy's filter, in the same slot.
    return Passed(tuple(policies), tuple((name.replace(".authorizer", ""), value) for name, value in rest))


def _brought(setting: Any) -> Iterator[Any]:
    """Yield what a filter decides by instead of its own configuration, if a route brings something."""
    copy = rbac_pb2.RBACPerRoute()
    if setting.Unpack(copy):
        yield copy.rbac


def _is_off(setting: Any) -> bool:
    config = route_components_pb2.FilterConfig()
    return bool(setting.Unpack(config)) and config.disabled


def _at(matcher: Any, where: str) -> Any:
    known = matcher.matcher_tree.exact_match_map.map
    return known[where] if where in known else None  # noqa: SIM401 - of protobuf's maps `get` gives no message


def denies_unknown(filters: Mapping[str, Any]) -> bool:
    """Whether every filter of AccessPolicies denies requests at unknown checkpoints."""
    for entry in filters.values():
        if not entry.typed_config.type_url.endswith(rbac_pb2.RBAC.DESCRIPTOR.full_name):
            continue
        on_no_match = rbac_pb2.RBAC.FromString(entry.typed_config.value).matcher.on_no_match
        assert isinstance(on_no_match, matcher_pb2.Matcher.OnMatch)
        action = rules_pb2.Action.FromString(on_no_match.action.typed_config.value)
        if (action.name, action.action) != (UNKNOWN, rules_pb2.RBAC.DENY):
            return False
    return True
