"""Find the targets of policies, and the policies of a place (docs/gateway.md#where-a-policy-attaches).

`targetRefs` name targets and `targetSelectors` select them by label, always in the policy's own namespace. This holds
for AgentgatewayPolicy and AccessPolicy. Several entries for one place are one target
(docs/semantics.md#equal-precedence-is-a-conflict). Policies that admission refuses are read as far as possible, because
the tool plane closes what such a policy was meant to guard. The policies of a place are in tie-break order
(docs/semantics.md#ties-go-by-age-then-name).
"""

from __future__ import annotations

import copy
from bisect import insort
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tierwall.attach.place import AGENTGATEWAY, INFERENCE_POOL, SERVICE, Place, service_port
from tierwall.core.labels import Requirement, Selector
from tierwall.resources.once import per_snapshot, provide
from tierwall.resources.resource import Resource, Seniority, list_of_maps
from tierwall.resources.snapshot import KindKey, Snapshot
from tierwall.resources.validity import is_understood


class TargetEntry(NamedTuple):
    """One entry of `targetRefs` (with a `name`) or `targetSelectors` (with a `selector`)."""

    group: str
    kind: str
    section: str
    port: int
    path: tuple[str | int, ...]
    name: str = ""
    selector: Selector | None = None


class Target(NamedTuple):
    """A place that a policy targets; `resource` is None if the object does not exist."""

    place: Place
    resource: Resource | None
    path: tuple[str | int, ...]


def entries(policy: Resource) -> Iterator[TargetEntry]:
    """Yield the entries of both lists in order; leave out invalid entries."""
    for field in ("targetRefs", "targetSelectors"):
        for index, value in enumerate(list_of_maps(policy.spec.get(field))):
            if (entry := _entry(field, index, value)) is not None:
                yield entry


def _entry(field: str, index: int, value: Mapping[str, Any]) -> TargetEntry | None:
    group, kind = value.get("group", ""), value.get("kind")
    if not isinstance(group, str) or not isinstance(kind, str):
        return None
    section, port = value.get("sectionName"), value.get("port")
    section = section if isinstance(section, str) else ""
    port = port if type(port) is int else 0
    if (group, kind) == SERVICE and section:
        section = service_port(section)
    if (group, kind) == INFERENCE_POOL:
        section = ""  # a pool has no sections: the name is ignored (docs/gateway.md#where-a-policy-attaches)
    path = ("spec", field, index)
    if field == "targetRefs":
        name = value.get("name")
        return TargetEntry(group, kind, section, port, path, name) if isinstance(name, str) and name else None
    labels = value.get("matchLabels")
    if not isinstance(labels, dict) or not all(isinstance(text, str) for text in labels.values()):
        return None
    requirements = sorted(Requirement(key, "In", (text,)) for key, text in labels.items())
    return TargetEntry(group, kind, section, port, path, selector=Selector(tuple(requirements)))


def resolve(snapshot: Snapshot, policy: Resource, entry: TargetEntry) -> tuple[Target, ...]:
    """Return the targets of one entry; empty if its selector selects nothing."""
    if entry.selector is None:
        place = Place(entry.group, entry.kind, policy.namespace, entry.name, entry.section, entry.port)
        return (Target(place, place.resource(snapshot), entry.path),)
    selected = snapshot.selected(entry.group, entry.kind, entry.selector, policy.namespace)
    return tuple(
        Target(Place.of(resource, entry.section, entry.port), resource, entry.path)
        for resource in sorted(selected, key=lambda resource: resource.name)
    )


def targets(snapshot: Snapshot, policy: Resource) -> tuple[Target, ...]:
    """Return all targets of a policy, each place once."""
    by_place: dict[Place, Target] = {}
    for entry in entries(policy):
        for target in resolve(snapshot, policy, entry):
            by_place.setdefault(target.place, target)
    return tuple(by_place.values())


GATEWAY_POLICIES: tuple[KindKey, ...] = ((AGENTGATEWAY, "AgentgatewayPolicy"),)
ACCESS_GROUPS = ("agentic.networking.x-k8s.io", "agentic.prototype.x-k8s.io")
ACCESS_POLICIES: tuple[KindKey, ...] = tuple(
    (group, kind) for group in ACCESS_GROUPS for kind in ("AccessPolicy", "XAccessPolicy")
)


