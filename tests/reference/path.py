"""A path through the planes as docs/path.md describes it: three hops, each decided by the reference of its plane."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.reference import network, tool
from tests.reference.cluster import Cluster, Object
from tests.reference.network_ends import ended, key, members, target

LABEL = "gateway.networking.k8s.io/gateway-name"


def walk(objects: list[Object], question: Object) -> Object:
    """Return the verdict of the path and of each hop."""
    cluster = Cluster(objects)
    gateway = next(each for each in cluster.kind("Gateway") if key(each) == question["gateway"])
    pods = serving(cluster, gateway)
    source = next(pod for pod in cluster.kind("Pod") if key(pod) == question["from"])
    account = account_of(source)
    call = {name: value for name, value in question.items() if name != "from"}
    call |= {"caller": {"serviceAccount": account}, "method": question.get("method", "tools/call")}
    (listener,) = gateway["spec"]["listeners"]
    hops = [
        connection(
            cluster, [question["from"]], [(key(pod), port) for pod in pods for port in ports(cluster, pod, listener)]
        ),
        tool.decide([each for each in objects if "namespace" in each["metadata"]], call)["verdict"],
        connection(cluster, map(key, pods), backend(cluster, question["backend"])),
    ]
    stops = [verdict for verdict in hops if verdict not in ("Allow", "NotApplicable")]
    return {"verdict": stops[0] if stops else "Allow", "hops": hops}


def connection(cluster: Cluster, sources: Iterable[Any], to: list[tuple[Any, int]]) -> str:
    """Return the verdict of all connections; NotApplicable without any, Conditional if they are not alike."""
    pairs = [(here, there, port) for here in sources for there, port in to]
    # A pod's connection with itself counts only if there is no other.
    others = [pair for pair in pairs if pair[0] != pair[1]] or pairs
    verdicts = {network.decide(cluster, here, there, "TCP", port)["verdict"] for here, there, port in others}
    if not verdicts:
        return "NotApplicable"
    return verdicts.pop() if len(verdicts) == 1 else "Conditional"


def ports(cluster: Cluster, pod: Object, listener: Object) -> list[int]:
    """Return the ports of a pod to which Services with the port of the listener lead; without any, that port."""
    led = {
        number
        for service in cluster.kind("Service")
        if service["metadata"]["namespace"] == pod["metadata"]["namespace"]
        if service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
        if service["spec"].get("clusterIP") != "None"
        for entry in [each for each in service["spec"]["ports"] if leads(each, listener)][:1]
        for number in target(entry, pod)
    }
    return sorted(led) or [listener["port"]]


def leads(entry: Object, listener: Object) -> bool:
    return bool(entry["port"] == listener["port"] and entry["protocol"] == "TCP")


def backend(cluster: Cluster, name: str) -> list[tuple[Any, int]]:
    """Return the ends behind an XBackend: pods of its Service, or all addresses outside."""
    value = next(each for each in cluster.kind("XBackend") if key(each) == name)
    mcp, namespace = value["spec"]["mcp"], value["metadata"]["namespace"]
    if "hostname" in mcp:
        return members(cluster, "outside", "TCP", mcp["port"])
    service = f"{namespace}/{mcp['serviceName']}"
    if not any(key(each) == service for each in cluster.kind("Service")):
        return []
    return members(cluster, f"Service/{service}", "TCP", mcp["port"])


def around(objects: list[Object]) -> set[tuple[str, tuple[str, ...]]]:
    """Return the guarded backends that others than the Gateway's pods reach, with those that rules let in."""
    cluster = Cluster(objects)
    (gateway,), (tools,) = cluster.kind("Gateway"), cluster.kind("XBackend")
    if not cluster.kind("XAccessPolicy"):
        return set()
    to = [] if "hostname" in tools["spec"]["mcp"] else backend(cluster, key(tools))
    proxies = {key(pod) for pod in serving(cluster, gateway)}
    behind = {there for there, _ in to}
    others = [
        pod
        for pod in cluster.kind("Pod")
        if not ended(pod) and not pod["spec"].get("hostNetwork") and key(pod) not in proxies | behind
    ]
    decisions = [(pod, network.decide(cluster, key(pod), there, "TCP", port)) for pod in others for there, port in to]
    allowed = [(pod, decision) for pod, decision in decisions if decision["verdict"] == "Allow"]
    owners = {owner(pod) for pod, _ in allowed}
    # A single owner may be the Gateway itself, if its pods are not known.
    if not owners or (not proxies and len(owners) == 1):
        return set()
    # If a port is not closed to somebody, who gets in now says nothing about who will.
    is_open = any("Default" in decision["ingress"][1] for _, decision in allowed)
    return {(f"XBackend/{key(tools)}", () if is_open else tuple(sorted(owners)))}


