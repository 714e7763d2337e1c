"""The facts of a cluster, read the plainest way: ends, label selectors, CIDRs. Models of planes build on them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Any

Object = dict[str, Any]


class Cluster:
    """The objects, by kind."""

    def __init__(self, objects: Iterable[Object]) -> None:
        self.of: dict[str, list[Object]] = {}
        for one in objects:
            self.of.setdefault(one["kind"], []).append(one)

    def kind(self, *kinds: str) -> list[Object]:
        return [one for kind in kinds for one in self.of.get(kind, ())]

    def namespace_labels(self, name: str) -> dict[str, str]:
        found = [one for one in self.kind("Namespace") if one["metadata"]["name"] == name]
        labels = found[0]["metadata"].get("labels", {}) if found else {}
        return {**labels, "kubernetes.io/metadata.name": name}

    def end(self, question: Any) -> Object:
        """An end as plain facts: labels only where it is under policy, addresses always."""
        if isinstance(question, str):
            namespace, name = question.split("/")
            pod = next(
                one
                for one in self.kind("Pod")
                if (one["metadata"]["namespace"], one["metadata"]["name"]) == (namespace, name)
            )
            ports = [port for container in pod["spec"]["containers"] for port in container.get("ports", ())]
            return {
                "id": question,
                "pod": not pod["spec"].get("hostNetwork", False),
                "namespace": namespace,
                "labels": pod["metadata"].get("labels", {}),
                "namespaceLabels": self.namespace_labels(namespace),
                "addresses": [one["ip"] for one in pod.get("status", {}).get("podIPs", ())],
                "ports": ports,
            }
        if "ip" in question:
            return {"id": question["ip"], "pod": False, "addresses": [question["ip"]], "ports": []}
        node = next(one for one in self.kind("Node") if one["metadata"]["name"] == question["node"])
        return {"id": question["node"], "pod": False, "addresses": node_addresses(node), "ports": []}


def matches(selector: Object, labels: dict[str, str]) -> bool:
    wanted = [
        {"key": key, "operator": "In", "values": [value]} for key, value in selector.get("matchLabels", {}).items()
    ]
    return all(holds(one, labels) for one in wanted + selector.get("matchExpressions", []))


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
    one, network = ipaddress.ip_address(address), ipaddress.ip_network(cidr, strict=False)
    return one.version == network.version and one in network


def node_addresses(node: Object) -> list[str]:
    found = node.get("status", {}).get("addresses", ())
    return [one["address"] for one in found if one["type"] in ("InternalIP", "ExternalIP")]
