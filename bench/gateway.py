"""All effective settings of 1,000 routes under 2,000 policies: `python -m bench gateway`.

Each route has a rule to a Service and one to an AgentgatewayBackend; policies are spread over Gateways, listeners,
routes, rules and backends. Every place that a request can reach is asked, in both profiles.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from random import Random
from typing import Any

from tierwall.analyze.checks import check
from tierwall.attach.target import GATEWAY_POLICIES, attachments
from tierwall.gateway.decide import merger
from tierwall.gateway.model.places import reachable_places
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

ROUTES, POLICIES, GATEWAYS = 1000, 2000, 10
_API = "gateway.networking.k8s.io"


def objects() -> list[dict[str, Any]]:
    """The cluster."""
    rng = Random(7)
    out: list[dict[str, Any]] = []
    for number in range(GATEWAYS):
        listeners = [{"name": f"l{port}", "port": port, "protocol": "HTTP"} for port in (80, 8080)]
        spec: dict[str, Any] = {"gatewayClassName": "c", "listeners": listeners}
        out.append(_object(f"{_API}/v1", "Gateway", f"gw{number}", spec))
    for number in range(ROUTES):
        rules = [
            {"name": "web", "backendRefs": [{"name": f"s{number}", "port": 80}]},
            {
                "name": "llm",
                "backendRefs": [
                    {"group": "agentgateway.dev", "kind": "AgentgatewayBackend", "name": f"b{number % 100}"}
                ],
            },
        ]
        parent = {"name": f"gw{number % GATEWAYS}"}
        out.append(_object(f"{_API}/v1", "HTTPRoute", f"r{number}", {"parentRefs": [parent], "rules": rules}))
        out.append(_object("v1", "Service", f"s{number}", {"ports": [{"port": 80}]}))
    for number in range(100):
        inline = {"tcp": {"connectTimeout": "1s"}}
        spec = {"ai": {"provider": {"openai": {}}}, "policies": inline}
        out.append(_object("agentgateway.dev/v1alpha1", "AgentgatewayBackend", f"b{number}", spec))
    return out + [_policy(rng, number) for number in range(POLICIES)]


def _object(api: str, kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": "shop"}, "spec": spec}


def _policy(rng: Random, number: int) -> dict[str, Any]:
    kind, group, name, section = rng.choice(
        (
            ("Gateway", _API, f"gw{rng.randrange(GATEWAYS)}", ""),
            ("Gateway", _API, f"gw{rng.randrange(GATEWAYS)}", "l80"),
            ("HTTPRoute", _API, f"r{rng.randrange(ROUTES)}", ""),
            ("HTTPRoute", _API, f"r{rng.randrange(ROUTES)}", "web"),
            ("Service", "", f"s{rng.randrange(ROUTES)}", "80"),
            ("AgentgatewayBackend", "agentgateway.dev", f"b{rng.randrange(100)}", ""),
        )
    )
    target = {"group": group, "kind": kind, "name": name} | ({"sectionName": section} if section else {})
    spec: dict[str, Any] = {"targetRefs": [target]}
    if kind in ("Gateway", "HTTPRoute"):
        rule = {"policy": {"matchExpressions": [f"request.path.startsWith('/{number % 9}')"]}}
        limits = {"local": [{"requests": number % 50 + 1, "unit": "Seconds"}]}
        late = {"policy": {"response": {"body": "'late'"}}}
        early = {"condition": "request.path == '/x'", "policy": {"request": {"body": "'x'"}}}
        fields = {
            "timeouts": {"request": f"{number % 9 + 1}s"},
            "authorization": rule,
            "rateLimit": limits,
            "retry": {"attempts": 2},
            "transformation": {"conditional": [early, late]},
        }
        spec["traffic"] = dict(rng.sample(sorted(fields.items()), 3))
    if kind != "HTTPRoute":
        spec["backend"] = {"tls": {"sni": f"s{number % 5}"}, "http": {"requestTimeout": f"{number % 9 + 1}s"}}
    day = f"2024-01-{number % 28 + 1:02}T00:00:00Z"
    made = _object("agentgateway.dev/v1alpha1", "AgentgatewayPolicy", f"p{number}", spec)
    made["metadata"]["creationTimestamp"] = day
    return made


def _timed(word: str, run: Callable[[], object]) -> object:
    start = time.perf_counter()
    times = run()
    print(f"{word:<58}{time.perf_counter() - start:>8.2f} s")
    return times


def main() -> None:
    """Print one line per step."""
    snapshot = Snapshot.of(load_objects(objects()))
    print(f"Python {platform.python_version()}, {ROUTES:,} routes, {POLICIES:,} policies, one process")
    _timed("admission and index of all policies", lambda: attachments(snapshot, GATEWAY_POLICIES, admitted=True))
    places = list(reachable_places(snapshot))
    for profile in ("docs", "agentgateway"):
        merging = merger(snapshot, profile, "PostRouting")

        def run(merging: Any = merging) -> int:
            return sum(len([merged.setting for merged in merging.merge_at(asked).values()]) for asked in places)

        fields = _timed(f"effective settings at {len(places):,} places, profile {profile}", run)
        print(f"  {fields:,} settings")
    findings = _timed("every check, from nothing", lambda: len(list(check(Snapshot.of(load_objects(objects()))))))
    print(f"  {findings:,} findings")


if __name__ == "__main__":
    main()
