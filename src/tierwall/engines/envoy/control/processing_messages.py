"""Messages of external processing (`envoy.service.ext_proc.v3`): what Envoy says, as plain values, and its answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envoy.service.ext_proc.v3 import external_processor_pb2 as processor_pb2
from google.protobuf import struct_pb2

from tierwall.engines.envoy.config.names import CLAIMS, JWT_METADATA


def ended() -> Any:
    """Return the message that refuses a request, or ends its stream if that is open already."""
    out = processor_pb2.ProcessingResponse()
    out.immediate_response.status.code = 403
    out.immediate_response.body = b"denied by policy\n"
    out.immediate_response.details = "tierwall_permission_ended"
    return out


def claims_of(metadata: Any) -> Any:
    """Return the claims of a token as plain Python; None if no token was read."""
    is_known = JWT_METADATA in metadata and CLAIMS in metadata[JWT_METADATA]
    return _plain(metadata[JWT_METADATA][CLAIMS]) if is_known else None


def _plain(value: Any) -> Any:
    """Return a value of metadata as plain Python; its numbers are doubles."""
    if isinstance(value, struct_pb2.Struct):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, struct_pb2.ListValue) else value


def streamed(body: bytes, ends: bool = False) -> Any:
    """Return a part of the body of a stream, which need not answer anything that Envoy said."""
    out = processor_pb2.ProcessingResponse()
    part = out.response_body.response.body_mutation.streamed_response
    part.body, part.end_of_stream = body, ends
    return out


def unreadable() -> Any:
    """Return the message that replaces a response by an error."""
    out = processor_pb2.ProcessingResponse()
    out.immediate_response.status.code = 502
    out.immediate_response.body = b"the stream is compressed, so lists in it cannot be cut\n"
    out.immediate_response.details = "tierwall_unreadable_stream"
    return out


def is_compressed(headers: Mapping[str, str]) -> bool:
    """Whether a response is compressed, although nobody asked for that."""
    return headers.get("content-encoding", "identity") != "identity"


def header_values(headers: Any) -> dict[str, str]:
    """Return headers by their names in lower case."""
    return {header.key.lower(): (header.raw_value.decode("latin-1") or header.value) for header in headers.headers}
