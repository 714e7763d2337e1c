"""A world that eight threads share gives the same answers as in one thread.

Each round loads the files again, so that every index, model and table is built while other threads need it. Threads
switch as often as the interpreter allows.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier
from typing import Any, TypeVar

import pytest

import tierwall
from tests import ROOT
from tests.randomness import rounds
from tierwall import InputError, Proof, World
from tierwall.planes import plane
from tierwall.policytest.suite import suites
from tierwall.resources.document import SourceText

THREADS, ROUNDS, QUESTIONS = 8, rounds(10), 40
EXAMPLES = ROOT / "examples"
MANIFESTS = ("shop/manifests", "shop/broken", "tool/manifests", "gateway/manifests", "api/policies")
TESTS = ("shop/tests", "tool/tests", "gateway/tests", "api/test.yaml")

T = TypeVar("T")
# Writes equal answers as equal strings.
Ask = Callable[[World], str]


@pytest.mark.storm
def test_eight_threads_get_the_answers_of_one_thread(tmp_path: Path) -> None:
    draw = random.Random(0)
    for number in range(ROUNDS):
        write_more(tmp_path, number)
        paths = [*(EXAMPLES / folder for folder in MANIFESTS), tmp_path]
        questions = list(every_question(draw))
        asked = [draw.choices(questions, k=QUESTIONS) for _ in range(THREADS)]
        # The threads run first: caches that do not belong to a snapshot must still be empty.
        answers = ask_all(tierwall.load(*paths), asked)
        alone = tierwall.load(*paths)
        right = {question: question(alone) for question in questions}
        for thread, those in enumerate(asked):
            for question, answer in zip(those, answers[thread], strict=True):
                assert answer == right[question], f"round {number}, thread {thread}"


def test_eight_threads_find_the_lines_of_a_long_file() -> None:
    data = b"a line of a long text\n" * 100_000
    for _ in range(20):
        source = SourceText("long.txt", data)
        first, *others = ask_all(source, [[lambda source: str(source.position(len(data)))] for _ in range(THREADS)])
        assert first == ["long.txt:100001:1"]
        assert others == [first] * (THREADS - 1)


def ask_all(whom: T, asked: list[list[Callable[[T], str]]]) -> list[list[str]]:
    """Return the answers of each thread; all threads start at the same time."""
    barrier = Barrier(len(asked))

    def answers(questions: list[Callable[[T], str]]) -> list[str]:
        barrier.wait()
        return [question(whom) for question in questions]

    with switching(), ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(answers, asked))


@contextmanager
def switching() -> Iterator[None]:
    """Make threads switch as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def every_question(draw: random.Random) -> Iterator[Ask]:
    """Collect the cases of all examples and planes, random connections and positions, and listings."""
    for suite in suites([str(EXAMPLES / path) for path in TESTS]):
        for case in suite.cases:
            if case.proof is not None:
                yield proving(case.proof)
                continue
            yield asking(case.plane, {**suite.defaults, **case.question})
    for _ in range(rounds(30)):
        yield asking("network", some_connection(draw))
    for _ in range(rounds(30)):
        yield some_position(draw)
    for _ in range(2):
        yield lambda world: repr(world.check())
        yield lambda world: repr(world.diagnostics)
        yield lambda world: repr(list(world.connections(explain=True)))
        yield lambda world: repr(world.tools({"serviceAccount": "payments/agent"}))
        yield lambda world: repr(world.permissions("alice", ["team-1"], "dev"))
        yield lambda world: json.dumps(world.status())


def proving(proof: Proof) -> Ask:
    """Make a proof, of which two threads must not disturb each other either."""
    return lambda world: json.dumps(tierwall.prove(world, proof).to_dict())


def asking(name: str, question: Mapping[str, Any]) -> Ask:
    """Make a question in its YAML form; errors count as answers."""
    read = plane(name).QUESTION.from_dict(question)

    def ask(world: World) -> str:
        try:
            return json.dumps(world.ask(read).to_dict())
        except InputError as error:
            return repr(error.diagnostics)

    return ask


def some_connection(draw: random.Random) -> dict[str, Any]:
    """Make a question about two pods of the shop; one may not exist."""
    pods = ("shop/web-0", "shop/api-0", "shop/db-0", "monitoring/prometheus-0", "sandbox/toolbox", "shop/nobody")
    return {"from": draw.choice(pods), "to": draw.choice(pods), "port": draw.choice((80, 5432, 8080, 9090))}


def some_position(draw: random.Random) -> Ask:
    """Find the position of a random node of a random object; every thread draws the same one."""
    seed = draw.random()

    def position(world: World) -> str:
        drawn = random.Random(seed)
        resource = drawn.choice(list(world.objects()))
        path: list[str | int] = []
        value: Any = resource.value
        while value and isinstance(value, dict | list):
            step = drawn.choice(list(value) if isinstance(value, dict) else range(len(value)))
            path.append(step)
            value = value[step]
        return f"{path}: {resource.position(path, key=drawn.random() < 0.5)}"

    return position


def write_more(folder: Path, number: int) -> None:
    """Write long lists, whose positions are found in pieces, and expressions that are new in each round."""
    metadata: dict[str, Any] = {"namespace": f"many-{number}", "labels": {"app": "many"}}
    spec = {"containers": [{"name": "c", "image": "registry.example/many:1"}]}
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, "name": f"p-{place}"}, "spec": spec}
        for place in range(300)
    ]
    (folder / "pods.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": pods}))
    items = (
        f"- {{apiVersion: v1, kind: ConfigMap, metadata: {{name: c-{number}-{place}}}, data: {{long: {'x' * 2000}}}}}"
        for place in range(150)
    )
    (folder / "configmaps.yaml").write_text("\n".join(("apiVersion: v1", "kind: List", "items:", *items)))
    expressions = [
        f'request.verb == "create" && object.spec.size <= {number}',
        f'request.userInfo.groups.exists(group, group == "team-{number}" && object.spec.team == group)',
        f'request.resource == "pods" && authorizer.group("").resource("pods-{number}").check("get").allowed()',
    ]
    policies = [
        {
            "apiVersion": "tierwall.io/v1alpha1",
            "kind": "ClusterAuthorizationPolicy",
            "metadata": {"name": f"more-{number}-{place}"},
            "spec": {"authorizer": "policies", "effect": "Allow", "expression": expression},
        }
        for place, expression in enumerate(expressions)
    ]
    (folder / "policies.json").write_text("\n".join(json.dumps(policy) for policy in policies))
