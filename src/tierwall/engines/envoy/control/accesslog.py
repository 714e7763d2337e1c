"""Envoy's decisions, from its access log stream (gRPC ALS, `envoy.service.accesslog.v3`).

An event contains the caller, the request, the place, the verdict, and the policy and rule that gave the verdict. The
RBAC filter of each policy writes its verdict to dynamic metadata (`names.Slot`). Routes provide the Gateway, listener
and backend. Apart from the request itself, nothing in an event comes from the client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from datetime import UTC
from typing import Any, NamedTuple

import grpc
from envoy.config.accesslog.v3 import accesslog_pb2
from envoy.config.core.v3 import base_pb2, config_source_pb2
from envoy.extensions.access_loggers.grpc.v3 import als_pb2
from envoy.service.accesslog.v3 import als_pb2 as service_pb2
from envoy.type.tracing.v3 import custom_tag_pb2
from google.protobuf.struct_pb2 import Struct

from tierwall.core.answer import DEFAULT, Decider
from tierwall.core.protocols import DecisionEvent
from tierwall.core.verdict import StepVerdict
from tierwall.engines.envoy.config.bootstrap import CONTROL_PLANE
from tierwall.engines.envoy.config.matchers import packed
from tierwall.engines.envoy.config.names import (
    ANSWERED,
    ANSWERER,
    MCP,
    PLACE,
    RBAC,
    REFUSAL,
    SLOTS,
    backend_of_cluster,
    decider,
    target_of_cluster,
)
from tierwall.tool.joined import BEFORE_NAME, BEFORE_URI
from tierwall.tool.request import ObservedRequest

SERVICE = "envoy.service.accesslog.v3.AccessLogService"
PLACE_KEYS = ("gateway", "listener", "backend")
_CLUSTER = "cluster"
# Statuses of answers that refuse requests begin here.
_REFUSED = 400
# Envoy drops entries beyond this (for each of its threads) while this process does not keep up. By default it is so
# little that a few long messages would hide other requests from the log.
MOST_WAITING_BYTES = 64 << 20

Sink = Callable[[DecisionEvent], None]


def access_log() -> Any:
    """Return the access log configuration of every listener."""
    tags = []
    for key in PLACE_KEYS:
        tag = custom_tag_pb2.CustomTag(tag=key)
        tag.metadata.kind.route.SetInParent()
        tag.metadata.metadata_key.key = PLACE
        tag.metadata.metadata_key.path.add().key = key
        tags.append(tag)
    # The backend that Envoy chose if a route has several; it chooses before it asks policies.
    tags.append(custom_tag_pb2.CustomTag(tag=_CLUSTER, value="%UPSTREAM_CLUSTER_RAW%"))
    common = als_pb2.CommonGrpcAccessLogConfig(
        log_name=PLACE, transport_api_version=config_source_pb2.ApiVersion.V3, custom_tags=tags
    )
    common.grpc_service.envoy_grpc.cluster_name = CONTROL_PLANE
    common.buffer_flush_interval.FromMilliseconds(50)
    common.buffer_size_bytes.value = MOST_WAITING_BYTES
    settings = packed(als_pb2.HttpGrpcAccessLogConfig(common_config=common))
    return accesslog_pb2.AccessLog(name="tierwall.decisions", typed_config=settings)


def service(sink: Sink) -> Any:
    """Return the gRPC service that receives access logs and passes each decision to `sink`."""

    async def stream(requests: AsyncIterator[Any], context: Any) -> Any:
        async for message in requests:
            for entry in message.http_logs.log_entry:
                sink(event(entry))
        return service_pb2.StreamAccessLogsResponse()

    handler = grpc.stream_unary_rpc_method_handler(
        stream,
        service_pb2.StreamAccessLogsMessage.FromString,
        service_pb2.StreamAccessLogsResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(SERVICE, {"StreamAccessLogs": handler})


def event(entry: Any) -> DecisionEvent:
    """Return the event of a log entry."""
    common = entry.common_properties
    mcp = _metadata(common.metadata, MCP)
    params = mcp.get("params")
    params = dict(params) if isinstance(params, Struct) else {}
    cluster = common.upstream_cluster or common.custom_tags.get(_CLUSTER, "")
    details = entry.response.response_code_details
    if why := _metadata(common.metadata, REFUSAL).get("why"):
        details = f"{details}[{why}]"
    # A script asks several servers behind all policies.
    reached = common.HasField("upstream_remote_address") or bool(_metadata(common.metadata, ANSWERED))
    if by := _metadata(common.metadata, ANSWERER).get("by"):
        details = f"{details}[{by}]"
    # A redirect, or an answer that a setting gives, is not a refusal.
    answers = bool(by) or details == "direct_response"
    is_answered = answers and entry.response.response_code.value < _REFUSED
    decision = logged_decision(_metadata(common.metadata, RBAC), details, reached or is_answered)
    place = {key: common.custom_tags.get(key) for key in PLACE_KEYS}
    target = target_of_cluster(cluster)
    return DecisionEvent(
        plane="tool",
        time=common.start_time.ToDatetime(UTC),
        verdict=decision.verdict,
        decided_by=(decision.decider,),
        detail=ObservedRequest(
            caller=_caller(common.tls_properties),
            gateway=place["gateway"],
            listener=place["listener"],
            backend=backend_of_cluster(cluster) or place["backend"],
            method=mcp.get("method"),
            tool=_joined(target, BEFORE_NAME, params.get("name")),
            uri=_joined(target, BEFORE_URI, params.get("uri")),
            http=f"{_verb(entry.request.request_method)} {entry.request.path}",
            status=entry.response.response_code.value,
            level=decision.level,
            reply_details=details,
            refused=decision.refused,
            seconds=round(common.duration.ToNanoseconds() / 1e9, 6),
        ),
    )


def _joined(target: str, separator: str, name: str | None) -> str | None:
    """Return a name as the client sent it: one of joined servers has its own name before it."""
    return f"{target}{separator}{name}" if target and name is not None else name


class LoggedDecision(NamedTuple):
    """A decision on a request: the policy that denied, or the last that allowed, and its level."""

    verdict: StepVerdict
    decider: Decider = DEFAULT
    level: str | None = None
    # Envoy refused the request before every policy was asked.
    refused: bool = False


def logged_decision(metadata: Mapping[str, Any], details: str, reached: bool = False) -> LoggedDecision:
    """Return the decision from dynamic metadata and `response_code_details`.

    `reached` says that a backend got the request, or that a setting or a rule behind all policies answered it.
    """
    results = list(_results(metadata))
    is_allowed = reached or details.startswith(_PASSED)
    is_denied_by_policy = bool(results) and (results[-1][1] == "denied" or details.startswith(_BY_AUTHORIZER))
    if results and (is_allowed or is_denied_by_policy):
        level, _, name = results[-1]
        return LoggedDecision(StepVerdict.DENY if is_denied_by_policy else StepVerdict.ALLOW, decider(name), level)
    if is_allowed:
        return LoggedDecision(StepVerdict.ALLOW)
    return LoggedDecision(StepVerdict.DENY, refused=True)


# The `response_code_details` of requests that Envoy forwarded to a backend, and of those that an authorizer denied or
# that were too large for it: a body that the authorizer cannot get does not go to the backend, either.
_PASSED = ("via_upstream", "upstream_", "response_timeout", "no_healthy_upstream")
_BY_AUTHORIZER = ("ext_authz_", "request_payload_too_large")


def _results(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the level, the result and the decider of each policy that Envoy asked."""
    for slot in SLOTS:
        result = metadata.get(slot.result)
        if isinstance(result, str):
            yield slot.level.capitalize(), result, str(metadata.get(slot.decider, ""))


def _metadata(metadata: Any, namespace: str) -> Mapping[str, Any]:
    return dict(metadata.filter_metadata[namespace]) if namespace in metadata.filter_metadata else {}


def _caller(tls: Any) -> str | None:
    for name in tls.peer_certificate_properties.subject_alt_name:
        if name.uri:
            return str(name.uri)
    return None


def _verb(number: int) -> str:
    name: str = base_pb2.RequestMethod.Name(number)
    return name if name != "METHOD_UNSPECIFIED" else "?"
