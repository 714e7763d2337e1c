"""Traces and access logs of the frontend section, which go to an OpenTelemetry collector by OTLP over gRPC.

Access logs without a collector are lines of JSON, which Envoy writes to its standard output.

Attributes are expressions, which Envoy's own formatter evaluates. One that fails gives an empty text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from envoy.config.accesslog.v3 import accesslog_pb2
from envoy.config.trace.v3 import opentelemetry_pb2
from envoy.extensions.access_loggers.filters.cel.v3 import cel_pb2
from envoy.extensions.access_loggers.open_telemetry.v3 import logs_service_pb2
from envoy.extensions.access_loggers.stream.v3 import stream_pb2
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


def access_log(value: Mapping[str, Any], cluster: str | None) -> Any:
    """Return the log of a listener: a record of each request, for the collector of a cluster if there is one."""
    if cluster is None:
        return _written_log(value)
    exporter = nested_map(value, "otlp")
    settings = logs_service_pb2.OpenTelemetryAccessLogConfig()
    settings.common_config.log_name = "tierwall"
    settings.common_config.transport_api_version = "V3"
    settings.common_config.grpc_service.envoy_grpc.cluster_name = cluster
    settings.common_config.grpc_service.timeout.seconds = TIMEOUT_S
    for name, text in _attributes(value, exporter).items():
        settings.attributes.values.add(key=name).value.string_value = text
    out = accesslog_pb2.AccessLog(name="envoy.access_loggers.open_telemetry", typed_config=packed(settings))
    return _filtered(out, value, exporter)


def _written_log(value: Mapping[str, Any]) -> Any:
    """Return the log of a listener that Envoy writes to its standard output."""
    settings = stream_pb2.StdoutAccessLog()
    settings.log_format.json_format.update({"time": "%START_TIME%", **_attributes(value)})
    return _filtered(accesslog_pb2.AccessLog(name="envoy.access_loggers.stdout", typed_config=packed(settings)), value)


def _attributes(*parts: Mapping[str, Any]) -> dict[str, str]:
    """Return the attributes of a record; each part adds some and removes some."""
    attributes = dict(_REQUEST_ATTRIBUTES)
    for part in parts:
        attributes |= _added(part)
    for name in (name for part in parts for name in nested_map(part, "attributes").get("remove") or ()):
        attributes.pop(name, None)
    return attributes


def _filtered(out: Any, *parts: Mapping[str, Any]) -> Any:
    """Return a log of the requests for which the filters of all parts are true."""
    conditions = [part["filter"] for part in parts if isinstance(part.get("filter"), str)]
    if conditions:
        text = " && ".join(f"({to_text(translated_setting(each, 'filter', of_response=True))})" for each in conditions)
        out.filter.extension_filter.name = "envoy.access_loggers.extension_filters.cel"
        out.filter.extension_filter.typed_config.CopyFrom(packed(cel_pb2.ExpressionFilter(expression=text)))
    return out


def _added(value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for number, entry in enumerate(list_of_maps(nested_map(value, "attributes").get("add"))):
        yield entry["name"], formatted(entry["expression"], True, "attributes", "add", number, "expression")
