"""Random clusters through the kernel: packets do what the library decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.labs.nft_kernel import asker, nft_engine
from tests.randomness import examples
from tests.worlds.nft_clusters import ENDPOINTS, clusters, pod_names, suite
from tierwall.core.answer import Answer
from tierwall.core.verdict import Verdict
from tierwall.engines.nftables.probe.asking import PacketProbe
from tierwall.engines.nftables.probe.packets import Probe
from tierwall.engines.nftables.probe.placement import Placement
from tierwall.engines.nftables.table import builder
from tierwall.engines.nftables.table.compile import compile_model
from tierwall.engines.nftables.table.options import TableOptions
from tierwall.network.detail import ConnectionDecision
from tierwall.network.model.model import network_model
from tierwall.network.question import NetworkQuestion, ask
from tierwall.policytest.run import ask_engine
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.nftables import Nftables

__all__ = ["asker", "nft_engine"]

pytestmark = pytest.mark.engine

# Shrinking a failure would take minutes in the kernel, so the case is reported as it was found.
IN_KERNEL: Any = {"suppress_health_check": [HealthCheck.function_scoped_fixture], "phases": [Phase.generate]}
PORTS = (79, 80, 443, 8080)
PROTOCOLS = ("TCP", "UDP", "SCTP")


def asked_of(snapshot: Snapshot, question: Mapping[str, Any]) -> Answer:
    return ask(snapshot, NetworkQuestion.from_dict(question))


def every_question(objects: list[Any], ports: tuple[int, ...]) -> list[dict[str, Any]]:
    pods = pod_names(objects)
    pairs = [
        (source, destination)
        for source in (*pods, *ENDPOINTS)
        for destination in (*pods, *ENDPOINTS)
        if source in pods or destination in pods
    ]
    return [
        {"from": source, "to": destination, "protocol": protocol, "port": port}
        for number, (source, destination) in enumerate(pairs)
        for protocol, port in [
            (PROTOCOLS[number % 3], ports[number % len(ports)]),
            (PROTOCOLS[(number + 1) % 3], ports[(number // 3) % len(ports)]),
        ]
        if source != destination
    ]


@settings(max_examples=examples(60), **IN_KERNEL)
@given(clusters(), st.permutations(PORTS), st.sampled_from((1, builder.MIN_LINES_FOR_MAP)))
def test_packets_do_what_the_library_decides(
    nft_engine: Nftables, monkeypatch: pytest.MonkeyPatch, objects: list[Any], ports: tuple[int, ...], few: int
) -> None:
    monkeypatch.setattr(builder, "MIN_LINES_FOR_MAP", few)
    questions = every_question(objects, ports)
    asked = suite(objects, questions)
    for question, reply in zip(questions, ask_engine(asked, nft_engine), strict=True):
        assert not reply.error, (question, reply.error)
        wanted = asked_of(asked.snapshot, question).verdict
        if reply.answer is None:
            # Nobody knows the addresses of a domain name here, and an address of one family cannot reach the other.
            assert wanted == "Conditional" or "family" in reply.skipped, (question, reply.skipped)
        else:
            assert reply.answer.verdict == wanted, (question, reply.answer)


@settings(max_examples=examples(8), **IN_KERNEL)
@given(clusters(), st.sets(st.integers(0, 4), min_size=1))
def test_no_block_matches_a_pod_without_an_address(nft_engine: Nftables, objects: list[Any], without: set[int]) -> None:
    pods = [resource for resource in objects if resource["kind"] == "Pod"]
    for number in without:
        pods[number]["status"] = {}
    questions = every_question(objects, PORTS)
    asked = suite(objects, questions)
    for question, reply in zip(questions, ask_engine(asked, nft_engine), strict=True):
        assert not reply.error, (question, reply.error)
        if reply.answer is not None:
            assert reply.answer.verdict == asked_of(asked.snapshot, question).verdict, (question, reply.answer)


@pytest.mark.hypothesis
def test_what_only_dns_could_allow_does_not_pass(asker: PacketProbe) -> None:
    sent = 0

    @settings(max_examples=examples(40), **IN_KERNEL)
    @given(clusters())
    def does_not_pass(objects: list[Any]) -> None:
        nonlocal sent
        asked = suite(objects, every_question(objects, PORTS))
        network = network_model(asked.snapshot)
        decisions: list[ConnectionDecision] = [
            asked_of(asked.snapshot, case.question).detail.decisions[0] for case in asked.cases
        ]
        unknown = [decision for decision in decisions if decision.verdict is Verdict.CONDITIONAL]
        placement = Placement(network, [(decision.source, decision.destination) for decision in decisions])
        probes = [
            Probe(*pair, decision.protocol, decision.port)
            for decision in unknown
            for pair in placement.pairs(decision.source, decision.destination)
        ]
        if probes:
            table = compile_model(network, TableOptions(rate=0), placement.wire).table
            sent += len(probes)
            assert not any(result.arrived for result in asker.send(placement.places(), table, probes))

    does_not_pass()
    assert sent > 0
