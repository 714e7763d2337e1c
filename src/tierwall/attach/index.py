"""All policies by the place they attach to, in tie-break order (contract, section 6)."""

from __future__ import annotations

import copy
from collections.abc import Iterable

from tierwall.attach.place import AGENTGATEWAY, Place
from tierwall.attach.target import Target, targets
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
        self._targets: dict[int, tuple[Target, ...]] = {}
        self.policies = tuple(sorted(policies, key=lambda one: (one.seniority, one.kind, one.group)))
        by_place: dict[Place, list[Resource]] = {}
        for policy in self.policies:
            # INVARIANT: the snapshot keeps the policy alive, so its id stays its own
            found = self._targets[id(policy)] = targets(snapshot, policy)
            for target in found:
                by_place.setdefault(target.place, []).append(policy)
        self._by_place = {place: tuple(found) for place, found in by_place.items()}

    def at(self, place: Place) -> tuple[Resource, ...]:
        """The policies that target a place, oldest first, then by name; each once."""
        return self._by_place.get(place, ())

    def of(self, policy: Resource) -> tuple[Target, ...]:
        """The targets of one of these policies."""
        return self._targets[id(policy)]

    def replaced(self, before: Resource, after: Resource) -> Attachments:
        """The same index with another text of one policy that has the same age and the same targets."""
        out = copy.copy(self)
        out._targets = dict(self._targets)
        found = out._targets[id(after)] = out._targets.pop(id(before))
        out.policies = _replaced(self.policies, before, after)
        out._by_place = dict(self._by_place)
        for target in found:
            out._by_place[target.place] = _replaced(self._by_place[target.place], before, after)
        return out

    @property
    def places(self) -> tuple[Place, ...]:
        """Every place that some policy targets, sorted."""
        return tuple(sorted(self._by_place))


def _replaced(those: tuple[Resource, ...], before: Resource, after: Resource) -> tuple[Resource, ...]:
    return tuple(after if one is before else one for one in those)


def attachments(snapshot: Snapshot, kinds: tuple[KindKey, ...], *, admitted: bool) -> Attachments:
    """The index of all policies of these kinds; with `admitted`, of those that admission takes."""

    def build(this: Snapshot) -> Attachments:
        policies = (one for group, kind in kinds for one in this.of_kind(group, kind))
        return Attachments(this, (one for one in policies if not admitted or is_valid(this, one)))

    return snapshot.once((attachments, kinds, admitted), build)
