"""The facts of a cluster, read in the simplest way: endpoints, label selectors and CIDRs, for the reference models."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Any

Object = dict[str, Any]


class Cluster:
    """The objects of a cluster, by kind."""

    def __init__(self, objects: Iterable[Object]) -> None:
        self.of: dict[str, list[Object]] = {}
        for resource in objects:
            self.of.setdefault(resource["kind"], []).append(resource)

    def kind(self, *kinds: str) -> list[Object]:
        return [resource for kind in kinds for resource in self.of.get(kind, ())]

    def namespace_labels(self, name: str) -> dict[str, str]:
        namespaces = [namespace for namespace in self.kind("Namespace") if namespace["metadata"]["name"] == name]
        labels = namespaces[0]["metadata"].get("labels", {}) if namespaces else {}
        return {**labels, "kubernetes.io/metadata.name": name}

    def endpoint(self, question: Any) -> Object:
        """Return an endpoint as plain facts: always its addresses, and labels only if it is under policy."""
        if isinstance(question, str):
            namespace, name = question.split("/")
            pod = next(
                pod
                for pod in self.kind("Pod")
                if (pod["metadata"]["namespace"], pod["metadata"]["name"]) == (namespace, name)
            )
            ports = [port for container in pod["spec"]["containers"] for port in container.get("ports", ())]
            return {
                "id": question,
                "pod": not pod["spec"].get("hostNetwork", False),
                "namespace": namespace,
                "labels": pod["metadata"].get("labels", {}),
                "namespaceLabels": self.namespace_labels(namespace),
                "addresses": [address["ip"] for address in pod.get("status", {}).get("podIPs", ())],
                "ports": ports,
                "ended": pod.get("status", {}).get("phase") in ("Succeeded", "Failed"),
            }
        if "ip" in question:
            return {"id": question["ip"], "pod": False, "addresses": [question["ip"]], "ports": []}
        node = next(node for node in self.kind("Node") if node["metadata"]["name"] == question["node"])
        return {"id": question["node"], "pod": False, "addresses": node_addresses(node), "ports": []}


def matches(selector: Object, labels: dict[str, str]) -> bool:
    match_labels = [
        {"key": key, "operator": "In", "values": [value]} for key, value in selector.get("matchLabels", {}).items()
    ]
    requirements = match_labels + selector.get("matchExpressions", [])
    return all(holds(requirement, labels) for requirement in requirements)


def holds(requirement: Object, labels: dict[str, str]) -> bool:
    key, operator, values = requirement["key"], requirement["operator"], requirement.get("values", [])
    if operator == "Exists":
        return key in labels
    if operator == "DoesNotExist":
        return key not in labels
    if operator == "In":
        return key in labels and labels[key] in values
    return key not in labels or labels[key] not in values


def in_cidr(address: str, cidr: str) -> bool:
    parsed, network = ipaddress.ip_address(address), ipaddress.ip_network(cidr, strict=False)
    return parsed.version == network.version and parsed in network


def node_addresses(node: Object) -> list[str]:
    addresses = node.get("status", {}).get("addresses", ())
    return [address["address"] for address in addresses if address["type"] in ("InternalIP", "ExternalIP")]
