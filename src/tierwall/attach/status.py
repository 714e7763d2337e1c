"""Compute the status that a controller would write on a policy, in Gateway API form (`PolicyStatus`).

An AgentgatewayPolicy has one ancestor per Gateway through which it takes effect, and `StatusSummary` for targets that
it does not reach. An AccessPolicy has one ancestor per target (docs/gateway.md#status). A status depends only on the
snapshot: a policy recovers when it is corrected or when a more senior policy is removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tierwall.attach.acceptance import (
    broken_expressions,
    closing_reasons,
    exceeded_limits,
    left_out_settings,
    refusals,
)
from tierwall.attach.attachment import AttachmentProblem, TargetAttachment, attachment
from tierwall.attach.backend import nested_refs
from tierwall.attach.closing import NO_SCOPE, closed_places, closing_scope
from tierwall.attach.place import AGENTGATEWAY, Place
from tierwall.attach.target import ACCESS_POLICIES, GATEWAY_POLICIES
from tierwall.core.unprintable import escape_unprintable
from tierwall.resources.resource import Resource, list_of_maps, nested_map
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import objections

CONTROLLERS = {
    **dict.fromkeys(GATEWAY_POLICIES, "agentgateway.dev/agentgateway"),
    **dict.fromkeys(ACCESS_POLICIES, "sigs.k8s.io/kube-agentic-networking-controller"),
}
MAX_ANCESTORS = 16
MAX_MESSAGE_BYTES = 1024
# The reasons for which an AccessPolicy closes its targets (docs/semantics.md#an-invalid-policy-closes-its-targets). A
# policy that exceeds a limit is ignored instead (docs/semantics.md#evaluated-lists-every-policy-looked-at).
CLOSING = ("Invalid", "InvalidCEL")
UNREADABLE_TARGETS = "Policy is not attached: its targetRefs cannot be read"


# What an AgentgatewayPolicy does that is not admitted (docs/gateway.md#obeyed-by-run).
_REFUSED = "Meanwhile requests to its targets are answered with 500 where Tierwall serves the Gateway"


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


NOT_ATTACHED = StatusCondition("Attached", False, "Pending", "Policy is not attached due to invalid status")
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
    # `Enforced`, if Envoy does not enforce all of the policy where Tierwall serves the Gateway.
    enforced: tuple[StatusCondition, ...] = ()


def entries_of_others(policy: Resource) -> list[Mapping[str, Any]]:
    """Return the entries of `status.ancestors` that other controllers have written. They stay."""
    entries = list_of_maps(nested_map(policy.value, "status").get("ancestors"))
    controller = CONTROLLERS[policy.group, policy.kind]
    return [entry for entry in entries if entry.get("controllerName", controller) != controller]


def ancestors(snapshot: Snapshot, policy: Resource, merge_status: MergeStatus) -> tuple[Ancestor, ...]:
    """Return the ancestors of a policy with their conditions, sorted by Gateway and target, as far as there is room."""
    is_access_policy = (policy.group, policy.kind) in ACCESS_POLICIES
    every = tuple((_access_policy if is_access_policy else _gateway_policy)(snapshot, policy, merge_status))
    room = max(0, MAX_ANCESTORS - len(entries_of_others(policy)))
    if len(every) <= room or not room:
        return every[:room]
    kept, ignored = every[: room - 1], len(every) - room + 1
    message = f"{ignored} AncestorRefs ignored due to max status size"
    return (*kept, Ancestor(SUMMARY, (StatusCondition("StatusSummarized", True, "StatusSummary", message),)))


def _gateway_policy(snapshot: Snapshot, policy: Resource, merge_status: MergeStatus) -> Iterator[Ancestor]:
    accepted = gateway_policy_accepted(snapshot, policy)
    if not accepted.status:
        yield Ancestor(SUMMARY, (accepted, NOT_ATTACHED))
        return
    failed = [target for target in attachment(snapshot, policy) if target.problem is not None]
    resolved = _resolved(snapshot, policy)
    for gateway, attached in gateway_policy_attached(snapshot, policy).items():
        rest = (_conflicted(merge_status), _overridden(merge_status), *merge_status.enforced)
        yield Ancestor(_ancestor_ref(gateway), (accepted, attached, resolved, *rest))
    if failed:
        message = _joined(f"Policy is not attached: {target.message}" for target in failed)
        pending = StatusCondition("Attached", False, "Pending", message)
        yield Ancestor(SUMMARY, (accepted, pending))


def gateway_policy_attached(snapshot: Snapshot, policy: Resource) -> Mapping[Place, StatusCondition]:
    """Return `Attached` of an AgentgatewayPolicy that is accepted, by each Gateway that leads to a target, in order."""
    attached_to = attachment(snapshot, policy)
    by_gateway: dict[Place, list[TargetAttachment]] = {}
    for target in attached_to:
        for gateway in target.gateways:
            by_gateway.setdefault(gateway, []).append(target)
    is_everywhere = all(target.problem is None for target in attached_to)
    conditions = {}
    for gateway in sorted(by_gateway):
        through = ", ".join(str(target.place) for target in by_gateway[gateway])
        message = "Attached to all targets" if is_everywhere else _joined((f"Attached to {through}",))
        conditions[gateway] = StatusCondition("Attached", True, "Attached", message)
    return conditions


def gateway_policy_accepted(snapshot: Snapshot, policy: Resource) -> StatusCondition:
    """Return `Accepted` of an AgentgatewayPolicy."""
    if refused := objections(snapshot, policy):
        return StatusCondition("Accepted", False, "Invalid", bounded_message(refused, _REFUSED))
    broken = broken_expressions(policy)
    if not broken:
        return StatusCondition("Accepted", True, "Valid", "Policy accepted")
    message = _joined(
        f"{'.'.join(map(str, expression.path[1:]))} is not a valid {expression.expected}: {expression.text}"
        for expression in broken
    )
    settings = {
        (section, name)
        for section in ("frontend", "traffic", "backend")
        for name in policy.spec.get(section) or ()
        if name != "phase"
    }
    if settings <= left_out_settings(policy):
        return StatusCondition("Accepted", False, "Invalid", message)
    return StatusCondition("Accepted", True, "PartiallyValid", message)


def _access_policy(snapshot: Snapshot, policy: Resource, merge_status: MergeStatus) -> Iterator[Ancestor]:
    rejected = access_policy_rejected(snapshot, policy)
    resolved = _resolved(snapshot, policy)
    exceeded = [limit for limit in exceeded_limits(snapshot, policy) if limit.external_auth]
    conflicted = StatusCondition("Conflicted", False, "NoConflicts", "No other policy conflicts with this one")
    if exceeded:
        conflicted = StatusCondition("Conflicted", True, "ExternalAuthHeld", _joined(map(str, exceeded)))
    overridden = StatusCondition(
        "Overridden", False, "NotOverridden", "All policies of a target must allow; none overrides another"
    )
    rest = (resolved, conflicted, overridden)
    seen = set()
    for target in attachment(snapshot, policy):
        if target.place is None or target.place.whole in seen:
            continue
        seen.add(target.place.whole)
        attached = StatusCondition("Attached", True, "Attached", "Attached to the target")
        if target.problem is not None:
            message = _joined((f"Policy is not attached: {target.message}",))
            attached = StatusCondition("Attached", False, "Pending", message)
        elif rejected is not None:
            attached = NOT_ATTACHED
        yield Ancestor(_ancestor_ref(target.place.whole), (access_policy_accepted(rejected, target), attached, *rest))
    attached = StatusCondition("Attached", False, "Pending", UNREADABLE_TARGETS)
    for place in places_closed_besides_targets(snapshot, policy, rejected):
        if place not in seen:
            assert rejected is not None
            yield Ancestor(_ancestor_ref(place), (rejected, attached, *rest))


def access_policy_accepted(rejected: StatusCondition | None, target: TargetAttachment) -> StatusCondition:
    """Return `Accepted` of an AccessPolicy for one target; `rejected` holds for all of its targets."""
    if rejected is not None:
        return rejected
    if target.problem is AttachmentProblem.WRONG_KIND:
        return StatusCondition("Accepted", False, "Invalid", bounded_message((target.message,)))
    if target.problem is not None and target.problem.is_missing:
        return StatusCondition("Accepted", False, "TargetNotFound", bounded_message((target.message,)))
    return StatusCondition("Accepted", True, "Accepted", "Policy is accepted")


def places_closed_besides_targets(
    snapshot: Snapshot, policy: Resource, rejected: StatusCondition | None
) -> Iterator[Place]:
    """Yield the objects that a rejected AccessPolicy closes because its targetRefs may have named them."""
    if rejected is not None and rejected.reason in CLOSING:
        yield from closed_places(snapshot, policy)


def access_policy_rejected(snapshot: Snapshot, policy: Resource) -> StatusCondition | None:
    """Return the condition of a rejected policy: on all targets alike (docs/semantics.md#five-policies-per-target).

    Its message has every reason, and says what the policy does meanwhile.
    """
    reasons = closing_reasons(snapshot, policy)
    if exceeded := exceeded_limits(snapshot, policy):
        # A policy over a limit counts nowhere, whatever else is wrong with it.
        message = bounded_message((*map(str, exceeded), *reasons), "Meanwhile it is ignored")
        return StatusCondition("Accepted", False, "LimitPerTargetExceeded", message)
    if not reasons:
        return None
    reason = "InvalidCEL" if len(reasons) == len(refusals(policy)) else "Invalid"
    return StatusCondition("Accepted", False, reason, bounded_message(reasons, _meanwhile(policy)))


def _meanwhile(policy: Resource) -> str:
    besides = "" if closing_scope(policy) == NO_SCOPE else ", and so is what its targetRefs may have named"
    return f"Meanwhile its targets are closed{besides}: every request to them is denied"


def _resolved(snapshot: Snapshot, policy: Resource) -> StatusCondition:
    problems = [problem for ref in nested_refs(policy) if (problem := ref.problem(snapshot)) is not None]
    if not problems:
        return StatusCondition("ResolvedRefs", True, "ResolvedRefs", "All references are resolved")
    return StatusCondition(
        "ResolvedRefs", False, problems[0][0], _joined(dict.fromkeys(message for _, message in problems))
    )


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


def bounded_message(lines: Sequence[str], closing: str = "") -> str:
    """Join lines, each escaped, and a closing one; leave out and count lines that would make the message too long.

    Of a first line that is too long by itself, the beginning stays.
    """
    closing = escape_unprintable(closing)
    room = MAX_MESSAGE_BYTES - len(closing.encode()) - len("\n99999 more\n")
    kept: list[str] = []
    for line in map(escape_unprintable, lines):
        size = len(line.encode()) + 1
        if size > room and not kept:
            kept.append(line.encode()[: room - len("…".encode()) - 1].decode(errors="ignore") + "…")
            break
        if size > room:
            break
        kept.append(line)
        room -= size
    if len(kept) < len(lines):
        kept.append(f"{len(lines) - len(kept)} more")
    return "\n".join([*kept, closing] if closing else kept)


def _ancestor_ref(place: Place) -> AncestorRef:
    return AncestorRef(place.group, place.kind, place.name, place.namespace)
