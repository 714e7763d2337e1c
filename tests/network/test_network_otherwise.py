"""Notes of explanations: who would have decided otherwise, and who still may."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tests.reference.cluster import Cluster
from tests.reference.network import decide
from tests.worlds.network_clusters import PORTS, PROTOCOLS, clusters, endpoints
from tests.worlds.network_objects import admin, network_policy, pod, rule
from tests.worlds.network_snapshots import document, snapshot

Object = dict[str, Any]
PODS = [pod("shop", "web"), pod("shop", "db")]
OPEN: Object = {}
TIED = "has the same priority as AdminNetworkPolicy/a: another implementation may"


def notes(*policies: Object, port: int = 80) -> list[str]:
    answer = document(snapshot([*PODS, *policies]), {"from": "shop/web", "to": "shop/db", "port": port})
    return [note for step in answer["trace"] if "note" in step for note in step["note"].split("; ")]


def test_an_admin_rule_names_the_network_policies_that_would_have_decided_otherwise() -> None:
    closed, opened = network_policy("closed"), network_policy("open", OPEN)
    first = "but an admin policy comes first"
    assert notes(admin("a", rule("Allow")), closed) == [f"NetworkPolicy/shop/closed would deny this, {first}"]
    assert notes(admin("a", rule("Deny")), opened) == [f"NetworkPolicy/shop/open ingress[0] would allow this, {first}"]
    assert notes(admin("a", rule("Deny")), closed, opened) == [
        f"NetworkPolicy/shop/open ingress[0] would allow this, {first}"
    ]
    assert notes(admin("a", rule("Allow")), opened) == []
    assert notes(admin("a", rule("Deny")), closed) == []
    assert notes(admin("a", rule("Pass")), closed) == []
    assert notes(admin("a", rule("Allow"))) == []


@pytest.mark.parametrize(("winner", "rival", "verb"), [("Allow", "Deny", "deny"), ("Deny", "Allow", "allow")])
def test_a_policy_of_equal_priority_that_decides_otherwise_is_named(winner: str, rival: str, verb: str) -> None:
    policies = admin("a", rule(winner)), admin("b", rule(rival, 80))
    assert notes(*policies) == [f"AdminNetworkPolicy/b ingress[0] {TIED} {verb} this"]
    assert notes(*policies, port=81) == []
    assert notes(policies[0], admin("b", rule(rival), priority=6)) == []


def test_a_pass_of_equal_priority_matters_only_if_the_verdict_changes() -> None:
    policies = admin("a", rule("Allow")), admin("b", rule("Pass"))
    assert notes(*policies) == []
    assert notes(*policies, network_policy("closed"))[1] == (f"AdminNetworkPolicy/b ingress[0] {TIED} deny this")


def test_ends_that_stand_for_several_have_the_notes_of_all() -> None:
    objects = [*PODS, admin("a", rule("Allow")), network_policy("closed")]
    answer = document(snapshot(objects), {"from": "outside", "to": "shop/db", "port": 80})
    assert all("note" not in step or "would" not in step["note"] for step in answer["trace"])
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "s", "namespace": "shop"},
        "spec": {"selector": {"app": "x"}, "ports": [{"port": 1}]},
    }
    objects += [service, pod("shop", "x", app="x")]
    answer = document(snapshot(objects), {"from": "shop/web", "to": "Service/shop/s", "port": 1})
    assert [step["note"] for step in answer["trace"] if "note" in step] == [
        "NetworkPolicy/shop/closed would deny this, but an admin policy comes first"
    ]


@settings(max_examples=examples(200))
@given(clusters(), st.data())
def test_notes_equal_what_the_reference_decides_otherwise(objects: list[Object], data: st.DataObject) -> None:
    """Leave the admin tier out, or ask another policy of a priority first, and compare the verdicts of directions."""
    source, to = (data.draw(st.sampled_from([end for end in endpoints(objects) if isinstance(end, str)])) for _ in "12")
    connection = source, to, data.draw(st.sampled_from(PROTOCOLS)), data.draw(st.sampled_from(PORTS))
    question = dict(zip(("from", "to", "protocol", "port"), connection, strict=True))
    answer = document(snapshot(objects), question)
    plain = [resource for resource in objects if resource["kind"] in ("Pod", "Node", "Namespace", "NetworkPolicy")]
    below = decide(Cluster(plain), *connection)
    for which in ("egress", "ingress"):
        steps = [step for step in answer["trace"] if step["direction"] == which]
        said = "; ".join(step.get("note", "") for step in steps)
        verdict = answer[which]["verdict"]
        decided, by = below[which]
        overridden = answer[which].get("tier") == "Admin" and verdict in ("Allow", "Deny")
        assert (" would " in said) is (overridden and by not in ({"Default"}, set()) and decided != verdict)
        matched = [step for step in steps if step["tier"] in ("Admin", "Baseline") and step["verdict"] != "NoMatch"]
        verdicts = {
            decide(Cluster(moved_first(objects, rival)), *connection)[which][0]
            for rival in rivals(objects, matched[0]["policy"] if matched else "")
        }
        assert ("another implementation" in said) is bool(verdicts - {verdict})


def rivals(objects: list[Object], reference: str) -> list[Object]:
    kind, _, name = reference.partition("/")
    named = [resource for resource in objects if (resource["kind"], resource["metadata"]["name"]) == (kind, name)]
    policies = [resource for resource in objects if resource["kind"] in ("AdminNetworkPolicy", "ClusterNetworkPolicy")]
    return [
        policy
        for winner in named
        if winner in policies
        for policy in policies
        if policy is not winner and place(policy) == place(winner)
    ]


def place(policy: Object) -> tuple[str, int]:
    return policy["spec"].get("tier", "Admin"), policy["spec"]["priority"]


def moved_first(objects: list[Object], rival: Object) -> list[Object]:
    """Return the objects with a priority of its own for a policy, just before those that share it."""
    earlier = {**rival, "spec": {**rival["spec"], "priority": rival["spec"]["priority"] - 0.5}}
    return [earlier if resource is rival else resource for resource in objects]
