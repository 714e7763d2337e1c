"""Superseded sets of policies, kept for a grace period, and what is closed if there are too many of them.

An API server may still hold an allowed answer from a superseded set, so admission enforces the conditions of that
answer (`bridge`). No change waits for an old set to expire, because the change may be a revocation. If there are more
sets than the limit, one is forgotten early. Two neighbouring sets differ only in the scope of the change between them:
outside that scope the later set, which is kept, gives the same answers. Inside it, grants of the forgotten set can no
longer be told from others, and admission refuses what the current policies have no opinion on, until the set would have
expired (docs/semantics.md#superseded-conditions-stay-in-force).

The set to forget is of the namespace with the most changes, so that whoever changes often closes only their own
namespace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Generic, TypeAlias, TypeVar

import msgspec

from tierwall.api.algebra.request import Attributes
from tierwall.api.authorizers.cel_policies import CLUSTER_KIND, policies_of
from tierwall.api.authorizers.cel_policies import GROUP as POLICIES
from tierwall.api.authorizers.demands import GROUPS
from tierwall.api.authorizers.rbac import GROUP as RBAC
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

# The number of cluster-wide demands told apart; beyond it a change concerns every request.
MAX_DEMANDS = 64
Demands: TypeAlias = tuple[tuple[str, frozenset[str]], ...]
T = TypeVar("T")


class ChangeScope(msgspec.Struct, frozen=True):
    """The requests about which a change of objects may have changed a conditional answer."""

    namespaces: frozenset[str] = frozenset()
    # What the changed cluster-wide policies demand of a request.
    demands: frozenset[Demands] = frozenset()
    everything: bool = False

    @property
    def owners(self) -> frozenset[str]:
        """The namespaces whose objects changed; empty stands for cluster-wide objects."""
        return self.namespaces | {""} if self.demands or self.everything else self.namespaces

    def covers(self, attributes: Attributes) -> bool:
        """Whether a request is in the scope."""
        if self.everything or (attributes.is_resource_request and attributes.namespace in self.namespaces):
            return True
        return any(
            all(
                not values.isdisjoint(attributes.groups) if field == GROUPS else getattr(attributes, field) in values
                for field, values in demands
            )
            for demands in self.demands
        )


def change_scope(before: Snapshot, after: Snapshot) -> ChangeScope:
    """Return the scope of the change between two snapshots.

    RBAC is left out: it sets no conditions, and the conditions that it follows in a chain are evaluated all the same.
    """
    namespaces: set[str] = set()
    cluster_wide: set[Resource] = set()
    for old, new in after.changes(before):
        if old is not None and new is not None and old.has_same_content(new):
            continue
        for resource in (old, new):
            if resource is None or resource.group == RBAC or (resource.group, resource.kind) == ("", "Namespace"):
                continue
            if resource.namespace:
                namespaces.add(resource.namespace)
            elif (resource.group, resource.kind) == (POLICIES, CLUSTER_KIND):
                cluster_wide.add(resource)
            else:
                return ChangeScope(everything=True)
    changed = (*policies_of(before), *policies_of(after)) if cluster_wide else ()
    parsed = [policy.parsed for policy in changed if policy.resource in cluster_wide]
    demands = {tuple(sorted(expression.demands.items())) if expression is not None else () for expression in parsed}
    return ChangeScope(frozenset(namespaces), frozenset(demands), everything=len(demands) > MAX_DEMANDS)


class _SupersededSet(msgspec.Struct, Generic[T], frozen=True):
    policies: T
    revision: str
    # The end of its grace period.
    expiry: float
    # The scope of the change that superseded it.
    scope: ChangeScope


class SupersededSets(Generic[T]):
    """The superseded sets, the oldest first. `clock` counts seconds.

    INVARIANT: both tuples are replaced, never changed, and only in the event loop. Other threads may read them.
    """

    def __init__(self, clock: Callable[[], float], limit: int) -> None:
        self._clock, self._limit = clock, limit
        self._kept: tuple[_SupersededSet[T], ...] = ()
        self._forgotten: tuple[tuple[float, ChangeScope], ...] = ()

    def put(self, policies: T, revision: str, scope: ChangeScope, grace: float) -> None:
        """Keep a set from now on for so many seconds, and forget another if there are too many."""
        self.expire()
        # Policies that were in force twice are kept once, for the longer time.
        kept = [entry for entry in self._kept if entry.revision != revision]
        kept.append(_SupersededSet(policies, revision, self._clock() + grace, scope))
        while len(kept) > self._limit:
            changes = Counter(owner for entry in kept for owner in entry.scope.owners)
            # The oldest of those whose every namespace has many changes.
            dropped = max(kept, key=lambda entry: min((changes[owner] for owner in entry.scope.owners), default=0))
            kept.remove(dropped)
            self._forget(dropped)
        self._kept = tuple(kept)

    def _forget(self, dropped: _SupersededSet[T]) -> None:
        # Equal scopes are remembered once; there are no more of them than namespaces and kinds of demands.
        others = [entry for entry in self._forgotten if entry[1] != dropped.scope]
        expiry = max((known for known, scope in self._forgotten if scope == dropped.scope), default=0.0)
        forgotten = [*others, (max(expiry, dropped.expiry), dropped.scope)]
        if len(forgotten) > self._limit:
            joined = ChangeScope(
                frozenset().union(*(scope.namespaces for _, scope in forgotten)),
                frozenset().union(*(scope.demands for _, scope in forgotten)),
                any(scope.everything for _, scope in forgotten),
            )
            forgotten = [(max(known for known, _ in forgotten), joined)]
        self._forgotten = tuple(forgotten)

    def retained(self) -> tuple[T, ...]:
        """Return the sets whose answers an API server may still hold, newest first."""
        return tuple(entry.policies for entry in self._live())[::-1] if self._kept else ()

    def _live(self) -> Iterator[_SupersededSet[T]]:
        now = self._clock()
        return (entry for entry in self._kept if entry.expiry > now)

    def forgotten(self) -> tuple[ChangeScope, ...]:
        """Return the scopes of the sets that were forgotten early."""
        if not self._forgotten:
            return ()
        now = self._clock()
        return tuple(scope for expiry, scope in self._forgotten if expiry > now)

    def expire(self) -> None:
        """Drop the sets whose grace period is over."""
        now = self._clock()
        self._kept = tuple(self._live())
        self._forgotten = tuple(entry for entry in self._forgotten if entry[0] > now)
