"""The statuses of policies of all planes, by reference (docs/gateway.md#status, docs/network.md#status)."""

from __future__ import annotations

from typing import TypeAlias

from tierwall.analyze.network_status import KINDS, NetworkPolicyStatus, network_policies, network_policy_status
from tierwall.analyze.upstream_status import upstream_status
from tierwall.attach.status import PolicyStatus
from tierwall.attach.target import ACCESS_POLICIES
from tierwall.core.diagnostics import Diagnostic, input_error
from tierwall.core.reference import full_reference
from tierwall.gateway.effects import policies_with_ancestors, policy_status
from tierwall.gateway.model.fields import Profile
from tierwall.resources.finder import ResourceFinder
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.profile import ToolProfile

_CLUSTER_SCOPED = tuple(f"{kind}/" for _, kind in KINDS)
AnyStatus: TypeAlias = PolicyStatus | NetworkPolicyStatus


def statuses(
    snapshot: Snapshot,
    *references: str,
    namespace: str = "default",
    tool_profile: ToolProfile = ToolProfile.TIERWALL,
    profile: Profile = "docs",
) -> list[AnyStatus]:
    """Return the status of every policy that has one, or of those named. InputError for those that do not exist.

    `namespace` is that of references without one; network policies with a status are cluster-scoped and need none.
    Settings are merged under `profile`.
    """
    policies = [*policies_with_ancestors(snapshot), *network_policies(snapshot)]
    if references:
        problems: list[Diagnostic] = []
        finder = ResourceFinder(snapshot, problems)
        full = (
            reference if reference.startswith(_CLUSTER_SCOPED) else full_reference(reference, namespace)
            for reference in references
        )
        policies = [
            policy
            for reference in full
            for policy in finder.by_reference_among("policy", reference, policies, "has no status")
        ]
        if problems:
            raise input_error(problems)
    in_order = sorted(set(policies), key=lambda policy: (policy.kind, policy.namespace, policy.name, policy.group))
    return [_status(snapshot, policy, tool_profile, profile) for policy in in_order]


def _status(snapshot: Snapshot, policy: Resource, tool_profile: ToolProfile, profile: Profile) -> AnyStatus:
    key = policy.group, policy.kind
    if key in KINDS:
        return network_policy_status(snapshot, policy)
    if key in ACCESS_POLICIES and tool_profile is ToolProfile.KUBE_AGENTIC_NETWORKING:
        return upstream_status(snapshot, policy)
    return policy_status(snapshot, policy, profile)
