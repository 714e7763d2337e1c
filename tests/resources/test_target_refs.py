"""A policy whose targets cannot be read may be about any place, so no answer leaves it out."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds.network_snapshots import resource
from tierwall.resources.target_refs import targets_others

PLACES = {("Gateway", "shop", "edge")}


def policy(target: Any) -> Any:
    metadata = {"name": "p", "namespace": "shop"}
    spec = {"targetRefs": [target]}
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
    assert targets_others(policy(target), "tool", PLACES) is others
