"""ExternalAuth through Envoy's ext_authz: which service is asked, and how (docs/enforce-tools.md#authorizers).

A filter in each slot asks the authorizer of the policy in that slot, if a rule of it said so before. It fails closed:
no answer is no. A body that is larger than the authorizer is to get is refused, never cut: a part of a body can be
innocent where the whole is not. An authorizer may add headers for the backend, but none that policies after it, or the
backend, take for the truth about the request.
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
# Headers that say what the request is, and that no authorizer may change: ours, those of MCP, body and connection.
# The pattern must not grow: Envoy takes programs up to size 100 (`options.largest_pattern`).
_NOT_ITS_OWN = f"(:|{HEADER_PREFIX}|mcp-|content-|transfer-|x-forwarded-client-).*|host|connection|upgrade"
_NAME = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
# What a filter in a slot refers to until a route says whom to ask; it is no cluster, so the answer is no.
NOBODY = "authorizer/nobody"


class AuthorizationService(NamedTuple):
    """An authorization service; `service` is `namespace/name`."""

    cluster: str
    service: Resource
    port: int
    is_grpc: bool
    value: Mapping[str, Any]

    @property
    def may_get(self) -> tuple[str, ...] | None:
        """The headers that it may get, in small letters; None for all (Gateway API, `HTTPExternalAuthFilter`)."""
        return None if self.is_grpc else _may_get(self.value)


def authorization_service(snapshot: Snapshot, policy: Resource) -> AuthorizationService | str:
    """Whom a policy asks, or why that cannot be said."""
    value = _external_auth(policy)
    reference = value.get("backendRef") if value else None
    place = referenced_place(reference, policy.namespace) if isinstance(reference, dict) else None
    if value is None or place is None or not isinstance(reference, dict):
        return "it does not say whom to ask"
    service = place.resource(snapshot)
    if place.key != SERVICE or service is None:
        return f"there is no {place.kind} `{place.namespace}/{place.name}` to ask"
    if not is_permitted(snapshot, policy, place):
        return f"no ReferenceGrant permits to ask {place.kind} `{place.namespace}/{place.name}`"
    port = reference.get("port")
    if type(port) is not int:
        return f"it does not say which port of Service `{place.namespace}/{place.name}` to ask"
    grpc = value.get("protocol") == "GRPC"
    if grpc and _names(nested_map(value, "grpc").get("allowedHeaders")):
        return "Envoy cannot keep headers from a gRPC authorizer, and `grpc.allowedHeaders` says which it may get"
    cluster = authorizer_cluster_name(service.namespace, service.name, port, grpc)
    if not grpc:
        # Filters on the way to it keep other headers back: policies that let it get others have another way.
        cluster += "/" + blake2b(" ".join(_may_get(value)).encode(), digest_size=4).hexdigest()
    return AuthorizationService(cluster, service, port, grpc, value)


def _may_get(value: Mapping[str, Any]) -> tuple[str, ...]:
    allowed = _names(nested_map(value, "http").get("allowedHeaders"))
    # It always gets the host. Strange names Envoy would refuse, or take for commands; no request needs them.
    named = {name.lower() for name in allowed if _NAME.fullmatch(name)} - {"host"}
    return tuple(sorted({"authorization", "content-length", *named}))


def _external_auth(policy: Resource) -> Mapping[str, Any] | None:
    """`spec.externalAuth`, or in v0alpha0 that of the one rule that has it."""
    value = policy.spec.get("externalAuth")
    if isinstance(value, dict) and policy.version != "v0alpha0":
        return value
    for rule in list_of_maps(policy.spec.get("rules")):
        value = nested_map(rule, "authorization").get("externalAuth")
        if isinstance(value, dict):
            return value
    return None


def slot_filter(slot: Slot) -> Any:
    """The filter of a slot: asks only where a rule of the policy said so."""
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
    out.decoder_header_mutation_rules.disallow_expression.regex = _NOT_ITS_OWN
    out.decoder_header_mutation_rules.disallow_is_error.value = True
    return out


def route_settings(authorizer: AuthorizationService) -> Any:
    """What a route says to the filter of a slot: whom to ask."""
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
