"""The status of an AccessPolicy in the words of kube-agentic-networking (docs/enforce-tools.md#upstreams-profile).

Its controller writes one condition, `Accepted`, for each targetRef. A target that does not exist, or whose kind it does
not know, is accepted: it only looks at limits and expressions. It knows no `Invalid`, because an API server refuses
such a policy; Tierwall, which also reads files, keeps its own words for it.
"""

from __future__ import annotations

from tierwall.attach.acceptance import exceeded_limits
from tierwall.attach.attachment import attachment
from tierwall.attach.status import (
    MAX_ANCESTORS,
    Ancestor,
    AncestorRef,
    PolicyStatus,
    StatusCondition,
    access_policy_rejected,
)
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

ACCEPTED = StatusCondition("Accepted", True, "Accepted", "AccessPolicy accepted for target")


def upstream_status(snapshot: Snapshot, policy: Resource) -> PolicyStatus:
    """Return the status that kube-agentic-networking would write on an AccessPolicy."""
    condition = _accepted(snapshot, policy)
    places = dict.fromkeys(target.place.whole for target in attachment(snapshot, policy) if target.place is not None)
    refs = [AncestorRef(place.group, place.kind, place.name, place.namespace) for place in places]
    return PolicyStatus(policy, tuple(Ancestor(ref, (condition,)) for ref in refs[:MAX_ANCESTORS]))


def _accepted(snapshot: Snapshot, policy: Resource) -> StatusCondition:
    """Return the condition, which all targets share: a policy that is rejected for one is rejected for all."""
    for limit in exceeded_limits(snapshot, policy):
        message = f"Maximum number of AccessPolicies ({limit.limit}) exceeded for target {limit.place.name}"
        if limit.external_auth:
            message = f"An older ExternalAuth AccessPolicy already exists for target {limit.place.name}"
        return StatusCondition("Accepted", False, "LimitPerTargetExceeded", message)
    return access_policy_rejected(snapshot, policy) or ACCEPTED
