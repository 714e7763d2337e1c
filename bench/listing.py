"""`list` of a large cluster with policies of every shape: `python -m bench listing [NAMESPACES...]`.

Each namespace has 50 pods of 10 apps in 3 tiers and 3 NetworkPolicies of its own: who comes in by the labels of
namespaces and pods, who goes out, and exceptions by address. So groups are large, and no two namespaces are alike. The
command itself runs, from files to text, in a process of its own.
"""

from __future__ import annotations

import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMESPACES = (160, 2_000)
TIERS, ENVIRONMENTS, TEAMS = ("web", "api", "db"), ("prod", "dev", "test"), 20

# What is shown with a decimal.
UNITS = ("CPU s", "s", "MB")

Object = dict[str, Any]


def cluster(namespaces: int, seed: int = 0) -> Iterator[Object]:
    """The objects of a cluster with 50 pods and 3 policies a namespace."""
    chance = random.Random(seed)
    for number in range(namespaces):
        name, team = f"ns-{number:04}", f"team-{number % TEAMS}"
        labels = {"team": team, "env": ENVIRONMENTS[number % 3]}
        yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        for pod in range(50):
            app = pod // 5
            metadata = {
                "name": f"app-{app}-{chance.getrandbits(20):05x}{pod % 5}",
                "namespace": name,
                "labels": {"app": f"app-{app}", "tier": TIERS[app % 3]},
            }
            status = {"podIP": f"10.{number >> 8}.{number & 255}.{pod + 1}"}
            spec = {"containers": [{"name": "c", "image": "i", "ports": [{"name": "http", "containerPort": 8080}]}]}
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}
        for policy in _policies(chance, team):
            metadata = {"name": policy.pop("name"), "namespace": name}
            yield {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": policy}


def _policies(chance: random.Random, team: str) -> Iterator[Object]:
    tier, other = chance.sample(TIERS, 2)
    environments = chance.sample(ENVIRONMENTS, chance.randint(1, 2))
    yield {
        "name": "in",
        "podSelector": {"matchLabels": {"tier": tier}},
        "ingress": [
            {
                "from": [
                    {
                        "namespaceSelector": _expression("env", "In", *environments),
                        "podSelector": _expression("tier", chance.choice(("In", "NotIn")), other),
                    },
                    {"podSelector": {}},
                ],
                "ports": [{"port": chance.choice((80, 443, "http"))}],
            },
            {"from": [{"namespaceSelector": {"matchLabels": {"team": team}}}], "ports": [{"port": 9090}]},
        ],
    }
    teams = [f"team-{each}" for each in chance.sample(range(TEAMS), 3)]
    yield {
        "name": "out",
        "podSelector": {"matchLabels": {"tier": chance.choice(TIERS)}},
        "policyTypes": ["Egress"],
        "egress": [
            {"to": [{"namespaceSelector": _expression("team", chance.choice(("In", "NotIn")), *teams)}]},
            {"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}}], "ports": [{"port": 443}]},
        ],
    }
    apps = [f"app-{each}" for each in chance.sample(range(10), chance.randint(1, 3))]
    yield {
        "name": "guard",
        "podSelector": _expression("app", "In", f"app-{chance.randrange(10)}"),
        "ingress": [{"from": [{"namespaceSelector": {}, "podSelector": _expression("app", "NotIn", *apps)}]}],
    }


def _expression(key: str, operator: str, *values: str) -> Object:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def measure(namespaces: int, *options: str) -> dict[str, float]:
    """Seconds of CPU and megabytes of `tierwall list`, and the length of what it prints."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cluster.yaml")
        with path.open("w") as file:
            for value in cluster(namespaces):
                file.write(f"{json.dumps(value)}\n---\n")
        out = Path(folder, "out")
        with out.open("wb") as written:
            command = [sys.executable, "-m", "tierwall", "list", str(path), *options]
            started = time.perf_counter()
            process = subprocess.Popen(command, stdout=written, stderr=subprocess.DEVNULL)
            _, _, usage = os.wait4(process.pid, 0)
            elapsed = time.perf_counter() - started
        lines = out.read_text().splitlines()
    return {
        "pods": namespaces * 50,
        "policies": namespaces * 3,
        "CPU s": usage.ru_utime + usage.ru_stime,
        "s": elapsed,
        "peak MB": usage.ru_maxrss / 1024,
        "MB": sum(len(line) + 1 for line in lines) / 1e6,
        "lines": len(lines),
        "longest line": max(map(len, lines), default=0),
    }


def run(sizes: tuple[int, ...] = NAMESPACES) -> None:
    """Print a table, one line per size and form of output."""
    print(f"tierwall list, Python {platform.python_version()}, {platform.machine()}, load {os.getloadavg()[0]:.1f}")
    for number, namespaces in enumerate(sizes):
        for options in ((), ("-o", "json"), ("--focus", "ns-0005"), ("--to", "ns-0005/*"), ("--from", "ns-0005/*")):
            measured = measure(namespaces, *options)
            if number == 0 and not options:
                print(f"| options | {' | '.join(measured)} |\n|{'---|' * (len(measured) + 1)}")
            cells = (f"{value:,.1f}" if key in UNITS else f"{value:,.0f}" for key, value in measured.items())
            print(f"| `{' '.join(options)}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    run(tuple(map(int, sys.argv[1:])) or NAMESPACES)
