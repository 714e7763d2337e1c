"""Tool decisions a second after loading: `python -m bench tool`.

A Gateway with five policies in front of many backends with five each: the most that the limits let through, ten rules
a policy, all three generations, with HTTP matchers, expressions and an authorizer among them. `decide` is the decision
alone, `request + decide` makes the request too, as an engine does, `ask` reads a question and gives the answer, and
`ask + document` writes that as JSON has it.
"""

from __future__ import annotations

import platform
import random
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any

BACKENDS = 200
CALLERS = 10
TOOLS = 40
QUESTIONS = 20_000

Object = dict[str, Any]
NETWORKING = "agentic.networking.x-k8s.io"


def objects(backends: int = BACKENDS) -> Iterator[Object]:
    """The objects of the bench."""
    listeners = [{"name": "web", "port": 8080, "protocol": "HTTP"}]
    yield _object("gateway.networking.k8s.io/v1", "Gateway", "gw", {"gatewayClassName": "c", "listeners": listeners})
    gateway = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw"}
    for number in range(5):
        yield _policy(f"gw-{number}", gateway, number, wide=True)
    for backend in range(backends):
        spec = {"mcp": {"serviceName": "s", "port": 80}}
        yield _object(f"{NETWORKING}/v0alpha0", "XBackend", f"b-{backend}", spec)
        target = {"group": NETWORKING, "kind": "XBackend", "name": f"b-{backend}"}
        for number in range(5):
            yield _policy(f"b-{backend}-{number}", target, number + backend)


def _policy(name: str, target: Object, seed: int, wide: bool = False) -> Object:
    chance = random.Random(f"{name} {seed}")
    rules = [_rule(chance, number, seed % 5, wide) for number in range(10)]
    if seed % 5 == 0:
        return _object(f"{NETWORKING}/v0alpha0", "XAccessPolicy", name, {"targetRefs": [target], "rules": rules})
    body: Object = {"targetRefs": [target], "action": "Allow", "rules": rules}
    if seed % 5 == 4:
        authorizer = {"protocol": "GRPC", "grpc": {}, "backendRef": {"name": "a", "port": 5000}}
        body |= {"action": "ExternalAuth", "externalAuth": authorizer}
    return _object(f"{NETWORKING}/v1alpha1", "XAccessPolicy", name, body)


def _rule(chance: random.Random, number: int, flavour: int, wide: bool) -> Object:
    # On the Gateway every caller has a rule, so that decisions get as far as the backends.
    caller = number if wide else chance.randrange(CALLERS)
    source = {"type": "ServiceAccount", "serviceAccount": {"name": f"agent-{caller}"}}
    tools = [f"tool-{number}" for number in (range(TOOLS) if wide else chance.sample(range(TOOLS), 10))]
    rule: Object = {"name": f"r{number}", "source": source}
    if flavour == 0:
        return rule | {"authorization": {"type": "InlineTools", "tools": tools}}
    if flavour == 1:
        return rule | {
            "authorization": {"type": "CEL", "cel": {"expression": "request.mcp.tool_name.startsWith('tool-')"}}
        }
    methods: list[Object] = [{"name": "tools/call"} | ({} if wide else {"params": tools}), {"name": "prompts"}]
    inline: Object = {
        "type": "Inline",
        "mcp": {"methods": methods, "mcpBaseProtocolMethodsOption": "MATCH_BASE_PROTOCOL_METHODS"},
    }
    if flavour == 2:
        inline |= {"paths": [{"value": "/mcp"}], "methods": ["POST", "GET"], "ports": [8080]}
    if flavour == 3:
        inline |= {"headers": [{"name": "X-Env", "value": "prod|test", "type": "RegularExpression"}]}
    return rule | {"authorization": inline}


def _object(version: str, kind: str, name: str, spec: Object) -> Object:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "a"}, "spec": spec}


def questions(number: int = QUESTIONS) -> list[Object]:
    """Questions, mostly calls."""
    chance = random.Random(0)
    return [
        {
            "gateway": "a/gw",
            "backend": f"a/b-{chance.randrange(BACKENDS)}",
            "caller": f"spiffe://cluster.local/ns/a/sa/agent-{chance.randrange(CALLERS)}",
            "method": chance.choice(("tools/call",) * 8 + ("tools/list", "initialize")),
            "tool": f"tool-{chance.randrange(TOOLS)}",
            "http": {"headers": {"X-Env": "prod"}},
            "externalAuth": {"XAccessPolicy/a/gw-4": "Allow"},
        }
        for _ in range(number)
    ]


def run() -> None:
    """Print decisions a second and what they came to."""
    from collections import Counter

    from tierwall.resources.load import load_objects
    from tierwall.resources.snapshot import Snapshot
    from tierwall.tool.decide import decide
    from tierwall.tool.question import ToolQuestion, ask, read_question
    from tierwall.tool.request import tool_request

    given = list(objects())
    snapshot = Snapshot.of(load_objects(given))
    asked = questions()
    start = time.perf_counter()
    ready = [read_question(snapshot, ToolQuestion.from_dict(question)) for question in asked]
    loading = time.perf_counter() - start
    print(f"tool plane, Python {platform.python_version()}, {platform.machine()}; {len(given):,} objects")
    print(f"first reading of every policy and {len(asked):,} questions: {loading:.2f} s")
    verdicts = Counter(str(decide(way.stack, request, answers).verdict) for way, request, answers in ready)
    evaluated = sum(len(decide(way.stack, request, answers).evaluated) for way, request, answers in ready) / len(ready)
    print(f"verdicts {dict(sorted(verdicts.items()))}, {evaluated:.1f} policies evaluated a decision")

    def alone() -> None:
        for way, request, answers in ready:
            decide(way.stack, request, answers)

    def with_request() -> None:
        for (way, request, answers), question in zip(ready, asked, strict=True):
            made = tool_request(
                way.backend,
                request.caller,
                question["method"],
                question["tool"],
                headers=question["http"]["headers"],
                port=8080,
            )
            decide(way.stack, made, answers)

    def answers() -> None:
        for question in asked:
            ask(snapshot, ToolQuestion.from_dict(question))

    def documents() -> None:
        for question in asked:
            ask(snapshot, ToolQuestion.from_dict(question)).to_dict()

    rounds = ("decide", alone), ("request + decide", with_request), ("ask", answers), ("ask + document", documents)
    for name, work in rounds:
        by_clock, by_cpu = _rate(work, len(asked))
        print(f"{name}: {by_clock:,.0f} a second, {by_cpu:,.0f} a second of CPU time")
    print(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


def _rate(work: Callable[[], None], number: int) -> tuple[float, float]:
    """The best of three rounds, by the clock and by CPU time (which a busy machine disturbs less)."""
    best, best_cpu = 0.0, 0.0
    for _ in range(3):
        start, start_cpu = time.perf_counter(), time.process_time()
        work()
        best = max(best, number / (time.perf_counter() - start))
        best_cpu = max(best_cpu, number / (time.process_time() - start_cpu))
    return best, best_cpu


if __name__ == "__main__":
    run()
