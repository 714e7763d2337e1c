"""The status of cluster-scoped network policies: accepted or not, and conflicts with policies of the same priority."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tierwall
from tests.randomness import examples
from tests.reference import network as reference
from tests.reference.cluster import Cluster
from tests.worlds.network_clusters import PORTS, PROTOCOLS, clusters, endpoints
from tests.worlds.network_objects import admin, pod, rule
from tests.worlds.network_snapshots import snapshot
from tierwall.analyze.network_status import MAX_RIVALS, priority_rivals
from tierwall.attach.status import MAX_MESSAGE_BYTES

Object = dict[str, Any]


def conditions(objects: list[Object], *references: str) -> dict[str, dict[str, Object]]:
    items = tierwall.load(objects=objects).status(*references)
    return {
        item["metadata"]["name"]: {condition["type"]: condition for condition in item["status"]["conditions"]}
        for item in items
    }


SHOP = [pod("shop", "web"), pod("shop", "db")]


def test_policies_of_one_priority_that_answer_otherwise_name_each_other() -> None:
    objects = [
        *SHOP,
        admin("open", rule("Allow"), priority=5),
        admin("shut", rule("Deny", 80), priority=5),
        admin("alike", rule("Allow", 81), priority=5),
        admin("later", rule("Deny"), priority=6),
    ]
    got = conditions(objects)
    assert {
        name: (by_type["tierwall.io/Conflicted"]["status"], by_type["tierwall.io/Conflicted"]["reason"])
        for name, by_type in got.items()
    } == {
        "open": ("True", "SamePriority"),
        "shut": ("True", "SamePriority"),
        "alike": ("False", "NoConflicts"),
        "later": ("False", "NoConflicts"),
    }
    assert got["open"]["tierwall.io/Conflicted"]["message"].startswith(
        "AdminNetworkPolicy/shut has the same priority and answers some connections otherwise, such as "
    )
    assert "AdminNetworkPolicy/open" in got["shut"]["tierwall.io/Conflicted"]["message"]
    assert {by_type["tierwall.io/Accepted"]["reason"] for by_type in got.values()} == {"Accepted"}
    assert not any("tierwall.io/Programmed" in by_type for by_type in got.values())


def test_a_connection_that_an_earlier_priority_settles_is_not_a_conflict() -> None:
    objects = [
        *SHOP,
        admin("first", rule("Pass"), priority=1),
        admin("open", rule("Allow"), priority=5),
        admin("shut", rule("Deny"), priority=5),
    ]
    got = conditions(objects, "AdminNetworkPolicy/open")
    assert got["open"]["tierwall.io/Conflicted"]["status"] == "False"


def test_baseline_policies_conflict_in_their_tier_and_the_single_baseline_does_not() -> None:
    def cluster(name: str, action: str, tier: str) -> Object:
        spec = {"tier": tier, "priority": 5, "subject": {"namespaces": {}}, "ingress": [rule(action)]}
        version = "policy.networking.k8s.io/v1alpha2"
        return {"apiVersion": version, "kind": "ClusterNetworkPolicy", "metadata": {"name": name}, "spec": spec}

    baseline = admin("default", rule("Deny"))
    objects = [
        *SHOP,
        cluster("a", "Accept", "Baseline"),
        cluster("b", "Deny", "Baseline"),
        cluster("c", "Deny", "Admin"),
        baseline,
    ]
    got = conditions(objects)
    assert {
        name: by_type["tierwall.io/Conflicted"]["status"] for name, by_type in got.items() if name != "default"
    } == {
        "a": "True",
        "b": "True",
        "c": "False",
    }
    assert list(got["default"]) == ["tierwall.io/Accepted"]


def test_an_invalid_policy_says_why_and_what_it_does_meanwhile() -> None:
    typo = {"action": "Deny", "from": [{"namspaces": {}}]}
    got = conditions([*SHOP, admin("typo", typo, priority=2000)])["typo"]["tierwall.io/Accepted"]
    assert (got["status"], got["reason"]) == ("False", "Invalid")
    assert "spec.priority: Invalid value: 2000" in got["message"]
    assert got["message"].endswith("\nMeanwhile ingress[0] denies everything in its direction")


def test_messages_fit_into_a_condition() -> None:
    name = "x" * 200
    objects = [*SHOP, admin("open", rule("Allow"), priority=5)]
    objects += [admin(f"{name}-{number:03}", rule("Deny"), priority=5) for number in range(40)]
    got = conditions(objects)
    messages = [condition["message"] for by_type in got.values() for condition in by_type.values()]
    assert max(len(message.encode()) for message in messages) <= MAX_MESSAGE_BYTES
    message = got["open"]["tierwall.io/Conflicted"]["message"]
    assert f"{MAX_RIVALS + 1 - message.count(name)} more have the same priority" in message
    few = [admin(f"shut-{number}", rule("Deny")) for number in range(30)]
    message = conditions([*SHOP, admin("open", rule("Allow")), *few])["open"]["tierwall.io/Conflicted"]["message"]
    assert message.count("AdminNetworkPolicy/shut-") == MAX_RIVALS
    assert " and perhaps others have the same priority and answer " in message
    many = [{"action": "Deny", "from": [{"typo" * 20: {}}]} for _ in range(90)]
    message = conditions([admin("typos", *many)])["typos"]["tierwall.io/Accepted"]["message"]
    assert len(message.encode()) <= MAX_MESSAGE_BYTES
    assert " more\nMeanwhile " in message


def test_a_condition_that_did_not_change_keeps_its_time() -> None:
    time = "2026-01-02T03:04:05Z"
    old = {"type": "tierwall.io/Accepted", "status": "True", "lastTransitionTime": time}
    policy = {**admin("open", rule("Allow")), "status": {"conditions": [old, {"type": 7}, "x"]}}
    policy["metadata"]["generation"] = 4
    got = conditions([policy])["open"]
    assert got["tierwall.io/Accepted"]["lastTransitionTime"] == time
    assert got["tierwall.io/Conflicted"]["lastTransitionTime"] != time
    assert {condition["observedGeneration"] for condition in got.values()} == {4}


def test_a_reference_that_does_not_exist_gets_the_nearest() -> None:
    with pytest.raises(tierwall.UnknownName) as caught:
        conditions([admin("open", rule("Allow"))], "AdminNetworkPolicy/opn")
    assert caught.value.diagnostics[0].hint == "did you mean `AdminNetworkPolicy/open`?"


@settings(max_examples=examples(150))
@given(clusters(), st.data())
def test_every_conflict_about_a_connection_of_the_cluster_is_found(objects: list[Object], data: st.DataObject) -> None:
    cluster = Cluster(objects)
    rivals = priority_rivals(snapshot(objects))
    named = {str(policy): {str(rival) for rival in others} for policy, others in rivals.items()}
    assert all(policy in named[rival] for policy, others in named.items() for rival in others)
    protocol, port = data.draw(st.sampled_from(PROTOCOLS)), data.draw(st.sampled_from(PORTS))
    for first, second, which in connections(cluster, objects):
        subject, other = (first, second) if which == "egress" else (second, first)
        if not subject["pod"] or first["id"] == second["id"]:
            continue
        for tier in (reference.admin, reference.baseline):
            policies = [policy for policy in tier(cluster, which, subject) if "priority" in policy["spec"]]
            for policy, rival in conflicting(cluster, policies, which, subject, other, (second, protocol, port)):
                assert reference.ref(rival) in named.get(reference.ref(policy), set())


def connections(cluster: Cluster, objects: list[Object]) -> list[tuple[Object, Object, str]]:
    ends = [cluster.endpoint(end) for end in endpoints(objects)]
    return [(first, second, which) for first in ends for second in ends for which in ("egress", "ingress")]


def conflicting(cluster: Cluster, policies: list[Object], which: str, *rest: Any) -> list[tuple[Object, Object]]:
    """Return pairs of the first priority that answers, whose actions differ. No address belongs to a domain."""
    answers: dict[int, list[tuple[Object, str]]] = {}
    for policy in policies:
        action = answer(cluster, policy, which, *rest)
        if action:
            answers.setdefault(policy["spec"]["priority"], []).append((policy, action))
    first = answers[min(answers)] if answers else []
    return [(policy, other) for (policy, action), (other, different) in combinations(first, 2) if action != different]


def answer(cluster: Cluster, policy: Object, which: str, subject: Object, other: Object, packet: Any) -> str:
    """Return the action of the first rule of a policy that matches, or nothing; a Pass is told from no match."""
    for written in policy["spec"].get(which) or ():
        single = {**policy, "spec": {**policy["spec"], which: [written]}}
        as_deny = {**policy, "spec": {**policy["spec"], which: [{**written, "action": "Deny"}]}}
        action, _ = reference.first_match(cluster, [single], which, subject, other, packet, set())
        if action != "Pass":
            return action
        matches = reference.first_match(cluster, [as_deny], which, subject, other, packet, set()) != reference.PASS
        if written["action"] == "Pass" and matches:
            return action
    return ""


@pytest.mark.parametrize("of_peers", [False, True])
def test_each_pair_of_many_policies_is_compared_on_a_pod_that_both_are_about(of_peers: bool) -> None:
    """Forty labels tell far more sorts of future pods apart than are tried."""

    def selecting(labels: Object) -> Object:
        return {"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": labels}}}

    objects = []
    for number in range(40):
        labels = {f"key{number}": "yes"}
        policy = admin(f"p{number:02}", rule("Deny" if number % 2 else "Allow"), priority=number // 2)
        policy["spec"]["subject"] = selecting({} if of_peers else labels)
        policy["spec"]["ingress"][0]["from"] = [selecting(labels if of_peers else {})]
        objects.append(policy)
    world = tierwall.load(objects=objects)
    assert {item["status"]["conditions"][1]["reason"] for item in world.status()} == {"SamePriority"}
    assert sum(finding.code == "TW201" for finding in world.check()) == 20


def test_policies_about_everybody_conflict_although_no_pods_were_given() -> None:
    """All future pods are of one sort then, and two of them connect with each other."""
    world = tierwall.load(objects=[admin("open", rule("Allow"), priority=5), admin("shut", rule("Deny"), priority=5)])
    assert [item["status"]["conditions"][1]["reason"] for item in world.status()] == ["SamePriority"] * 2
    assert [str(finding.reference) for finding in world.check() if finding.code == "TW201"] == [
        "AdminNetworkPolicy/shut"
    ]


def test_a_status_says_if_not_every_sort_of_future_pods_was_compared() -> None:
    def policy(number: int) -> Object:
        subject = {"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {f"key{number}": "yes"}}}}
        return admin(f"p{number}", rule("Allow"), priority=5, subject=subject)

    few, many = ([policy(number) for number in range(count)] for count in (3, 20))
    messages = [conditions(objects)["p0"]["tierwall.io/Conflicted"]["message"] for objects in (few, many)]
    assert ["as far as compared" in message for message in messages] == [False, True]
