"""The network plane at scale: `python -m bench network [PODS...]`, or `python -m bench.network 10000`.

The shape is the one netpol-analyzer was measured on: 10 pods a namespace, 2 NetworkPolicies and 1
AdminNetworkPolicy a namespace, 1 BaselineAdminNetworkPolicy. Each namespace has policies of its own, so rows differ
from namespace to namespace. Each size runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import json
import platform
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

SIZES = (300, 1_000, 10_000, 100_000)
APPS = ("web", "api", "db", "cache", "worker")
TEAMS = 20

Object = dict[str, Any]


def cluster(pods: int, namespaces: int | None = None, seed: int = 0) -> Iterator[Object]:
    """The objects of a cluster: `pods` pods, 10 a namespace unless the number of namespaces is given."""
    spaces = namespaces or max(1, pods // 10)
    admin, core, networking = "policy.networking.k8s.io/v1alpha1", "v1", "networking.k8s.io/v1"
    for number in range(spaces):
        team = f"t{number % TEAMS}"
        labels = {"team": team, "env": ("prod", "dev")[number % 2]}
        yield {"apiVersion": core, "kind": "Namespace", "metadata": {"name": f"ns-{number}", "labels": labels}}
    for number in range(pods):
        app = APPS[number // spaces % len(APPS)]
        address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
        yield {
            "apiVersion": core,
            "kind": "Pod",
            "metadata": {"name": f"{app}-{number}", "namespace": f"ns-{number % spaces}", "labels": {"app": app}},
            "spec": {"containers": [{"name": "c", "image": "i", "ports": [{"name": "http", "containerPort": 8080}]}]},
            "status": {"podIP": address, "podIPs": [{"ip": address}]},
        }
    for number in range(spaces):
        team, neighbour = f"t{number % TEAMS}", f"ns-{(number + 1) % spaces}"
        yield {
            "apiVersion": networking,
            "kind": "NetworkPolicy",
            "metadata": {"name": "api", "namespace": f"ns-{number}"},
            "spec": {
                "podSelector": {"matchLabels": {"app": "api"}},
                "ingress": [
                    {"from": [{"podSelector": {"matchLabels": {"app": "web"}}}], "ports": [{"port": "http"}]},
                    {"from": [{"namespaceSelector": {"matchLabels": {"team": team}}}], "ports": [{"port": 9090}]},
                ],
            },
        }
        yield {
            "apiVersion": networking,
            "kind": "NetworkPolicy",
            "metadata": {"name": "db", "namespace": f"ns-{number}"},
            "spec": {
                "podSelector": {"matchLabels": {"app": "db"}},
                "policyTypes": ["Ingress", "Egress"],
                "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "api"}}}], "ports": [{"port": 5432}]}],
                "egress": [
                    {"to": [{"podSelector": {}}]},
                    {"ports": [{"protocol": "UDP", "port": 53}]},
                    {"to": [{"ipBlock": {"cidr": "203.0.113.0/24"}}], "ports": [{"port": 443}]},
                ],
            },
        }
        other_teams = {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": [team]}]}
        by_name = {"matchLabels": {"kubernetes.io/metadata.name": neighbour}}
        yield {
            "apiVersion": admin,
            "kind": "AdminNetworkPolicy",
            "metadata": {"name": f"guard-{number}"},
            "spec": {
                "priority": number % 1000,
                "subject": {"namespaces": {"matchLabels": {"kubernetes.io/metadata.name": f"ns-{number}"}}},
                "ingress": [
                    {"action": "Allow", "from": [{"namespaces": by_name}], "ports": [{"portNumber": {"port": 443}}]},
                    {"action": "Deny", "from": [{"namespaces": other_teams}]},
                ],
                "egress": [
                    {"action": "Deny", "to": [{"networks": ["198.51.100.0/24"]}]},
                    {"action": "Pass", "to": [{"namespaces": {"matchLabels": {"team": team}}}]},
                ],
            },
        }
    yield {
        "apiVersion": admin,
        "kind": "BaselineAdminNetworkPolicy",
        "metadata": {"name": "default"},
        "spec": {
            "subject": {"namespaces": {}},
            "ingress": [
                {
                    "action": "Deny",
                    "from": [{"namespaces": {"matchLabels": {"env": "dev"}}}],
                    "ports": [{"portRange": {"start": 1, "end": 1023}}],
                }
            ],
        },
    }


def measure(pods: int, namespaces: int | None = None) -> dict[str, Any]:
    """Seconds of CPU for one size in this process, from plain objects on."""
    from tierwall.network.decide import decide
    from tierwall.network.model.model import NetworkModel
    from tierwall.network.question import NetworkQuestion
    from tierwall.network.reach.classes import EndpointClasses
    from tierwall.network.reach.listing import connection_entries
    from tierwall.network.reach.matrix import reach_matrix
    from tierwall.render import connections
    from tierwall.render.formats import View
    from tierwall.resources.load import load_objects
    from tierwall.resources.snapshot import Snapshot
    from tierwall.world import World

    objects = list(cluster(pods, namespaces))
    snapshot = Snapshot.of(load_objects(objects))
    times = {"pods": float(pods), "policies": float(sum(value["kind"].endswith("Policy") for value in objects))}
    del objects
    start = time.process_time()
    model = NetworkModel(snapshot)
    times["model s"] = time.process_time() - start
    start = time.process_time()
    classes = EndpointClasses(model)
    times["classes"] = float(len(classes.all))
    matrix = reach_matrix(classes)
    times["groups"] = float(len(matrix.groups))
    times["matrix s"] = time.process_time() - start
    start = time.process_time()
    written = sum(len(line) + 1 for line in connections.text(connection_entries(matrix), View()))
    times["text s"] = time.process_time() - start
    times["text MB"] = written / 1e6
    chance = random.Random(0)
    questions = [
        (chance.choice(model.pods), chance.choice(model.pods), "TCP", chance.choice((80, 443, 5432, 8080, 9090)))
        for _ in range(20_000)
    ]
    for _ in range(2):  # the second round has every pod's policies looked up
        start = time.process_time()
        for question in questions:
            decide(model, *question)
        times["decisions/s"] = len(questions) / (time.process_time() - start)
    world = World(snapshot)
    asked = [NetworkQuestion(source=str(source), to=str(to), port=port) for source, to, _, port in questions]
    for _ in range(2):
        start = time.process_time()
        for each in asked:
            world.ask(each)
        times["answers/s"] = len(asked) / (time.process_time() - start)
    times["peak MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return times


COLUMNS = (
    "pods",
    "policies",
    "classes",
    "groups",
    "model s",
    "matrix s",
    "text s",
    "text MB",
    "decisions/s",
    "answers/s",
    "peak MB",
)


def run(sizes: tuple[int, ...] = SIZES) -> None:
    """Print two tables, one line per size."""
    print(
        f"network plane, Python {platform.python_version()}, {platform.machine()}; seconds of CPU, one process per size"
    )
    _table([(str(pods),) for pods in sizes])
    print("\n50 namespaces with ever more pods (a fixed number of label sets)")
    _table([(str(pods), "50") for pods in (1_000, 10_000, 100_000)])


def _table(runs: list[tuple[str, ...]]) -> None:
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for arguments in runs:
        command = [sys.executable, "-m", "bench.network", *arguments]
        times = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        cells = (f"{times[key]:,.2f}" if " s" in key or key == "text MB" else f"{times[key]:,.0f}" for key in COLUMNS)
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    print(json.dumps(measure(*map(int, sys.argv[1:]))))
