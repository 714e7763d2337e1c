"""Decisions equal the reference on random clusters with all kinds of policies: verdicts and deciding rules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tests.reference.cluster import Cluster
from tests.reference.network import decide
from tests.worlds.network_clusters import PORTS, PROTOCOLS, clusters, endpoints
from tests.worlds.network_objects import admin, pod
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


@pytest.mark.parametrize("direction", ["ingress", "egress"])
def test_a_misspelled_direction_of_an_admin_policy_denies_that_direction(direction: str) -> None:
    spec = {"priority": 5, "subject": {"namespaces": {}}, f"{direction}s": [{"action": "Deny", "from": []}]}
    guard = {**admin("guard"), "spec": spec}
    ends = {"from": "shop/web", "to": "shop/db", "port": 80}
    answer = document(snapshot([pod("shop", "web"), pod("shop", "db"), guard]), ends)
    assert (answer["verdict"], answer[direction]["decidedBy"][0]["policy"]) == ("Deny", "AdminNetworkPolicy/guard")


def test_an_allow_with_a_misspelled_restriction_allows_nothing() -> None:
    everybody: Any = {"namespaces": {}}
    allow = {"action": "Allow", "from": [everybody], "portsx": [{"portNumber": {"port": 80, "protocol": "TCP"}}]}
    deny = {"action": "Deny", "from": [everybody]}
    ends = {"from": "shop/web", "to": "shop/db", "port": 443}
    answer = document(snapshot([pod("shop", "web"), pod("shop", "db"), admin("guard", allow, deny)]), ends)
    assert (answer["verdict"], answer["decidedBy"][-1]["rule"]) == ("Deny", "ingress[1]")
