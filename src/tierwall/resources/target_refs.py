"""The targets that a policy names itself (GEP-713), read without knowing anything else about the policy.

A policy whose targets are all other objects than those of a question cannot change the answer
(docs/reference/sources.md#what-is-not-considered).
"""

from __future__ import annotations

from collections.abc import Set

from tierwall.resources.resource import Resource, list_of_maps

# The kinds of targets that a question names if it is about them. Questions about tools do not name the routes.
_NAMED_KINDS = {
    "tool": frozenset({"Gateway", "Service", "XBackend"}),
    "gateway": frozenset(
        {"Gateway", "ListenerSet", "XListenerSet", "HTTPRoute", "GRPCRoute", "TCPRoute", "TLSRoute", "UDPRoute"}
        | {"Service", "AgentgatewayBackend", "Backend", "InferencePool"}
    ),
}


def targets_others(policy: Resource, plane: str, places: Set[tuple[str, str, str]]) -> bool:
    """Whether a policy names only other targets than the places of a question, if the question names any.

    A place is a kind, a namespace and a name.
    """
    spec = policy.spec
    if not places or spec.get("targetSelectors"):
        return False
    targets = [*list_of_maps(spec.get("targetRefs")), *list_of_maps([spec["targetRef"]] if "targetRef" in spec else [])]
    named = [
        (target.get("kind"), target.get("namespace") or policy.namespace, target.get("name")) for target in targets
    ]
    # A target with a part that is not a string may be any place.
    return bool(named) and all(
        all(isinstance(part, str) for part in place) and place[0] in _NAMED_KINDS[plane] and place not in places
        for place in named
    )
