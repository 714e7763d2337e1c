"""ExternalAuth through Envoy's ext_authz: which service is asked, and how (docs/enforce-tools.md#authorizers).

The filter of each slot asks the authorizer of the policy in that slot, if a rule of the policy says so.
It fails closed: without an answer the request is denied. A body larger than the authorizer accepts is refused and never
truncated: the first part can be harmless when the whole is not. An authorizer may add headers for the backend, but
never a header that later policies or the backend trust.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from envoy.extensions.filters.http.ext_authz.v3 import ext_authz_pb2

from tierwall.attach.backend import is_permitted, referenced_place
from tierwall.attach.place import SERVICE
from tierwall.engines.envoy.config.names import HEADER_PREFIX, MCP, RBAC, Slot, authorizer_cluster_name
from tierwall.resources.resource import Resource, list_of_maps, nested_map
from tierwall.resources.snapshot import Snapshot

TIMEOUT_S = 5
# Headers that no authorizer may change: Tierwall's own, and those of MCP, the body and the connection.
# The pattern must not grow: Envoy accepts programs up to size 100 (`options.max_program_size`).
_PROTECTED = f"(:|{HEADER_PREFIX}|mcp-|content-|transfer-|x-forwarded-client-).*|host|connection|upgrade"
_NAME = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
# The cluster that a slot's filter uses unless a route names another. No cluster has this name, so requests are denied.
NOBODY = "authorizer/nobody"


class AuthorizationService(NamedTuple):
    """An authorization service, as one policy asks it; `value` is the ExternalAuth object of the policy."""

    cluster: str
    service: Resource
    port: int
    is_grpc: bool
    value: Mapping[str, Any]

    @property
    def allowed_headers(self) -> tuple[str, ...] | None:
        """The request headers to send, in lower case; None for all (Gateway API, `HTTPExternalAuthFilter`)."""
        return None if self.is_grpc else _allowed_headers(self.value)


def authorization_service(snapshot: Snapshot, policy: Resource) -> AuthorizationService | str:
    """Return the service that a policy asks, or why it cannot be asked."""
    value = _external_auth(policy)
    reference = value.get("backendRef") if value else None
    place = referenced_place(reference, policy.namespace) if isinstance(reference, dict) else None
    if value is None or place is None or not isinstance(reference, dict):
        return "it does not name a service to ask"
    service = place.resource(snapshot)
    if place.key != SERVICE or service is None:
        return f"there is no {place.kind} `{place.namespace}/{place.name}` to ask"
    if not is_permitted(snapshot, policy, place):
        return f"no ReferenceGrant permits asking {place.kind} `{place.namespace}/{place.name}`"
    port = reference.get("port")
    if type(port) is not int:
        return f"it does not name a port of Service `{place.namespace}/{place.name}`"
    grpc = value.get("protocol") == "GRPC"
    if grpc and _names(nested_map(value, "grpc").get("allowedHeaders")):
        return (
            "`grpc.allowedHeaders` limits the headers, and Envoy sends all of them to a gRPC authorizer; remove it, or "
            "use `protocol: HTTP` with `http.allowedHeaders`"
        )
    cluster = authorizer_cluster_name(service.namespace, service.name, port, grpc)
    if not grpc:
        # The cluster's filters drop other headers, so policies that allow other headers need another cluster.
        cluster += "/" + blake2b(" ".join(_allowed_headers(value)).encode(), digest_size=16).hexdigest()
    return AuthorizationService(cluster, service, port, grpc, value)


def _allowed_headers(value: Mapping[str, Any]) -> tuple[str, ...]:
    allowed = _names(nested_map(value, "http").get("allowedHeaders"))
    # Envoy always sends the host. It would refuse odd names or read them as commands, and no request needs them.
    named = {name.lower() for name in allowed if _NAME.fullmatch(name)} - {"host"}
    return tuple(sorted({"authorization", "content-length", *named}))


def _external_auth(policy: Resource) -> Mapping[str, Any] | None:
    """Return `spec.externalAuth`, or in v0alpha0 that of the first rule that has it."""
    value = policy.spec.get("externalAuth")
    if isinstance(value, dict) and policy.version != "v0alpha0":
        return value
    for rule in list_of_maps(policy.spec.get("rules")):
        value = nested_map(rule, "authorization").get("externalAuth")
        if isinstance(value, dict):
            return value
    return None


def slot_filter(slot: Slot) -> Any:
    """Return the filter of a slot: it asks only if a rule of the policy says so."""
    out = ext_authz_pb2.ExtAuthz(
        transport_api_version="V3", failure_mode_allow=False, stat_prefix=slot.prefix.rstrip("_")
    )
    out.grpc_service.envoy_grpc.cluster_name = NOBODY
    out.grpc_service.timeout.seconds = TIMEOUT_S
    out.status_on_error.code = 403
    out.filter_enabled_metadata.filter = RBAC
    out.filter_enabled_metadata.path.add(key=slot.asks)
    out.filter_enabled_metadata.value.string_match.exact = "allowed"
    out.metadata_context_namespaces.append(MCP)
    out.include_peer_certificate = True
    out.disallowed_headers.patterns.add().prefix = HEADER_PREFIX
    protect_headers(out)
    return out


def protect_headers(asking: Any) -> None:
    """Deny a request if the service that a filter asks changes a header that it may not change."""
    asking.decoder_header_mutation_rules.disallow_expression.regex = _PROTECTED
    asking.decoder_header_mutation_rules.disallow_is_error.value = True


def route_settings(authorizer: AuthorizationService) -> Any:
    """Return the settings with which a route tells the filter of a slot which service to ask."""
    out = ext_authz_pb2.ExtAuthzPerRoute()
    settings = out.check_settings
    size = nested_map(authorizer.value, "forwardBody").get("maxSize")
    if type(size) is int and size > 0:
        settings.with_request_body.max_request_bytes = size
        settings.with_request_body.allow_partial_message = False
    host = f"{authorizer.service.name}.{authorizer.service.namespace}"
    if authorizer.is_grpc:
        settings.grpc_service.envoy_grpc.cluster_name = authorizer.cluster
        settings.grpc_service.envoy_grpc.authority = f"{host}:{authorizer.port}"
        settings.grpc_service.timeout.seconds = TIMEOUT_S
        return out
    http = nested_map(authorizer.value, "http")
    service = settings.http_service
    service.server_uri.uri, service.server_uri.cluster = f"http://{host}", authorizer.cluster
    service.server_uri.timeout.seconds = TIMEOUT_S
    path = http.get("path")
    if isinstance(path, str) and path:
        service.path_prefix = path
    for name in _names(http.get("allowedResponseHeaders")):
        service.authorization_response.allowed_upstream_headers.patterns.add(exact=name, ignore_case=True)
    return out


def _names(value: object) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []
