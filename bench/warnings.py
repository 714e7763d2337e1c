"""Warnings at `kubectl apply` in a cluster of 10,000 pods and 3,000 policies: `python -m bench warnings`.

CPU time from a review that was decoded to the warnings, in the index that a controller keeps. The user may read
everything, so everything is named. Shapes: policies spread over 1,000 namespaces, one namespace that has all policies
and pods, and the random clusters of `bench.varied`, where hardly two policies are alike.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from bench.gateway import objects as gateway_objects
from bench.network import cluster
from bench.tool import objects as tool_objects
from bench.varied import SHAPES, VariedCluster
from tierwall.resources.load import load_objects
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.authorizer.bridge import AdmissionRequest, GroupVersionResource, UserInfo
from tierwall.serve.controller.state import ControllerState
from tierwall.serve.controller.warning_index import WarningIndex
from tierwall.serve.controller.warnings import SEARCH_S

PODS, ROUNDS = 10_000, 11
# Random changes in each random cluster, how many clusters there are of a shape, and how long a change may take.
CHANGES, SEEDS, LIMIT_S = 60, 2, 0.2
Object = dict[str, Any]
GROUPS = (("policy.networking.k8s.io", "AdminNetworkPolicy"), ("networking.k8s.io", "NetworkPolicy"))
EVERYBODY: Object = {"namespaces": {}}


def network_policy(name: str, namespace: str, port: int, **selector: str) -> Object:
    """A NetworkPolicy that lets one app of the same namespace in."""
    ingress = [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}], "ports": [{"port": port}]}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"podSelector": {"matchLabels": selector}, "policyTypes": ["Ingress"], "ingress": ingress},
    }


def admin_policy(name: str, priority: int, subject: Object, port: int, action: str = "Deny") -> Object:
    """An AdminNetworkPolicy about one port."""
    ports = [{"portNumber": {"protocol": "TCP", "port": port}}]
    rule = {"name": "r", "action": action, "from": [EVERYBODY], "ports": ports}
    return {
        "apiVersion": "policy.networking.k8s.io/v1alpha1",
        "kind": "AdminNetworkPolicy",
        "metadata": {"name": name},
        "spec": {"priority": priority, "subject": subject, "ingress": [rule]},
    }


def spread() -> Iterator[Object]:
    """1,000 namespaces with two NetworkPolicies and an AdminNetworkPolicy each."""
    yield from cluster(PODS)


def crowded() -> Iterator[Object]:
    """All pods and policies in one namespace."""
    yield from (value for value in cluster(PODS, 1) if "Policy" not in value["kind"])
    for number in range(2000):
        yield network_policy(f"p{number}", "ns-0", 1000 + number, app=("web", "api", "db", "cache")[number % 4])
    for number in range(1000):
        yield admin_policy(f"a{number}", number, EVERYBODY, 1000 + number)


def request(value: Object, old: Object | None = None) -> AdmissionRequest:
    """The review of a change."""
    metadata = value["metadata"]
    return AdmissionRequest(
        uid="u",
        operation="UPDATE" if old else "CREATE",
        resource=GroupVersionResource(),
        user_info=UserInfo("admin", groups=["system:masters"]),
        name=metadata["name"],
        namespace=metadata.get("namespace", ""),
        object=value,
        old_object=old,
    )


def measure(words: str, index: WarningIndex, change: Callable[[int], AdmissionRequest]) -> None:
    """Print the median and the maximum of some changes."""
    took: list[float] = []
    for number in range(ROUNDS):
        asked = change(number)
        begun = time.thread_time()
        result = index.judge(asked, SEARCH_S)
        took.append(time.thread_time() - begun)
    shown = f"{statistics.median(took) * 1e3:.0f} ms, at most {max(took) * 1e3:.0f}"
    print(f"  {words}: {shown} ({len(result.warnings)} warnings)", flush=True)


def read(words: str, objects: Iterator[Object]) -> tuple[WarningIndex, Snapshot]:
    """Make the index of a cluster, and measure it."""
    snapshot = Snapshot.of(load_objects(list(objects)))
    index = WarningIndex()
    begun = time.thread_time()
    index.update(ControllerState(snapshot, snapshot, 1))
    first = time.thread_time() - begun
    pod = next(iter(snapshot.of_kind("", "Pod")), None) or next(iter(snapshot))
    moved = Resource(pod.group, pod.version, pod.kind, pod.namespace, pod.name, {**pod.value}, is_live=True)
    after = snapshot.with_changes(put=[moved])
    begun = time.thread_time()
    index.update(ControllerState(after, after, 2))
    again = time.thread_time() - begun
    # As the controller does: the collector need not look at what is kept.
    gc.collect()
    gc.freeze()
    print(f"{words}, {len(snapshot):,} objects: index {first * 1e3:.0f} ms, one changed object {again * 1e3:.1f} ms")
    return index, after


def value_of(resource: Resource) -> Object:
    """The object as a review has it."""
    return {**resource.value, "apiVersion": resource.api_version, "kind": resource.kind}


def network() -> None:
    """Changes of network policies."""
    index, snapshot = read("spread", spread())
    measure("new NetworkPolicy", index, lambda number: request(network_policy("new", f"ns-{number}", 8080, app="api")))
    known = list(snapshot.of_kind("networking.k8s.io", "NetworkPolicy"))

    def changed(number: int) -> AdmissionRequest:
        old = value_of(known[number])
        return request({**old, "spec": {**old["spec"], "ingress": [{}]}}, old)

    measure("NetworkPolicy that opens everything", index, changed)
    team = {"namespaces": {"matchLabels": {"team": "t1"}}}
    measure("admin policy for 50 namespaces", index, lambda number: request(admin_policy("new", 99, team, 8080)))
    measure("admin policy for everything", index, lambda number: request(admin_policy("new", 3, EVERYBODY, 8080)))
    deny = {"name": "all", "action": "Deny", "from": [EVERYBODY]}
    everything = admin_policy("new", 0, EVERYBODY, 1)
    everything["spec"] |= {"ingress": [deny], "egress": [{"name": "all", "action": "Deny", "to": [EVERYBODY]}]}
    measure("admin policy that denies everything", index, lambda number: request(everything))
    narrow = admin_policy("new", 0, EVERYBODY, 1)
    narrow["spec"]["ingress"][0]["ports"] = [{"portNumber": {"protocol": "TCP", "port": 1000 + n}} for n in range(100)]
    narrow["spec"]["ingress"] = [{**narrow["spec"]["ingress"][0], "name": f"r{n}"} for n in range(100)]
    measure("admin policy of 100 rules with 100 ports", index, lambda number: request(narrow))

    index, snapshot = read("crowded", crowded())
    measure("new NetworkPolicy", index, lambda number: request(network_policy("new", "ns-0", 1000 + number, app="web")))
    measure("admin policy for everything", index, lambda number: request(admin_policy("new", 3, EVERYBODY, 8080)))
    measure("admin policy that denies everything", index, lambda number: request(everything))


def attached() -> None:
    """Changes of gateway and tool policies."""
    index, snapshot = read("settings", iter(gateway_objects()))
    known = list(snapshot.of_kind("agentgateway.dev", "AgentgatewayPolicy"))
    for kind in ("HTTPRoute", "AgentgatewayBackend", "Gateway"):
        there = [policy for policy in known if policy.spec["targetRefs"][0]["kind"] == kind]
        measure(f"AgentgatewayPolicy on a {kind}", index, partial(renamed, there))
    index, snapshot = read("tools", (value for part in (tool_objects(), routes()) for value in part))
    known = list(snapshot.of_kind("agentic.networking.x-k8s.io", "XAccessPolicy"))
    for kind in ("XBackend", "Gateway"):
        there = [policy for policy in known if policy.spec["targetRefs"][0]["kind"] == kind]
        measure(f"XAccessPolicy on a {kind}", index, partial(renamed, there))


def varied() -> None:
    """Random changes of network policies in random clusters."""
    every: list[float] = []
    for words, shape in SHAPES.items():
        for seed in range(SEEDS):
            drawn = VariedCluster(shape, PODS, seed)
            index, snapshot = read(f"{words}, seed {seed}", drawn.objects())
            known = {group[1]: list(map(value_of, snapshot.of_kind(*group))) for group in GROUPS}
            took: list[float] = []
            ended = 0
            for _ in range(CHANGES):
                asked = request(*drawn.change(known))
                begun = time.thread_time()
                result = index.judge(asked, SEARCH_S)
                took.append(time.thread_time() - begun)
                ended += any(warning.startswith("TW215") for warning in result.warnings)
            every += took
            shown = f"median {statistics.median(took) * 1e3:.0f} ms, at most {max(took) * 1e3:.0f}"
            print(f"  {CHANGES} changes: {shown}; {ended} said that not everything was compared", flush=True)
            # The next cluster has nothing to do with this one.
            gc.unfreeze()
    median, longest = statistics.median(every) * 1e3, max(every) * 1e3
    late = sum(seconds > LIMIT_S for seconds in every)
    print(f"{len(every):,} changes: median {median:.0f} ms, at most {longest:.0f}; {late} over {LIMIT_S} s")


def renamed(policies: list[Resource], number: int) -> AdmissionRequest:
    """A new policy like one that exists."""
    value = value_of(policies[number % len(policies)])
    return request({**value, "metadata": {**value["metadata"], "name": "new"}})


def routes() -> Iterator[Object]:
    """A route from the Gateway of `bench.tool` to each of its backends."""
    for value in tool_objects():
        if value["kind"] == "XBackend":
            ref = {"group": "agentic.networking.x-k8s.io", "kind": "XBackend", "name": value["metadata"]["name"]}
            spec = {"parentRefs": [{"name": "gw"}], "rules": [{"backendRefs": [ref]}]}
            metadata = {**value["metadata"], "name": f"r-{value['metadata']['name']}"}
            yield {
                "apiVersion": "gateway.networking.k8s.io/v1",
                "kind": "HTTPRoute",
                "metadata": metadata,
                "spec": spec,
            }


def run() -> None:
    """Measure and print."""
    print(f"warnings at apply, {ROUNDS} changes each, CPU time: medians; load average {os.getloadavg()[0]:.1f}")
    network()
    varied()
    attached()


if __name__ == "__main__":
    run()
