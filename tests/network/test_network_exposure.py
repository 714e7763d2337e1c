"""Exposure: what future pods could reach."""

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
    return [f"{entry.sources} => {entry.destinations} : {entry.ports}" for entry in exposure(snapshot(objects))]


def test_future_pods_that_could_connect_are_described_by_label() -> None:
    peer = {"namespaceSelector": {"matchLabels": {"team": "x"}}, "podSelector": {"matchLabels": {"app": "client"}}}
    exposed = lines(pod("shop", "db", app="db"), policy(**peer))
    assert "any pod with app=client in a namespace with team=x => shop/db : TCP 5432" in exposed
    assert not any(line.startswith("any other pod => shop/db") for line in exposed)


def test_a_pod_that_no_policy_protects_is_open_to_any_pod() -> None:
    exposed = lines(pod("shop", "db", app="db"), pod("shop", "web", app="web"), policy(podSelector={}))
    assert any("any other pod" in line and "=> shop/web : all" in line for line in exposed)


def test_future_pods_of_an_existing_namespace_are_listed_apart_from_others() -> None:
    exposed = lines(pod("shop", "db", app="db"), policy(podSelector={"matchLabels": {"app": "client"}}))
    assert "any pod with app=client in shop => shop/db : TCP 5432" in exposed
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
    exposed = lines(pod("shop", "web"), policy(podSelector={"matchLabels": {"app": "client"}}), fence)
    assert any("any other pod in shop" in line and line.endswith("=> shop/web : all") for line in exposed)
    assert not any(line.startswith("any other pod =>") for line in exposed)


def test_without_policies_every_future_pod_reaches_everything() -> None:
    assert lines(pod("shop", "db")) == [
        "any other pod => shop/db : all",
        "shop/db => any other pod : all",
    ]


@settings(max_examples=examples(60))
@given(clusters(most_policies=4))
def test_a_hypothetical_pod_is_decided_like_a_real_pod_with_its_labels(objects: list[Object]) -> None:
    hypothetical = with_stand_ins(snapshot(objects))
    model = network_model(hypothetical.snapshot)
    real = [
        endpoint
        for endpoint in model.pods
        if (endpoint.namespace, endpoint.name) not in hypothetical.pods and endpoint.under_policy
    ]
    allowed = {
        (str(hypothetical.pods[endpoint.namespace, endpoint.name]), str(other), protocol, port)
        for endpoint in model.pods
        if (endpoint.namespace, endpoint.name) in hypothetical.pods
        for other in real
        for protocol in PROTOCOLS
        for port in PORTS
        if decide(model, endpoint, other, protocol, port).verdict is Verdict.ALLOW
    }
    shown = {source for source, *_ in allowed}
    named = {
        endpoint
        for entry in exposure(snapshot(objects))
        for endpoint in (*entry.sources.ends, *entry.destinations.ends)
    }
    assert shown <= named
