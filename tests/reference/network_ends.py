"""Questions about workloads, Services and the outside, in the simplest way: every pair of endpoints, one by one."""

from __future__ import annotations

import ipaddress
from typing import Any

from tests.reference.cluster import Cluster, Object, node_addresses
from tests.reference.network import decide


def decide_ends(cluster: Cluster, source: Any, to: Any, protocol: str, port: int) -> Object:
    """Return the verdict of the whole question, and the decision of every pair of endpoints."""
    pairs = [
        (here, there, at, decide(cluster, here, there, protocol, at))
        for here, _ in members(cluster, source, protocol, port)
        for there, at in members(cluster, to, protocol, port)
    ]
    # A pod's connection with itself counts only if there is no other.
    others = [pair for pair in pairs if pair[0] != pair[1]] or pairs
    verdicts = {decision["verdict"] for *_, decision in others}
    return {"verdict": verdicts.pop() if len(verdicts) == 1 else "Conditional", "pairs": others}


def members(cluster: Cluster, end: Any, protocol: str, port: int) -> list[tuple[Any, int]]:
    """Return the endpoints that an end stands for, each with the port that is asked about."""
    if end == "outside":
        return [({"ip": address}, port) for address in outside(cluster)]
    if isinstance(end, dict) or end.count("/") == 1:
        return [(end, port)]
    kind, namespace, name = end.split("/")
    running = [pod for pod in cluster.kind("Pod") if pod["metadata"]["namespace"] == namespace and not ended(pod)]
    if kind == "Deployment":
        return [(key(pod), port) for pod in running if owned(pod, name)]
    service = next(
        service
        for service in cluster.kind("Service")
        if (service["metadata"]["namespace"], service["metadata"]["name"]) == (namespace, name)
    )
    selector = service["spec"]["selector"].items()
    selected = [pod for pod in running if selector <= pod["metadata"]["labels"].items()]
    if service["spec"].get("clusterIP") == "None":
        return [(key(pod), port) for pod in selected]
    ports = [entry for entry in service["spec"]["ports"] if entry["port"] == port and entry["protocol"] == protocol]
    return [(key(pod), number) for entry in ports[:1] for pod in selected for number in target(entry, pod)]


def target(entry: Object, pod: Object) -> list[int]:
    wanted = entry.get("targetPort", entry["port"])
    if isinstance(wanted, int):
        return [wanted]
    return sorted(
        {
            port["containerPort"]
            for container in pod["spec"]["containers"]
            for port in container["ports"]
            if (port["name"], port.get("protocol", "TCP")) == (wanted, entry["protocol"])
        }
    )


def outside(cluster: Cluster) -> list[str]:
    """Return the first and last address of every block, and those beside them, that no pod and no node has."""
    taken = {ip["ip"] for pod in cluster.kind("Pod") if not ended(pod) for ip in pod["status"].get("podIPs", ())}
    taken |= {address for node in cluster.kind("Node") for address in node_addresses(node)}
    borders = {ipaddress.ip_address("0.0.0.0"), ipaddress.ip_address("::")}
    for cidr in cidrs([*cluster.of.values()]):
        network = ipaddress.ip_network(cidr, strict=False)
        for address, beside in ((network[0], -1), (network[-1], 1)):
            borders.add(address)
            if 0 <= int(address) + beside < 2**address.max_prefixlen:
                borders.add(address + beside)
    return sorted(str(address) for address in borders if str(address) not in taken)


def cidrs(value: Any) -> set[str]:
    """Return every text inside a value that is written as a block of addresses."""
    if isinstance(value, str):
        return {value} if "/" in value and value[-1].isdigit() and value[0] in "0123456789:f" else set()
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return set().union(*map(cidrs, parts))


def ended(pod: Object) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def owned(pod: Object, name: str) -> bool:
    return any(owner["name"] == name for owner in pod["metadata"].get("ownerReferences", ()))


def key(pod: Object) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
