"""What follows from a snapshot or from one object: computed once, and kept with what it follows from.

`per_snapshot` is for functions of a snapshot and of anything hashable besides, `per_resource` for functions of one
object, `per_resource_and` for functions of one object and one thing more; nothing else in the code keeps what it
derives from them. All are for pure functions only, so that whoever asks cannot tell an answer that was kept from one
that was computed. A failure is not kept.

Threads may ask at the same time, and all get the same value. A snapshot has a lock, because its indexes and models are
large: one thread computes while the others wait. No two threads wait for each other, because a snapshot does not know
any other: a computation asks only its own snapshot, under the lock that it has already, and snapshots that it makes.
What follows from one object is small and has no lock: two threads may both compute it, and the first value stays.
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
    """Compute a function once for each snapshot and further arguments; these are given by place and are hashable."""

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
    """Keep a value as if a `per_snapshot` function had computed it: one made from an earlier snapshot's, for less."""
    key: Any = (function, *arguments) if arguments else function
    with snapshot._computing:
        snapshot._memo.setdefault(key, value)


def per_resource(function: Callable[[Resource], T]) -> Callable[[Resource], T]:
    """Compute a function once for each object; the value is there in every snapshot that has the object.

    INVARIANT: the value does not refer to the object. The garbage collector does not look into objects, so that such a
    circle would never be freed.
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
    """Compute a function of an object and of one thing besides; kept is what it gave for the latest such thing.

    INVARIANT: as of `per_resource`; neither the value nor the other thing refers to the object.
    """

    @wraps(function)
    def once(resource: Resource, other: H) -> T:
        known: tuple[H, T] | None = resource._memo.get(once)
        if known is None or known[0] is not other:
            known = resource._memo[once] = other, function(resource, other)
        return known[1]

    return once
