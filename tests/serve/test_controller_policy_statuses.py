"""Test the planned statuses of policies other than AccessPolicies, and what makes them be planned again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.attach.test_status import gateway, policy, route
from tests.worlds.network_objects import admin, network_policy, pod, rule
from tierwall.resources.load import load_objects
from tierwall.resources.resource import Identity, Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.controller.desired import CONTROLLER_NAME, DesiredStatus, Programmed, WantedCondition, WantedRef
from tierwall.serve.controller.policy_statuses import StatusPlanner

Object = dict[str, Any]
HELD = WantedCondition("Programmed", "True", "Programmed", "All 3 nodes hold this policy")
BEHIND = WantedCondition("Programmed", "False", "NodesMissing", "worker-1 does not hold this policy")


def held(policy: Resource, ref: WantedRef | None) -> WantedCondition | None:
    return HELD


def behind(policy: Resource, ref: WantedRef | None) -> WantedCondition | None:
    return BEHIND


def without_agents(policy: Resource, ref: WantedRef | None) -> WantedCondition | None:
    return None


def loaded(*objects: Object, live: bool = False) -> Snapshot:
    for number, each in enumerate(objects):
        each["metadata"] = {"uid": f"u{number}", "generation": 3, **each["metadata"]}
    resources = load_objects(objects)
    return Snapshot.of(msgspec.structs.replace(resource, is_live=True) if live else resource for resource in resources)


def by_name(snapshot: Snapshot, programmed: Programmed) -> dict[str, DesiredStatus]:
    statuses = StatusPlanner().plan(snapshot, snapshot, programmed).statuses
    return {identity[3]: status for identity, status in statuses.items()}


def reasons(status: DesiredStatus) -> list[tuple[str, str, str]]:
    assert status.conditions is not None
    assert status.ancestors is None
    return [(condition.type, condition.status, condition.reason) for condition in status.conditions]


ACCEPTED = ("tierwall.io/Accepted", "True", "Accepted")
NO_CONFLICTS = ("tierwall.io/Conflicted", "False", "NoConflicts")


@pytest.mark.parametrize(
    ("programmed", "condition"),
    [
        (held, [("tierwall.io/Programmed", "True", "Programmed")]),
        (behind, [("tierwall.io/Programmed", "False", "NodesMissing")]),
        (without_agents, []),
    ],
)
def test_network_policies_are_programmed_only_where_there_are_agents(
    programmed: Programmed, condition: list[tuple[str, str, str]]
) -> None:
    statuses = by_name(loaded(admin("guard", rule("Deny")), admin("default", rule("Allow"))), programmed)
    assert reasons(statuses["guard"]) == [ACCEPTED, NO_CONFLICTS, *condition]
    assert reasons(statuses["default"]) == [ACCEPTED, *condition]
    assert (statuses["guard"].uid, statuses["guard"].generation) == ("u0", 3)


def test_a_policy_that_is_not_accepted_is_not_programmed_either() -> None:
    statuses = by_name(loaded(admin("guard", rule("Perhaps"))), held)
    accepted, conflicted = statuses["guard"].conditions or ()
    assert (accepted.status, accepted.reason) == ("False", "Invalid")
    assert "Meanwhile " in accepted.message
    assert conflicted.type == "tierwall.io/Conflicted"


def test_a_conflict_names_policies_and_no_pods() -> None:
    objects = [admin("a", rule("Deny")), admin("b", rule("Allow")), pod("shop", "web-1")]
    for status in by_name(loaded(*objects), held).values():
        conflicted = (status.conditions or ())[1]
        assert (conflicted.status, conflicted.reason) == ("True", "SamePriority")
        other = "b" if status.identity[3] == "a" else "a"
        message = "has the same priority and answers some connections otherwise"
        assert conflicted.message == f"AdminNetworkPolicy/{other} {message}"


def network_computations(objects: list[Object], *changes: Object) -> list[int]:
    """Return how often conditions were computed after the first objects and after each change."""
    planner, snapshot = StatusPlanner(), loaded(*objects)
    planner.plan(snapshot, snapshot, held)
    computed = [planner._network.computed]
    for change in changes:
        snapshot = snapshot.with_changes(load_objects([change]))
        planner.plan(snapshot, snapshot, held)
        computed.append(planner._network.computed)
    return computed


def with_address(document: Object, address: str) -> Object:
    return document | {"status": {"podIP": address, "podIPs": [{"ip": address}]}}


def test_conflicts_are_looked_for_again_only_if_a_sort_of_pods_comes_or_goes() -> None:
    tied = [admin("a", rule("Deny")), admin("b", rule("Allow")), pod("shop", "web-1", app="web")]
    again = pod("shop", "web-2", app="web")
    assert network_computations(tied, again, again, pod("shop", "db-1", app="db")) == [1, 1, 1, 2]
    assert network_computations(tied, admin("c", rule("Deny"), priority=9)) == [1, 2]
    untied = [admin("a", rule("Deny")), pod("shop", "web-1")]
    assert network_computations(untied, pod("shop", "db-1", app="db")) == [1, 1]


def test_addresses_tell_pods_apart_only_by_the_blocks_of_policies() -> None:
    near, other = with_address(pod("shop", "w1"), "10.0.0.1"), with_address(pod("shop", "w2"), "10.0.0.2")
    far = with_address(pod("shop", "w3"), "10.9.0.2")
    tied = [admin("a", rule("Deny")), admin("b", rule("Allow"))]
    assert network_computations([*tied, near], other, far) == [1, 1, 1]
    egress = [{"name": "x", "action": "Deny", "to": [{"networks": ["10.0.0.0/16"]}]}]
    blocked = admin("c", egress=egress, priority=7)
    assert network_computations([*tied, blocked, near], other, far) == [1, 1, 2]


def test_network_policies_have_conditions_that_are_not_written() -> None:
    good, bad = network_policy("good"), network_policy("bad")
    bad["spec"]["policyTypes"] = ["Sideways"]
    snapshot = loaded(good, bad)
    planned = StatusPlanner().plan(snapshot, snapshot, behind)
    assert planned.statuses == {}
    got = {identity[3]: [each.reason for each in conditions] for identity, conditions in planned.unwritten.items()}
    assert got == {"good": ["Accepted", "NodesMissing"], "bad": ["Invalid"]}


def our_class() -> Object:
    spec = {"controllerName": CONTROLLER_NAME}
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "GatewayClass",
        "metadata": {"name": "c"},
        "spec": spec,
    }


def test_an_agentgateway_policy_has_entries_for_our_gateways_only() -> None:
    theirs = gateway("theirs")
    theirs["spec"]["gatewayClassName"] = "other"
    through_both = policy("p", "HTTPRoute/route", "HTTPRoute/gone")
    snapshot = loaded(our_class(), gateway(), theirs, route("route", "gw", "theirs"), through_both)
    (entry,) = by_name(snapshot, held)["p"].ancestors or ()
    assert (entry.ref.kind, entry.ref.name) == ("Gateway", "gw")
    assert [(condition.type, condition.status, condition.reason) for condition in entry.conditions] == [
        ("Accepted", "True", "Valid"),
        ("Attached", "True", "Attached"),
    ]
    assert "p" not in by_name(loaded(gateway(), route(), policy("p", "HTTPRoute/route")), held)


def test_an_agentgateway_policy_that_is_invalid_says_so_on_our_gateway() -> None:
    bad = policy("p", "Gateway/gw", traffic={"timeouts": {"request": "soon"}})
    (entry,) = by_name(loaded(our_class(), gateway(), bad), held)["p"].ancestors or ()
    assert [(condition.status, condition.reason) for condition in entry.conditions] == [
        ("False", "Invalid"),
        ("False", "Pending"),
    ]


def test_entries_of_targets_that_are_gone_are_removed() -> None:
    left = policy("p", "HTTPRoute/gone")
    left["status"] = {"ancestors": [{"controllerName": CONTROLLER_NAME}, {"controllerName": "example.com/other"}]}
    assert by_name(loaded(our_class(), gateway(), left), held)["p"].ancestors == ()
    left["status"] = {"ancestors": [{"controllerName": "example.com/other"}]}
    assert by_name(loaded(our_class(), gateway(), left), held) == {}


def test_a_pod_that_changes_makes_no_policy_with_targets_be_looked_at() -> None:
    snapshot = loaded(our_class(), gateway(), policy("p", "Gateway/gw"))
    planner = StatusPlanner()
    first = planner.plan(snapshot, snapshot, held).statuses
    snapshot = snapshot.with_changes(load_objects([pod("shop", "web-1")]))
    second = planner.plan(snapshot, snapshot, held).statuses
    assert planner._targets.computed == 1
    identity: Identity = ("agentgateway.dev", "AgentgatewayPolicy", "ns", "p")
    assert first[identity] is second[identity]
