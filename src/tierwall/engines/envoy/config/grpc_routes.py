"""GRPCRoutes as HTTP matches (Gateway API, GRPCRoute): a gRPC method is the path `/service/method`.

Backends are reached over HTTP/2. A GRPCRoute takes gRPC requests alone, by their content type. gRPC is not MCP: where
AccessPolicies apply, Envoy refuses its calls as unreadable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tierwall.attach.place import GRPC_ROUTE
from tierwall.engines.envoy.config.patterns import escaped
from tierwall.resources.resource import Resource, nested_map

HINT = "give gRPC services a Gateway of their own, without AccessPolicies"
_ANY = "[^/]+"


def is_grpc(route: Resource) -> bool:
    """Whether a route is a GRPCRoute."""
    return (route.group, route.kind) == GRPC_ROUTE


def http_match(match: Mapping[str, Any]) -> dict[str, Any]:
    """Return a match of a GRPCRoute in the words of an HTTPRoute."""
    method, headers = nested_map(match, "method"), match.get("headers", [])
    service, name = str(method.get("service") or ""), str(method.get("method") or "")
    if method.get("type") == "RegularExpression":
        path = "RegularExpression", f"/(?:{service or _ANY})/(?:{name or _ANY})"
    elif service and name:
        path = "Exact", f"/{service}/{name}"
    elif name:
        path = "RegularExpression", f"/{_ANY}/{escaped(name)}"
    else:
        path = "PathPrefix", f"/{service}"
    return {"path": dict(zip(("type", "value"), path, strict=True)), "headers": headers}


def grpc_precedence(route: Resource, rule: int, number: int, match: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a sort key: exact names, longer services, longer methods, more headers, age, rule order."""
    method, headers = nested_map(match, "method"), match.get("headers")
    return (
        method.get("type") == "RegularExpression",
        -len(str(method.get("service") or "")),
        -len(str(method.get("method") or "")),
        -len(headers) if isinstance(headers, list) else 0,
        route.seniority,
        rule,
        number,
    )


def not_mcp(route: Resource) -> str:
    """Say that policies cannot read the calls of a route."""
    return f"AccessPolicies apply to {route.reference}, and gRPC is not MCP: every call is refused"
