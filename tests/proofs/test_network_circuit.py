"""The circuit of the network plane says of every connection what the decision says."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tests.worlds.network_clusters import PORTS, PROTOCOLS, clusters
from tests.worlds.network_snapshots import snapshot
from tierwall.core.verdict import Verdict
from tierwall.logic.solver import CircuitSolver
from tierwall.network.decide import decide
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.model import NetworkModel, network_model
from tierwall.network.model.rules import EGRESS, INGRESS, PortRange
from tierwall.network.reach.spaces import bits
from tierwall.proofs.network.connection import SymbolicConnection
from tierwall.proofs.network.end import End
from tierwall.proofs.network.plane import symbolic_connection
from tierwall.proofs.network.region import NetworkRegion
from tierwall.proofs.proof import Assumptions
from tierwall.values.addresses import IPV6


def circuit_of(objects: list[Any]) -> SymbolicConnection:
    """Return the circuit of some objects, in which every port of the random questions is a piece of its own."""
    world = snapshot(objects)
    ports = tuple(PortRange(protocol, port, port) for protocol in PROTOCOLS for port in PORTS)
    return symbolic_connection([world], [network_model(world)], Assumptions(), NetworkRegion(ports=ports), {})


def new_pod(connection: SymbolicConnection, end: End, pod: Endpoint) -> list[int]:
    """Return the literals of a pod that does not exist yet."""
    words = connection.vocabulary
    spaces = end.labels["namespaces"].items()
    literals = [end.new_pod]
    literals += [atoms[words.pods.atom(key, pod.labels)] for key, atoms in end.labels["pods"].items()]
    literals += [atoms[words.namespaces.atom(key, pod.namespace_labels)] for key, atoms in spaces]
    pieces = {words.addresses.number(address) for address in pod.addresses}
    literals += [literal if piece in pieces else -literal for piece, literal in enumerate(end.new_address)]
    return literals


def named(connection: SymbolicConnection, to: Endpoint, protocol: str, port: int) -> list[int]:
    """Return the literals of the names that a destination has for a port."""
    names = connection.to.new_name
    return [names[name] if (protocol, port) in to.named_ports.get(name, ()) else -names[name] for name in names]


def related(connection: SymbolicConnection, source: Endpoint, to: Endpoint) -> list[int]:
    """Return the literals of what relates two ends beside their labels."""
    literals = []
    for key, literal in connection.other_equal.items():
        value = source.namespace_labels.get(key)
        equal = source.namespace == to.namespace or (value is not None and value == to.namespace_labels.get(key))
        literals.append(literal if equal else -literal)
    return literals


def on_port(connection: SymbolicConnection, protocol: str, port: int) -> int:
    """Return the literal of a port."""
    (piece,) = bits(connection.vocabulary.ports.mask(PortRange(protocol, port, port)))
    return connection.ports[piece]


def outcomes(solver: CircuitSolver, premises: list[int], allowed: int) -> set[Verdict]:
    """Return what a connection may come to, according to the circuit."""
    verdicts = {Verdict.ALLOW: allowed, Verdict.DENY: -allowed}
    return {verdict for verdict, literal in verdicts.items() if solver.possible([*premises, literal])}


def expected(verdict: str) -> set[Verdict]:
    """Return what an answer may come to, according to the decision."""
    if verdict == "Conditional":
        return {Verdict.ALLOW, Verdict.DENY}
    return {Verdict(verdict)}


def may_come(pod: Endpoint) -> bool:
    """Whether a pod could come: one address of each family at most, and not on the host network."""
    families = [address >= IPV6 for address in pod.addresses]
    return pod.under_policy and len(set(families)) == len(families)


@given(clusters(), st.sampled_from(PROTOCOLS), st.sampled_from(PORTS))
@settings(max_examples=examples(60))
def test_the_circuit_says_of_pods_that_may_come_what_the_decision_says(
    objects: list[Any], protocol: str, port: int
) -> None:
    model: NetworkModel = network_model(snapshot(objects))
    pods = [pod for pod in model.pods if may_come(pod)]
    assume(len(pods) > 1)
    connection = circuit_of([value for value in objects if value["kind"] != "Pod"])
    solver = CircuitSolver(connection.circuit)
    directions = {
        direction: connection.direction_allowed(0, connection.ground.models[0], direction)
        for direction in (EGRESS, INGRESS)
    }
    whole = connection.allowed(0)
    for source, to in combinations(pods, 2):
        if set(source.addresses) & set(to.addresses):
            continue
        premises = [
            *new_pod(connection, connection.source, source),
            *new_pod(connection, connection.to, to),
            *named(connection, to, protocol, port),
            *related(connection, source, to),
            on_port(connection, protocol, port),
        ]
        assert solver.possible(premises), "such a pod may come"
        decision = decide(model, source, to, protocol, port)
        assert outcomes(solver, premises, whole) == expected(decision.verdict)
        for direction, literal in directions.items():
            verdict = getattr(decision, str(direction)).verdict
            assert outcomes(solver, premises, literal) == expected(verdict)


@given(clusters(), st.sampled_from(PROTOCOLS), st.sampled_from(PORTS))
@settings(max_examples=examples(40))
def test_the_circuit_says_of_what_exists_what_the_decision_says(objects: list[Any], protocol: str, port: int) -> None:
    connection = circuit_of(objects)
    model = connection.ground.models[0]
    solver = CircuitSolver(connection.circuit)
    allowed = connection.allowed(0)
    places = {end: number for number, group in enumerate(connection.groups) for end in group.members}
    ends = [*model.pods, *model.nodes]
    for source, to in product(ends, repeat=2):
        here, there = places[source], places[to]
        if source is to:
            continue
        # An object that declares no namespace leaves its labels open; those are as in the decision here.
        premises = [connection.source.group[here], connection.to.group[there], on_port(connection, protocol, port)]
        premises += [-end.has_new_address for end in (connection.source, connection.to)]
        for end, pod in ((connection.source, source), (connection.to, to)):
            if pod.kind == "pod":
                atoms = connection.vocabulary.namespaces
                premises += [end.labels["namespaces"][key][atoms.atom(key, pod.namespace_labels)] for key in atoms.keys]
        premises += related(connection, source, to)
        assert outcomes(solver, premises, allowed) == expected(decide(model, source, to, protocol, port).verdict)
