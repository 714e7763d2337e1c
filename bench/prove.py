"""Proofs at scale: `python -m bench prove`. CPU time, because it says the same on a busy machine.

The cluster is that of `bench.network`: 10 pods a namespace, 3 policies a namespace. Questions: no pod without the label
of a team reaches a namespace of this team, which holds for some ports and not for others.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterable, Iterator
from statistics import median

from bench.network import cluster
from tierwall.logic.conflict_driven import ConflictDrivenSolver
from tierwall.network.model.model import network_model
from tierwall.proofs.network import plane
from tierwall.proofs.network.plane import symbolic_connection
from tierwall.proofs.network.region import NetworkRegion
from tierwall.proofs.proof import Assumptions, Change, Claim, Proof
from tierwall.proofs.proving import prove
from tierwall.resources.plain_objects import objects_over
from tierwall.resources.snapshot import Snapshot

PODS = (100, 1_000)
QUESTIONS = 20


def run(sizes: Iterable[int] = PODS) -> None:
    """Measure each size."""
    for size in sizes:
        measure(size)


def measure(pods: int) -> None:
    """Print the time to build the circuit, to answer questions with both solvers, and to compare a change."""
    objects = list(cluster(pods))
    world = objects_over(Snapshot.of(()), objects, "default")
    start = time.process_time()
    model = network_model(world)
    read = time.process_time() - start
    start = time.process_time()
    symbolic = symbolic_connection([world], [model], Assumptions(), NetworkRegion(), {})
    symbolic.allowed(0)
    build = time.process_time() - start
    print(f"{pods:,} pods, {len(model.policies):,} policies: model {read:.2f} s, circuit {build:.2f} s", end="")
    print(f" ({symbolic.circuit.size:,} gates and variables)")
    for name, engine in (("native solver", None), ("own solver", ConflictDrivenSolver)):
        times: list[float] = []
        answers: list[str] = []
        for proof in questions():
            assert isinstance(proof.claim, Claim)
            start = time.process_time()
            terms = world, proof.region, proof.claim, proof.assume, 10.0
            finding = plane.prove(*terms, engine=engine() if engine is not None else None)
            times.append(time.process_time() - start)
            answers.append(type(finding).__name__)
        proved = answers.count("NoCounterexample")
        print(
            f"  {name}: {len(times)} proofs, {proved} proved; whole proof median {median(times):.2f} s, "
            f"max {max(times):.2f} s"
        )
    start = time.process_time()
    prove(world, next(questions()))
    print(f"  confirmed and written: {time.process_time() - start:.2f} s")
    changed = objects_over(
        Snapshot.of(()), [value for value in objects if value["metadata"]["name"] != "db"], "default"
    )
    start = time.process_time()
    finding = plane.prove_change(world, changed, Change("noNew", (), False, ("network",)), Assumptions(), 10.0)
    print(f"  a change: {type(finding).__name__}, {time.process_time() - start:.2f} s")
    print(f"  peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MB")


def questions() -> Iterator[Proof]:
    """Yield proofs about namespaces of one team, each on its port."""
    for number in range(QUESTIONS):
        team = f"t{number}"
        others = {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": [team]}]}
        region = {
            "from": {"namespaces": others},
            "to": {
                "namespaces": {"matchLabels": {"team": team}},
                "pods": {"matchLabels": {"app": ("api", "db")[number % 2]}},
            },
            "port": (9090, 5432)[number % 2],
            "protocol": "TCP",
        }
        yield Proof.from_dict({"network": region, "never": "Allow"})


if __name__ == "__main__":
    run(map(int, sys.argv[1:]) if len(sys.argv) > 1 else PODS)
