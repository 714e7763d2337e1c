"""Compute values that derive from a snapshot or an object once, and keep them there.

`per_snapshot` is for functions of a snapshot and further hashable arguments, `per_resource` for functions of one
object, `per_resource_and` for functions of one object and one more argument. No other code caches what it derives from
snapshots or objects. All three are for pure functions, so a kept value is as good as a new one. Exceptions are not
kept.

Threads may call at the same time, and all get the same value. A snapshot has a lock, because its indexes and models are
large: one thread computes while the others wait. This cannot deadlock: a computation asks only its own snapshot, whose
lock it already holds, and snapshots that it makes itself. Values of one object are small and need no lock: two threads
may both compute one, and the first value is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    from tierwall.resources.resource import Resource
    from tierwall.resources.snapshot import Snapshot

Arguments = TypeVarTuple("Arguments")
T = TypeVar("T")
H = TypeVar("H")


def per_snapshot(function: Callable[[Snapshot, *Arguments], T]) -> Callable[[Snapshot, *Arguments], T]:
    """Compute a function once per snapshot and arguments; the arguments are positional and hashable."""

    @wraps(function)
    def once(snapshot: Snapshot, *arguments: *Arguments) -> T:
        key = (once, *arguments) if arguments else once
        try:
            known: T = snapshot._memo[key]
        except KeyError:
            with snapshot._computing:
                if key not in snapshot._memo:
                    snapshot._memo[key] = function(snapshot, *arguments)
                known = snapshot._memo[key]
        return known

    return once


def provide(
    value: T, function: Callable[[Snapshot, *Arguments], T], snapshot: Snapshot, *arguments: *Arguments
) -> None:
    """Store a value as if a `per_snapshot` function had computed it, if an earlier snapshot made it cheaper to get."""
    key: Any = (function, *arguments) if arguments else function
    with snapshot._computing:
        snapshot._memo.setdefault(key, value)


def per_resource(function: Callable[[Resource], T]) -> Callable[[Resource], T]:
    """Compute a function once per object; every snapshot that has the object shares the value.

    INVARIANT: the value does not refer to the object. The garbage collector does not track objects, so such a cycle
    would never be freed.
    """

    @wraps(function)
    def once(resource: Resource) -> T:
        try:
            known: T = resource._memo[once]
        except KeyError:
            known = resource._memo.setdefault(once, function(resource))
        return known

    return once


def per_resource_and(function: Callable[[Resource, H], T]) -> Callable[[Resource, H], T]:
    """Compute a function of an object and another argument; keep the value for the latest argument.

    INVARIANT: as for `per_resource`, neither the value nor the other argument refers to the object.
    """

    @wraps(function)
    def once(resource: Resource, other: H) -> T:
        known: tuple[H, T] | None = resource._memo.get(once)
        if known is None or known[0] is not other:
            known = resource._memo[once] = other, function(resource, other)
        return known[1]

    return once
