"""gRPC services that Envoy asks about requests: one processes them, one counts them, and one allows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from envoy.service.auth.v3 import external_auth_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as processor_pb2
from envoy.service.ratelimit.v3 import rls_pb2

from tierwall.engines.envoy.config.options import SocketAddress

LIMIT = 2


class EnvoyServices:
    """A server with these services. Of a descriptor `LIMIT` requests pass; processing refuses those with `x-block`, and
    asks Envoy to choose again for the path in `x-lead-to`. Bodies go back as streams, or with `x-held` as a whole, and
    `x-swap: a b` puts `b` in the place of `a`. Of `x-put: name value` requests get that header, of
    `x-put-back: name value` responses.

    An allowed request gets the header that its own `x-wanted` names, and one that is counted by `adds: name value` that
    header.
    """

    def __init__(self) -> None:
        self.counted: Counter[tuple[str, ...]] = Counter()
        # How many requests it was given to process.
        self.processed = 0
        self._server = grpc.server(ThreadPoolExecutor(4))
        process = grpc.stream_stream_rpc_method_handler(
            self._process,
            processor_pb2.ProcessingRequest.FromString,
            processor_pb2.ProcessingResponse.SerializeToString,
        )
        count = grpc.unary_unary_rpc_method_handler(
            self._count, rls_pb2.RateLimitRequest.FromString, rls_pb2.RateLimitResponse.SerializeToString
        )
        allow = grpc.unary_unary_rpc_method_handler(
            _allow, external_auth_pb2.CheckRequest.FromString, external_auth_pb2.CheckResponse.SerializeToString
        )
        for service, method, handler in (
            ("envoy.service.auth.v3.Authorization", "Check", allow),
            ("envoy.service.ext_proc.v3.ExternalProcessor", "Process", process),
            ("envoy.service.ratelimit.v3.RateLimitService", "ShouldRateLimit", count),
        ):
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        self.address = SocketAddress("127.0.0.1", self._server.add_insecure_port("127.0.0.1:0"))
        self._server.start()

    def _count(self, request: Any, context: Any) -> Any:
        over = False
        for descriptor in request.descriptors:
            key = (request.domain, *(f"{entry.key}={entry.value}" for entry in descriptor.entries))
            self.counted[key] += 1
            over = over or self.counted[key] > LIMIT
        code = rls_pb2.RateLimitResponse.OVER_LIMIT if over else rls_pb2.RateLimitResponse.OK
        answer = rls_pb2.RateLimitResponse(overall_code=code)
        for descriptor in request.descriptors:
            for entry in descriptor.entries:
                if entry.key == "adds" and entry.value:
                    name, _, value = entry.value.partition(" ")
                    answer.request_headers_to_add.add(key=name, value=value)
        return answer

    def _process(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        self.processed += 1
        return _process(requests)

    def close(self) -> None:
        self._server.stop(0).wait(10)


def _allow(request: Any, context: Any) -> Any:
    answer = external_auth_pb2.CheckResponse()
    answer.ok_response.SetInParent()
    wanted = request.attributes.request.http.headers.get("x-wanted")
    if wanted:
        answer.ok_response.headers.add(header={"key": wanted, "value": "granted"})
    return answer


def _process(requests: Iterator[Any]) -> Iterator[Any]:
    asked: dict[str, str] = {}
    for request in requests:
        kind = request.WhichOneof("request")
        answer = processor_pb2.ProcessingResponse()
        if kind == "request_headers":
            asked = {each.key: each.raw_value.decode() for each in request.request_headers.headers.headers}
            if "x-block" in asked:
                answer.immediate_response.status.code = 403
            else:
                common = answer.request_headers.response
                path = asked.get("x-lead-to")
                put = [("x-processed", "yes"), *([(":path", path)] if path else [])]
                put += [(name, value) for name, _, value in [asked.get("x-put", "").partition(" ")] if name]
                for name, value in put:
                    common.header_mutation.set_headers.add(header={"key": name, "raw_value": value.encode()})
                common.clear_route_cache = path is not None
        elif kind == "response_headers":
            name, _, value = asked.get("x-put-back", "").partition(" ")
            answer.response_headers.SetInParent()
            if name:
                change = answer.response_headers.response.header_mutation
                change.set_headers.add(header={"key": name, "raw_value": value.encode()})
        elif kind in ("request_body", "response_body"):
            _answer_body(kind, getattr(request, kind), answer, asked)
        else:
            getattr(answer, kind).SetInParent()
        yield answer


def _answer_body(kind: str, body: Any, answer: Any, asked: dict[str, str]) -> None:
    old, _, new = asked.get("x-swap", "").encode().partition(b" ")
    text = body.body.replace(old, new) if old and kind == "request_body" else body.body
    if "x-held" not in asked:
        streamed = getattr(answer, kind).response.body_mutation.streamed_response
        streamed.body, streamed.end_of_stream = text, body.end_of_stream
    elif text != body.body:
        common = getattr(answer, kind).response
        common.body_mutation.body = text
        common.header_mutation.set_headers.add(header={"key": "content-length", "raw_value": b"%d" % len(text)})
    else:
        getattr(answer, kind).SetInParent()
