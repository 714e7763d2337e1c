"""Proofs at scale: `python -m bench prove`. CPU time, because it says the same on a busy machine.

The clusters are those of `bench.varied`, in which hardly two policies are alike, and one that is all alike
(`bench.network`). Questions: nobody of another team reaches a namespace. Policies of an administrator guard half of the
namespaces, so that half of the claims hold. Each cluster runs in a process of its own, as its peak memory is its own.
"""

from __future__ import annotations

import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from statistics import median
from typing import Any

import msgspec

from bench import network
from bench.varied import SHAPES, TEAMS, VariedCluster
from tierwall.logic.conflict_driven import ConflictDrivenSolver
from tierwall.network.model.model import network_model
from tierwall.proofs.network import plane
from tierwall.proofs.network.plane import symbolic_connection
from tierwall.proofs.network.region import NetworkRegion
from tierwall.proofs.proof import Assumptions, Change, Claim, Proof
from tierwall.proofs.proving import prove
from tierwall.resources.plain_objects import objects_over
from tierwall.resources.snapshot import Snapshot

Object = dict[str, Any]
SIZES = ((100, 30), (1_000, 300), (3_300, 1_000))
UNIFORM = "all alike"
QUESTIONS = 20
# The priorities below are those of the guards.
GUARDED = QUESTIONS // 2


def run(shapes: Iterable[str] = (UNIFORM, *SHAPES)) -> None:
    """Measure each shape in each size."""
    print(f"Python {platform.python_version()}, CPU seconds of a whole proof: median and most")
    for shape in shapes:
        for pods, policies in SIZES:
            command = [sys.executable, "-m", "bench.prove", shape, str(pods), str(policies)]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            print(_line(shape, json.loads(output)), flush=True)


def _line(shape: str, measured: dict[str, Any]) -> str:
    words = [f"{shape}: {measured['pods']:,} pods, {measured['policies']:,} policies, {measured['gates']:,} gates"]
    for name in ("native", "own"):
        words += [f"{name} {kind} {measured[name][kind]}" for kind in ("proved", "refuted") if measured[name][kind]]
    words.append(f"a change {measured['change']}, confirmed and written {measured['confirmed']}")
    return "; ".join((*words, f"{measured['memory']} MB"))


def cluster(shape: str, pods: int, policies: int) -> list[Object]:
    """Return the objects of a cluster, with guards."""
    if shape == UNIFORM:
        objects = list(network.cluster(pods))
    else:
        known = SHAPES[shape]
        admin = policies * known.admin // 3000 or policies // 10
        varied = msgspec.structs.replace(known, admin=admin, namespaces=min(known.namespaces, policies // 3))
        objects = list(VariedCluster(varied, pods, policies=policies).objects())
    for value in objects:
        if value["kind"] == "AdminNetworkPolicy":
            value["spec"]["priority"] = GUARDED + value["spec"]["priority"] % (1000 - GUARDED)
    return [*objects, *map(_guard, range(GUARDED))]


def _guard(number: int) -> Object:
    others = [{"namespaces": _others(number)}]
    spec = {
        "priority": number,
        "subject": {"namespaces": _named(number)},
        "ingress": [{"name": "others", "action": "Deny", "from": others}],
    }
    kind = {"apiVersion": "policy.networking.k8s.io/v1alpha1", "kind": "AdminNetworkPolicy"}
    return {**kind, "metadata": {"name": f"keeper-{number}"}, "spec": spec}


def _named(number: int) -> Object:
    return {"matchLabels": {"kubernetes.io/metadata.name": f"ns-{number}"}}


def _others(number: int) -> Object:
    return {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": [f"t{number % TEAMS}"]}]}


def questions() -> Iterator[Proof]:
    """Yield proofs about one namespace each."""
    for number in range(QUESTIONS):
        region = {"from": {"namespaces": _others(number)}, "to": {"namespaces": _named(number)}}
        yield Proof.from_dict({"network": region, "never": "Allow"})


def measure(shape: str, pods: int, policies: int) -> dict[str, Any]:
    """Measure one cluster."""
    objects = cluster(shape, pods, policies)
    world = objects_over(Snapshot.of(()), objects, "default")
    model = network_model(world)
    symbolic = symbolic_connection([world], [model], Assumptions(), NetworkRegion(), {})
    symbolic.allowed(0)
    measured: dict[str, Any] = {"pods": pods, "policies": len(model.policies), "gates": symbolic.circuit.size}
    findings: list[list[object]] = []
    for name, engine in (("native", None), ("own", ConflictDrivenSolver)):
        times: dict[str, list[float]] = {"proved": [], "refuted": []}
        findings.append([])
        for proof in questions():
            assert isinstance(proof.claim, Claim)
            start = time.process_time()
            terms = world, proof.region, proof.claim, proof.assume, 10.0
            finding = plane.prove(*terms, engine=engine() if engine is not None else None)
            times["proved" if type(finding).__name__ == "NoCounterexample" else "refuted"].append(_since(start))
            findings[-1].append(finding)
        measured[name] = {kind: _summary(taken) for kind, taken in times.items()}
    assert findings[0] == findings[1], "both solvers have the same answers"
    start = time.process_time()
    prove(world, list(questions())[-1])
    measured["confirmed"] = f"{_since(start):.2f}"
    dropped = next(value for value in objects if value["kind"] == "NetworkPolicy")
    changed = objects_over(Snapshot.of(()), [value for value in objects if value is not dropped], "default")
    start = time.process_time()
    plane.prove_change(world, changed, Change("noNew", (), False, ("network",)), Assumptions(), 10.0)
    measured["change"] = f"{_since(start):.2f}"
    return {**measured, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10}


def _since(start: float) -> float:
    return time.process_time() - start


def _summary(times: list[float]) -> str:
    return f"{len(times)}: {median(times):.2f}, {max(times):.2f} s" if times else ""


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
