"""Reports between replicas, and when a replica has caught up with the others."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.controller.envoy_report import EnvoyReport, encode_report, report_lease_name, report_metadata
from tierwall.serve.controller.replica_reports import ReplicaReports, ReplicaTiming

TIMING = ReplicaTiming(stale=30, settle=1)
HELD = EnvoyReport(held={"a": frozenset(("12345678",))})


def lease(identity: str, gateway: str = "", text: str = "", beat: str = "1", namespace: str = "system") -> Resource:
    name = report_lease_name(identity, gateway)
    metadata = {"name": name, "namespace": namespace, **report_metadata(gateway, text)}
    value = {"metadata": metadata, "spec": {"holderIdentity": identity, "renewTime": beat}}
    return Resource("coordination.k8s.io", "v1", "Lease", namespace, name, value, is_live=True)


def reports(identity: str = "me") -> Any:
    return ReplicaReports(None, "system", identity, lambda report: None, TIMING)  # type: ignore[arg-type]


def test_reports_of_others_count_while_their_heart_beats() -> None:
    mine, text = reports(), encode_report(HELD)
    for moment, beat in ((0, "1"), (20, "2")):
        mine.take(Snapshot.of([lease("other", beat=beat), lease("other", "shop/agents", text)]), moment)
    assert mine.of_all(49) == [("shop/agents", HELD)]
    # Nobody compares the time in a Lease with a clock: the same heartbeat, seen again, is an old one.
    mine.take(Snapshot.of([lease("other", beat="2"), lease("other", "shop/agents", text)]), 49)
    assert mine.of_all(50) == []


def test_a_replica_that_was_cut_off_does_not_know_who_is_silent() -> None:
    mine, text = reports(), encode_report(HELD)

    def heard(moment: float, me: str, other: str, gone: str = "1") -> list[str]:
        there = [lease("other", beat=other), lease("other", "shop/agents", text), lease("gone", beat=gone)]
        mine.take(Snapshot.of([lease("me", beat=me), *there, lease("gone", "shop/other", text)]), moment)
        return [gateway for gateway, _ in mine.of_all(moment)]

    both = ["shop/agents", "shop/other"]
    for beat in range(1, 4):
        assert sorted(heard(10 * beat, f"{beat}", f"{beat}")) == both
    # One of them is silent before the outage begins, and stays so.
    assert heard(40, "4", "4") == ["shop/agents"]
    assert [gateway for gateway, _ in mine.of_all(500)] == ["shop/agents"]
    # Its own heartbeat comes back first: the other one has as long as ever to be heard.
    assert heard(500, "5", "4") == heard(510, "6", "4") == heard(520, "7", "4") == ["shop/agents"]
    assert heard(530, "8", "4") == []
    assert sorted(heard(531, "8", "5", "2")) == both


def test_the_own_report_counts_as_it_is_now_and_not_as_it_was_written() -> None:
    mine = reports()
    mine.put({"shop/agents": HELD})
    old = encode_report(EnvoyReport(held={"gone": frozenset()}))
    mine.take(Snapshot.of([lease("me"), lease("me", "shop/agents", old)]), 0)
    assert mine.of_all(0) == [("shop/agents", HELD)]


def test_a_report_that_cannot_be_read_is_that_of_an_envoy_which_holds_nothing() -> None:
    mine = reports()
    mine.take(Snapshot.of([lease("other"), lease("other", "shop/agents", "{]")]), 0)
    ((_, report),) = mine.of_all(1)
    assert list(report.held.values()) == [frozenset()]


def test_leases_of_other_namespaces_and_without_the_label_do_not_count() -> None:
    mine = reports()
    foreign = lease("other", namespace="shop"), lease("other", "shop/agents", encode_report(HELD), namespace="shop")
    bare = lease("other", "shop/agents", encode_report(HELD))
    del bare.value["metadata"]["labels"]
    mine.take(Snapshot.of([*foreign, lease("other"), bare]), 0)
    assert mine.of_all(1) == []


def test_a_lease_under_another_name_is_no_report() -> None:
    """The agent of a node may write the Lease of its node, with any label and in anybody's name."""
    mine = reports()
    leases = lease("other", "shop/agents", encode_report(HELD)), lease("other", beat="2")
    forged = [replace(each, name=f"tierwall-node-{number}") for number, each in enumerate(leases)]
    mine.take(Snapshot.of([lease("other"), *forged]), 0)
    assert mine.of_all(1) == []
    mine.take(Snapshot.of([lease("other"), lease("other", "shop/agents", encode_report(HELD)), *forged]), 40)
    assert mine.of_all(41) == [], "the replica has been silent for 40 s"


def test_a_replica_has_caught_up_a_second_after_its_heartbeat_came_back() -> None:
    mine = reports()
    mine._sent.extend([("1", 100.0), ("2", 110.0)])
    assert mine.settled(200) == -float("inf")
    mine.take(Snapshot.of([lease("me", beat="1")]), 101)
    assert mine.settled(101.9) == -float("inf")
    assert mine.settled(102) == 100
    assert mine.is_heard(130)
    mine.take(Snapshot.of([lease("me", beat="1")]), 105)
    # The heartbeat of a process that had this name before says nothing.
    mine.take(Snapshot.of([lease("me", beat="0")]), 106)
    assert mine.settled(109) == 100
    mine.take(Snapshot.of([lease("me", beat="2")]), 111)
    assert mine.settled(112) == 110
    assert not mine.is_heard(142)


def test_a_gateway_that_is_gone_is_reported_to_have_no_envoys() -> None:
    mine = reports()
    mine.put({"shop/agents": HELD})
    mine._written = {"shop/agents": encode_report(HELD)}
    mine.put({})
    assert mine._wanted == {"shop/agents": EnvoyReport()}
