"""The targets that a policy names itself (GEP-713), read without knowing anything else about the policy.

A policy whose targets are all other objects than those of a question cannot change the answer
(docs/reference/sources.md#what-is-not-considered).
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from tierwall.resources.resource import Resource, list_of_maps
from tierwall.resources.snapshot import Snapshot

# The kinds of targets that a question names if it is about them. Questions about tools do not name the routes.
_NAMED_KINDS = {
    "tool": frozenset({"Gateway", "Service", "XBackend", "AgentgatewayBackend"}),
    "gateway": frozenset(
        {"Gateway", "ListenerSet", "XListenerSet", "HTTPRoute", "GRPCRoute", "TCPRoute", "TLSRoute", "UDPRoute"}
        | {"Service", "AgentgatewayBackend", "Backend", "InferencePool"}
    ),
}

_SELECTOR_FIELDS = frozenset({"group", "kind", "matchLabels", "sectionName"})

# Targets that are in no namespace.
_CLUSTER_KINDS = ("GatewayClass",)


def targets_others(snapshot: Snapshot, policy: Resource, plane: str, places: Set[tuple[str, str, str]]) -> bool:
    """Whether a policy has only other targets than the places of a question, if the question names any.

    A place is a kind, a namespace and a name.
    """
    named, selectors = _named_targets(policy), policy.spec.get("targetSelectors") or []
    if not places or not (named or selectors) or not isinstance(selectors, list):
        return False
    # A target with a part that is not a string may be any place.
    return all(
        all(isinstance(part, str) for part in place) and place[0] in _NAMED_KINDS[plane] and place not in places
        for place in named
    ) and all(_selects_others(snapshot, policy, selector, plane, places) for selector in selectors)


def _selects_others(
    snapshot: Snapshot, policy: Resource, selector: Any, plane: str, places: Set[tuple[str, str, str]]
) -> bool:
    """Whether a selector certainly selects none of the places. One that is not a plain `matchLabels` may select any."""
    if not isinstance(selector, dict) or not selector.keys() <= _SELECTOR_FIELDS:
        return False
    group, kind, labels = selector.get("group", ""), selector.get("kind"), selector.get("matchLabels")
    if not isinstance(group, str) or not isinstance(kind, str) or not isinstance(labels, dict):
        return False
    if kind not in _NAMED_KINDS[plane]:
        return False
    here = (
        snapshot.get(group, kind, *place) for named, *place in places if named == kind and place[0] == policy.namespace
    )
    return all(place is not None and not labels.items() <= place.labels.items() for place in here)


def target_namespaces(policy: Resource) -> list[str]:
    """Return the namespaces whose objects a policy names as targets, or an empty name for targets outside of them."""
    named = ("" if kind in _CLUSTER_KINDS else namespace for kind, namespace, _ in _named_targets(policy))
    return [namespace for namespace in named if isinstance(namespace, str)]


def _named_targets(policy: Resource) -> list[tuple[Any, Any, Any]]:
    spec = policy.spec
    targets = [*list_of_maps(spec.get("targetRefs")), *list_of_maps([spec["targetRef"]] if "targetRef" in spec else [])]
    return [(target.get("kind"), target.get("namespace") or policy.namespace, target.get("name")) for target in targets]
