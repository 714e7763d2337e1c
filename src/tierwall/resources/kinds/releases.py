"""The release of each project that Tierwall judges by (docs/definitions.md#releases).

A definition here admits every field of its release, and of earlier ones where they had more. With another release in
the cluster, put its definitions among the objects: the installed ones count.
"""

from __future__ import annotations

from tierwall.version import __version__

_NETWORK_POLICY_API = "kubernetes-sigs/network-policy-api"
_GATEWAY_API = "kubernetes-sigs/gateway-api v1.6.1, experimental channel"
_AGENTIC = "kubernetes-sigs/kube-agentic-networking v0.1.0 and its main branch of July 2026"

# By group; by group and kind where a release dropped a kind.
RELEASES = {
    "gateway.networking.k8s.io": _GATEWAY_API,
    "gateway.networking.x-k8s.io": "kubernetes-sigs/gateway-api v1.4.0, experimental channel",
    "policy.networking.k8s.io/AdminNetworkPolicy": f"{_NETWORK_POLICY_API} v0.1.8",
    "policy.networking.k8s.io/BaselineAdminNetworkPolicy": f"{_NETWORK_POLICY_API} v0.1.8",
    "policy.networking.k8s.io/ClusterNetworkPolicy": f"{_NETWORK_POLICY_API} v0.2.0",
    "agentic.networking.x-k8s.io": _AGENTIC,
    "agentic.prototype.x-k8s.io": _AGENTIC,
    "agentgateway.dev": "agentgateway/agentgateway v1.4.1 and its main branch of August 2026",
    "tierwall.io": f"tierwall {__version__}",
}


def release_of(group: str, kind: str) -> str:
    """Return the project and release that defines a custom resource."""
    return RELEASES.get(f"{group}/{kind}") or RELEASES[group]
