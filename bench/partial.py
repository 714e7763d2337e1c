"""Partial evaluations a second on policy-sized expressions: `python bench/partial.py`.

Each policy is made ready once and then run for many requests, no two alike, as an authorizer does. "printed" adds the
text of the residual, which goes over the wire.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable

from tierwall.cel.parser import parse
from tierwall.cel.partial import Partial, partial, specialise

UNKNOWN = ("object", "oldObject", "options", "operation", "namespaceObject", "impersonatedRequest")
POLICIES = {
    "claims (KEP-5681's example)": """
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
    "decided by what is known": """
        object.metadata.name.startsWith("x") && request.verb == "delete" && request.resource == "secrets" """,
}
SECONDS = 1.0


def request(number: int) -> dict[str, object]:
    """A request unlike the others."""
    groups = ["developers", f"team-{number % 7}", "system:authenticated"]
    user = {"username": "alice", "groups": groups, "uid": f"u{number}", "extra": {}}
    claims = number % 2 == 0
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
    """Runs a second, over all requests again and again."""
    for each in requests:
        run(each)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        for each in requests:
            run(each)
        count += len(requests)
    return count / (time.perf_counter() - start)


def main() -> None:
    """Print one line a policy."""
    requests = [request(number) for number in range(200)]
    print(f"Python {platform.python_version()}, {len(requests)} different requests, one thread")
    print(f"{'':<30}{'partial/s':>12}{'printed/s':>12}{'made ready/s':>14}")
    for name, source in POLICIES.items():
        tree = parse(source)
        ready = specialise(tree, UNKNOWN, boolean=True)
        one: Partial = ready(requests[1])

        def printed(known: dict[str, object], ready: Callable[..., Partial] = ready) -> str:
            return ready(known).text

        def cold(known: dict[str, object], source: str = source) -> Partial:
            return partial(parse(source), known, UNKNOWN, boolean=True)

        print(f"{name:<30}{rate(ready, requests):>12,.0f}{rate(printed, requests):>12,.0f}{rate(cold, requests):>14,.0f}")
        print(f"  for the second request: {one.text}")


if __name__ == "__main__":
    main()
