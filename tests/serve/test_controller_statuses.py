"""The part that keeps statuses: what it writes after a start, and when it plans again."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from tests.attach.test_status import access_policy, gateway, route
from tests.serve.test_controller_status_writer import Leader
from tests.worlds.network_objects import admin, network_policy, rule
from tierwall.attach.status import MAX_MESSAGE_BYTES
from tierwall.cluster.access import ClusterAccess
from tierwall.core.protocols import EngineReport
from tierwall.resources.load import load_objects
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.controller.desired import CONTROLLER_NAME, DesiredStatus
from tierwall.serve.controller.envoy_report import generation_of
from tierwall.serve.controller.events import EventWriter
from tierwall.serve.controller.fleet_state import (
    FleetState,
    FleetView,
    GatewayDemand,
    ProgrammedReason,
    ProgrammedState,
)
from tierwall.serve.controller.follower import ControllerFollower
from tierwall.serve.controller.policy_statuses import StatusPlanner
from tierwall.serve.controller.state import ControllerContext
from tierwall.serve.controller.status_document import status_with
from tierwall.serve.controller.statuses import FleetSource, StatusPart
from tierwall.serve.generations import policy_versions
from tierwall.serve.node_report import KernelTable, node_report

Object = dict[str, Any]
OUR_CLASS: Object = {
    "apiVersion": "gateway.networking.k8s.io/v1",
    "kind": "GatewayClass",
    "metadata": {"name": "c"},
    "spec": {"controllerName": CONTROLLER_NAME},
}


def live(*objects: Object) -> list[Resource]:
    for value in objects:
        value["metadata"] = {"uid": f"u-{value['metadata']['name']}", "generation": 1, **value["metadata"]}
    return [replace(resource, is_live=True) for resource in load_objects(objects)]


class Fleet:
    """Says the same about every policy."""

    def __init__(self, snapshot: Snapshot, reason: ProgrammedReason) -> None:
        self._state = FleetState({generation_of(each): ProgrammedState(reason, "") for each in snapshot}, {})

    def state(self) -> FleetState:
        return self._state


class Desk:
    """A part without a server: what it would write can be looked at, and taken as written."""

    def __init__(
        self,
        resources: list[Resource],
        node_timeout: float | None = None,
        fleet: FleetSource | None = None,
    ) -> None:
        self.now, self.follower, self.snapshot = 0.0, ControllerFollower(), Snapshot.of(resources)
        access = ClusterAccess("test", "http://127.0.0.1:1", "default")
        self.registry = CollectorRegistry()
        self.said: list[EngineReport] = []
        context = ControllerContext(access, 1, "ns", "me", Leader(), self.registry, self.said.append)  # type: ignore[arg-type]
        self.part = StatusPart(context, EventWriter(context), node_timeout, fleet, clock=lambda: self.now)

    def plan(self) -> dict[str, dict[str, tuple[str, str]]]:
        """Return the conditions that would be written now, by name and type."""

        async def main() -> None:
            self.part.take(self.follower.prepare(self.snapshot).state)
            await self.part._plan_all()

        self.part.writer._pending.clear()
        asyncio.run(main())
        return {identity[3]: _shown(pending.desired) for identity, pending in self.part.writer._pending.items()}

    def write(self) -> None:
        """Let the cluster have what would be written."""
        pending = self.part.writer._pending
        self.put(
            *(
                replace(
                    each.followed, value={**each.followed.value, "status": self._status(each.followed, each.desired)}
                )
                for each in pending.values()
            )
        )

    def put(self, *resources: Resource) -> None:
        self.snapshot = self.snapshot.with_changes(resources)

    def _status(self, followed: Resource, desired: DesiredStatus) -> Object:
        return status_with(followed.value.get("status", {}), desired, "2026-01-01T00:00:00Z")

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0


def _shown(desired: DesiredStatus) -> dict[str, tuple[str, str]]:
    lists = [*(entry.conditions for entry in desired.ancestors or ()), desired.conditions or ()]
    return {each.type: (each.status, each.reason) for conditions in lists for each in conditions}


def test_a_restart_with_ten_thousand_policies_writes_nothing() -> None:
    policies = [admin(f"p{number}", rule("Deny"), priority=number % 100) for number in range(3_000)]
    policies += [network_policy(f"n{number}") for number in range(6_000)]
    policies += [access_policy(f"a{number}", f"gw{number}") for number in range(1_000)]
    gateways = [gateway(f"gw{number}") for number in range(1_000)]
    first = Desk(live(OUR_CLASS, *gateways, *policies))
    assert len(first.plan()) == 4_000 + len(gateways) + 1
    first.write()
    assert first.plan() == {}
    again = Desk(list(first.snapshot))
    assert again.plan() == {}
    assert again.metric("tierwall_policies", kind="NetworkPolicy", accepted="true") == 6_000
    assert again.metric("tierwall_policies", kind="XAccessPolicy", accepted="true") == 1_000


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (ProgrammedReason.PROGRAMMED, ("True", "Programmed")),
        (ProgrammedReason.ENGINE_REFUSED, ("False", "EngineRefused")),
        (None, ("False", "Reconciling")),
    ],
)
def test_access_policies_are_programmed_by_the_fleet(
    reason: ProgrammedReason | None, expected: tuple[str, str]
) -> None:
    resources = live(OUR_CLASS, gateway(), access_policy("guard"))
    fleet = Fleet(Snapshot.of(resources), reason) if reason is not None else None
    assert Desk(resources, fleet=fleet).plan()["guard"] == {"Accepted": ("True", "Accepted"), "Programmed": expected}


def test_the_words_of_an_envoy_are_short_and_printable() -> None:
    resources = live(OUR_CLASS, gateway(), access_policy("guard"))
    fleet = Fleet(Snapshot.of(resources), ProgrammedReason.ENGINE_REFUSED)
    words = "an Envoy named\x1b[2J\nx" + 1_000 * "ä"
    said = fleet._state.policies.items()
    fleet._state = FleetState({generation: state._replace(message=words) for generation, state in said}, {})
    desk = Desk(resources, fleet=fleet)
    desk.plan()
    (guard,) = (each.desired for each in desk.part.writer._pending.values() if each.desired.identity[3] == "guard")
    messages = [condition.message for entry in guard.ancestors or () for condition in entry.conditions]
    assert messages[-1].startswith("an Envoy named\\x1b[2J\\nx")
    assert all(message.isprintable() and len(message.encode()) <= MAX_MESSAGE_BYTES for message in messages)


def test_a_gateway_says_that_lists_are_full_beside_its_own_conditions() -> None:
    full = access_policy("guard")
    other = {"ancestorRef": {"name": "x"}, "controllerName": "x/y", "conditions": []}
    full["status"] = {"ancestors": [other] * 16}
    affected = {"tierwall.io/AccessPolicyAffected": ("True", "StatusFull")}
    accepted = {"Accepted": ("True", "Accepted"), "Programmed": ("False", "Pending")}
    desk = Desk(live(OUR_CLASS, gateway(), full))
    assert desk.plan()["gw"] == affected | accepted
    desk.write()
    assert desk.plan() == {}
    desk.put(*live(access_policy("guard")))
    assert desk.plan()["gw"] == accepted, "and no longer when there is room"
    desk.write()
    assert desk.plan() == {}


def test_a_route_that_envoys_refuse_is_not_accepted() -> None:
    api = "gateway.networking.k8s.io"
    resources = live(OUR_CLASS, gateway(), route("r", "gw"))
    (refused,) = (each for each in resources if each.kind == "HTTPRoute")
    (served,) = (each for each in resources if each.kind == "Gateway")
    name, held = f"{served.namespace}/{served.name}", ProgrammedState(ProgrammedReason.PROGRAMMED)
    for closed, accepted in (({}, ("True", "Accepted")), ({refused.identity: "no"}, ("False", "UnsupportedValue"))):
        fleet = Fleet(Snapshot.of(resources), ProgrammedReason.PROGRAMMED)
        fleet._state = FleetView().state({name: GatewayDemand(("u", 1), frozenset(), {}, closed=closed)}, [], 0.0)
        fleet._state = fleet._state._replace(gateways={name: held})
        desk = Desk(resources, fleet=fleet)
        assert desk.plan()["gw"]["Programmed"] == ("True", "Programmed"), (
            "others run its Envoys: its addresses are theirs"
        )
        (entry,) = desk.part.writer._pending[api, "HTTPRoute", refused.namespace, "r"].desired.parents or ()
        assert (entry.conditions[0].status, entry.conditions[0].reason) == accepted


def test_a_gateway_of_another_class_says_nothing_about_our_policies_any_more() -> None:
    former = gateway() | {"status": {"conditions": [{"type": "tierwall.io/AccessPolicyAffected", "status": "True"}]}}
    former["spec"]["gatewayClassName"] = "other"
    desk = Desk(live(OUR_CLASS, former))
    assert desk.plan()["gw"] == {}
    desk.write()
    assert "gw" not in desk.plan()


def beat(name: str, number: int) -> Object:
    metadata = {"name": name, "namespace": "ns"}
    spec = {"renewTime": f"2026-01-01T00:00:{number:02}.000000Z"}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def test_programmed_follows_the_reports_of_nodes_and_is_measured() -> None:
    policies = live(admin("guard", rule("Deny")))
    node: Object = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "worker"}}
    desk = Desk([*policies, *live(node, beat("tierwall-controller", 0))], node_timeout=60)
    missing = ("False", "NodesMissing")
    assert desk.plan()["guard"]["tierwall.io/Programmed"] == missing
    desk.write()

    def report(number: int) -> list[Resource]:
        versions = policy_versions(desk.snapshot)
        value = {
            "apiVersion": "tierwall.io/v1alpha1",
            "kind": "NodeReport",
            "metadata": {
                "name": "worker",
                "namespace": "ns",
                "ownerReferences": [{"kind": "Node", "name": "worker", "uid": "u-worker"}],
            },
            "status": msgspec.to_builtins(node_report("worker", KernelTable("h", "t", 0, versions), versions)),
        }
        return live(value, beat("tierwall-node-worker", number))

    desk.put(*report(1))
    assert desk.plan()["guard"]["tierwall.io/Programmed"] == ("True", "Programmed")
    desk.write()
    changed = admin("guard", rule("Deny", 80))
    changed["metadata"] |= {"generation": 2}
    desk.now = 10
    desk.put(*live(changed))
    assert desk.plan()["guard"]["tierwall.io/Programmed"] == ("False", "Reconciling")
    desk.write()
    desk.now = 12
    desk.put(*report(2))
    assert desk.plan()["guard"]["tierwall.io/Programmed"] == ("True", "Programmed")
    assert desk.metric("tierwall_policy_programmed_seconds_sum") == 2
    assert desk.metric("tierwall_nodes", state="reporting") == 1
    desk.write()
    planned = []
    for seconds in range(20, 90, 10):
        desk.now = seconds
        desk.put(*live(beat("tierwall-controller", seconds - 20)))
        planned += [conditions["tierwall.io/Programmed"] for conditions in desk.plan().values()]
    assert planned == [missing]
    assert desk.metric("tierwall_nodes", state="silent") == 1


def test_fields_of_another_type_end_nothing() -> None:
    """A definition of somebody else may let everything through."""
    odd = gateway("odd")
    odd["spec"]["gatewayClassName"] = ["c"]
    parent = {"group": {}, "kind": [], "name": "gw"}
    added = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "ListenerSet",
        "metadata": {"name": "odd", "namespace": "d"},
        "spec": {"parentRef": parent, "listeners": []},
    }
    desk = Desk(live(OUR_CLASS, gateway(), odd, added))
    assert set(desk.plan()) == {"c", "gw"}
    assert not desk.said


def test_an_object_that_breaks_the_planner_ends_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(live(admin("guard", rule("Deny"))))
    with monkeypatch.context() as broken:
        broken.setattr(StatusPlanner, "plan", lambda *_: 1 // 0)
        assert desk.plan() == desk.plan() == {}
        desk.now = 30
        assert desk.plan() == {}
    (said,) = desk.said
    assert "statuses cannot be computed, and stay as they are: ZeroDivisionError" in said.summary
    desk.now = 59
    assert desk.plan() == {}, "it does not try again all the time"
    desk.now = 60
    assert set(desk.plan()) == {"guard"}


def test_heartbeats_alone_plan_nothing() -> None:
    desk = Desk(live(admin("guard", rule("Deny"))), node_timeout=60)
    desk.plan()
    before = desk.part._planner._network.computed, desk.part._planned_from
    desk.now = 1
    desk.put(*live(beat("tierwall-controller", 1)))
    desk.plan()
    assert (desk.part._planner._network.computed, desk.part._planned_from) == before
