"""Traces for OpenTelemetry: Envoy sends a span of every request to a collector (OTLP over gRPC).

A span says who asked for what at which place, and for every policy that was asked its verdict, with the policy and rule
that gave it (docs/run.md#traces). The attributes come from the same metadata as the decision log.
"""

from __future__ import annotations

from typing import Any

from envoy.config.trace.v3 import opentelemetry_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2
from envoy.type.tracing.v3 import custom_tag_pb2

from tierwall.engines.envoy.config import clusters
from tierwall.engines.envoy.config.matchers import packed
from tierwall.engines.envoy.config.names import MCP, PLACE, RBAC, SLOTS
from tierwall.engines.envoy.config.options import SocketAddress

COLLECTOR = "telemetry"
_PLACE_KEYS = ("gateway", "listener", "backend")


def collector_cluster(address: SocketAddress) -> Any:
    """Return the cluster of the collector."""
    return clusters.cluster(COLLECTOR, address, http2=True, either_family=True)


def tracing() -> Any:
    """Return how a listener traces requests."""
    settings = opentelemetry_pb2.OpenTelemetryConfig(service_name="tierwall")
    settings.grpc_service.envoy_grpc.cluster_name = COLLECTOR
    settings.grpc_service.timeout.seconds = 1
    out = hcm_pb2.HttpConnectionManager.Tracing()
    out.provider.name = "envoy.tracers.opentelemetry"
    out.provider.typed_config.CopyFrom(packed(settings))
    out.custom_tags.append(custom_tag_pb2.CustomTag(tag="tierwall.caller", value="%DOWNSTREAM_PEER_URI_SAN%"))
    for key in _PLACE_KEYS:
        tag = _metadata(f"tierwall.{key}", PLACE, key)
        tag.metadata.kind.route.SetInParent()
        out.custom_tags.append(tag)
    # The names of OpenTelemetry's conventions for MCP.
    out.custom_tags.append(_metadata("mcp.method.name", MCP, "method"))
    out.custom_tags.append(_metadata("gen_ai.tool.name", MCP, "params", "name"))
    for slot in SLOTS:
        name = f"tierwall.policy.{slot.level}.{slot.number}"
        out.custom_tags.append(_metadata(f"{name}.rule", RBAC, slot.decider))
        out.custom_tags.append(_metadata(f"{name}.verdict", RBAC, slot.result))
    return out


def _metadata(name: str, namespace: str, *path: str) -> Any:
    """Return an attribute that has a value of the request's metadata; it is left out if there is no such value."""
    tag = custom_tag_pb2.CustomTag(tag=name)
    tag.metadata.kind.request.SetInParent()
    tag.metadata.metadata_key.key = namespace
    for key in path:
        tag.metadata.metadata_key.path.add().key = key
    return tag
