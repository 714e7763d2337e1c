"""Plan the statuses of all policies from the objects and from what engines say (docs/controller.md#status).

A policy that is not accepted has no `Programmed` at all. Otherwise an AccessPolicy has it from the first write on, and
policies of the network plane have it if there are node agents. The list of ancestors belongs to several controllers and
takes 16 entries: if the others leave no room, an Event and a condition of the Gateway say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from tierwall.attach.place import GATEWAY, Place
from tierwall.attach.status import MAX_ANCESTORS, MAX_MESSAGE_BYTES, StatusCondition, bounded_message
from tierwall.attach.target import ACCESS_POLICIES
from tierwall.core.words import join_names
from tierwall.network.model.policies import NETWORK_POLICY
from tierwall.resources.resource import Identity, Resource, list_of_maps, nested_map
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import objections
from tierwall.serve.controller.desired import (
    CONDITION_PREFIX,
    CONTROLLER_NAME,
    DesiredStatus,
    Programmed,
    WantedAncestor,
    WantedCondition,
)
from tierwall.serve.controller.network_statuses import NetworkStatusPlanner
from tierwall.serve.controller.target_statuses import TargetPlan, TargetStatusPlanner

AFFECTED = f"{CONDITION_PREFIX}AccessPolicyAffected"
STATUS_FULL, TARGET_NOT_FOUND = "StatusFull", "TargetNotFound"
_NO_ENVOYS = WantedCondition("Programmed", "False", "Reconciling", "No Envoy has said yet that it holds this policy")
_MAX_NAMES = 5
_Conditions: TypeAlias = tuple[WantedCondition, ...]


class PolicyProblem(NamedTuple):
    """A problem of a policy that has no place in its status, as the reason and note of an Event."""

    policy: Identity
    reason: str
    message: str


class PlannedStatuses(NamedTuple):
    """The statuses of all policies.

    `unwritten` are the conditions of NetworkPolicies, which have no status: their changes make Events. `affected` are
    the conditions of Gateways whose policies have no room for a status.
    """

    statuses: Mapping[Identity, DesiredStatus]
    unwritten: Mapping[Identity, _Conditions]
    affected: Mapping[Identity, WantedCondition]
    problems: tuple[PolicyProblem, ...]


class _KnownStatus(NamedTuple):
    """A status that was planned, with everything that it was planned from."""

    live: Resource
    plan: object
    programmed: tuple[WantedCondition | None, ...]
    status: DesiredStatus | None
    left_out: int


class StatusPlanner:
    """Plans statuses again and again. INVARIANT: one call at a time; it may be in any thread."""

    def __init__(self) -> None:
        self._network = NetworkStatusPlanner()
        self._targets = TargetStatusPlanner()
        self._known: dict[Identity, _KnownStatus] = {}

    def plan(self, live: Snapshot, judged: Snapshot, programmed: Programmed) -> PlannedStatuses:
        """Plan all statuses. `live` has the objects with their statuses; `judged` says what the policies mean.

        A status that stays the same is the same value as before.
        """
        known: dict[Identity, _KnownStatus] = {}
        problems: list[PolicyProblem] = []
        full: dict[Place, list[str]] = {}
        for identity, conditions in self._network.plan(judged).items():
            policy = live.get(*identity)
            if policy is not None:
                known[identity] = self._network_status(policy, conditions, programmed)
        for identity, plan in self._targets.plan(judged).items():
            policy = live.get(*identity)
            if policy is None:
                continue
            known[identity] = self._target_status(policy, plan, programmed)
            problems += [PolicyProblem(identity, TARGET_NOT_FOUND, message) for message in plan.missing]
            if known[identity].left_out:
                problems.append(PolicyProblem(identity, STATUS_FULL, _full(known[identity].left_out)))
                for gateway in {gateway for entry in plan.entries for gateway in entry.gateways}:
                    full.setdefault(gateway, []).append(str(policy.reference))
        self._known = known
        return PlannedStatuses(
            {identity: each.status for identity, each in known.items() if each.status is not None},
            {policy.identity: _unwritten(judged, policy, programmed) for policy in live.of_kind(*NETWORK_POLICY)},
            {(*GATEWAY, place.namespace, place.name): _affected(names) for place, names in full.items()},
            tuple(problems),
        )

    def _network_status(
        self, policy: Resource, conditions: tuple[StatusCondition, ...], programmed: Programmed
    ) -> _KnownStatus:
        said = (programmed(policy, None) if conditions[0].status else None,)
        known = self._known.get(policy.identity)
        if known is not None and known.live is policy and known.plan is conditions and known.programmed == said:
            return known
        wanted = [_wanted(condition) for condition in conditions]
        wanted += [_prefixed(condition) for condition in said if condition is not None]
        status = DesiredStatus.of(policy, conditions=tuple(wanted))
        return _KnownStatus(policy, conditions, said, _same(known, status), 0)

    def _target_status(self, policy: Resource, plan: TargetPlan, programmed: Programmed) -> _KnownStatus:
        has_programmed = (policy.group, policy.kind) in ACCESS_POLICIES
        said = tuple(
            (programmed(policy, entry.ref) or _NO_ENVOYS) if has_programmed and entry.conditions[0].status else None
            for entry in plan.entries
        )
        known = self._known.get(policy.identity)
        if known is not None and known.live is policy and known.plan is plan and known.programmed == said:
            return known
        ours, others = _entries(policy)
        wanted = [
            WantedAncestor(entry.ref, (*map(_wanted, entry.conditions), *((condition,) if condition else ())))
            for entry, condition in zip(plan.entries, said, strict=True)
        ]
        kept = wanted[: max(MAX_ANCESTORS - others, 0)]
        status = DesiredStatus.of(policy, ancestors=tuple(kept)) if kept or ours else None
        return _KnownStatus(policy, plan, said, _same(known, status), len(wanted) - len(kept))


def _same(known: _KnownStatus | None, status: DesiredStatus | None) -> DesiredStatus | None:
    return known.status if known is not None and known.status == status else status


def _entries(policy: Resource) -> tuple[int, int]:
    """Return how many entries of `status.ancestors` are ours, and how many are of other controllers."""
    entries = list_of_maps(nested_map(policy.value, "status").get("ancestors"))
    ours = sum(entry.get("controllerName") == CONTROLLER_NAME for entry in entries)
    return ours, len(entries) - ours


def _unwritten(judged: Snapshot, policy: Resource, programmed: Programmed) -> _Conditions:
    if refused := objections(judged, policy):
        closing = "Meanwhile the pods that it selects are isolated, and what cannot be read allows nothing"
        return (WantedCondition("Accepted", "False", "Invalid", bounded_message(refused, closing)),)
    accepted = WantedCondition("Accepted", "True", "Accepted", "Policy is accepted")
    said = programmed(policy, None)
    return (accepted,) if said is None else (accepted, said)


def _wanted(condition: StatusCondition) -> WantedCondition:
    message = condition.message
    if len(message.encode()) > MAX_MESSAGE_BYTES:
        message = bounded_message(message.split("\n"))
    return WantedCondition(condition.type, "True" if condition.status else "False", condition.reason, message)


def _prefixed(condition: WantedCondition) -> WantedCondition:
    return WantedCondition(f"{CONDITION_PREFIX}{condition.type}", condition.status, condition.reason, condition.message)


def _full(left_out: int) -> str:
    fits = "entry of ours does not fit" if left_out == 1 else "entries of ours do not fit"
    return f"status.ancestors is full: {left_out} {fits}. The policy stays in force"


def _affected(names: Iterable[str]) -> WantedCondition:
    message = f"{join_names(sorted(names), _MAX_NAMES)} cannot have a status, because status.ancestors is full"
    return WantedCondition(AFFECTED, "True", STATUS_FULL, bounded_message((message,)))
