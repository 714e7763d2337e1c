"""Global rate limits: a service counts requests by descriptors (agentgateway, "Rate limiting").

Envoy takes the service only in the filter, so all policies must name the same one; the oldest policy chooses it. The
domain and the descriptors are on the route. Without the service a request is refused, also where the policy says
FailOpen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envoy.extensions.filters.http.ratelimit.v3 import rate_limit_pb2
from envoy.extensions.rate_limit_descriptors.expr.v3 import expr_pb2

from tierwall.attach.target import GATEWAY_POLICIES
from tierwall.cel.syntax import ast
from tierwall.engines.envoy.config.cel_message import parsed_expression
from tierwall.engines.envoy.config.matchers import packed
from tierwall.engines.envoy.config.settings.expressions import parsed, translated_setting
from tierwall.engines.envoy.config.settings.filters import QUOTA
from tierwall.engines.envoy.config.settings.services import endpoint
from tierwall.engines.envoy.config.settings.traffic import RouteChange, turned_on
from tierwall.engines.envoy.config.settings.unenforceable import Unenforceable
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import list_of_maps, nested_map
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import is_understood

_EXPRESSION = "envoy.rate_limit_descriptors.expr"


def quota_change(value: Mapping[str, Any]) -> RouteChange:
    """Return the change of a route whose requests a service counts."""
    out = rate_limit_pb2.RateLimitPerRoute(domain=value["domain"])
    for number, descriptor in enumerate(list_of_maps(value.get("descriptors"))):
        limit = out.rate_limits.add()
        for index, entry in enumerate(list_of_maps(descriptor.get("entries"))):
            path = "descriptors", number, "entries", index, "expression"
            _set_entry(limit.actions.add(), entry["name"], entry["expression"], *path)
    change = turned_on(QUOTA, out)

    def apply(route: Any) -> None:
        if not route.HasField("route"):
            raise Unenforceable("Envoy limits only requests that it forwards")
        change(route)

    return apply


def _set_entry(action: Any, name: str, expression: object, *path: str | int) -> None:
    tree = parsed(expression, *path)
    if isinstance(tree, ast.Literal) and isinstance(tree.value, str) and tree.value:
        action.generic_key.descriptor_key, action.generic_key.descriptor_value = name, tree.value
        return
    message = parsed_expression(translated_setting(expression, *path))
    computed = expr_pb2.Descriptor(descriptor_key=name)
    # Envoy's descriptors have the older name of the same message.
    computed.parsed.ParseFromString(message.expr.SerializeToString())
    action.extension.name = _EXPRESSION
    action.extension.typed_config.CopyFrom(packed(computed))


@per_snapshot
def chosen_service(snapshot: Snapshot) -> str:
    """Return the cluster of the service that the oldest policy with a global limit names, or an empty string."""
    for policy in sorted(snapshot.of_kind(*GATEWAY_POLICIES[0]), key=lambda policy: policy.seniority):
        value = nested_map(policy.spec, "traffic", "rateLimit").get("global")
        if isinstance(value, dict) and is_understood(snapshot, policy):
            try:
                return endpoint(snapshot, policy, value, "quota", grpc=True)[0].name
            except Unenforceable:
                continue
    return ""
