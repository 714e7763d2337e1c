"""Compute the status that a controller would write on a policy, in Gateway API form (`PolicyStatus`).

An AgentgatewayPolicy has one ancestor per Gateway through which it takes effect, and `StatusSummary` for targets that
it does not reach. An AccessPolicy has one ancestor per target (docs/gateway.md#status). A status depends only on the
snapshot: a policy recovers when it is corrected or when a more senior policy is removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tierwall.attach.acceptance import broken_expressions, exceeded_limits, refusals
from tierwall.attach.attachment import AttachmentProblem, TargetAttachment, attachment
from tierwall.attach.backend import nested_refs
from tierwall.attach.closing import closed_places
from tierwall.attach.place import AGENTGATEWAY, Place
from tierwall.attach.target import ACCESS_POLICIES, GATEWAY_POLICIES
from tierwall.core.unprintable import escape_unprintable
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import objections

CONTROLLERS = {
    **dict.fromkeys(GATEWAY_POLICIES, "agentgateway.dev/agentgateway"),
    **dict.fromkeys(ACCESS_POLICIES, "sigs.k8s.io/kube-agentic-networking-controller"),
}
MAX_ANCESTORS = 16
# The reasons for which an AccessPolicy closes its targets (docs/semantics.md#an-invalid-policy-closes-its-targets). A
# policy that exceeds a limit is ignored instead (docs/semantics.md#evaluated-lists-every-policy-looked-at).
CLOSING = ("Invalid", "InvalidCEL")


class StatusCondition(NamedTuple):
    """A status condition without its times."""

    type: str
    status: bool
    reason: str
    message: str


class AncestorRef(NamedTuple):
    """The object of an ancestor. The summary of targets that are not reached has no namespace."""

    group: str
    kind: str
    name: str
    namespace: str = ""


SUMMARY = AncestorRef(AGENTGATEWAY, "AgentgatewayPolicy", "StatusSummary")


class Ancestor(NamedTuple):
    """The conditions of a policy for one ancestor."""

    ref: AncestorRef
    conditions: tuple[StatusCondition, ...]


class PolicyStatus(NamedTuple):
    """The status of one policy."""

    policy: Resource
    ancestors: tuple[Ancestor, ...]

    @property
    def controller(self) -> str:
        """The name of the controller that would write the status."""
        return CONTROLLERS[self.policy.group, self.policy.kind]


class MergeStatus(NamedTuple):
    """The result of merging for one policy: conflicts and overrides by field, each with a message."""

    conflicts: Mapping[str, str] = {}
    overridden: Mapping[str, str] = {}
    # Whether no setting of the policy takes effect anywhere.
    never_effective: bool = False


def ancestors(snapshot: Snapshot, policy: Resource, merge_status: MergeStatus) -> tuple[Ancestor, ...]:
    """Return the ancestors of a policy with their conditions, sorted by Gateway and target."""
    is_access_policy = (policy.group, policy.kind) in ACCESS_POLICIES
    every = tuple((_access_policy if is_access_policy else _gateway_policy)(snapshot, policy, merge_status))
    if len(every) <= MAX_ANCESTORS:
        return every
    kept, ignored = every[: MAX_ANCESTORS - 1], len(every) - MAX_ANCESTORS + 1
    message = f"{ignored} AncestorRefs ignored due to max status size"
    return (*kept, Ancestor(SUMMARY, (StatusCondition("StatusSummarized", True, "StatusSummary", message),)))


def _gateway_policy(snapshot: Snapshot, policy: Resource, merge_status: MergeStatus) -> Iterator[Ancestor]:
    accepted = _gateway_accepted(snapshot, policy)
    if not accepted.status:
        pending = StatusCondition("Attached", False, "Pending", "Policy is not attached due to invalid status")
        yield Ancestor(SUMMARY, (accepted, pending, _programmed(accepted, pending)))
        return
    attached_to = attachment(snapshot, policy)
    by_gateway: dict[Place, list[TargetAttachment]] = {}
    for target in attached_to:
        for gateway in target.gateways:
            by_gateway.setdefault(gateway, []).append(target)
    failed = [target for target in attached_to if target.problem is not None]
    resolved = _resolved(snapshot, policy)
    for gateway in sorted(by_gateway):
        through = ", ".join(str(target.place) for target in by_gateway[gateway])
        message = "Attached to all targets" if not failed else _joined((f"Attached to {through}",))
        attached = StatusCondition("Attached", True, "Attached", message)
        rest = (_programmed(accepted, attached), _conflicted(merge_status), _overridden(merge_status))
        yield Ancestor(_ancestor_ref(gateway), (accepted, attached, resolved, *rest))
    if failed:
        message = _joined(f"Policy is not attached: {target.message}" for target in failed)
        pending = StatusCondition("Attached", False, "Pending", message)
        yield Ancestor(SUMMARY, (accepted, pending, _programmed(accepted, pending)))


def _gateway_accepted(snapshot: Snapshot, policy: Resource) -> StatusCondition:
    if refused := objections(snapshot, policy):
        return StatusCondition("Accepted", False, "Invalid", _joined(refused))
    broken = broken_expressions(policy)
    if not broken:
        return StatusCondition("Accepted", True, "Valid", "Policy accepted")
    message = _joined(
        f"{'.'.join(map(str, expression.path[1:]))} is not a valid CEL expression: {expression.text}"
        for expression in broken
    )
    settings = {
        (section, name)
        for section in ("frontend", "traffic", "backend")
        for name in policy.spec.get(section) or ()
        if name != "phase"
    }
    if settings <= {expression.setting for expression in broken}:
        return StatusCondition("Accepted", False, "Invalid", message)
    return StatusCondition("Accepted", True, "PartiallyValid", message)


def _access_policy(snapshot: Snapshot, policy: Resource, merge_status: MergeStatus) -> Iterator[Ancestor]:
    rejected = _access_rejected(snapshot, policy)
    resolved = _resolved(snapshot, policy)
    exceeded = [limit for limit in exceeded_limits(snapshot, policy) if limit.external_auth]
    conflicted = StatusCondition("Conflicted", False, "NoConflicts", "No other policy conflicts with this one")
    if exceeded:
        conflicted = StatusCondition("Conflicted", True, "ExternalAuthHeld", _joined(map(str, exceeded)))
    overridden = StatusCondition(
        "Overridden", False, "NotOverridden", "All policies of a target must allow; none overrides another"
    )
    seen = set()
    for target in attachment(snapshot, policy):
        if target.place is None or target.place.whole in seen:
            continue
        seen.add(target.place.whole)
        accepted = rejected or StatusCondition("Accepted", True, "Accepted", "Policy is accepted")
        attached = StatusCondition("Attached", True, "Attached", "Attached to the target")
        if target.problem is not None:
            attached = StatusCondition(
                "Attached", False, "Pending", _joined((f"Policy is not attached: {target.message}",))
            )
            if target.problem is AttachmentProblem.WRONG_KIND and rejected is None:
                accepted = StatusCondition("Accepted", False, "Invalid", _joined((target.message,)))
            elif target.problem.is_missing and rejected is None:
                accepted = StatusCondition("Accepted", False, "TargetNotFound", _joined((target.message,)))
        elif rejected is not None:
            attached = StatusCondition("Attached", False, "Pending", "Policy is not attached due to invalid status")
        programmed = _programmed(accepted, attached)
        if (
            rejected is not None
            and rejected.reason in CLOSING
            and target.problem in (None, AttachmentProblem.NOT_REACHED)
        ):
            programmed = programmed._replace(message="Policy is invalid: every request to the target is denied")
        rest = (resolved, programmed, conflicted, overridden)
        yield Ancestor(_ancestor_ref(target.place.whole), (accepted, attached, *rest))
    if rejected is None or rejected.reason not in CLOSING:
        return
    for place in closed_places(snapshot, policy):
        if place not in seen:
            message = "Policy is not attached: its targetRefs cannot be read"
            attached = StatusCondition("Attached", False, "Pending", message)
            message = "Policy is invalid, and may have named the target: every request to the target is denied"
            programmed = StatusCondition("Programmed", False, "Pending", message)
            yield Ancestor(_ancestor_ref(place), (rejected, attached, resolved, programmed, conflicted, overridden))


def _access_rejected(snapshot: Snapshot, policy: Resource) -> StatusCondition | None:
    """Return the condition of a rejected policy: on all targets alike (docs/semantics.md#five-policies-per-target)."""
    if refused := objections(snapshot, policy):
        return StatusCondition("Accepted", False, "Invalid", _joined(refused))
    if exceeded := exceeded_limits(snapshot, policy):
        return StatusCondition("Accepted", False, "LimitPerTargetExceeded", _joined(map(str, exceeded)))
    if unusable := refusals(policy):
        return StatusCondition("Accepted", False, "InvalidCEL", _joined(refusal.message for refusal in unusable))
    return None


def _resolved(snapshot: Snapshot, policy: Resource) -> StatusCondition:
    problems = [problem for ref in nested_refs(policy) if (problem := ref.problem(snapshot)) is not None]
    if not problems:
        return StatusCondition("ResolvedRefs", True, "ResolvedRefs", "All references are resolved")
    return StatusCondition(
        "ResolvedRefs", False, problems[0][0], _joined(dict.fromkeys(message for _, message in problems))
    )


def _programmed(accepted: StatusCondition, attached: StatusCondition) -> StatusCondition:
    if accepted.status and attached.status:
        return StatusCondition("Programmed", True, "Programmed", "Policy is in force")
    return StatusCondition("Programmed", False, "Pending", "Policy is not in force: it is not accepted and attached")


def _conflicted(merge_status: MergeStatus) -> StatusCondition:
    if not merge_status.conflicts:
        return StatusCondition("Conflicted", False, "NoConflicts", "No policy of equal precedence sets the same field")
    message = _joined(f"{field}: {reason}" for field, reason in merge_status.conflicts.items())
    return StatusCondition("Conflicted", True, "EqualPrecedence", message)


def _overridden(merge_status: MergeStatus) -> StatusCondition:
    if not merge_status.overridden:
        return StatusCondition("Overridden", False, "NotOverridden", "Every setting takes effect somewhere")
    message = _joined(f"{field}: {reason}" for field, reason in merge_status.overridden.items())
    return StatusCondition(
        "Overridden", True, "Overridden" if merge_status.never_effective else "PartiallyOverridden", message
    )


def _joined(messages: Iterable[str]) -> str:
    """Join messages, each on a line of its own: names in them cannot fake another line."""
    return "\n".join(map(escape_unprintable, messages))


def _ancestor_ref(place: Place) -> AncestorRef:
    return AncestorRef(place.group, place.kind, place.name, place.namespace)
