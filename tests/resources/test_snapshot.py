from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tierwall.core.labels import Selector
from tierwall.core.reference import Reference
from tierwall.resources.load import load_objects
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot


def pod(namespace: str, name: str, **labels: str) -> Resource:
    (found,) = load_objects(
        [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace, "labels": labels}}]
    )
    return found


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
def test_the_label_index_finds_what_asking_every_object_finds(
    pods: list[Resource], selector: Selector, namespace: str | None
) -> None:
    snapshot = Snapshot.of(pods)
    asked = [
        one
        for one in snapshot.of_kind("", "Pod")
        if namespace in (None, one.namespace) and selector.matches(one.labels)
    ]
    found = snapshot.selected("", "Pod", selector, namespace)
    assert {one.reference for one in found} == {one.reference for one in asked}
    assert len(found) == len(asked)


@given(PODS, PODS, PODS)
def test_a_changed_snapshot_is_the_snapshot_of_the_changed_objects(
    before: list[Resource], drop: list[Resource], put: list[Resource]
) -> None:
    snapshot = Snapshot.of(before)
    held = {one.reference: one for one in snapshot}
    changed = snapshot.with_changes(put, drop)
    expected = dict(held)
    for one in drop:
        expected.pop(one.reference, None)
    for one in put:
        expected[one.reference] = one
    assert {one.reference: one for one in changed} == expected
    assert {one.reference: one for one in snapshot} == held


@given(PODS, st.lists(st.tuples(st.integers(0, 7), st.sampled_from(["as it was", "read anew", "gone"]))), PODS)
def test_a_following_snapshot_is_the_one_of_its_objects_in_their_order(
    before: list[Resource], edits: list[tuple[int, str]], more: list[Resource]
) -> None:
    after: list[Resource] = []
    what = dict(edits)
    for number, one in enumerate(before):
        edit = what.get(number, "as it was")
        if edit != "gone":
            after.append(one if edit == "as it was" else pod(one.namespace, one.name, new="1"))
    for objects in (after, [*after, *more]):
        followed = Snapshot.of(before).updated_to(before, objects)
        assert [id(one) for one in followed] == [id(one) for one in Snapshot.of(objects)]


def test_kinds_that_do_not_change_are_shared_with_the_snapshot_before() -> None:
    first = Snapshot.of(
        [pod("x", "a"), *load_objects([{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}])]
    )
    second = first.with_changes(put=[pod("x", "b")])
    assert list(second.of_kind("", "Node")) == list(first.of_kind("", "Node"))
    assert len(second) == 3


def test_an_object_is_found_by_reference_and_a_namespaced_one_without_namespace_is_in_default() -> None:
    (found,) = load_objects([{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}])
    assert Snapshot.of([found]).find(Reference("Pod", "default", "a")) is found
    (node,) = load_objects([{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "namespace": "wrong"}}])
    assert node.reference == Reference("Node", "", "n")


def test_typed_lists_give_their_items_the_kind_of_the_list() -> None:
    (found,) = load_objects([{"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "a"}}]}])
    assert (found.kind, found.api_version, found.prefix) == ("Pod", "v1", (0, "items", 0))
