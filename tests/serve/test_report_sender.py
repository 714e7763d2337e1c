"""The NodeReport and the heartbeat of a node reach the API server, whatever it does, and nobody waits for them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.labs.fake_api_server import FakeCluster, FakeKind
from tests.labs.waiting import eventually
from tierwall.cluster.cluster import Cluster
from tierwall.cluster.failures import ClusterError
from tierwall.serve.node_report import NodeReport, TableReport, empty_report
from tierwall.serve.report_sender import ReportSender, ReportTiming

KINDS = (
    FakeKind("", "v1", "Node", "nodes", namespaced=False),
    FakeKind("coordination.k8s.io", "v1", "Lease", "leases"),
    FakeKind("tierwall.io", "v1alpha1", "NodeReport", "nodereports"),
)
HASTE = ReportTiming(heartbeat=0.05, abandoned=0.4, look_every=2, burst=5, rest=0.05, first_wait=0.01, longest_wait=0.1)
# No agent is taken for gone, however busy the machine is.
PATIENT = replace(HASTE, abandoned=60.0)
PLACE, LEASE = ("system", "worker"), ("system", "tierwall-node-worker")


class Reported:
    """A cluster with one node, and senders for it."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster, self.messages = cluster, list[str]()
        cluster.put("nodes", metadata={"name": "worker", "uid": "node-1"})

    @contextmanager
    def sending(self, report: NodeReport | None = None, timing: ReportTiming = HASTE) -> Iterator[ReportSender]:
        sender = self.sender(timing)
        sender.start()
        try:
            if report is not None:
                sender.put(report)
            yield sender
        finally:
            sender.close()

    def sender(self, timing: ReportTiming = HASTE, timeout: float = 10.0) -> ReportSender:
        access = Cluster(None, str(self.cluster.kubeconfig), None, (), timeout).access()
        return ReportSender(access, timeout, "worker", "system", self.messages.append, timing)

    @property
    def report(self) -> dict[str, Any]:
        return self.cluster.objects("nodereports").get(PLACE, {})

    @property
    def lease(self) -> dict[str, Any]:
        return self.cluster.objects("leases").get(LEASE, {})

    def says(self, report: NodeReport) -> None:
        """Wait until the report on the server has this hash."""
        assert report.table is not None
        wanted = report.table.hash
        eventually(lambda: self.hash == wanted, lambda: f"{self.report}, {self.messages}")

    @property
    def hash(self) -> str | None:
        table: dict[str, str] = (self.report.get("status") or {}).get("table", {})
        return table.get("hash")


@pytest.fixture
def reported(tmp_path: Path) -> Iterator[Reported]:
    with FakeCluster(tmp_path, KINDS) as cluster:
        yield Reported(cluster)


def report(name: str) -> NodeReport:
    return NodeReport("worker", TableReport(name, "2026-01-01T00:00:00Z", 2, 1), "generations", "digests")


def test_a_report_belongs_to_the_node(reported: Reported) -> None:
    with reported.sending(report("a")):
        reported.says(report("a"))
        eventually(lambda: bool(reported.lease), lambda: str(reported.messages))
    owner = {"apiVersion": "v1", "kind": "Node", "name": "worker", "uid": "node-1"}
    assert reported.report["metadata"]["ownerReferences"] == [owner]
    assert reported.report["status"] == {
        "node": "worker",
        "table": {"hash": "a", "loadedAt": "2026-01-01T00:00:00Z", "pods": 2, "policies": 1},
        "generations": "generations",
        "digests": "digests",
    }
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", reported.lease["spec"]["renewTime"])
    assert reported.messages == []


def test_only_the_rights_of_the_contract_are_used(reported: Reported) -> None:
    with reported.sending(report("a")) as sender:
        reported.says(report("a"))
        sender.put(report("b"))
        reported.says(report("b"))
        eventually(lambda: _beats(reported) > 3, lambda: str(reported.messages))
    assert {re.sub(r"\?.*", "", request) for request in reported.cluster.server.requests} == {
        "/api/v1/nodes/worker",
        "/apis/tierwall.io/v1alpha1/namespaces/system/nodereports/worker",
        "POST /apis/tierwall.io/v1alpha1/namespaces/system/nodereports",
        "PUT /apis/tierwall.io/v1alpha1/namespaces/system/nodereports/worker/status",
        "/apis/coordination.k8s.io/v1/namespaces/system/leases/tierwall-node-worker",
        "POST /apis/coordination.k8s.io/v1/namespaces/system/leases",
        "PUT /apis/coordination.k8s.io/v1/namespaces/system/leases/tierwall-node-worker",
    }


