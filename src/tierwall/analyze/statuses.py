"""The statuses of policies of all planes, by reference (docs/gateway.md#status, docs/network.md#status)."""

from __future__ import annotations

from typing import TypeAlias

from tierwall.analyze.network_status import KINDS, NetworkPolicyStatus, network_policies, network_policy_status
from tierwall.attach.status import PolicyStatus
from tierwall.core.diagnostics import Diagnostic, input_error
from tierwall.core.reference import full_reference
from tierwall.gateway.effects import policies_with_ancestors, policy_status
from tierwall.resources.finder import ResourceFinder
from tierwall.resources.snapshot import Snapshot

_CLUSTER_SCOPED = tuple(f"{kind}/" for _, kind in KINDS)
AnyStatus: TypeAlias = PolicyStatus | NetworkPolicyStatus


def statuses(snapshot: Snapshot, *references: str, namespace: str = "default") -> list[AnyStatus]:
    """Return the status of every policy that has one, or of those named. InputError for those that do not exist.

    `namespace` is that of references without one; network policies with a status are cluster-scoped and need none.
    """
    policies = [*policies_with_ancestors(snapshot), *network_policies(snapshot)]
    if references:
        problems: list[Diagnostic] = []
        finder = ResourceFinder(snapshot, problems)
        full = (
            reference if reference.startswith(_CLUSTER_SCOPED) else full_reference(reference, namespace)
            for reference in references
        )
        policies = [policy for reference in full for policy in finder.by_reference_among("policy", reference, policies)]
        if problems:
            raise input_error(problems)
    in_order = sorted(set(policies), key=lambda policy: (policy.kind, policy.namespace, policy.name, policy.group))
    return [
        (network_policy_status if (policy.group, policy.kind) in KINDS else policy_status)(snapshot, policy)
        for policy in in_order
    ]
