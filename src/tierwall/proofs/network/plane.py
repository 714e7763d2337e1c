"""Proofs about the network plane: exact, complete and never Unknown (docs/prove.md#how-it-works).

The policies, the region and everything that may come are one circuit over two ends and one connection. A solver says
whether some connection refutes the claim; the smallest one is written as objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tierwall.core.answer import Answer
from tierwall.core.diagnostics import Diagnostic, input_error
from tierwall.core.question import Question
from tierwall.core.verdict import Verdict
from tierwall.logic.circuit import TRUE
from tierwall.logic.solver import CircuitSolver, Solver
from tierwall.network.ends import EndFinder
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.model import NetworkModel, network_model
from tierwall.proofs.network.connection import SymbolicConnection
from tierwall.proofs.network.ground import Ground
from tierwall.proofs.network.manifests import ManifestWriter
from tierwall.proofs.network.region import EndRegion, NetworkRegion
from tierwall.proofs.network.region import read_region as read_region
from tierwall.proofs.network.smallest import smallest
from tierwall.proofs.network.vocabulary import Vocabulary
from tierwall.proofs.proof import Assumptions, Change, Claim
from tierwall.proofs.result import NoCounterexample, PlaneFinding
from tierwall.resources.snapshot import Snapshot

VERDICTS = (Verdict.ALLOW, Verdict.DENY)
ASSUMPTIONS = ("namespaces", "podAddresses", "existingOnly", "hostNetwork")
_ANYWHERE = NetworkRegion()


def scope(assume: Assumptions) -> str:
    """Say what may come on this plane."""
    which = "that exists" if assume.existing_only else "that may come"
    host = "pods on the host network included" if assume.host_network else "no pod on the host network"
    return f"every pod, namespace, node and address {which} ({host})"


def known_part(question: Question, snapshot: Snapshot) -> Question:
    """Return the question: it has no answers of others."""
    return question


def outcomes(answer: Answer) -> frozenset[Verdict]:
    """Return what an answer may come to: a Conditional one either way."""
    assert answer.verdict is not None, "the network plane has verdicts"
    return frozenset(VERDICTS) if answer.verdict is Verdict.CONDITIONAL else frozenset((Verdict(answer.verdict),))


def prove(
    snapshot: Snapshot,
    region: NetworkRegion,
    claim: Claim,
    assume: Assumptions,
    effort: float,
    engine: Solver | None = None,
) -> PlaneFinding:
    """Search for a connection of the region that refutes the claim. `engine` is for tests: answers depend on none."""
    named = _named_pods(snapshot, region)
    connection = symbolic_connection([snapshot], [network_model(snapshot)], assume, region, named)
    allowed = connection.allowed(0)
    is_allow = (claim.word == "never") == (claim.verdict is Verdict.ALLOW)
    goal = [connection.inside(region), allowed if is_allow else -allowed]
    return _search(connection, goal, [snapshot], engine, region=goal[0])


def prove_change(
    old: Snapshot,
    new: Snapshot,
    change: Change,
    assume: Assumptions,
    effort: float,
    engine: Solver | None = None,
) -> PlaneFinding:
    """Search for a connection that one side allows and the other does not, in the same outcome."""
    snapshots = [old, new]
    connection = symbolic_connection(snapshots, list(map(network_model, snapshots)), assume, _ANYWHERE, {})
    before, after = connection.allowed(0), connection.allowed(1)
    goal = [after, -before] if change.word == "noNew" else [before, -after]
    return _search(connection, goal, snapshots, engine)


def symbolic_connection(
    snapshots: Sequence[Snapshot],
    models: Sequence[NetworkModel],
    assume: Assumptions,
    region: NetworkRegion,
    named: dict[str, Sequence[Endpoint]],
) -> SymbolicConnection:
    """Return the circuit of any connection, with all atoms that the policies and the region tell apart."""
    vocabulary = Vocabulary()
    for model in models:
        for policy in model.policies:
            vocabulary.add_policy(policy)
    for end in (region.source, region.to):
        if end.labels is not None:
            vocabulary.namespaces.add_selector(end.labels[0])
            vocabulary.pods.add_selector(end.labels[1])
        vocabulary.add_spans(end.spans or ())
    for selector in assume.namespaces:
        vocabulary.namespaces.add_selector(selector)
    vocabulary.add_spans(assume.pod_addresses or ())
    vocabulary.add_ports(region.ports)
    ground = Ground(snapshots, models, named)
    ground.add_to(vocabulary)
    return SymbolicConnection(vocabulary, ground, assume, region)


def unbounded_connection(model: NetworkModel) -> SymbolicConnection:
    """Return the circuit of any connection, where nothing exists yet and no namespace is declared."""
    vocabulary = Vocabulary()
    for policy in model.policies:
        vocabulary.add_policy(policy)
    ground = Ground((), (model,), {}, is_empty=True)
    ground.add_to(vocabulary)
    return SymbolicConnection(vocabulary, ground, Assumptions(host_network=True), _ANYWHERE)


def _search(
    connection: SymbolicConnection,
    goal: list[int],
    snapshots: Sequence[Snapshot],
    engine: Solver | None,
    *,
    region: int = TRUE,
) -> PlaneFinding:
    solver = CircuitSolver(connection.circuit, engine)
    if not solver.possible(goal):
        return NoCounterexample(is_vacuous=region != TRUE and not solver.possible([region]))
    return ManifestWriter(connection, smallest(connection, solver, goal), snapshots).candidate()


def _named_pods(snapshot: Snapshot, region: NetworkRegion) -> dict[str, Sequence[Endpoint]]:
    """Find the pods that a region names. InputError has everything that is not there."""
    problems: list[Diagnostic] = []
    finder = EndFinder(snapshot, network_model(snapshot), problems)
    named: dict[str, Sequence[Endpoint]] = {}
    for key, end in (("from", region.source), ("to", region.to)):
        if end.name is not None:
            named[key] = _members(finder, end, key, problems)
    if problems:
        raise input_error(problems)
    return named


def _members(finder: EndFinder, end: EndRegion, key: str, problems: list[Diagnostic]) -> list[Endpoint]:
    # `from` takes no Service, which is right for both ends: a Service is not a workload.
    asked: Any = finder.find(end.name, "from", "TCP", 0)
    pods = [pod for group in asked.groups for pod in group.members] if asked is not None else []
    problems += (
        Diagnostic("TW703", f"`{key}`: pod `{pod}` has ended, so it has no connections") for pod in pods if pod.ended
    )
    return pods
