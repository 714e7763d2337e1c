"""The kinds that the controller follows, and how much of each object (docs/controller.md#what-it-reads).

What it writes a status on is kept with its status, so that a status that is right already is not written again.
"""

from __future__ import annotations

from typing import Any

from tierwall.api.authorizers.rbac import GROUP as RBAC
from tierwall.attach.target import ACCESS_POLICIES, GATEWAY_POLICIES
from tierwall.cluster.shapes import ApiObject, SpecObject
from tierwall.cluster.wanted import KindKey, followed_kinds
from tierwall.network.model.policies import KINDS as NETWORK_POLICIES
from tierwall.network.model.policies import NETWORK_POLICY

PLANES = ("network", "ways", "tool", "gateway")
GATEWAY_API = "gateway.networking.k8s.io"
# Kinds with one list of conditions for all controllers.
ADMIN_POLICIES: tuple[KindKey, ...] = tuple(key for key in NETWORK_POLICIES if key != NETWORK_POLICY)
# The kinds that have a status which the controller may write.
WITH_STATUS: tuple[KindKey, ...] = (
    *ADMIN_POLICIES,
    *ACCESS_POLICIES,
    *GATEWAY_POLICIES,
    *((GATEWAY_API, kind) for kind in ("GatewayClass", "Gateway", "ListenerSet")),
    *((GATEWAY_API, kind) for kind in ("HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute")),
    (GATEWAY_API, "BackendTLSPolicy"),
    ("gateway.networking.x-k8s.io", "XListenerSet"),
)
LEASE: KindKey = ("coordination.k8s.io", "Lease")
NODE_REPORT: KindKey = ("tierwall.io", "NodeReport")
# Kinds that are followed in the release namespace alone. Answers do not depend on them.
OF_THE_RELEASE: dict[KindKey, type[Any]] = {LEASE: SpecObject, NODE_REPORT: ApiObject}
# What says who may read which policy: followed for warnings alone. Answers about policies do not depend on it.
ROLES: dict[KindKey, type[Any]] = {
    (RBAC, kind): SpecObject for kind in ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding")
}
NOT_JUDGED: frozenset[KindKey] = frozenset({*OF_THE_RELEASE, *ROLES})
# Kinds whose status decides answers: the addresses of pods and nodes.
JUDGED_BY_STATUS: frozenset[KindKey] = frozenset({("", "Pod"), ("", "Node")})


def controller_kinds(warns: bool = False) -> dict[KindKey, type[Any]]:
    """Return the kinds that are followed, with the shapes of their objects; `warns` adds roles."""
    # The status of a Service has the addresses of its load balancer.
    more = {(GATEWAY_API, "GatewayClass"): ApiObject, ("", "Service"): ApiObject}
    shapes = followed_kinds(PLANES, has_files=False) | more | OF_THE_RELEASE
    shapes |= ROLES if warns else {}
    return shapes | {key: ApiObject for key in WITH_STATUS if key in shapes}
