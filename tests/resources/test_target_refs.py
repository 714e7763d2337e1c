"""A policy whose targets cannot be read may be about any place, so every answer names it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds.network_snapshots import resource
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.target_refs import targets_others

PLACES = {("Gateway", "shop", "edge")}


GATEWAY = {
    "apiVersion": "gateway.networking.k8s.io/v1",
    "kind": "Gateway",
    "metadata": {"name": "edge", "namespace": "shop", "labels": {"team": "shop", "zone": "a"}},
}
SNAPSHOT = Snapshot.of([resource(GATEWAY)])


def policy(target: Any, field: str = "targetRefs") -> Any:
    metadata = {"name": "p", "namespace": "shop"}
    spec = {field: [target]}
    return resource(
        {
            "apiVersion": "agentic.networking.x-k8s.io/v1alpha1",
            "kind": "XAccessPolicy",
            "metadata": metadata,
            "spec": spec,
        }
    )


@pytest.mark.parametrize(
    ("target", "others"),
    [
        ({"kind": "Gateway", "name": "edge"}, False),
        ({"kind": "Gateway", "name": "other"}, True),
        ({"kind": "Gateway", "name": ["edge"]}, False),
        ({"kind": {"a": 1}, "name": "edge"}, False),
        ({"kind": "Gateway", "name": "edge", "namespace": {}}, False),
        ("edge", False),
    ],
)
def test_a_target_that_cannot_be_read_may_be_any_place(target: Any, others: bool) -> None:
    assert targets_others(SNAPSHOT, policy(target), "tool", PLACES) is others


@pytest.mark.parametrize(
    ("changes", "others"),
    [
        ({}, False),
        ({"matchLabels": {}}, False),
        ({"matchLabels": {"team": "none"}}, True),
        ({"matchLabels": {"team": "shop", "zone": "b"}}, True),
        ({"matchLabels": "team=none"}, False),
        ({"matchLabels": {"team": "none"}, "kind": [[]]}, False),
        ({"matchLabels": {"team": []}}, True),
        ({"matchLabels": {"team": "none"}, "matchExpressions": []}, False),
        ({"matchLabels": {"team": "none"}, "group": "of.another"}, False),
        ({"matchLabels": {"team": "none"}, "kind": "HTTPRoute"}, False),
        ({"kind": "XBackend"}, True),
    ],
)
def test_a_selector_leaves_a_place_out_only_if_it_certainly_does(changes: dict[str, Any], others: bool) -> None:
    selector = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "matchLabels": {"team": "shop"}, **changes}
    assert targets_others(SNAPSHOT, policy(selector, "targetSelectors"), "tool", PLACES) is others
