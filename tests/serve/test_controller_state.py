"""The states that parts of the controller are told: live objects, and a snapshot without what controllers write."""

from __future__ import annotations

import asyncio
from typing import Any

from tierwall.cluster.access import ClusterAccess
from tierwall.core.diagnostics import Diagnostic, Diagnostics
from tierwall.resources.load import LoadResult
from tierwall.resources.read import ReadResult
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.controller.follower import ControllerFollower
from tierwall.serve.controller.run import ControllerProcess, ControllerSettings
from tierwall.serve.controller.state import ControllerState
from tierwall.serve.follower import Load


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


def test_an_outage_is_told_once_and_its_end_too() -> None:
    """Kinds come back one after the other, so there are many loads until it is over."""
    away, refused = Diagnostic("TW043", "away"), Diagnostic("TW043", "refused")
    said: list[str] = []

    async def main() -> None:
        settings = ControllerSettings(release_namespace="ns", identity="me")
        access = ClusterAccess("test", "http://127.0.0.1:1", "default")
        process = ControllerProcess(access, 1, settings, lambda report: said.append(report.summary))
        for number, lost in enumerate(((), (away,), (away,), (away, refused), (refused,), (), (), (away,))):
            snapshot = Snapshot.of([resource("Pod", f"p{number}")])
            loaded = LoadResult((), snapshot, Diagnostics(lost), ReadResult((), Diagnostics(lost), {}), lost)
            load = Load(loaded, Diagnostics(lost), state=process.follower.prepare(snapshot).state)
            process.follower.accept(load)
            process._take(load)

    asyncio.run(main())
    stale = "statuses may go stale"
    assert said[1:] == [stale, stale, "the cluster is followed again", stale]
