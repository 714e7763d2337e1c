"""Compares policies for pods that do not exist yet: two hypothetical pods of every sort that policies tell apart.

The policies of both sides together tell apart every sort that one side tells apart (`network.reach.exposure`). Policies
do not apply to a pod and itself, so each sort has two pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from tierwall.analyze.difference import limits
from tierwall.core.answer import Omission
from tierwall.core.reference import Reference
from tierwall.network.model.model import network_model
from tierwall.network.model.policies import KINDS as POLICY_KINDS
from tierwall.network.model.policies import NETWORK_POLICY
from tierwall.network.model.rules import TierName
from tierwall.network.reach.changed_objects import changed_objects
from tierwall.network.reach.classes import EndpointClasses
from tierwall.network.reach.compare import differences, joined_changes
from tierwall.network.reach.exposure import HypotheticalPod, with_stand_ins
from tierwall.network.reach.listing import ConnectionEntry
from tierwall.network.reach.naming import EndpointNames, NamedEndpoints
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import KindKey, Snapshot

# The most sorts of hypothetical pods that are compared in a namespace, and in all.
MAX_SORTS, MAX_IN_ALL = 300, 10_000
# The most given pods among which hypothetical pods are compared as well, if no given pod shows a change.
MAX_GIVEN = 2000
# The most endpoints that are named on one side of a change.
MAX_NAMED_ENDS = 4
# No name of an object ends like this.
_AFTER = "-after-"


class MixedEnds(NamedTuple):
    """Endpoints that exist, and what hypothetical pods among them stand for."""

    future: tuple[str, ...]
    given: tuple[str, ...]

    @property
    def named(self) -> NamedEndpoints:
        """The names of all of them, or of the first and a count."""
        return NamedEndpoints((), (), _some((*self.future, *self.given)))


class FuturePods(Struct, frozen=True):
    """Two snapshots with the same hypothetical pods, which are listed by namespace and name.

    `is_complete` is false if there are too many sorts of future pods to tell them all apart.
    """

    before: Snapshot
    after: Snapshot
    sorts: Mapping[tuple[str, str], HypotheticalPod]
    is_complete: bool

    def changes(self) -> Iterator[ConnectionEntry]:
        """Yield the changed connections of hypothetical pods, which are named by what they stand for."""
        names: dict[EndpointClasses, EndpointNames] = {}
        for changed in joined_changes(differences(self.before, self.after)):
            classes = changed.side.classes
            if classes not in names:
                names[classes] = EndpointNames(classes)
            sources, destinations = (
                self.ends(classes, mask, names[classes]) for mask in (changed.sources, changed.destinations)
            )
            if sources.future or destinations.future:
                yield ConnectionEntry(sources.named, destinations.named, changed.flows, changed.change, changed.partial)

    def limits(self) -> Iterator[Omission]:
        """Yield what was left out of the comparison: an unknown number of sorts."""
        if not self.is_complete:
            yield Omission(
                reason="limit",
                count=1,
                form="sort of future pods, or more",
                effect=f"policies tell more than {MAX_SORTS} sorts in a namespace or {MAX_IN_ALL} in all apart; "
                "connections of the others may change as well",
            )

    def ends(self, classes: EndpointClasses, mask: int, names: EndpointNames) -> MixedEnds:
        """Name a set of endpoints."""
        pods = [end for member in classes.members(mask & names.pods) for end in member.members]
        stand_ins = [self.sorts.get((pod.namespace, pod.name)) for pod in pods]
        future = dict.fromkeys(str(sort) for sort in stand_ins if sort is not None)
        given = [str(pod) for pod, sort in zip(pods, stand_ins, strict=True) if sort is None]
        others = mask & ~names.pods
        return MixedEnds(tuple(future), (*given, *([str(names.describe(others))] if others else ())))


def with_future_pods(before: Snapshot, after: Snapshot) -> FuturePods:
    """Add hypothetical pods to two snapshots."""
    both = before.with_changes(put=[_beside(resource) for _, resource in after.changes(before) if resource is not None])
    touched = {reference for _, reference in changed_objects(before, after)}
    hypothetical = with_stand_ins(
        both,
        named_ports=True,
        limit=MAX_SORTS,
        total=MAX_IN_ALL,
        first={reference.namespace for reference in touched},
        leading=touched | {reference._replace(name=f"{reference.name}{_AFTER}") for reference in touched},
    )
    sorts = dict(hypothetical.pods)
    added = [resource for _, resource in hypothetical.snapshot.changes(both) if resource is not None]
    for pod in [resource for resource in added if resource.kind == "Pod"]:
        twin = f"{pod.name}-twin"
        value = {**pod.value, "metadata": {**pod.metadata, "name": twin}}
        added.append(Resource("", "v1", "Pod", pod.namespace, twin, value))
        sorts[pod.namespace, twin] = sorts[pod.namespace, pod.name]
    sides = [side.with_changes(put=added) for side in (before, after)]
    return FuturePods(sides[0], sides[1], sorts, hypothetical.is_complete)


def _beside(resource: Resource) -> Resource:
    """Return a policy under another name, so that it does not replace the one before the change."""
    if (resource.group, resource.kind) not in POLICY_KINDS:
        return resource
    name = f"{resource.name}{_AFTER}"
    return Resource(resource.group, resource.version, resource.kind, resource.namespace, name, resource.value)


def lacks_pods(before: Snapshot, after: Snapshot) -> bool:
    """Whether policies differ and no pods were given to compare them with."""
    pods = (network_model(side).pods for side in (before, after))
    return not any(pods) and bool(changed_objects(before, after))


def uncompared(before: Snapshot, after: Snapshot) -> Iterator[Omission]:
    """Yield the policies that differ although no connection of given pods does: the pods that show it were not given.

    Two ways to write the same policy decide alike for hypothetical pods too.
    """
    changed = changed_objects(before, after)
    if not changed or any(kind not in POLICY_KINDS for kind, _ in changed):
        return
    near = narrowed(before, after, changed)
    if near is not None and next(with_future_pods(*near).changes(), None) is None:
        return
    few = all(len(network_model(side).pods) <= MAX_GIVEN for side in (before, after))
    if few and next(with_future_pods(before, after).changes(), None) is None:
        return
    sides = [[side.get(*kind, name.namespace, name.name) for side in (after, before)] for kind, name in sorted(changed)]
    policies = (new if new is not None else old for new, old in sides)
    effect = "changed, but no given pod is concerned; connections of other pods may change"
    yield from limits((policy for policy in policies if policy is not None), effect)


def narrowed(
    before: Snapshot, after: Snapshot, changed: Iterable[tuple[KindKey, Reference]]
) -> tuple[Snapshot, Snapshot] | None:
    """Return the snapshots without the pods and NetworkPolicies of namespaces in which no NetworkPolicy changes.

    If nothing changes for future pods there, nothing changes at all. A changed policy decides one end of a connection,
    and at the other end the policies that were left out only take away. That is not so for changes of other policies,
    nor if a baseline policy decides where no NetworkPolicy does: then there is no such snapshot.
    """
    if any(kind != NETWORK_POLICY for kind, _ in changed):
        return None
    if any(policy.tier is TierName.BASELINE for side in (before, after) for policy in network_model(side).policies):
        return None
    namespaces = {reference.namespace for _, reference in changed}
    old, new = (
        Snapshot.of(
            [resource for resource in side if resource.namespace in namespaces or resource.namespace == ""],
            backend_ref_grants=side.backend_ref_grants,
        )
        for side in (before, after)
    )
    return old, new


def _some(names: Sequence[str]) -> tuple[str, ...]:
    shown = tuple(names[:MAX_NAMED_ENDS])
    return (*shown, f"{len(names) - len(shown)} more") if len(names) > len(shown) else shown
