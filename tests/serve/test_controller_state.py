"""The states that parts of the controller are told: live objects, and a snapshot without what controllers write."""

from __future__ import annotations

from typing import Any

from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.controller.follower import ControllerFollower
from tierwall.serve.controller.state import ControllerState


def resource(kind: str, name: str, **parts: Any) -> Resource:
    group = {"AdminNetworkPolicy": "policy.networking.k8s.io", "Lease": "coordination.k8s.io"}.get(kind, "")
    version = {"AdminNetworkPolicy": "v1alpha1"}.get(kind, "v1")
    value = {"apiVersion": f"{group}/{version}".strip("/"), "kind": kind, "metadata": {"name": name}, **parts}
    return Resource(group, version, kind, "" if kind != "Pod" else "n", name, value, None, is_live=True)


def states(*steps: list[Resource]) -> list[ControllerState]:
    follower = ControllerFollower()
    snapshot, out = Snapshot({}), []
    for step in steps:
        snapshot = snapshot.with_changes(step)
        out.append(follower.prepare(snapshot).state)
    return out


POLICY = resource("AdminNetworkPolicy", "guard", spec={"priority": 1})


def test_a_status_changes_what_is_live_and_nothing_that_is_judged() -> None:
    written = resource("AdminNetworkPolicy", "guard", spec={"priority": 1}, status={"conditions": []})
    before, after = states([POLICY], [written])
    assert after.judged is before.judged
    assert list(after.snapshot) == [written]
    assert (before.revision, after.revision) == (1, 2)


def test_another_spec_or_another_label_is_judged() -> None:
    changed = resource("AdminNetworkPolicy", "guard", spec={"priority": 2}, status={"conditions": []})
    before, after = states([POLICY], [changed])
    assert list(before.judged) == [POLICY]
    assert list(after.judged) == [changed]


def test_a_policy_that_is_gone_is_gone() -> None:
    follower = ControllerFollower()
    follower.prepare(Snapshot.of([POLICY]))
    assert list(follower.prepare(Snapshot.of([])).state.judged) == []


def test_the_status_of_a_pod_is_judged_because_it_has_the_addresses() -> None:
    pod, moved = resource("Pod", "a", status={"podIP": "10.0.0.1"}), resource("Pod", "a", status={"podIP": "10.0.0.2"})
    assert [list(state.judged) for state in states([pod], [moved])] == [[pod], [moved]]


def test_heartbeats_change_nothing_that_is_judged() -> None:
    before, after = states([POLICY], [resource("Lease", "tierwall-node-a", spec={"renewTime": "x"})])
    assert after.judged is before.judged
    assert len(after.snapshot) == 2
