"""A service on loopback that counts requests and processes messages for Envoy, and records what it is asked.

It lets everything pass as it is (`envoy.service.ratelimit.v3`, `envoy.service.ext_proc.v3`).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import grpc
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as processor_pb2
from envoy.service.ratelimit.v3 import rls_pb2

from tierwall.engines.envoy.config.options import SocketAddress

_STREAMED = processing_mode_pb2.ProcessingMode.FULL_DUPLEX_STREAMED
_STOP_S = 5
# Stages ask one after the other.
_THREADS = 4


class CountedRequest(NamedTuple):
    """A request that was counted: the domain, and the entries of each descriptor."""

    domain: str
    descriptors: tuple[tuple[tuple[str, str], ...], ...]


class RecordingService:
    """A running service. `counted` and `processed` are what it was asked, the latter as the parts of each message."""

    def __init__(self) -> None:
        self.counted: list[CountedRequest] = []
        self.processed: list[list[str]] = []
        self._server = grpc.server(ThreadPoolExecutor(_THREADS))
        count = grpc.unary_unary_rpc_method_handler(
            self._count, rls_pb2.RateLimitRequest.FromString, rls_pb2.RateLimitResponse.SerializeToString
        )
        process = grpc.stream_stream_rpc_method_handler(
            self._process,
            processor_pb2.ProcessingRequest.FromString,
            processor_pb2.ProcessingResponse.SerializeToString,
        )
        for name, method, handler in (
            ("envoy.service.ratelimit.v3.RateLimitService", "ShouldRateLimit", count),
            ("envoy.service.ext_proc.v3.ExternalProcessor", "Process", process),
        ):
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {method: handler}),))
        self.address = SocketAddress("127.0.0.1", self._server.add_insecure_port("127.0.0.1:0"))
        self._server.start()

    def clear(self) -> None:
        """Forget what was asked."""
        self.counted.clear()
        self.processed.clear()

    def close(self) -> None:
        """Stop the service."""
        self._server.stop(0).wait(_STOP_S)

    def _count(self, request: Any, context: Any) -> Any:
        descriptors = (tuple((entry.key, entry.value) for entry in each.entries) for each in request.descriptors)
        self.counted.append(CountedRequest(request.domain, tuple(descriptors)))
        return rls_pb2.RateLimitResponse(overall_code=rls_pb2.RateLimitResponse.OK)

    def _process(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        parts: list[str] = []
        self.processed.append(parts)
        modes: Any = None
        for request in requests:
            modes = request.protocol_config if request.HasField("protocol_config") else modes
            part = str(request.WhichOneof("request"))
            parts.append(part)
            answer = processor_pb2.ProcessingResponse()
            getattr(answer, part).SetInParent()
            if part.endswith("_body") and modes is not None and getattr(modes, f"{part}_mode") == _STREAMED:
                body, streamed = getattr(request, part), getattr(answer, part).response.body_mutation.streamed_response
                streamed.body, streamed.end_of_stream = body.body, body.end_of_stream
            yield answer
