"""The matrix of all connections agrees with deciding each pair: verdicts, and the deciders of each direction."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tests.worlds.network_clusters import OUTSIDE, PORTS, PROTOCOLS, clusters
from tests.worlds.network_snapshots import snapshot
from tierwall.core.verdict import Verdict
from tierwall.network.decide import decide
from tierwall.network.model.endpoints import Endpoint, address_endpoint
from tierwall.network.model.model import NetworkModel
from tierwall.network.reach import matrix as matrix_module
from tierwall.network.reach import membership
from tierwall.network.reach.classes import EndpointClass, EndpointClasses
from tierwall.network.reach.matrix import ConnectionPassages, ReachMatrix, reach_matrix
from tierwall.network.reach.spaces import PortSpace, bits, transposed
from tierwall.values.addresses import parse_address

Object = dict[str, Any]
ASKED = (*PORTS, 9, 65535)


def every_endpoint(model: NetworkModel, classes: EndpointClasses) -> list[tuple[Endpoint, EndpointClass]]:
    """Return pods, nodes and addresses outside the cluster, each with its class."""
    classified = [(endpoint, classes.of(endpoint)) for endpoint in (*model.pods, *model.nodes)]
    inside = {address for endpoint in (*model.pods, *model.nodes) for address in endpoint.addresses}
    for text in OUTSIDE:
        address = parse_address(text)
        assert address is not None
        if address not in inside:
            holding = [
                endpoint_class
                for endpoint_class in classes.all
                if any(low <= address <= high for low, high in endpoint_class.spans)
            ]
            assert len(holding) == 1
            classified.append((address_endpoint(address), holding[0]))
    return classified


def expanded(matrix: ReachMatrix) -> dict[tuple[int, int], ConnectionPassages]:
    """Return the passages of each pair of classes; no pair may occur twice."""
    out: dict[tuple[int, int], ConnectionPassages] = {}
    for group in matrix.groups:
        for destination in bits(group.destinations):
            for sources, passages in group.sources:
                for source in bits(sources):
                    assert (source, destination) not in out
                    out[source, destination] = passages
    return out


def pieces(ports: PortSpace) -> dict[tuple[str, int], int]:
    """Return the piece of each port in question; every port is in exactly one piece."""
    ranges = [(1 << bit, held) for bit in bits(ports.everything) for held in ports.ranges(1 << bit)]
    out: dict[tuple[str, int], int] = {}
    for protocol in PROTOCOLS:
        for port in ASKED:
            (out[protocol, port],) = [
                piece for piece, held in ranges if held.protocol == protocol and held.first <= port <= held.last
            ]
    return out


@settings(max_examples=examples(150))
@given(clusters(most_policies=6))
def test_the_matrix_agrees_with_deciding_each_pair(objects: list[Object]) -> None:
    model = NetworkModel(snapshot(objects))
    classes = EndpointClasses(model)
    plain, full = reach_matrix(classes), reach_matrix(classes, explain=True, denied=True)
    passing, settled = expanded(plain), expanded(full)
    at_plain, at_full = pieces(plain.ports), pieces(full.ports)
    endpoints = every_endpoint(model, classes)
    for source, source_class in endpoints:
        for destination, destination_class in endpoints:
            pair = source_class.bit, destination_class.bit
            if source is destination or not (source.under_policy or destination.under_policy):
                continue
            for protocol in PROTOCOLS:
                for port in ASKED:
                    want = decide(model, source, destination, protocol, port)
                    (passage,) = [passage for passage in settled[pair] if passage.ports & at_full[protocol, port]]
                    assert passage.egress == want.egress.outcome
                    assert passage.ingress == want.ingress.outcome
                    verdicts = [
                        passage.verdict for passage in passing.get(pair, ()) if passage.ports & at_plain[protocol, port]
                    ]
                    assert verdicts == ([want.verdict] if want.verdict is not Verdict.DENY else [])


@settings(max_examples=examples(100))
@given(clusters(most_policies=6), st.data())
def test_a_part_of_the_matrix_equals_that_part_of_the_whole(objects: list[Object], data: st.DataObject) -> None:
    classes = EndpointClasses(NetworkModel(snapshot(objects)))
    denied = data.draw(st.booleans())
    whole = expanded(reach_matrix(classes, denied=denied))
    sources, destinations, focus = (
        data.draw(st.one_of(st.just(-1), st.integers(0, classes.everybody))) for _ in range(3)
    )
    part = expanded(reach_matrix(classes, denied=denied, sources=sources, destinations=destinations, focus=focus))
    assert part == {
        (source, destination): passages
        for (source, destination), passages in whole.items()
        if sources >> source & 1 and destinations >> destination & 1 and (focus >> source | focus >> destination) & 1
    }


@settings(max_examples=examples(100))
@given(clusters(most_policies=6), st.booleans())
def test_many_ports_and_many_sources_give_the_same_matrix(objects: list[Object], explain: bool) -> None:
    classes = EndpointClasses(NetworkModel(snapshot(objects)))
    usual = expanded(reach_matrix(classes, explain=explain, denied=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(membership, "MAX_CUTS", 0)
        patch.setattr(matrix_module, "MAX_SPLITS", 0)
        assert expanded(reach_matrix(classes, explain=explain, denied=True)) == usual


@pytest.mark.parametrize("by_address", [False, True])
def test_a_policy_with_thousands_of_rules_is_not_quadratic(by_address: bool) -> None:
    """The steps of the walk grow with the rules; with a quadratic walk, 4,000 rules would take 16 million."""
    count = 4000
    peers: list[Object] = [
        {"ipBlock": {"cidr": f"20.{number // 250}.{number % 250}.0/25"}} if by_address else {"podSelector": {}}
        for number in range(count)
    ]
    rules = [{"from": [peer], "ports": [{"port": 1 + number}]} for number, peer in enumerate(peers)]
    metadata = {"name": "many", "namespace": "n"}
    policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": []}}
    classes = EndpointClasses(NetworkModel(snapshot([pod, {**policy, "spec": {"podSelector": {}, "ingress": rules}}])))
    steps = 0

    def count_step(*_: object) -> None:
        nonlocal steps
        steps += 1

    sys.setprofile(count_step)
    try:
        matrix = reach_matrix(classes)
    finally:
        sys.setprofile(None)
    assert steps < 500 * count
    assert sum(len(group.sources) for group in matrix.groups) >= (count if by_address else 1)


@given(st.lists(st.integers(0, 1 << 12) | st.integers(0, 1 << 2100), max_size=8))
@settings(max_examples=examples(100))
def test_transposing_sets_gives_the_places_of_each_number(sets: list[int]) -> None:
    columns = transposed(sets)
    assert len(columns) == max((members.bit_length() for members in sets), default=0)
    assert all(
        bool(column >> place & 1) == bool(members >> number & 1)
        for number, column in enumerate(columns)
        for place, members in enumerate(sets)
    )
    assert all(column < 1 << len(sets) for column in columns)
