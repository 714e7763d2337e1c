"""Exposure: what pods that do not exist yet could reach."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings

from tests.randomness import examples
from tests.worlds.network_clusters import PORTS, PROTOCOLS, clusters
from tests.worlds.network_objects import network_policy, pod
from tests.worlds.network_snapshots import snapshot
from tierwall.core.verdict import Verdict
from tierwall.network.decide import decide
from tierwall.network.model.model import network_model
from tierwall.network.reach.exposure import exposure, with_stand_ins

Object = dict[str, Any]


def policy(**peer: Any) -> Object:
    ingress = {"from": [peer], "ports": [{"port": 5432}]}
    return network_policy("np", ingress, podSelector={"matchLabels": {"app": "db"}})


def lines(*objects: Object) -> list[str]:
    return [f"{one.sources} => {one.destinations} : {one.ports}" for one in exposure(snapshot(objects))]


def test_what_a_pod_with_the_right_labels_could_reach_is_said_by_label() -> None:
    peer = {"namespaceSelector": {"matchLabels": {"team": "x"}}, "podSelector": {"matchLabels": {"app": "client"}}}
    found = lines(pod("shop", "db", app="db"), policy(**peer))
    assert "any pod with app=client in a namespace with team=x => shop/db : TCP 5432" in found
    assert not any(line.startswith("any other pod => shop/db") for line in found)


def test_a_pod_that_no_policy_protects_is_open_to_any_pod() -> None:
    found = lines(pod("shop", "db", app="db"), pod("shop", "web", app="web"), policy(podSelector={}))
    assert any("any other pod" in line and "=> shop/web : all" in line for line in found)


def test_a_new_pod_of_a_namespace_that_exists_is_told_from_pods_elsewhere() -> None:
    found = lines(pod("shop", "db", app="db"), policy(podSelector={"matchLabels": {"app": "client"}}))
    assert "any pod with app=client in shop => shop/db : TCP 5432" in found
    fence = {
        "apiVersion": "policy.networking.k8s.io/v1alpha1",
        "kind": "AdminNetworkPolicy",
        "metadata": {"name": "fence"},
        "spec": {
            "priority": 1,
            "subject": {"namespaces": {}},
            "ingress": [{"action": "Deny", "from": [{"namespaces": {"related": "NotSelf"}}]}],
        },
    }
    found = lines(pod("shop", "web"), policy(podSelector={"matchLabels": {"app": "client"}}), fence)
    assert any("any other pod in shop" in line and line.endswith("=> shop/web : all") for line in found)
    assert not any(line.startswith("any other pod =>") for line in found)


def test_without_policies_every_sort_of_pod_reaches_everything() -> None:
    assert lines(pod("shop", "db")) == [
        "any other pod => shop/db : all",
        "shop/db => any other pod : all",
    ]


@settings(max_examples=examples(60))
@given(clusters(most_policies=4))
def test_a_stand_in_is_treated_as_a_pod_with_its_labels_is(objects: list[Object]) -> None:
    hypothetical = with_stand_ins(snapshot(objects))
    this = network_model(hypothetical.snapshot)
    real = [end for end in this.pods if (end.namespace, end.name) not in hypothetical.pods and end.under_policy]
    allowed = {
        (str(hypothetical.pods[end.namespace, end.name]), str(other), protocol, port)
        for end in this.pods
        if (end.namespace, end.name) in hypothetical.pods
        for other in real
        for protocol in PROTOCOLS
        for port in PORTS
        if decide(this, end, other, protocol, port).verdict is Verdict.ALLOW
    }
    shown = {source for source, *_ in allowed}
    named = {end for one in exposure(snapshot(objects)) for end in (*one.sources.ends, *one.destinations.ends)}
    assert shown <= named
