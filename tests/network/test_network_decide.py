"""Decisions equal the reference on random clusters with all kinds of policies: verdicts and deciding rules."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tests.reference.cluster import Cluster
from tests.reference.network import decide
from tests.worlds.network_clusters import PORTS, PROTOCOLS, clusters, endpoints
from tests.worlds.network_snapshots import document, snapshot

Object = dict[str, Any]


@settings(max_examples=examples(500))
@given(clusters(), st.data())
def test_verdicts_and_deciding_rules_equal_the_reference(objects: list[Object], data: st.DataObject) -> None:
    cluster, world = Cluster(objects), snapshot(objects)
    for _ in range(6):
        source, destination = (data.draw(st.sampled_from(endpoints(objects))) for _ in range(2))
        protocol, port = data.draw(st.sampled_from(PROTOCOLS)), data.draw(st.sampled_from(PORTS))
        want = decide(cluster, source, destination, protocol, port)
        got = document(world, {"from": source, "to": destination, "protocol": protocol, "port": port})
        assert got["verdict"] == want["verdict"]
        for direction in ("egress", "ingress"):
            verdict, by = want[direction]
            named = {" ".join(entry.values()) for entry in got[direction]["decidedBy"]}
            assert got[direction]["verdict"] == verdict
            assert named <= by if verdict == "Conditional" else named == by
            assert bool(named) is bool(by)
