"""Traces and access logs of the frontend section, which go to an OpenTelemetry collector by OTLP over gRPC.

Attributes are expressions, which Envoy's own formatter evaluates. One that fails gives an empty text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from envoy.config.accesslog.v3 import accesslog_pb2
from envoy.config.trace.v3 import opentelemetry_pb2
from envoy.extensions.access_loggers.filters.cel.v3 import cel_pb2
from envoy.extensions.access_loggers.open_telemetry.v3 import logs_service_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2

from tierwall.cel.syntax.printer import to_text
from tierwall.engines.envoy.config.external_auth import TIMEOUT_S
from tierwall.engines.envoy.config.matchers import packed
from tierwall.engines.envoy.config.settings.expressions import translated_setting
from tierwall.engines.envoy.config.settings.header_values import formatted
from tierwall.engines.envoy.config.settings.values import sampled_percent
from tierwall.resources.resource import list_of_maps, nested_map

# What a record of a request says beside the attributes that settings add.
_REQUEST_ATTRIBUTES = {
    "http.request.method": "%REQ(:METHOD)%",
    "url.path": "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%",
    "server.address": "%REQ(:AUTHORITY)%",
    "client.address": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
    "http.response.status_code": "%RESPONSE_CODE%",
    "duration": "%DURATION%",
}


def tracing(value: Mapping[str, Any], cluster: str) -> Any:
    """Return how a listener traces requests, to the collector of a cluster."""
    settings = opentelemetry_pb2.OpenTelemetryConfig(service_name="tierwall")
    settings.grpc_service.envoy_grpc.cluster_name = cluster
    settings.grpc_service.timeout.seconds = TIMEOUT_S
    out = hcm_pb2.HttpConnectionManager.Tracing()
    out.provider.name = "envoy.tracers.opentelemetry"
    out.provider.typed_config.CopyFrom(packed(settings))
    out.random_sampling.value = sampled_percent(value.get("randomSampling", "false"), "randomSampling")
    for name, text in _added(value):
        out.custom_tags.add(tag=name, value=text)
    return out


def access_log(value: Mapping[str, Any], cluster: str) -> Any:
    """Return the log of a listener that sends a record of each request to the collector of a cluster."""
    exporter = nested_map(value, "otlp")
    settings = logs_service_pb2.OpenTelemetryAccessLogConfig()
    settings.common_config.log_name = "tierwall"
    settings.common_config.transport_api_version = "V3"
    settings.common_config.grpc_service.envoy_grpc.cluster_name = cluster
    settings.common_config.grpc_service.timeout.seconds = TIMEOUT_S
    attributes = {**_REQUEST_ATTRIBUTES, **dict(_added(value)), **dict(_added(exporter))}
    for name in (*_removed(value), *_removed(exporter)):
        attributes.pop(name, None)
    for name, text in attributes.items():
        settings.attributes.values.add(key=name).value.string_value = text
    out = accesslog_pb2.AccessLog(name="envoy.access_loggers.open_telemetry", typed_config=packed(settings))
    conditions = [text for text in (value.get("filter"), exporter.get("filter")) if isinstance(text, str)]
    if conditions:
        text = " && ".join(f"({to_text(translated_setting(each, 'filter', of_response=True))})" for each in conditions)
        out.filter.extension_filter.name = "envoy.access_loggers.extension_filters.cel"
        out.filter.extension_filter.typed_config.CopyFrom(packed(cel_pb2.ExpressionFilter(expression=text)))
    return out


def _added(value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for number, entry in enumerate(list_of_maps(nested_map(value, "attributes").get("add"))):
        yield entry["name"], formatted(entry["expression"], True, "attributes", "add", number, "expression")


def _removed(value: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(nested_map(value, "attributes").get("remove") or ())
