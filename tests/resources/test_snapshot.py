from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierwall.core.labels import Selector
from tierwall.core.reference import Reference
from tierwall.resources.load import load_objects, load_text
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot


def pod(namespace: str, name: str, **labels: str) -> Resource:
    (resource,) = load_objects(
        [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace, "labels": labels}}]
    )
    return resource


PODS = st.lists(
    st.builds(
        lambda namespace, name, labels: pod(namespace, name, **labels),
        st.sampled_from("xy"),
        st.sampled_from("abc"),
        st.dictionaries(st.sampled_from("kl"), st.sampled_from("12")),
    ),
    max_size=8,
)
SELECTORS = st.sampled_from(
    [
        Selector.parse(value)
        for value in (
            {},
            {"matchLabels": {"k": "1"}},
            {"matchExpressions": [{"key": "k", "operator": "In", "values": ["1", "2"]}]},
            {"matchExpressions": [{"key": "l", "operator": "DoesNotExist"}]},
            {"matchLabels": {"k": "1"}, "matchExpressions": [{"key": "l", "operator": "NotIn", "values": ["2"]}]},
        )
    ]
)


@given(PODS, SELECTORS, st.sampled_from([None, "x", "z"]))
def test_the_label_index_finds_what_a_check_of_every_object_finds(
    pods: list[Resource], selector: Selector, namespace: str | None
) -> None:
    snapshot = Snapshot.of(pods)
    asked = [
        resource
        for resource in snapshot.of_kind("", "Pod")
        if namespace in (None, resource.namespace) and selector.matches(resource.labels)
    ]
    selected = snapshot.selected("", "Pod", selector, namespace)
    assert {resource.reference for resource in selected} == {resource.reference for resource in asked}
    assert len(selected) == len(asked)


@given(PODS, PODS, PODS)
def test_a_changed_snapshot_is_the_snapshot_of_the_changed_objects(
    before: list[Resource], drop: list[Resource], put: list[Resource]
) -> None:
    snapshot = Snapshot.of(before)
    held = {resource.reference: resource for resource in snapshot}
    changed = snapshot.with_changes(put, drop)
    expected = dict(held)
    for resource in drop:
        expected.pop(resource.reference, None)
    for resource in put:
        expected[resource.reference] = resource
    assert {resource.reference: resource for resource in changed} == expected
    assert {resource.reference: resource for resource in snapshot} == held


@given(PODS, st.lists(st.tuples(st.integers(0, 7), st.sampled_from(["as it was", "read anew", "gone"]))), PODS)
def test_an_updated_snapshot_equals_a_new_one_in_the_same_order(
    before: list[Resource], edits: list[tuple[int, str]], more: list[Resource]
) -> None:
    after: list[Resource] = []
    what = dict(edits)
    for number, resource in enumerate(before):
        edit = what.get(number, "as it was")
        if edit != "gone":
            after.append(resource if edit == "as it was" else pod(resource.namespace, resource.name, new="1"))
    for objects in (after, [*after, *more]):
        followed = Snapshot.of(before).updated_to(before, objects)
        assert [id(resource) for resource in followed] == [id(resource) for resource in Snapshot.of(objects)]


def test_unchanged_kinds_are_shared_with_the_earlier_snapshot() -> None:
    first = Snapshot.of(
        [pod("x", "a"), *load_objects([{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}])]
    )
    second = first.with_changes(put=[pod("x", "b")])
    assert list(second.of_kind("", "Node")) == list(first.of_kind("", "Node"))
    assert len(second) == 3


def test_an_object_is_found_by_reference_and_a_namespaced_one_without_namespace_is_in_default() -> None:
    (resource,) = load_objects([{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}])
    assert Snapshot.of([resource]).find(Reference("Pod", "default", "a")) is resource
    (node,) = load_objects([{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "namespace": "wrong"}}])
    assert node.reference == Reference("Node", "", "n")


def test_typed_lists_give_their_items_the_kind_of_the_list() -> None:
    (resource,) = load_objects([{"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "a"}}]}])
    assert (resource.kind, resource.api_version, resource.prefix) == ("Pod", "v1", (0, "items", 0))


@pytest.mark.parametrize(("items", "words"), [("{a: b}", "a map"), ("x", "a string"), ("3", "`3`")])
def test_a_list_of_anything_else_is_an_error(items: str, words: str) -> None:
    """Otherwise its objects would be missing from every answer, silently."""
    (problem,) = load_text(f"apiVersion: v1\nkind: List\nitems: {items}\n", "f").diagnostics
    assert (problem.code, problem.message) == (
        "TW006",
        f"expected a Kubernetes object, found {words} as `items` of a List",
    )
