"""Edits of a world, compared and checked with what is known of the world, agree with looks at both from the start."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tests.worlds.network_clusters import clusters
from tests.worlds.network_snapshots import resource, snapshot
from tierwall.analyze.diff import compare
from tierwall.analyze.network_checks import network_findings
from tierwall.analyze.network_kept import kept_network_findings, provide_network_findings
from tierwall.network.model.model import provide_network_model
from tierwall.network.reach import first_changes as bounds
from tierwall.network.reach.compare import compare_connections, differences
from tierwall.network.reach.first_changes import ComparisonLimits, first_changes
from tierwall.network.reach.own_classes import compute_own_rows, provide_own_rows
from tierwall.network.reach.spaces import bits
from tierwall.render.differences import summary
from tierwall.resources.snapshot import Snapshot

Object = dict[str, Any]


def edited(before: Snapshot, objects: list[Object], data: st.DataObject) -> Snapshot:
    put = [resource(value) for value in objects if data.draw(st.booleans())]
    after = before.with_changes(put=put, drop=[each for each in before if data.draw(st.booleans())])
    provide_network_model(before, after)
    provide_own_rows(before, after)
    return after


@st.composite
def wide_policies(draw: st.DrawFn) -> Object:
    """Draw a policy about every pod, or about every pod of some namespaces, and every other pod."""
    direction, side = draw(st.sampled_from((("ingress", "from"), ("egress", "to"))))
    peer = draw(st.sampled_from(({"namespaces": {}}, {"pods": {"namespaceSelector": {}, "podSelector": {}}})))
    rule = {"action": draw(st.sampled_from(("Accept", "Deny", "Pass"))), side: [peer]}
    some = {"matchExpressions": [{"key": "team", "operator": draw(st.sampled_from(("Exists", "DoesNotExist")))}]}
    return {
        "apiVersion": "policy.networking.k8s.io/v1alpha2",
        "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "wide"},
        "spec": {
            "tier": draw(st.sampled_from(("Admin", "Baseline"))),
            "priority": draw(st.integers(0, 3)),
            "subject": {"namespaces": draw(st.sampled_from(({}, some)))},
            direction: [rule],
        },
    }


@settings(max_examples=examples(40))
@given(clusters(most_policies=5), clusters(most_policies=4), st.lists(wide_policies(), max_size=1), st.data())
def test_the_findings_of_an_edit_are_those_of_a_world_that_is_read_anew(
    objects: list[Object], others: list[Object], wide: list[Object], data: st.DataObject
) -> None:
    before = snapshot(objects)
    others = [*others, *wide]
    compute_own_rows(before)
    list(network_findings(before))
    after = edited(before, others, data)
    list(compare_connections(before, after))
    anew = set(network_findings(Snapshot.of(tuple(after))))
    assert set(network_findings(after)) == anew
    list(kept_network_findings(before))
    provide_network_findings(before, after)
    assert set(kept_network_findings(after)) == anew


def pairs(before: Snapshot, after: Snapshot, bound: ComparisonLimits | None) -> dict[tuple[int, int], set[str]]:
    """Return what changes between each two classes: the words of flows, with their reasons."""
    words_of: dict[tuple[int, int], set[str]] = {}
    for changed in differences(before, after, bound):
        for destination in bits(changed.destinations):
            for source in bits(changed.sources):
                words = (f"{changed.change} {flow} {flow.name_deciders()}" for flow in changed.flows)
                words_of.setdefault((source, destination), set()).update(words)
    return words_of


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(clusters(most_policies=4), clusters(most_policies=3), st.data(), st.integers(0, 30))
def test_a_bounded_comparison_is_the_beginning_of_the_whole_one(
    monkeypatch: pytest.MonkeyPatch, objects: list[Object], others: list[Object], data: st.DataObject, most: int
) -> None:
    before = snapshot(objects)
    after = edited(before, others, data)
    with monkeypatch.context() as patched:
        patched.setattr(bounds, "FIRST_PART", 1)
        bound = ComparisonLimits(most)
        some = pairs(before, after, bound)
    every = pairs(before, after, None)
    left = {each.bit for each in bound.left}
    if bound.left:
        assert bound.found >= most
    same_classes = {key: words for key, words in every.items() if key[1] not in left}
    # Ends that are on one side only have classes of their own, and are never left out.
    assert {key: words for key, words in some.items() if key[1] not in left} == same_classes
    assert all(words <= every[key] for key, words in some.items())


@settings(max_examples=examples(25))
@given(clusters(most_policies=4), clusters(most_policies=3), st.data(), st.integers(0, 5))
def test_few_names_and_a_count_stand_for_all_changes(
    objects: list[Object], others: list[Object], data: st.DataObject, most: int
) -> None:
    before = snapshot(objects)
    after = edited(before, others, data)
    every = list(compare_connections(before, after))
    first = first_changes(before, after, most)
    assert list(map(str, first.entries)) == list(map(str, every[:most]))
    assert len(first.entries) + sum(first.more.values()) == len(every)
    assert first.uncompared == 0
    limited = compare(before, after, ("network",), most=most)
    if not limited.cut and limited.connections:
        assert summary(limited) == summary(compare(before, after, ("network",)))


def test_very_many_changes_are_cut_and_the_summary_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_CHANGES", 3)
    monkeypatch.setattr(bounds, "FIRST_PART", 1)
    pods: list[Object] = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"p{number}", "namespace": "shop", "labels": {"app": f"a{number}"}},
        }
        for number in range(12)
    ]
    policies: list[Object] = [
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": f"n{number}", "namespace": "shop"},
            "spec": {
                "podSelector": {"matchLabels": {"app": f"a{number}"}},
                "ingress": [{"ports": [{"port": 1000 + number}]}],
            },
        }
        for number in range(12)
    ]
    compared = compare(snapshot([*pods, *policies]), snapshot(pods), ("network",), most=2)
    assert len(compared.connections) == 2
    (omission,) = compared.cut
    assert (omission.reason, omission.form) == ("limit", "more destination")
    assert 0 < omission.count < 12
    assert summary(compared).startswith("at least ")