def stopped(objects: list[Object]) -> set[tuple[str, str]]:
    """Return the policies with the callers, and the backends with the Gateway, whose calls no connection carries."""
    cluster = Cluster(objects)
    (gateway,), (tools,) = cluster.kind("Gateway"), cluster.kind("XBackend")
    (listener,) = gateway["spec"]["listeners"]
    proxies = serving(cluster, gateway)
    listening = [(key(pod), port) for pod in proxies for port in ports(cluster, pod, listener)]
    placed = [each for each in objects if "namespace" in each["metadata"]]
    policies = sorted(cluster.kind("XAccessPolicy"), key=lambda policy: str(policy["metadata"]["name"]))
    accounts: dict[str, list[str]] = {}
    for policy in policies:
        source = policy["spec"]["rules"][0]["source"]["serviceAccount"]
        accounts.setdefault(f"{source['namespace']}/{source['name']}", []).append(policy["metadata"]["name"])
    call = {"gateway": key(gateway), "backend": key(tools), "method": "tools/call", "tool": "add"}
    granted = [
        account
        for account in accounts
        if tool.decide(placed, {**call, "caller": {"serviceAccount": account}})["verdict"] == "Allow"
    ]
    calls: set[tuple[str, str]] = set()
    for account in granted:
        pods = [key(pod) for pod in cluster.kind("Pod") if not ended(pod) and account_of(pod) == account]
        if denied(cluster, pods, listening):
            first = f"XAccessPolicy/{tools['metadata']['namespace']}/{min(accounts[account])}"
            calls.add((first, f"ServiceAccount/{account}"))
    to = [] if "hostname" in tools["spec"]["mcp"] else backend(cluster, key(tools))
    if (granted or not policies) and denied(cluster, map(key, proxies), to):
        calls.add((f"XBackend/{key(tools)}", f"Gateway/{key(gateway)}"))
    return calls


def denied(cluster: Cluster, sources: Iterable[str], to: list[tuple[Any, int]]) -> bool:
    """Whether there are connections, and all of them are denied."""
    ends = {there for there, _ in to}  # a pod needs no connection to itself
    pairs = [(here, there, port) for here in sources if here not in ends for there, port in to]
    verdicts = {network.decide(cluster, here, there, "TCP", port)["verdict"] for here, there, port in pairs}
    return verdicts == {"Deny"}


def serving(cluster: Cluster, gateway: Object) -> list[Object]:
    """Return the pods of a Gateway."""
    name, namespace = gateway["metadata"]["name"], gateway["metadata"]["namespace"]
    labelled = [pod for pod in cluster.kind("Pod") if pod["metadata"]["labels"].get(LABEL) == name]
    return [pod for pod in labelled if pod["metadata"]["namespace"] == namespace and not ended(pod)]


def account_of(pod: Object) -> str:
    return f"{pod['metadata']['namespace']}/{pod['spec'].get('serviceAccountName', 'default')}"


def owner(pod: Object) -> str:
    owned = pod["metadata"].get("ownerReferences")
    return f"Deployment/{pod['metadata']['namespace']}/{owned[0]['name']}" if owned else f"Pod/{key(pod)}"
