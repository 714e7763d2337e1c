"""Reads under conditions: `python -m bench reads`. CPU time, because it says the same on a busy machine.

Cold is the first request under some conditions: expressions become a circuit. Warm is any later one, by whoever asks
with whatever selectors. A whole request is what the authorizer does from the decoded review to its decision. Refused
the first time is one that leaves other values than any before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import tierwall
from tierwall.api.algebra.chain import ask_the_rest
from tierwall.api.algebra.request import Attributes
from tierwall.api.decide import judge_collection
from tierwall.api.model import chain_of
from tierwall.api.reads.conditions import read_conditions
from tierwall.api.reads.decision import widest_selectors
from tierwall.api.reads.proof import PROOFS, ReadProof, read_proof
from tierwall.api.reads.selectable import OF_KUBERNETES
from tierwall.api.reads.selection import selection_of
from tierwall.core.labels import Requirement

ROUNDS = 400
FIELDS = OF_KUBERNETES.of("", "v1", "pods")
LABELS = "object.metadata.labels"
CONDITIONS = {
    "one label": f'{LABELS}.owner == "alice"',
    "a prefix": 'object.metadata.name.startsWith("alice-") || object.spec.nodeName == "n1"',
    "five labels": " && ".join(f'{LABELS}.k{number} in ["a", "b", "c"]' for number in range(5)),
    "a loop": f'{LABELS}.all(k, !k.startsWith("secret-")) && object.spec.containers.all(c, c.image.startsWith("ok/"))',
    "twenty ways": " || ".join(f'{LABELS}.team == "t{number}" && {LABELS}.env != "prod"' for number in range(20)),
}


def run() -> None:
    """Measure each kind of condition."""
    for name, expression in CONDITIONS.items():
        measure(name, expression)


def measure(name: str, expression: str) -> None:
    """Print the times for one condition."""
    policy = {
        "apiVersion": "tierwall.io/v1alpha1",
        "kind": "ClusterAuthorizationPolicy",
        "metadata": {"name": "reads"},
        "spec": {"effect": "Allow", "expression": f'request.verb == "list" && ({expression})'},
    }
    chain = chain_of(tierwall.load(objects=[policy]).snapshot)
    bare = Attributes(user="alice", verb="list", version="v1", resource="pods", namespace="dev")
    narrow = widest_selectors(chain, bare, OF_KUBERNETES).selectors
    allowed = (
        Attributes(
            user="alice",
            verb="list",
            version="v1",
            resource="pods",
            namespace="dev",
            label_selector=narrow[0].labels or None,
            field_selector=narrow[0].fields or None,
        )
        if narrow
        else bare
    )
    other = (Requirement("owner", "In", ("bob",)), Requirement("app", "Exists"))
    refused = Attributes(
        user="alice", verb="list", version="v1", resource="pods", namespace="dev", label_selector=other
    )
    conditions = read_conditions(ask_the_rest(chain.authorize(bare)))

    def cold() -> None:
        PROOFS.clear()
        read_proof(conditions, FIELDS, False)

    first = cpu(cold, 30)
    proof = read_proof(conditions, FIELDS, False)
    assert isinstance(proof, ReadProof)

    def refused_anew() -> None:
        proof.forget_answers()
        judge_collection(chain, refused, OF_KUBERNETES)

    times = [
        cpu(lambda: proof.implied_by(selection_of(allowed, FIELDS))),
        cpu(lambda: proof.implied_by(selection_of(refused, FIELDS))),
        cpu(lambda: judge_collection(chain, allowed, OF_KUBERNETES)),
        cpu(lambda: judge_collection(chain, refused, OF_KUBERNETES)),
        cpu(refused_anew),
    ]
    told = ", ".join(
        f"{word} {micro:,.0f} µs"
        for word, micro in zip(
            (
                "implied",
                "refuted with its witness",
                "a whole request, allowed",
                "refused with a suggestion",
                "refused the first time",
            ),
            times,
            strict=True,
        )
    )
    print(f"{name}: cold {first / 1000:.1f} ms; warm: {told}; {proof.circuit.size} gates and variables")


def cpu(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Return the median CPU time of a call, in microseconds, once it is warm."""
    for _ in range(3):
        work()
    times: list[float] = []
    for _ in range(rounds):
        start = time.thread_time_ns()
        work()
        times.append((time.thread_time_ns() - start) / 1000)
    return median(times)
