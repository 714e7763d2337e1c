"""Whether policies are in force on every node: never True while some node does not hold them, by a reference model."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tierwall.attach.status import MAX_MESSAGE_BYTES
from tierwall.core.reference import Reference
from tierwall.resources.resource import Resource
from tierwall.serve.controller.node_heartbeats import NodeHeartbeats, NodeStanding
from tierwall.serve.controller.node_state import GRACE_S, NodeFacts, NodesState, NodesView
from tierwall.serve.generations import PolicyVersion
from tierwall.serve.node_report import KernelTable, NodeReport, empty_report, node_report

Versions = Mapping[Reference, PolicyVersion]
REPORTING, SILENT, UNCONFIRMED = NodeStanding.REPORTING, NodeStanding.SILENT, NodeStanding.UNCONFIRMED


def policy(name: str, generation: int = 1, said: str = "", about: int | None = None) -> Resource:
    """Return a policy whose status says this about a generation."""
    value: dict[str, Any] = {"metadata": {"name": name, "uid": name, "generation": generation}}
    if said:
        condition = {"type": "tierwall.io/Programmed", "status": str(said == "Programmed"), "reason": said}
        observed = generation if about is None else about
        value["status"] = {"conditions": [condition | {"message": "m", "observedGeneration": observed}]}
    return Resource("policy.networking.k8s.io", "v1alpha1", "AdminNetworkPolicy", "", name, value, is_live=True)


def versions(**generations: int) -> dict[Reference, PolicyVersion]:
    return {
        Reference("AdminNetworkPolicy", "", name): PolicyVersion(name, number) for name, number in generations.items()
    }


def report(node: str, in_force: Versions, newest: Versions | None = None, **not_enforced: str) -> NodeReport:
    left_out = {Reference("AdminNetworkPolicy", "", name): words for name, words in not_enforced.items()}
    table = KernelTable("h", "t", 0, in_force, left_out)
    return node_report(node, table, in_force if newest is None else newest)


def said(state: NodesState, name: str, generation: int = 1, **status: Any) -> tuple[str, str, str]:
    condition = state.programmed(policy(name, generation, **status), PolicyVersion(name, generation))
    return condition.status, condition.reason, condition.message


def facts(*nodes: NodeReport | None, standing: NodeStanding = REPORTING) -> list[NodeFacts]:
    return [NodeFacts(f"n{number}", node, standing) for number, node in enumerate(nodes)]


NOW = versions(a=1, b=1)


def test_a_policy_that_every_node_holds_is_programmed() -> None:
    state = NodesView(60).state(NOW, facts(report("n0", NOW), report("n1", NOW)), 0)
    assert said(state, "a") == ("True", "Programmed", "Every node holds this policy")


def test_nodes_that_are_behind_are_named() -> None:
    view = NodesView(60)
    old = [report(f"n{number}", NOW) for number in range(6)]
    view.state(NOW, facts(*old), 0)
    state = view.state(versions(a=2, b=1), facts(*old[:5], report("n5", versions(a=2, b=1))), 1)
    assert said(state, "a", 2) == ("False", "Reconciling", "Not in force yet on n0, n1, n2 and 2 more")
    assert said(state, "b")[0] == "True", "a policy does not wait for others of its part"


def test_nodes_without_an_agent_or_a_heartbeat_are_missing() -> None:
    view = NodesView(60)
    silent = [
        NodeFacts("n1", report("n1", NOW), SILENT),
        NodeFacts("n2", report("n2", NOW), NodeStanding.WITHOUT_AGENT),
    ]
    state = view.state(NOW, [*facts(None), *silent], 0)
    message = "n0, n1 and n2 have no report of an agent that was heard from in the last 60 s"
    assert said(state, "a") == ("False", "NodesMissing", message)
    assert state.counts == {NodeStanding.WITHOUT_AGENT: 2, SILENT: 1}
    assert said(view.state(NOW, [], 0), "a")[:2] == ("False", "Reconciling")


def test_a_kernel_without_a_table_holds_nothing() -> None:
    state = NodesView(60).state(NOW, facts(empty_report("n0", "gone")), 0)
    assert said(state, "a") == ("False", "Reconciling", "Not in force yet on n0")


def test_what_a_kernel_does_not_enforce_has_its_words_and_hides_no_other() -> None:
    newest = versions(a=1, b=1, c=1)
    state = NodesView(60).state(newest, facts(report("n0", newest, a="names domains"), report("n1", newest)), 0)
    assert said(state, "a") == ("False", "Reconciling", "Not in force yet on n0: names domains")
    assert [said(state, name)[0] for name in "bc"] == ["True", "True"]


def test_the_words_of_an_agent_are_one_short_line_of_a_status() -> None:
    """Whoever has the agent of one node may report whatever the definition of NodeReports lets through."""
    newest = versions(a=1)
    honest = report("n0", newest, a="words")
    behind = replace(honest.behind[0], message="all is well\nReady\x1b[2J" + 1_000 * "ä")
    state = NodesView(60).state(newest, facts(replace(honest, behind=(behind,))), 0)
    message = said(state, "a")[2]
    assert message.startswith("Not in force yet on n0: all is well\\nReady\\x1b[2J")
    assert message.isprintable()
    assert len(message.encode()) <= MAX_MESSAGE_BYTES


def test_a_refused_load_keeps_what_it_had() -> None:
    newest = versions(a=2, b=1, c=1)
    state = NodesView(60).state(newest, facts(report("n0", NOW, newest)), 0)
    assert [said(state, *each)[0] for each in (("a", 2), ("b", 1), ("c", 1))] == ["False", "True", "False"]


def test_shadow_mode_is_a_change_without_a_generation() -> None:
    reference = Reference("AdminNetworkPolicy", "", "a")
    shadow = {**NOW, reference: PolicyVersion("a", 1, True)}
    view = NodesView(60)
    view.state(NOW, facts(report("n0", NOW)), 0)
    state = view.state(shadow, facts(report("n0", NOW)), 1)
    assert state.programmed(policy("a"), shadow[reference]).status == "False"
    state = view.state(shadow, facts(report("n0", shadow)), 2)
    assert state.programmed(policy("a"), shadow[reference]).status == "True"


def test_a_node_that_is_ahead_is_waited_for() -> None:
    view = NodesView(60)
    ahead = facts(report("n0", versions(a=1, b=2)))
    # Both policies are in one part: neither can be told from the digest.
    state = view.state(versions(a=1, b=1), ahead, 0)
    other = next(name for name in "abc" if said(state, name)[0] == "False")
    assert said(state, other, said="Programmed")[0] == "True", "its status stands meanwhile"
    assert said(state, other, said="Programmed", about=7)[0] == "False", "but not that of another generation"
    late = view.state(versions(a=1, b=1), ahead, GRACE_S)
    assert said(late, other, said="Programmed") == ("False", "Reconciling", "Not in force yet on n0")


@pytest.mark.parametrize(
    ("before", "after"), [("Programmed", "True"), ("NodesMissing", "False"), ("", "False"), ("Reconciling", "False")]
)
def test_as_long_as_heartbeats_are_not_confirmed_a_status_stands(before: str, after: str) -> None:
    state = NodesView(60).state(NOW, facts(report("n0", NOW), standing=UNCONFIRMED), 0)
    assert not state.is_certain
    status, reason, _ = said(state, "a", said=before)
    assert (status, reason) == (after, before or "Reconciling")


def test_what_is_worse_for_certain_is_said_at_once() -> None:
    nodes = [*facts(report("n0", NOW), standing=UNCONFIRMED), NodeFacts("n9", None, REPORTING)]
    state = NodesView(60).state(NOW, nodes, 0)
    assert said(state, "a", said="Programmed")[1] == "NodesMissing"


NAMES = st.sampled_from("abcdef")
STATES = st.dictionaries(NAMES, st.tuples(st.integers(1, 3), st.booleans()), max_size=6)
NODES = st.lists(st.tuples(st.integers(0, 5), st.sets(NAMES), st.sampled_from([*NodeStanding])), max_size=4)


@settings(max_examples=300)
@given(st.lists(STATES, min_size=1, max_size=6), st.lists(NODES, min_size=1, max_size=6), st.booleans())
def test_a_policy_is_programmed_only_if_every_node_holds_it(
    history: list[dict[str, tuple[int, bool]]], looks: list[list[tuple[int, set[str], NodeStanding]]], cut: bool
) -> None:
    """Each node has some state of the past in force, without some policies, and knows the newest state."""
    states = [
        {Reference("AdminNetworkPolicy", "", name): PolicyVersion(name, *each) for name, each in state.items()}
        for state in history
    ]
    view, at = NodesView(60), 0.0
    for number, newest in enumerate(states):
        nodes = looks[min(number, len(looks) - 1)]
        tables = [
            KernelTable(
                "h", "t", 0, states[min(age, number)], {Reference("AdminNetworkPolicy", "", each): "" for each in out}
            )
            for age, out, _ in nodes
        ]
        reports = [node_report(f"n{place}", table, newest) for place, table in enumerate(tables)]
        if cut:
            reports = [NodeReport(each.node, each.table, each.generations, each.digests, (), 9) for each in reports]
        standings = [standing for _, _, standing in nodes]
        seen = [
            NodeFacts(f"n{place}", report, standing)
            for place, (report, standing) in enumerate(zip(reports, standings, strict=True))
        ]
        state, at = view.state(newest, seen, at), at + GRACE_S / 2
        for reference, version in newest.items():
            held = bool(nodes) and all(
                standing is REPORTING and table.in_force.get(reference) == version
                for table, standing in zip(tables, standings, strict=True)
            )
            status = state.programmed(policy(reference.name, version.generation), version).status
            assert held or status == "False"
            if held and all(table.in_force == newest for table in tables):
                assert status == "True"


def lease(name: str, beat: int) -> Resource:
    value = {"metadata": {"name": name}, "spec": {"renewTime": str(beat)}}
    return Resource("coordination.k8s.io", "v1", "Lease", "ns", name, value, is_live=True)


def test_a_heartbeat_counts_from_when_it_was_seen_to_change() -> None:
    beats = NodeHeartbeats(60)

    def look(now: float, node: int | None, leader: int) -> NodeStanding:
        leases = [lease("tierwall-controller", leader)] + ([lease("tierwall-node-a", node)] if node else [])
        beats.see(leases, now)
        return beats.standing("a", now)

    assert look(0, 1, 1) is UNCONFIRMED
    assert look(20, 2, 2) is REPORTING
    assert look(45, 2, 3) is REPORTING
    assert look(70, 2, 4) is REPORTING
    assert look(80, 2, 5) is SILENT
    assert look(90, 3, 6) is REPORTING
    assert look(100, None, 7) is NodeStanding.WITHOUT_AGENT
    assert look(110, 9, 8) is REPORTING, "a new agent"


def test_an_agent_that_was_silent_from_the_start_is_silent_in_time() -> None:
    beats = NodeHeartbeats(60)
    for now in range(0, 61, 20):
        beats.see([lease("tierwall-controller", now), lease("tierwall-node-a", 1)], now)
        assert beats.standing("a", now) is (SILENT if now == 60 else UNCONFIRMED)


def test_a_controller_that_hears_nothing_blames_no_node() -> None:
    beats = NodeHeartbeats(60)
    for now in (0, 20):
        beats.see([lease("tierwall-controller", now), lease("tierwall-node-a", now)], now)
    assert beats.standing("a", 20) is REPORTING
    assert beats.standing("a", 90) is UNCONFIRMED, "nothing was heard of any Lease"
    beats.see([lease("tierwall-controller", 90), lease("tierwall-node-a", 20)], 90)
    assert beats.standing("a", 91) is UNCONFIRMED
    beats.see([lease("tierwall-controller", 92), lease("tierwall-node-a", 92)], 92)
    assert beats.standing("a", 92) is REPORTING


def test_ten_thousand_policies_on_five_hundred_nodes_take_no_time() -> None:
    """A change of one policy, and the report of one node, in a fraction of a second; 5 s only on a lame machine."""
    many = {f"p{number}": 1 for number in range(10_000)}
    view = NodesView(60)
    first, second = versions(**many), versions(**many | {"p7": 2})
    old, new = report("n0", first), report("n0", second)
    view.state(first, facts(*[old] * 500), 0)
    began = time.process_time()
    state = view.state(second, facts(*[old] * 499, new), 1)
    answers = [
        state.programmed(policy(name), version).status for name, version in ((n.name, v) for n, v in second.items())
    ]
    assert time.process_time() - began < 5
    assert answers.count("False") == 1
