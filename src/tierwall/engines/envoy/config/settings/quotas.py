"""Global rate limits: a service counts requests by descriptors (agentgateway, "Rate limiting").

The filter is on the route, with its service, domain and descriptors. Without the service a request is refused, unless
the policy says FailOpen. A service may add headers to a request, but change none that frames it, says where it goes or
who sends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envoy.extensions.filters.http.ratelimit.v3 import rate_limit_pb2
from envoy.extensions.rate_limit_descriptors.expr.v3 import expr_pb2

from tierwall.cel.syntax import ast
from tierwall.engines.envoy.config.cel_message import parsed_expression
from tierwall.engines.envoy.config.checkpoints import on
from tierwall.engines.envoy.config.external_auth import TIMEOUT_S
from tierwall.engines.envoy.config.matchers import packed
from tierwall.engines.envoy.config.settings.expressions import parsed, translated_setting
from tierwall.engines.envoy.config.settings.external import fails_open
from tierwall.engines.envoy.config.settings.filters import KEPT
from tierwall.engines.envoy.config.settings.limits import of_forwarded
from tierwall.engines.envoy.config.settings.traffic import RouteChange
from tierwall.resources.resource import list_of_maps

_EXPRESSION = "envoy.rate_limit_descriptors.expr"


def quota_filter(value: Mapping[str, Any], cluster: str) -> Any:
    """Return the filter that has the service of a cluster count requests."""
    out = rate_limit_pb2.RateLimit(domain=value["domain"], failure_mode_deny=not fails_open(value), stat_prefix="quota")
    out.timeout.seconds = TIMEOUT_S
    out.rate_limit_service.transport_api_version = "V3"
    out.rate_limit_service.grpc_service.envoy_grpc.cluster_name = cluster
    out.rate_limit_service.grpc_service.timeout.seconds = TIMEOUT_S
    for number, descriptor in enumerate(list_of_maps(value.get("descriptors"))):
        limit = out.rate_limits.add()
        for index, entry in enumerate(list_of_maps(descriptor.get("entries"))):
            path = "descriptors", number, "entries", index, "expression"
            _set_entry(limit.actions.add(), entry["name"], entry["expression"], *path)
    return out


def counted(change: RouteChange) -> RouteChange:
    """Return a change with which a service counts requests, and cannot change what they are."""

    def keep(route: Any) -> None:
        for name in KEPT:
            route.typed_per_filter_config[name].CopyFrom(on())

    return of_forwarded(change, keep)


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
