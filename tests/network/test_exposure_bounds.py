"""The cost of a policy for `check` and `list`: labels that nobody has must not exhaust memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from tests.worlds.nft_clusters import namespace, network_policy, pod
from tierwall.network.reach.exposure import exposure, with_stand_ins
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

KEYS = 3_000


@pytest.mark.parametrize(
    "spec",
    [
        {
            "podSelector": {},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {f"k{n}": "v"}}} for n in range(KEYS)]}],
        },
        {"podSelector": {"matchLabels": {f"k{n}": "v" for n in range(KEYS)}}},
        {
            "podSelector": {
                "matchExpressions": [{"key": f"k{n}", "operator": "NotIn", "values": ["v"]} for n in range(KEYS)]
            }
        },
    ],
    ids=["many peers", "many labels", "many expressions"],
)
def test_selectors_with_thousands_of_keys_take_little_memory(spec: dict[str, Any]) -> None:
    objects = [namespace("shop"), pod("shop/a", "10.0.0.1"), network_policy("shop/p", **spec)]
    snapshot = Snapshot.of(load_objects(objects))
    tracemalloc.start()
    try:
        hypothetical = with_stand_ins(snapshot, limit=100)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not hypothetical.is_complete
    assert peak < 40_000_000


def test_labels_that_have_nothing_to_do_with_each_other_do_not_lengthen_names() -> None:
    objects: list[dict[str, Any]] = []
    for n in range(20):
        selector = {"namespaceSelector": {"matchLabels": {f"k{n}": "v"}}}
        objects += [
            namespace(f"ns-{n}"),
            pod(f"ns-{n}/a", f"10.0.{n}.1"),
            network_policy(f"ns-{n}/p", podSelector={}, ingress=[{"from": [selector]}]),
        ]
    entries = list(exposure(Snapshot.of(load_objects(objects))))
    lines = [f"{entry.sources} => {entry.destinations}" for entry in entries]
    assert "any pod in a namespace with k7=v => ns-7/a" in lines
    assert max(map(len, lines)) < 100
