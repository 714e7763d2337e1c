"""All policies by the place they attach to, in tie-break order (docs/semantics.md#ties-go-by-age-then-name)."""

from __future__ import annotations

import copy
from bisect import insort
from collections.abc import Iterable

from tierwall.attach.place import AGENTGATEWAY, Place
from tierwall.attach.target import Target, targets
from tierwall.core.order import Seniority
from tierwall.resources.once import per_snapshot, provide
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import KindKey, Snapshot
from tierwall.resources.validity import is_valid

GATEWAY_POLICIES: tuple[KindKey, ...] = ((AGENTGATEWAY, "AgentgatewayPolicy"),)
ACCESS_GROUPS = ("agentic.networking.x-k8s.io", "agentic.prototype.x-k8s.io")
ACCESS_POLICIES: tuple[KindKey, ...] = tuple(
    (group, kind) for group in ACCESS_GROUPS for kind in ("AccessPolicy", "XAccessPolicy")
)


class Attachments:
    """Policies of some kinds, by place."""

    def __init__(self, snapshot: Snapshot, policies: Iterable[Resource]) -> None:
        self._targets: dict[Resource, tuple[Target, ...]] = {}
        self.policies = tuple(sorted(policies, key=_order))
        by_place: dict[Place, list[Resource]] = {}
        by_whole: dict[Place, list[Resource]] = {}
        for policy in self.policies:
            found = self._targets[policy] = targets(snapshot, policy)
            for target in found:
                by_place.setdefault(target.place, []).append(policy)
            for place in wholes(found):
                by_whole.setdefault(place, []).append(policy)
        self._by_place = {place: tuple(found) for place, found in by_place.items()}
        self._by_whole = {place: tuple(found) for place, found in by_whole.items()}

    def at(self, place: Place) -> tuple[Resource, ...]:
        """The policies that target a place, oldest first, then by name; each once."""
        return self._by_place.get(place, ())

    def on(self, whole: Place) -> tuple[Resource, ...]:
        """The policies that target an object or any section of it, in the same order."""
        return self._by_whole.get(whole, ())

    def of(self, policy: Resource) -> tuple[Target, ...]:
        """The targets of one of these policies."""
        return self._targets[policy]

    def following(self, snapshot: Snapshot, gone: Iterable[Resource], come: Iterable[Resource]) -> Attachments:
        """The index of a snapshot that differs only in policies: some are gone, some have come."""
        out = copy.copy(self)
        out._targets, out._by_place, out._by_whole = dict(self._targets), dict(self._by_place), dict(self._by_whole)
        lost = set(gone)
        added = list(come)
        policies = [policy for policy in self.policies if policy not in lost]
        for policy in added:
            insort(policies, policy, key=_order)
        out.policies = tuple(policies)
        touched: set[Place] = set()
        for policy in lost:
            touched |= {target.place for target in out._targets.pop(policy)}
        for policy in added:
            found = out._targets[policy] = targets(snapshot, policy)
            touched |= {target.place for target in found}
        for index, places, named in (
            (out._by_place, touched, _places),
            (out._by_whole, {one.whole for one in touched}, wholes),
        ):
            for place in places:
                stay = [policy for policy in index.pop(place, ()) if policy not in lost]
                new = [policy for policy in added if place in named(out._targets[policy])]
                if stay or new:
                    index[place] = tuple(sorted((*stay, *new), key=_order))
        return out

    @property
    def places(self) -> tuple[Place, ...]:
        """Every place that some policy targets, sorted."""
        return tuple(sorted(self._by_place))


def wholes(found: Iterable[Target]) -> tuple[Place, ...]:
    """The objects that targets are, or are sections of; each once."""
    return tuple(dict.fromkeys(target.place.whole for target in found))


def _places(found: Iterable[Target]) -> tuple[Place, ...]:
    return tuple(target.place for target in found)


def _order(policy: Resource) -> tuple[Seniority, str, str]:
    return policy.seniority, policy.kind, policy.group


def attachments(snapshot: Snapshot, kinds: tuple[KindKey, ...], *, admitted: bool) -> Attachments:
    """The index of all policies of these kinds; with `admitted`, of those that admission takes."""
    return _attachments(snapshot, kinds, admitted)


@per_snapshot
def _attachments(snapshot: Snapshot, kinds: tuple[KindKey, ...], admitted: bool) -> Attachments:
    policies = (policy for group, kind in kinds for policy in snapshot.of_kind(group, kind))
    return Attachments(snapshot, (policy for policy in policies if not admitted or is_valid(policy)))


def follow(
    before: Snapshot, snapshot: Snapshot, kinds: tuple[KindKey, ...], gone: Iterable[Resource], come: Iterable[Resource]
) -> None:
    """Make the index of all policies of these kinds from that of a snapshot which differs only in them."""
    made = attachments(before, kinds, admitted=False).following(snapshot, gone, come)
    provide(made, _attachments, snapshot, kinds, False)
