"""Decisions as Envoy made them, from its access log stream (gRPC ALS, `envoy.service.accesslog.v3`).

A record says who called what, where, the verdict, and the policy and rule that gave it: the RBAC filter of each policy
writes its verdict into dynamic metadata (`names.Slot`), and the routes say which Gateway, listener and backend it was
about. Nothing in a record is taken from what a client claims, but for the request itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import grpc
from envoy.config.accesslog.v3 import accesslog_pb2
from envoy.config.core.v3 import base_pb2, config_source_pb2
from envoy.extensions.access_loggers.grpc.v3 import als_pb2
from envoy.service.accesslog.v3 import als_pb2 as service_pb2
from envoy.type.tracing.v3 import custom_tag_pb2

from tierwall.engines.envoy.bootstrap import CONTROL_PLANE
from tierwall.engines.envoy.names import MCP, PLACE, RBAC, SLOTS, backend_of_cluster

SERVICE = "envoy.service.accesslog.v3.AccessLogService"
PLACE_KEYS = ("gateway", "listener", "backend")

Record = dict[str, Any]
Sink = Callable[[Record], None]


def access_log() -> Any:
    """The access log that every listener writes."""
    tags = []
    for key in PLACE_KEYS:
        tag = custom_tag_pb2.CustomTag(tag=key)
        tag.metadata.kind.route.SetInParent()
        tag.metadata.metadata_key.key = PLACE
        tag.metadata.metadata_key.path.add().key = key
        tags.append(tag)
    common = als_pb2.CommonGrpcAccessLogConfig(
        log_name=PLACE, transport_api_version=config_source_pb2.ApiVersion.V3, custom_tags=tags
    )
    common.grpc_service.envoy_grpc.cluster_name = CONTROL_PLANE
    common.buffer_flush_interval.FromMilliseconds(50)
    out = accesslog_pb2.AccessLog(name="tierwall.decisions")
    out.typed_config.Pack(als_pb2.HttpGrpcAccessLogConfig(common_config=common), deterministic=True)
    return out


def service(sink: Sink) -> Any:
    """The gRPC service that takes access logs in; `sink` gets each decision."""

    async def stream(requests: AsyncIterator[Any], context: Any) -> Any:
        async for message in requests:
            for entry in message.http_logs.log_entry:
                sink(record(entry))
        return service_pb2.StreamAccessLogsResponse()

    handler = grpc.stream_unary_rpc_method_handler(
        stream,
        service_pb2.StreamAccessLogsMessage.FromString,
        service_pb2.StreamAccessLogsResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(SERVICE, {"StreamAccessLogs": handler})


def record(entry: Any) -> Record:
    """One request as the decision log shows it; what is not known is left out."""
    common = entry.common_properties
    mcp = _metadata(common.metadata, MCP)
    params = mcp.get("params")
    params = params if isinstance(params, Mapping) else {}
    out: Record = {
        "time": common.start_time.ToJsonString(),
        "plane": "tool",
        "caller": _caller(common.tls_properties),
        **{key: common.custom_tags.get(key) for key in PLACE_KEYS},
        # Of a route to several backends the one that was chosen; a request that was denied has none.
        **({"backend": chosen} if (chosen := backend_of_cluster(common.upstream_cluster)) is not None else {}),
        "method": mcp.get("method"),
        "tool": params.get("name"),
        "uri": params.get("uri"),
        "http": f"{_verb(entry.request.request_method)} {entry.request.path}",
        "status": entry.response.response_code.value,
        **verdict(_metadata(common.metadata, RBAC), entry.response.response_code_details),
        "detail": entry.response.response_code_details,
        "seconds": round(common.duration.ToNanoseconds() / 1e9, 6),
    }
    return {key: value for key, value in out.items() if value not in (None, "")}


def verdict(said: Mapping[str, Any], details: str) -> Record:
    """Verdict, policy and rule: of the policy that denied, or of the last that allowed."""
    looked = list(_looked(said))
    if looked and not details.startswith(_REFUSED):
        level, result, decider = looked[-1]
        policy, _, rule = decider.partition(" ")
        denied = result == "denied" or details.startswith("ext_authz_")
        return {"verdict": "Deny" if denied else "Allow", "level": level, "policy": policy, "rule": rule}
    if not looked and details.startswith(_PASSED):
        return {"verdict": "Allow", "policy": "Default"}
    # Refused before any policy was asked: what cannot be read, or leads nowhere, is never let through.
    return {"verdict": "Deny", "policy": "Default", "rule": details}


# What Envoy says (`response_code_details`) of requests that the MCP filter or the strict reading of it refused, and of
# requests that went on to a backend.
_REFUSED = ("mcp_", "lua_")
_PASSED = ("via_upstream", "upstream_", "response_timeout", "no_healthy_upstream", "downstream_remote_disconnect")


def _looked(said: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for slot in SLOTS:
        result = said.get(slot.result)
        if isinstance(result, str):
            yield slot.level.capitalize(), result, str(said.get(slot.decider, ""))


def _metadata(metadata: Any, namespace: str) -> Mapping[str, Any]:
    if namespace not in metadata.filter_metadata:
        return {}
    return {key: plain(value) for key, value in metadata.filter_metadata[namespace].fields.items()}


def plain(value: Any) -> Any:
    """A protobuf value as Python has it."""
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return {key: plain(one) for key, one in value.struct_value.fields.items()}
    if kind == "list_value":
        return [plain(one) for one in value.list_value.values]
    return None if kind in (None, "null_value") else getattr(value, kind)


def _caller(tls: Any) -> str | None:
    for name in tls.peer_certificate_properties.subject_alt_name:
        if name.uri:
            return str(name.uri)
    return None


def _verb(number: int) -> str:
    name: str = base_pb2.RequestMethod.Name(number)
    return name if name != "METHOD_UNSPECIFIED" else "?"
