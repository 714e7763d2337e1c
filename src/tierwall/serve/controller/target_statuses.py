"""Plan the statuses of policies with targets: AccessPolicies and AgentgatewayPolicies on Gateways of our class.

docs/controller.md#status. An AccessPolicy has one entry for each targetRef that leads to a Gateway of ours, or to a
backend behind one. A Gateway that does not exist may be anybody's: it has an entry only if all GatewayClasses are ours,
and else an Event tells that the target was not found. A backend that does not exist has an Event, too. An
AgentgatewayPolicy has one entry for each Gateway of ours that leads to a target.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import NamedTuple

from tierwall.attach.attachment import AttachmentProblem, TargetAttachment, attachment
from tierwall.attach.closing import GUARDED
from tierwall.attach.place import GATEWAY, Place
from tierwall.attach.reach import gateway_graph
from tierwall.attach.status import (
    NOT_ATTACHED,
    StatusCondition,
    access_policy_accepted,
    access_policy_rejected,
    gateway_policy_accepted,
    gateway_policy_attached,
    places_closed_besides_targets,
)
from tierwall.attach.target import ACCESS_POLICIES, GATEWAY_POLICIES, attachments, follow, whole_objects
from tierwall.gateway.effects import enforced
from tierwall.resources.once import per_snapshot, provide
from tierwall.resources.plane_kinds import kinds_read
from tierwall.resources.resource import Identity, Resource
from tierwall.resources.snapshot import KindKey, Snapshot
from tierwall.resources.validity import DEFINITION
from tierwall.serve.controller.desired import WantedRef
from tierwall.serve.controller.gateway_class import GATEWAY_CLASS, our_classes, our_gateways

# Whatever the statuses of these policies depend on. Pods are not among it.
RELEVANT: Set[KindKey] = frozenset((*kinds_read("tool"), *kinds_read("gateway"), GATEWAY_CLASS, DEFINITION)) - {
    ("", "ServiceAccount")
}


class PlannedEntry(NamedTuple):
    """An entry of `status.ancestors` without `Programmed`, and the Gateways of ours that it is about."""

    ref: WantedRef
    conditions: tuple[StatusCondition, ...]
    gateways: tuple[Place, ...]


class TargetPlan(NamedTuple):
    """The entries of one policy, and what is said about targets that have no entry because they do not exist."""

    entries: tuple[PlannedEntry, ...] = ()
    missing: tuple[str, ...] = ()


class TargetStatusPlanner:
    """Plans the statuses of all policies with targets. A changed AccessPolicy is compared only with its neighbours."""

    def __init__(self) -> None:
        self._before = Snapshot({})
        # The objects that count, with whatever was computed from them.
        self._relevant = Snapshot({})
        self._plans: dict[Identity, TargetPlan] = {}
        # Counts how many policies were looked at.
        self.computed = 0

    def plan(self, judged: Snapshot) -> Mapping[Identity, TargetPlan]:
        """Return the plan of each policy; plans that did not change are the same values as before."""
        before, self._before = self._before, judged
        changes = [
            (old, new) for old, new in judged.changes(before) if (either := new or old) and _key(either) in RELEVANT
        ]
        if not changes:
            return self._plans
        put = [new for _, new in changes if new is not None]
        dropped = [old for old, new in changes if old is not None and new is None]
        relevant = self._relevant.with_changes(put, dropped)
        if all(_key(resource) in ACCESS_POLICIES for resource in (*put, *dropped)):
            policies = self._follow(relevant, changes)
            for policy in dropped:
                self._plans.pop(policy.identity, None)
        else:
            policies = {policy for kinds in _KINDS for policy in attachments(relevant, kinds, admitted=False).policies}
            self._plans = {
                policy.identity: plan for policy in policies if (plan := self._plans.get(policy.identity)) is not None
            }
        self._relevant = relevant
        for policy in policies:
            self.computed += 1
            plan = target_plan(relevant, policy)
            if self._plans.get(policy.identity) != plan:
                self._plans[policy.identity] = plan
        return self._plans

    def _follow(self, relevant: Snapshot, changes: Iterable[tuple[Resource | None, Resource | None]]) -> set[Resource]:
        """Derive indexes from those before; return the policies that changed, or share a target with one that did."""
        provide(gateway_graph(self._relevant), gateway_graph, relevant)
        removed = [old for old, _ in changes if old is not None]
        added = [new for _, new in changes if new is not None]
        follow(self._relevant, relevant, ACCESS_POLICIES, removed, added)
        then, now = (attachments(snapshot, ACCESS_POLICIES, admitted=False) for snapshot in (self._relevant, relevant))
        touched = {place for policy in removed for place in whole_objects(then.of(policy))}
        touched |= {place for policy in added for place in whole_objects(now.of(policy))}
        return {*added, *(policy for place in touched for policy in now.on(place))}


_KINDS = (ACCESS_POLICIES, GATEWAY_POLICIES)


def _key(resource: Resource) -> KindKey:
    return resource.group, resource.kind


def target_plan(snapshot: Snapshot, policy: Resource) -> TargetPlan:
    """Plan the status of one policy."""
    if _key(policy) in GATEWAY_POLICIES:
        return TargetPlan(tuple(_gateway_policy_entries(snapshot, policy)))
    return _access_policy_plan(snapshot, policy)


@per_snapshot
def _our_places(snapshot: Snapshot) -> frozenset[Place]:
    return frozenset(map(Place.of, our_gateways(snapshot)))


def _are_all_classes_ours(snapshot: Snapshot) -> bool:
    classes = tuple(snapshot.of_kind(*GATEWAY_CLASS))
    return bool(classes) and len(our_classes(snapshot)) == len(classes)


def _ours_to(snapshot: Snapshot, place: Place) -> tuple[Place, ...]:
    """Return the Gateways of ours that lead to an object; a Gateway of ours leads to itself."""
    if place.key == GATEWAY:
        return (place.whole,) if place.whole in _our_places(snapshot) else ()
    ours = _our_places(snapshot)
    return tuple(gateway for gateway in gateway_graph(snapshot).gateways(place) if gateway in ours)


def _access_policy_plan(snapshot: Snapshot, policy: Resource) -> TargetPlan:
    rejected = access_policy_rejected(snapshot, policy)
    entries: list[PlannedEntry] = []
    missing: list[str] = []
    for target in attachment(snapshot, policy):
        if target.place is None or target.place.key not in GUARDED:
            continue
        ref, conditions = _ref(target.place), (access_policy_accepted(rejected, target),)
        if target.problem is not AttachmentProblem.NO_OBJECT:
            gateways = _ours_to(snapshot, target.place)
            entries += [PlannedEntry(ref, conditions, gateways)] if gateways else []
        elif target.place.key == GATEWAY and _are_all_classes_ours(snapshot):
            entries.append(PlannedEntry(ref, conditions, ()))
        else:
            missing.append(_missing(target))
    named = {entry.ref for entry in entries}
    for place in places_closed_besides_targets(snapshot, policy, rejected):
        assert rejected is not None
        if (gateways := _ours_to(snapshot, place)) and _ref(place) not in named:
            entries.append(PlannedEntry(_ref(place), (rejected,), gateways))
    return TargetPlan(tuple(entries), tuple(missing))


def _missing(target: TargetAttachment) -> str:
    return f"{target.message} ({target.hint})" if target.hint else target.message


def _gateway_policy_entries(snapshot: Snapshot, policy: Resource) -> Iterator[PlannedEntry]:
    accepted = gateway_policy_accepted(snapshot, policy)
    ours = _our_places(snapshot)
    for gateway, attached in gateway_policy_attached(snapshot, policy).items():
        if gateway in ours:
            enforcement = enforced(policy) if accepted.status else ()
            conditions = (accepted, attached if accepted.status else NOT_ATTACHED, *enforcement)
            yield PlannedEntry(_ref(gateway), conditions, (gateway,))


def _ref(place: Place) -> WantedRef:
    return WantedRef(place.group, place.kind, place.namespace, place.name, place.section, place.port)
