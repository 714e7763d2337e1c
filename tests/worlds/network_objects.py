"""Builders for the objects of the network plane: namespaces, pods, and policies of each tier."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]
EVERYBODY: Object = {"namespaces": {}}


def namespace(name: str, **labels: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def pod(namespace: str, name: str, **labels: str) -> Object:
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    spec = {"containers": [{"name": "c", "image": "i"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def admin(name: str, *ingress: Object, priority: Any = 5, subject: Object = EVERYBODY, **spec: Any) -> Object:
    """Return an AdminNetworkPolicy for ingress, which `spec` may change; with the name `default` it is the baseline."""
    whole: Object = {"subject": subject, **({"ingress": [*ingress]} if ingress else {}), **spec}
    if name != "default":
        whole["priority"] = priority
    kind = "BaselineAdminNetworkPolicy" if name == "default" else "AdminNetworkPolicy"
    return {
        "apiVersion": "policy.networking.k8s.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": whole
    }  # fmt: skip


def rule(action: str, *ports: int, **peer: Any) -> Object:
    """Return an ingress rule of an admin policy; by default its peer is everybody."""
    listed: Object = {"ports": [{"portNumber": {"port": port}} for port in ports]} if ports else {}
    return {"action": action, "from": [peer or EVERYBODY], **listed}


def network_policy(
    name: str, *ingress: Object, namespace: str = "shop", metadata: Object | None = None, **spec: Any
) -> Object:
    """Return a NetworkPolicy for ingress to all pods of a namespace, which `spec` may change."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": namespace, **(metadata or {})},
        "spec": {"podSelector": {}, "ingress": [*ingress], **spec},
    }