def _beats(reported: Reported) -> int:
    return sum(event[2] == "leases" for event in list(reported.cluster.server.log))


def test_nothing_is_written_that_is_there_already(reported: Reported) -> None:
    """Neither by a sender that starts again, nor when it looks whether its report is still there."""
    with reported.sending(report("a")):
        reported.says(report("a"))
    with reported.sending(report("a")):
        begin = _beats(reported)
        eventually(lambda: _beats(reported) > begin + 4, lambda: str(reported.messages))
    written = [request for request in reported.cluster.server.requests if "nodereports" in request and " " in request]
    assert len(written) == 2


def test_a_report_that_is_deleted_comes_back(reported: Reported) -> None:
    with reported.sending(report("a")):
        reported.says(report("a"))
        reported.cluster.delete("nodereports", *PLACE)
        reported.says(report("a"))


def test_a_report_of_an_earlier_node_of_the_name_gets_another_owner(reported: Reported) -> None:
    with reported.sending(report("a")):
        reported.says(report("a"))
    reported.cluster.put("nodes", metadata={"name": "worker", "uid": "node-2"})
    with reported.sending(report("b")):
        reported.says(report("b"))
    assert reported.report["metadata"]["ownerReferences"][0]["uid"] == "node-2"


def test_what_somebody_else_writes_is_overwritten(reported: Reported) -> None:
    with reported.sending(report("a")) as sender:
        reported.says(report("a"))
        reported.cluster.put(
            "nodereports", **{**reported.report, "status": {"node": "worker", "table": {"hash": 7}, "behind": 1}}
        )
        sender.put(report("b"))
        reported.says(report("b"))


def test_an_outage_delays_only_the_report(reported: Reported) -> None:
    with reported.sending(report("a")) as sender:
        reported.says(report("a"))
        reported.cluster.go_away()
        for name in "bcdef":
            sender.put(report(name))
        eventually(lambda: bool(reported.messages), lambda: "")
        assert reported.hash == "a"
        reported.cluster.come_back()
        reported.says(report("f"))
    # Only the newest was sent; again if the answer to it was lost in the outage.
    written = [event[3]["status"]["table"]["hash"] for event in reported.cluster.server.log if "status" in event[3]]
    assert written[0] == "a"
    assert set(written[1:]) == {"f"}


def test_a_burst_is_followed_by_a_rest(reported: Reported) -> None:
    """However many changes there are, the API server gets a few at once, and the last one in the end."""
    timing = ReportTiming(heartbeat=60, burst=3, rest=0.3)
    begin = time.monotonic()
    with reported.sending(report("0"), timing) as sender:
        for number in range(200):
            sender.put(report(str(number)))
            time.sleep(0.002)
        reported.says(report("199"))
    written = sum(request.startswith("PUT") and "status" in request for request in reported.cluster.server.requests)
    assert written <= timing.burst + (time.monotonic() - begin) / timing.rest + 1
    assert written < 100


def test_the_heartbeat_stops_while_the_report_cannot_be_written(reported: Reported) -> None:
    """It says that the report is what is in force."""
    with reported.sending(report("a")) as sender:
        reported.says(report("a"))
        reported.cluster.server.forbidden.add("nodereports")
        sender.put(report("b"))
        eventually(lambda: bool(reported.messages), lambda: "")
        time.sleep(3 * HASTE.heartbeat)
        before = _beats(reported)
        time.sleep(4 * HASTE.heartbeat)
        assert _beats(reported) == before
        reported.cluster.server.forbidden.clear()
        reported.says(report("b"))
        eventually(lambda: _beats(reported) > before, lambda: str(reported.messages))
    assert reported.messages == ["the NodeReport of the node `worker` cannot be written: nodereports is forbidden"]


