"""Filters `tools/list`: a caller sees the tools that it may call (external processing, `envoy.service.ext_proc.v3`).

Envoy sends only the responses to this method here. A tool is shown if some call of it may pass, perhaps only with
certain arguments or headers. A response that is not a readable list is replaced by an error.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import grpc
import msgspec
from envoy.extensions.common.matching.v3 import extension_matcher_pb2
from envoy.extensions.filters.http.composite.v3 import composite_pb2
from envoy.extensions.filters.http.ext_proc.v3 import ext_proc_pb2, processing_mode_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as processor_pb2
from xds.type.matcher.v3 import matcher_pb2

from tierwall.core.diagnostics import Diagnostic
from tierwall.core.verdict import Verdict
from tierwall.engines.envoy.config.bootstrap import CONTROL_PLANE
from tierwall.engines.envoy.config.matchers import extension_config, header, lookup, matcher, packed
from tierwall.engines.envoy.config.names import METHOD, backend_of_cluster, place_of
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.possible import possible
from tierwall.tool.protocol import CALL
from tierwall.tool.request import tool_request
from tierwall.tool.ways import find_way

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
FILTER = "tierwall.tools-list"
EXT_PROC = "envoy.filters.http.ext_proc"  # the namespace of the attributes
LIST = "tools/list"
INTERNAL_ERROR = -32603
_CALLER, _CLUSTER = "connection.uri_san_peer_certificate", "xds.cluster_name"
_CHAIN, _HOST = "xds.filter_chain_name", "xds.virtual_host_name"

May = Callable[[str], bool]
# Returns the test for tools that a caller may call at a place (`gateway`, `listener`, `backend`); None if unknown.
Permitted = Callable[[Mapping[str, Any], str | None], May | None]


def permitted(snapshot: Snapshot, place: Mapping[str, Any], caller: str | None) -> May | None:
    """Return a test for the tools that a caller may call at a place; None if there is no such place."""
    problems: list[Diagnostic] = []
    way = find_way(snapshot, place.get("gateway"), place.get("listener"), place.get("backend"), problems)
    if way is None or problems:
        return None
    port = way.listener.port if way.listener is not None else 0
    backend, stack = way.backend, way.stack

    def may(tool: str) -> bool:
        return possible(stack, tool_request(backend, caller, CALL, tool, port=port)).verdict is not Verdict.DENY

    return may


def http_filter() -> Any:
    """Return the filter that asks, only for `tools/list`; it runs after the policy filters."""
    mode = processing_mode_pb2.ProcessingMode
    asking = ext_proc_pb2.ExternalProcessor(
        processing_mode=mode(
            request_header_mode=mode.SEND,
            response_header_mode=mode.SEND,
            request_body_mode=mode.NONE,
            response_body_mode=mode.BUFFERED,
            request_trailer_mode=mode.SKIP,
            response_trailer_mode=mode.SKIP,
        ),
        request_attributes=[_CALLER, _CHAIN, _HOST, _CLUSTER],
        stat_prefix="tools_list",
    )
    asking.grpc_service.envoy_grpc.cluster_name = CONTROL_PLANE
    asking.message_timeout.FromMilliseconds(2000)
    # A composite filter runs the inner filter only for matching requests that reach it. A denied request never does, so
    # denials work even if this service does not answer.
    run = composite_pb2.ExecuteFilterAction(typed_config={"name": FILTER, "typed_config": packed(asking)})
    asks = matcher_pb2.Matcher.OnMatch(action=extension_config("filter", run))
    wrapped = extension_matcher_pb2.ExtensionWithMatcher(
        xds_matcher=matcher(lookup(header(METHOD), {LIST: asks}, None)),
        extension_config={"name": "composite", "typed_config": packed(composite_pb2.Composite())},
    )
    return http_connection_manager_pb2.HttpFilter(name=FILTER, typed_config=packed(wrapped))


def service(permitted: Permitted) -> Any:
    """Return the gRPC service that Envoy asks."""

    async def process(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        may: May | None = None
        content_type = ""
        async for message in requests:
            answer = processor_pb2.ProcessingResponse()
            kind = message.WhichOneof("request")
            if kind == "request_headers":
                may = _may_call(message.attributes, permitted)
                # A compressed response could not be read.
                answer.request_headers.response.header_mutation.remove_headers.append("accept-encoding")
            elif kind == "response_headers":
                headers = _headers(message.response_headers.headers)
                content_type = headers.get("content-type", "")
                if headers.get("content-encoding", "identity") != "identity":
                    content_type = "compressed"
                # The length of the body will change.
                answer.response_headers.response.header_mutation.remove_headers.append("content-length")
            elif kind == "response_body":
                body = filter_tools(message.response_body.body, content_type, may)
                answer.response_body.response.SetInParent()
                if body is not None:
                    answer.response_body.response.body_mutation.body = body
            yield answer

    handler = grpc.stream_stream_rpc_method_handler(
        process,
        processor_pb2.ProcessingRequest.FromString,
        processor_pb2.ProcessingResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(SERVICE, {"Process": handler})


def _may_call(attributes: Any, permitted: Permitted) -> May | None:
    """Return the test for a request's caller; the caller and the place come from Envoy, never from the client."""
    if EXT_PROC not in attributes:
        return None
    strings = {key: value.string_value for key, value in attributes[EXT_PROC].fields.items()}
    where = place_of(strings.get(_CHAIN, ""), strings.get(_HOST, ""))
    place = {**where, "backend": backend_of_cluster(strings.get(_CLUSTER, ""))}
    return permitted(place, strings.get(_CALLER) or None)


