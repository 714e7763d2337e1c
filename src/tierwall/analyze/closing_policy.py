"""Writes a NetworkPolicy that lets only the pods of Gateways in, as one line of YAML that can be pasted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tierwall.network.model.endpoints import NAMESPACE_NAME
from tierwall.network.model.ways import GATEWAY_LABEL
from tierwall.resources.resource import Resource
from tierwall.values.pattern import pattern

_PLAIN = pattern(r"[A-Za-z][A-Za-z0-9./_-]*")
# Words that YAML does not read as strings.
_WORDS = frozenset(("true", "false", "yes", "no", "on", "off", "null", "y", "n"))


def closing_policy(
    name: str,
    namespace: str,
    labels: Mapping[str, Any],
    gateways: Iterable[Resource],
    addresses: Iterable[str],
    ports: Iterable[int],
) -> str:
    """Return a NetworkPolicy for the pods with some labels that admits the Gateways' pods on some TCP ports.

    `addresses` are those of Gateways' pods on the network of their nodes: no labels select these.
    """
    peers: list[dict[str, Any]] = [
        {
            "namespaceSelector": {"matchLabels": {NAMESPACE_NAME: gateway.namespace}},
            "podSelector": {"matchLabels": {GATEWAY_LABEL: gateway.name}},
        }
        for gateway in gateways
    ]
    peers += [{"ipBlock": {"cidr": f"{address}/{128 if ':' in address else 32}"}} for address in sorted(set(addresses))]
    return _flow(
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "podSelector": {"matchLabels": dict(labels)},
                "policyTypes": ["Ingress"],
                "ingress": [{"from": peers, "ports": [{"port": port} for port in sorted(set(ports))]}],
            },
        }
    )


def _flow(value: Any) -> str:
    """Write a value in YAML's flow style."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flow(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value)