class AttachedPolicies:
    """Policies of some kinds, by place."""

    def __init__(self, snapshot: Snapshot, policies: Iterable[Resource]) -> None:
        self._targets: dict[Resource, tuple[Target, ...]] = {}
        self.policies = tuple(sorted(policies, key=policy_order))
        by_place: dict[Place, list[Resource]] = {}
        by_whole: dict[Place, list[Resource]] = {}
        for policy in self.policies:
            policy_targets = self._targets[policy] = targets(snapshot, policy)
            for target in policy_targets:
                by_place.setdefault(target.place, []).append(policy)
            for place in whole_objects(policy_targets):
                by_whole.setdefault(place, []).append(policy)
        self._by_place = {place: tuple(policies) for place, policies in by_place.items()}
        self._by_whole = {place: tuple(policies) for place, policies in by_whole.items()}

    def at(self, place: Place) -> tuple[Resource, ...]:
        """Return the policies that target a place, oldest first, then by name."""
        return self._by_place.get(place, ())

    def on(self, whole: Place) -> tuple[Resource, ...]:
        """Return the policies that target an object or any section of it, in the same order."""
        return self._by_whole.get(whole, ())

    def of(self, policy: Resource) -> tuple[Target, ...]:
        """Return the targets of one of these policies."""
        return self._targets[policy]

    def updated_to(
        self, snapshot: Snapshot, removed: Iterable[Resource], added: Iterable[Resource]
    ) -> AttachedPolicies:
        """Return the index of a snapshot that differs only in policies: some were removed, some were added."""
        out = copy.copy(self)
        out._targets, out._by_place, out._by_whole = dict(self._targets), dict(self._by_place), dict(self._by_whole)
        removed = set(removed)
        added = tuple(added)
        policies = [policy for policy in self.policies if policy not in removed]
        for policy in added:
            insort(policies, policy, key=policy_order)
        out.policies = tuple(policies)
        touched: set[Place] = set()
        for policy in removed:
            touched |= {target.place for target in out._targets.pop(policy)}
        for policy in added:
            policy_targets = out._targets[policy] = targets(snapshot, policy)
            touched |= {target.place for target in policy_targets}
        for index, places, named in (
            (out._by_place, touched, _places),
            (out._by_whole, {place.whole for place in touched}, whole_objects),
        ):
            for place in places:
                stay = [policy for policy in index.pop(place, ()) if policy not in removed]
                new = [policy for policy in added if place in named(out._targets[policy])]
                if stay or new:
                    index[place] = tuple(sorted((*stay, *new), key=policy_order))
        return out

    @property
    def places(self) -> tuple[Place, ...]:
        """Every place that some policy targets, sorted."""
        return tuple(sorted(self._by_place))


def whole_objects(targets: Iterable[Target]) -> tuple[Place, ...]:
    """Return the objects of targets without their sections, each once."""
    return tuple(dict.fromkeys(target.place.whole for target in targets))


def _places(targets: Iterable[Target]) -> tuple[Place, ...]:
    return tuple(target.place for target in targets)


def policy_order(policy: Resource) -> tuple[Seniority, str, str]:
    """Return the sort key of policies of several kinds: age, then name, then kind."""
    return policy.seniority, policy.kind, policy.group


def attachments(snapshot: Snapshot, kinds: tuple[KindKey, ...], *, admitted: bool) -> AttachedPolicies:
    """Index all policies of these kinds; with `admitted`, only those that admission accepts and Tierwall knows."""
    return _attachments(snapshot, kinds, admitted)


@per_snapshot
def _attachments(snapshot: Snapshot, kinds: tuple[KindKey, ...], admitted: bool) -> AttachedPolicies:
    policies = (policy for group, kind in kinds for policy in snapshot.of_kind(group, kind))
    return AttachedPolicies(
        snapshot, (policy for policy in policies if not admitted or is_understood(snapshot, policy))
    )


def follow(
    before: Snapshot,
    snapshot: Snapshot,
    kinds: tuple[KindKey, ...],
    removed: Iterable[Resource],
    added: Iterable[Resource],
) -> None:
    """Derive the index of all policies of these kinds from a snapshot that differs only in such policies."""
    updated = attachments(before, kinds, admitted=False).updated_to(snapshot, removed, added)
    provide(updated, _attachments, snapshot, kinds, False)
