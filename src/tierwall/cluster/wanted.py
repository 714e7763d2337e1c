"""The kinds that a question needs, and how much of each object (docs/clusters.md#reading): `can-i` reads no pods."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from tierwall.cluster.shapes import ApiObject, MetadataObject, NodeObject, PodObject
from tierwall.resources.foreign import kinds_of_plane

KindKey: TypeAlias = tuple[str, str]

_WORKLOADS: tuple[KindKey, ...] = (
    ("apps", "Deployment"),
    ("apps", "StatefulSet"),
    ("apps", "DaemonSet"),
    ("apps", "ReplicaSet"),
    ("batch", "Job"),
    ("batch", "CronJob"),
    ("", "ReplicationController"),
)
_GATEWAYS: tuple[KindKey, ...] = (
    ("", "Namespace"),
    ("", "Service"),
    ("gateway.networking.k8s.io", "GatewayClass"),
    ("gateway.networking.k8s.io", "Gateway"),
    ("gateway.networking.k8s.io", "ListenerSet"),
    ("gateway.networking.x-k8s.io", "XListenerSet"),
    ("gateway.networking.k8s.io", "HTTPRoute"),
    ("gateway.networking.k8s.io", "GRPCRoute"),
    ("gateway.networking.k8s.io", "ReferenceGrant"),
    ("agentgateway.dev", "AgentgatewayPolicy"),
    ("agentgateway.dev", "AgentgatewayBackend"),
    ("agentgateway.dev", "AgentgatewayModel"),
)
_OF_PLANE: dict[str, tuple[KindKey, ...]] = {
    "network": (
        ("", "Namespace"),
        ("", "Pod"),
        ("", "Node"),
        ("", "Service"),
        *_WORKLOADS,
        ("networking.k8s.io", "NetworkPolicy"),
        ("policy.networking.k8s.io", "AdminNetworkPolicy"),
        ("policy.networking.k8s.io", "BaselineAdminNetworkPolicy"),
        ("policy.networking.k8s.io", "ClusterNetworkPolicy"),
    ),
    "tool": (
        *_GATEWAYS,
        ("", "ServiceAccount"),
        *(
            (group, kind)
            for group in ("agentic.networking.x-k8s.io", "agentic.prototype.x-k8s.io")
            for kind in ("XAccessPolicy", "AccessPolicy", "XBackend")
        ),
    ),
    "gateway": _GATEWAYS,
    "api": (
        ("", "Namespace"),
        ("rbac.authorization.k8s.io", "Role"),
        ("rbac.authorization.k8s.io", "ClusterRole"),
        ("rbac.authorization.k8s.io", "RoleBinding"),
        ("rbac.authorization.k8s.io", "ClusterRoleBinding"),
        ("tierwall.io", "ClusterAuthorizationPolicy"),
        ("tierwall.io", "AuthorizationPolicy"),
        ("apiextensions.k8s.io", "CustomResourceDefinition"),
        ("apiregistration.k8s.io", "APIService"),
    ),
    # Would an API server accept this object? Its definitions say.
    "admit": (("apiextensions.k8s.io", "CustomResourceDefinition"),),
}
_SHAPES: dict[KindKey, type[Any]] = {
    ("", "Pod"): PodObject,
    ("", "Node"): NodeObject,
    ("", "Namespace"): MetadataObject,
    ("", "ServiceAccount"): MetadataObject,
    **dict.fromkeys(_WORKLOADS, MetadataObject),
}


def wanted_kinds(planes: Iterable[str]) -> dict[KindKey, type[Any]]:
    """Return the kinds that questions about some planes need, with the shape of their objects."""
    keys = [key for plane in planes for key in (*_OF_PLANE[plane], *kinds_of_plane(plane))]
    return {key: _SHAPES.get(key, ApiObject) for key in keys}
