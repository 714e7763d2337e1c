"""External authorization of the traffic and backend sections (agentgateway, "External authorization").

The filter fails closed: without an answer of the service a request is refused, also where the policy says FailOpen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envoy.extensions.filters.http.ext_authz.v3 import ext_authz_pb2

from tierwall.engines.envoy.config.external_auth import TIMEOUT_S
from tierwall.engines.envoy.config.settings.expressions import constant
from tierwall.engines.envoy.config.settings.filters import ask_filter
from tierwall.engines.envoy.config.settings.measures import byte_count
from tierwall.engines.envoy.config.settings.services import ServiceCluster, endpoint
from tierwall.engines.envoy.config.settings.traffic import RouteChange, turned_on
from tierwall.gateway.model.fields import Phase
from tierwall.resources.resource import Resource, nested_map
from tierwall.resources.snapshot import Snapshot


def external_authorization(
    snapshot: Snapshot, policy: Resource, value: Mapping[str, Any], phase: Phase
) -> tuple[RouteChange, ServiceCluster]:
    """Return the change of a route whose requests a service must allow, and the cluster of the service."""
    is_grpc = "grpc" in value
    cluster, url = endpoint(snapshot, policy, value, "ask", grpc=is_grpc)
    out = ext_authz_pb2.ExtAuthzPerRoute()
    settings = out.check_settings
    if "forwardBody" in value:
        size = byte_count(nested_map(value, "forwardBody").get("maxSize"), "forwardBody", "maxSize")
        settings.with_request_body.max_request_bytes = size
        settings.with_request_body.allow_partial_message = False
    if is_grpc:
        for key, text in nested_map(value, "grpc", "contextExtensions").items():
            settings.context_extensions[key] = str(text)
        settings.grpc_service.envoy_grpc.cluster_name = cluster.name
        settings.grpc_service.timeout.seconds = TIMEOUT_S
        return turned_on(ask_filter(phase), out), cluster
    http = nested_map(value, "http")
    service = settings.http_service
    service.server_uri.uri, service.server_uri.cluster = url, cluster.name
    service.server_uri.timeout.seconds = TIMEOUT_S
    if "path" in http:
        service.path_prefix = constant(http["path"], "http", "path")
    for name in http.get("allowedResponseHeaders") or ():
        service.authorization_response.allowed_upstream_headers.patterns.add(exact=name, ignore_case=True)
    return turned_on(ask_filter(phase), out), cluster
