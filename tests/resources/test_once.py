"""Test that derived values are computed once, are the same for all threads, and are freed with their owner."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from time import sleep
from typing import Any, TypeVar
from weakref import ref

import pytest

from tierwall.analyze.admission import admission_findings
from tierwall.attach.acceptance import refusals
from tierwall.resources.load import load_objects
from tierwall.resources.once import per_resource, per_snapshot, provide
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import admission_problems

THREADS = 8
T = TypeVar("T")


class Value(dict[str, Any]):
    """A map that a weak reference can watch."""


def pod(name: str) -> Resource:
    (resource,) = load_objects([Value(apiVersion="v1", kind="Pod", metadata={"name": name})])
    return resource


def at_once(ask: Callable[[], T]) -> list[T]:
    """Return the answers of threads that ask at the same time."""
    barrier = Barrier(THREADS)

    def asking(_: int) -> T:
        barrier.wait()
        return ask()

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(asking, range(THREADS)))


def test_a_function_of_a_snapshot_is_computed_once_for_each_snapshot_and_arguments() -> None:
    calls: list[tuple[int, str, bool]] = []

    @per_snapshot
    def described(snapshot: Snapshot, word: str, loud: bool) -> str:
        calls.append((len(snapshot), word, loud))
        return f"{word} {len(snapshot)}"

    first, second = Snapshot.of([pod("a")]), Snapshot.of([pod("a"), pod("b")])
    for _ in range(3):
        assert described(first, "size", False) == "size 1"
        assert described(second, "size", False) == "size 2"
        assert described(first, "count", True) == "count 1"
    assert calls == [(1, "size", False), (2, "size", False), (1, "count", True)]


def test_two_functions_of_one_snapshot_have_their_own_values() -> None:
    @per_snapshot
    def size(snapshot: Snapshot) -> int:
        return len(snapshot)

    @per_snapshot
    def double(snapshot: Snapshot) -> int:
        return 2 * size(snapshot)

    snapshot = Snapshot.of([pod("a")])
    assert (double(snapshot), size(snapshot)) == (2, 1)


def test_an_exception_is_not_kept() -> None:
    calls = []

    @per_snapshot
    def fails(snapshot: Snapshot) -> None:
        calls.append(len(snapshot))
        raise ValueError("as always")

    snapshot = Snapshot.of([])
    for _ in range(2):
        with pytest.raises(ValueError, match="as always"):
            fails(snapshot)
    assert calls == [0, 0]


def test_threads_that_ask_a_snapshot_at_the_same_time_get_one_value() -> None:
    calls = []

    @per_snapshot
    def inner(snapshot: Snapshot) -> list[int]:
        sleep(0.01)
        calls.append("inner")
        return [len(snapshot)]

    @per_snapshot
    def outer(snapshot: Snapshot) -> tuple[list[int]]:
        calls.append("outer")
        return (inner(snapshot),)

    snapshot = Snapshot.of([pod("a")])
    first, *others = at_once(lambda: outer(snapshot))
    assert first == ([1],)
    assert all(other is first for other in others)
    assert sorted(calls) == ["inner", "outer"]


def test_threads_that_ask_an_object_at_the_same_time_get_one_value() -> None:
    @per_resource
    def names(resource: Resource) -> list[str]:
        sleep(0.01)
        return [resource.name]

    resource = pod("a")
    first, *others = at_once(lambda: names(resource))
    assert first == ["a"]
    assert all(other is first for other in others)


def test_the_next_snapshot_shares_the_values_of_an_unchanged_object() -> None:
    calls = []

    @per_resource
    def name(resource: Resource) -> str:
        calls.append(resource.name)
        return resource.name

    before = Snapshot.of([pod("a")])
    after = before.with_changes(put=[pod("b")])
    assert sorted(name(resource) for snapshot in (before, after) for resource in snapshot) == ["a", "a", "b"]
    assert calls == ["a", "b"]


def test_a_provided_value_is_not_computed() -> None:
    @per_snapshot
    def size(snapshot: Snapshot, word: str) -> str:
        return f"{word} {len(snapshot)}"

    snapshot = Snapshot.of([])
    provide("given", size, snapshot, "size")
    assert (size(snapshot, "size"), size(snapshot, "count")) == ("given", "count 0")
    provide("too late", size, snapshot, "count")
    assert size(snapshot, "count") == "count 0"


def test_values_of_an_object_do_not_keep_it_alive() -> None:
    rule = {"authorization": {"cel": {"expression": "1 +"}}}
    resources = load_objects(
        [
            Value(apiVersion="v1", kind="Pod", metadata={"name": "No Name"}),
            Value(
                apiVersion="agentic.networking.x-k8s.io/v1alpha1",
                kind="AccessPolicy",
                metadata={"name": "p"},
                spec={"rules": [rule]},
            ),
        ]
    )
    snapshot = Snapshot.of(resources)
    assert list(admission_findings(snapshot))
    assert all(admission_problems(snapshot, resource) for resource in resources)
    assert refusals(resources[1])
    values = [ref(resource.value) for resource in resources]
    del resources, snapshot
    gc.collect()
    assert [value() for value in values] == [None, None]
