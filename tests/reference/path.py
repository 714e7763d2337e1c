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
    namespace, name = question["gateway"].split("/")
    gateway = next(each for each in cluster.kind("Gateway") if key(each) == question["gateway"])
    pods = [
        pod
        for pod in cluster.kind("Pod")
        if pod["metadata"]["namespace"] == namespace and pod["metadata"]["labels"].get(LABEL) == name and not ended(pod)
    ]
    source = next(pod for pod in cluster.kind("Pod") if key(pod) == question["from"])
    account = f"{source['metadata']['namespace']}/{source['spec'].get('serviceAccountName', 'default')}"
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