def _headers(headers: Any) -> dict[str, str]:
    return {header.key.lower(): (header.raw_value.decode("latin-1") or header.value) for header in headers.headers}


def filter_tools(body: bytes, content_type: str, may: May | None) -> bytes | None:
    """Return the body, JSON or server-sent events, with only the tools that a caller may call; None to keep it.

    An unknown body is replaced by an error, so that a list in an unknown format is never shown unfiltered.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == "application/json":
        return _message(body, may)
    if media_type == "text/event-stream":
        return b"".join(_events(body, may))
    if not body:
        return None
    return _refusal(None)


def _message(text: bytes, may: May | None) -> bytes:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return _refusal(None)
    if not isinstance(value, dict):
        return _refusal(None)
    result = value.get("result")
    if "result" not in value:
        # An error, a request or a notification from the server: nothing to filter.
        return text
    tools = result.get("tools") if isinstance(result, dict) else None
    if may is None or not isinstance(result, dict) or not isinstance(tools, list):
        return _refusal(value.get("id"))
    kept = [
        tool for tool in tools if isinstance(tool, dict) and isinstance(tool.get("name"), str) and may(tool["name"])
    ]
    if len(kept) == len(tools):
        return text
    return msgspec.json.encode({**value, "result": {**result, "tools": kept}})


def _refusal(identity: Any) -> bytes:
    error = {"code": INTERNAL_ERROR, "message": "the list of tools cannot be read, so it is not shown"}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": identity, "error": error})


def _events(body: bytes, may: May | None) -> Iterator[bytes]:
    """Yield every event with its data filtered; fields other than `data` stay the same."""
    kept: list[bytes] = []
    data: list[bytes] = []
    for line in [*body.removeprefix(b"\xef\xbb\xbf").splitlines(), b""]:
        if line:
            name, _, rest = line.partition(b":")
            if name == b"data":
                data.append(rest.removeprefix(b" "))
            else:
                kept.append(line)
            continue
        if data and b"".join(data).strip():
            kept += (b"data: " + part for part in _message(b"\n".join(data), may).split(b"\n"))
        elif data:
            kept.append(b"data: ")
        if kept:
            yield b"\n".join(kept) + b"\n\n"
        kept, data = [], []