def test_the_agent_that_came_last_reports(reported: Reported) -> None:
    """The other one says so once, and is silent."""
    with reported.sending(report("old"), PATIENT) as old:
        reported.says(report("old"))
        # The last is who takes the Lease last.
        eventually(lambda: bool(reported.lease), lambda: str(reported.messages))
        with reported.sending(report("new"), PATIENT):
            reported.says(report("new"))
            eventually(lambda: bool(reported.messages), lambda: str(reported.lease))
            old.put(report("late"))
            begin = _beats(reported)
            eventually(lambda: _beats(reported) > begin + 2 * HASTE.look_every, lambda: str(reported.messages))
            assert reported.hash == "new"
    assert len(reported.messages) == 1, reported.messages
    assert reported.messages[0].endswith("reports for the node `worker` now")


def test_an_agent_that_could_not_renew_does_not_take_its_place_back(reported: Reported) -> None:
    """Meanwhile another one may have come."""
    server = reported.cluster.server
    with reported.sending(report("old"), PATIENT):
        eventually(lambda: bool(reported.lease), lambda: str(reported.messages))
        server.forbidden.add("leases")
        eventually(lambda: bool(reported.messages), lambda: str(reported.lease))
        lease = reported.lease
        reported.cluster.put("leases", **{**lease, "spec": {**lease["spec"], "holderIdentity": "new"}})
        server.forbidden.clear()
        eventually(lambda: len(reported.messages) > 1, lambda: str(reported.lease))
        assert reported.messages[1:] == ["`new` reports for the node `worker` now"]
        assert reported.lease["spec"]["holderIdentity"] == "new"


def test_the_agent_that_is_left_reports(reported: Reported) -> None:
    """Nobody renews the Lease of the one that came last any more."""
    with reported.sending(report("old")) as old:
        reported.says(report("old"))
        eventually(lambda: bool(reported.lease), lambda: str(reported.messages))
        with reported.sending(report("new")):
            reported.says(report("new"))
            eventually(lambda: bool(reported.messages), lambda: str(reported.lease))
            old.put(report("late"))
        reported.says(report("late"))


def test_only_a_conflict_that_lasts_is_worth_a_message(reported: Reported) -> None:
    """Two agents of a node meet in conflicts until the earlier one finds that it is replaced, even in many."""

    def conflicts() -> int:
        return sum(request.startswith("PUT") and "status" in request for request in reported.cluster.server.requests)

    with reported.sending(report("a"), PATIENT) as sender:
        reported.says(report("a"))
        begin = conflicts()
        reported.cluster.server.contested.add("nodereports")
        sender.put(report("b"))
        eventually(lambda: conflicts() > begin + 5, lambda: str(reported.cluster.server.requests))
        reported.cluster.server.contested.clear()
        reported.says(report("b"))
    assert reported.messages == []
    with reported.sending(report("b"), replace(HASTE, abandoned=0.2)) as sender:
        reported.cluster.server.contested.add("nodereports")
        sender.put(report("c"))
        eventually(lambda: bool(reported.messages), lambda: "")
        reported.cluster.server.contested.clear()
        reported.says(report("c"))
    message = "the NodeReport of the node `worker` cannot be written: the object has been modified"
    assert reported.messages == [message]


def test_a_cluster_without_the_kind_is_named(tmp_path: Path) -> None:
    with FakeCluster(tmp_path, KINDS[:2]) as cluster:
        reported = Reported(cluster)
        with reported.sending(report("a")):
            eventually(lambda: bool(reported.messages), lambda: "")
    assert reported.messages == [
        "the NodeReport of the node `worker` cannot be written: the cluster does not know this kind"
        " (`tierwall crds` prints its definition)"
    ]


def test_a_last_report_is_sent_at_once_or_not_at_all(reported: Reported) -> None:
    reported.sender().send_last(empty_report("worker", "removed"))
    assert reported.report["status"] == {"node": "worker", "message": "removed"}
    reported.cluster.server.forbidden.add("nodereports")
    with pytest.raises(ClusterError, match="forbidden"):
        reported.sender().send_last(empty_report("worker", "removed again"))


def test_closing_does_not_wait_for_the_server(reported: Reported) -> None:
    reported.cluster.server.is_stopped = True
    sender = reported.sender(HASTE, timeout=10.0)
    sender.start()
    sender.put(report("a"))
    eventually(lambda: len(reported.cluster.server.requests) == 2, lambda: str(reported.cluster.server.requests))
    sender.close()
    # Whoever waits for an answer asks again after ten seconds, and says why.
    assert (len(reported.cluster.server.requests), reported.messages) == (2, [])
