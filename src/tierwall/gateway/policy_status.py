"""The status of policies: what attachment says of them, and what merging means for each as a whole.

docs/gateway.md#status. Merging finds conflicts, and settings that are replaced at every place.
"""

from __future__ import annotations

from tierwall.attach.status import PolicyStatus, Standing, ancestors
from tierwall.attach.target import ACCESS_POLICIES, GATEWAY_POLICIES, attachments
from tierwall.core.diagnostics import Diagnostic, input_error
from tierwall.core.words import listed
from tierwall.gateway.sentence import BEATS
from tierwall.gateway.standing import standings
from tierwall.resources.names import Finder
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

# How many others a message names before it counts the rest.
_NAMED = 5


def statuses(snapshot: Snapshot, *references: str) -> list[PolicyStatus]:
    """The status of every AgentgatewayPolicy and AccessPolicy, or of those named; InputError for names not found."""
    policies = [
        policy
        for kinds in (GATEWAY_POLICIES, ACCESS_POLICIES)
        for policy in attachments(snapshot, kinds, admitted=False).policies
    ]
    if references:
        problems: list[Diagnostic] = []
        find = Finder(snapshot, problems)
        policies = [policy for reference in references for policy in find.among("policy", reference, policies)]
        if problems:
            raise input_error(problems)
    in_order = sorted(set(policies), key=lambda policy: (policy.kind, policy.namespace, policy.name, policy.group))
    return [PolicyStatus(policy, ancestors(snapshot, policy, standing(snapshot, policy))) for policy in in_order]


def standing(snapshot: Snapshot, policy: Resource) -> Standing:
    """The standing of one policy over all places that requests can reach (profile docs)."""
    fates = standings(snapshot).of(policy)
    conflicts, overridden = {}, {}
    for path in sorted(fates):
        fate = fates[path]
        if fate.rivals:
            others = sorted(fate.rivals)
            before = [name for name in others if not fate.rivals[name][1]]
            if before:
                verb = "comes" if len(before) == 1 else "come"
                conflicts[path] = f"{listed(before, _NAMED)} {verb} first"
            else:
                conflicts[path] = f"this policy comes before {listed(others, _NAMED)}"
        if not fate.in_force and fate.beaten_by:
            overridden[path] = "; ".join(
                f"{winner} ({beaten.winner_level}) {BEATS[beaten.reason]}"
                for winner, beaten in sorted(fate.beaten_by.items())[:_NAMED]
            )
    return Standing(conflicts, overridden, bool(fates) and len(overridden) == len(fates))
