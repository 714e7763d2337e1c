"""Partial evaluations a second on policy-sized expressions: `python bench/partial.py`.

Each policy is made ready once and then run for many requests, no two alike, as an authorizer does. "printed" adds the
text of the residual, which goes over the wire.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable

from tierwall.cel.partial_evaluation import PartialResult, partial, specialise
from tierwall.cel.syntax.parser import parse

UNKNOWN = ("object", "oldObject", "options", "operation", "namespaceObject", "impersonatedRequest")
POLICIES = {
    "claims, as in KEP-5681": """
        request.apiGroup == "" && request.resource == "persistentvolumeclaims" && request.verb == "create" &&
        request.userInfo.username == "alice" && object.spec.storageClassName == "dev" """,
    "policy-sized": """
        request.apiGroup == "apps" && request.resource in ["deployments", "statefulsets"] &&
        request.verb in ["create", "update"] && "developers" in request.userInfo.groups &&
        object.metadata.namespace == request.namespace &&
        object.metadata.labels.owner == request.userInfo.username &&
        (request.userInfo.username.startsWith("system:") || object.spec.replicas <= 3) &&
        object.spec.template.spec.containers.all(c, c.image.startsWith("registry/" + request.namespace + "/"))""",
    "groups unrolled": """
        request.userInfo.groups.exists(g, g.startsWith("team-") && g == object.metadata.labels.team) ||
        request.userInfo.username == object.metadata.annotations["owner"]""",
    "settled by what is known": """
        object.metadata.name.startsWith("x") && request.verb == "delete" && request.resource == "secrets" """,
}
SECONDS = 1.0
REQUESTS = 200


def request(number: int, claims: bool) -> dict[str, object]:
    """A request unlike the others, for claims or for deployments."""
    groups = ["developers", f"team-{number % 7}", "system:authenticated"]
    user = {"username": "alice", "groups": groups, "uid": f"u{number}", "extra": {}}
    return {
        "request": {
            "verb": "create",
            "apiGroup": "" if claims else "apps",
            "resource": "persistentvolumeclaims" if claims else "deployments",
            "namespace": f"ns-{number % 5}",
            "name": "",
            "userInfo": user,
        }
    }


def rate(run: Callable[[dict[str, object]], object], requests: list[dict[str, object]]) -> float:
    """Runs a second of CPU time, over all requests again and again."""
    for each in requests:
        run(each)
    count, start = 0, time.process_time()
    while time.process_time() - start < SECONDS:
        for each in requests:
            run(each)
        count += len(requests)
    return count / (time.process_time() - start)


def main() -> None:
    """Print one line per policy."""
    print(f"Python {platform.python_version()}, {REQUESTS} different requests, one thread, per second of CPU time")
    print(f"{'':<30}{'partial/s':>12}{'printed/s':>12}{'made ready/s':>14}")
    for name, source in POLICIES.items():
        requests = [request(number, name.startswith("claims")) for number in range(REQUESTS)]
        tree = parse(source)
        ready = specialise(tree, UNKNOWN, boolean=True)
        residual = ready(requests[1])

        def printed(known: dict[str, object], ready: Callable[..., PartialResult] = ready) -> str:
            return ready(known).text

        def cold(known: dict[str, object], source: str = source) -> PartialResult:
            return partial(parse(source), known, UNKNOWN, boolean=True)

        rates = [rate(ready, requests), rate(printed, requests), rate(cold, requests)]
        print(f"{name:<30}{rates[0]:>12,.0f}{rates[1]:>12,.0f}{rates[2]:>14,.0f}")
        print(f"  for the second request: {residual.text}")


if __name__ == "__main__":
    main()
