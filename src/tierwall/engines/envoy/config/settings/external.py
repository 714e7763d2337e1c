"""External authorization of the traffic and backend sections (agentgateway, "External authorization").

Without an answer of the service a request is refused, unless the policy says FailOpen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from envoy.extensions.filters.http.ext_authz.v3 import ext_authz_pb2

from tierwall.engines.envoy.config.external_auth import TIMEOUT_S
from tierwall.engines.envoy.config.matchers import packed
from tierwall.engines.envoy.config.settings.choices import always, always_run
from tierwall.engines.envoy.config.settings.expressions import constant
from tierwall.engines.envoy.config.settings.filters import (
    ASK,
    ASK_FOR_BACKEND,
    CHOOSE_FOR_BACKEND,
    ask_filter,
    asking,
    choosing_filter,
)
from tierwall.engines.envoy.config.settings.measures import byte_count
from tierwall.engines.envoy.config.settings.services import ServiceCluster, endpoint
from tierwall.engines.envoy.config.settings.traffic import RouteChange, turned_on
from tierwall.engines.envoy.config.settings.unenforceable import Unenforceable
from tierwall.gateway.model.fields import Phase
from tierwall.resources.resource import Resource, nested_map
from tierwall.resources.snapshot import Snapshot

_PATH_OVERRIDE, _LONGEST_PATH = 10, 8192


def external_authorization(
    snapshot: Snapshot, policy: Resource, value: Mapping[str, Any]
) -> tuple[Any, ServiceCluster]:
    """Return the settings of a filter whose requests a service must allow, and the cluster of the service."""
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
        return out, cluster
    http = nested_map(value, "http")
    service = settings.http_service
    service.server_uri.uri, service.server_uri.cluster = url, cluster.name
    service.server_uri.timeout.seconds = TIMEOUT_S
    path = constant(http["path"], "http", "path") if "path" in http else urlsplit(url).path
    if path:
        _set_path(service, path if path.startswith("/") else f"/{path}")
    for name in http.get("allowedResponseHeaders") or ():
        service.authorization_response.allowed_upstream_headers.patterns.add(exact=name, ignore_case=True)
    return out, cluster


def fails_open(value: Mapping[str, Any]) -> bool:
    """Whether requests pass without an answer of the service; Envoy knows that only of a whole filter."""
    return value.get("failureMode") == "FailOpen"


def asking_change(settings: Any, value: Mapping[str, Any], phase: Phase) -> RouteChange:
    """Return the change of a route whose requests a service must allow, asked with these settings."""
    if fails_open(value):
        return always(asking_filter(settings, value), choosing_filter(phase, ASK))
    return turned_on(ask_filter(phase), settings)


def asking_for_backend(settings: Any, value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the filters that ask about requests to one backend."""
    if fails_open(value):
        return {CHOOSE_FOR_BACKEND: packed(always_run(asking_filter(settings, value)))}
    return {ASK_FOR_BACKEND: packed(settings)}


def asking_filter(settings: Any, value: Mapping[str, Any]) -> Any:
    """Return a filter by itself with the settings that a route would have."""
    out = asking("settings_choice")
    out.failure_mode_allow = fails_open(value)
    checks = settings.check_settings
    if checks.HasField("http_service"):
        out.http_service.CopyFrom(checks.http_service)
        # Unlike those of a route, the settings of a filter send only a few headers unless they say more.
        out.allowed_headers.patterns.add().safe_regex.regex = ".*"
    else:
        out.grpc_service.CopyFrom(checks.grpc_service)
    if checks.HasField("with_request_body"):
        out.with_request_body.CopyFrom(checks.with_request_body)
    return out


def _set_path(service: Any, path: str) -> None:
    """Have the service asked at this very path, and not below it at that of the request."""
    text = path.encode()
    if len(text) > _LONGEST_PATH:
        raise Unenforceable(f"Envoy takes at most {_LONGEST_PATH} bytes here", "http", "path")
    length = [len(text)] if len(text) < 128 else [len(text) & 127 | 128, len(text) >> 7]
    # The generated message lacks the field `path_override`: its number, the length, the text.
    service.MergeFromString(bytes([_PATH_OVERRIDE << 3 | 2, *length]) + text)
