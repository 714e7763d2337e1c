"""An OpenTelemetry collector that keeps what it gets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from tests.labs.waiting import PATIENCE_S
from tierwall.engines.envoy.config.options import SocketAddress


class Collector:
    """A collector of one service of OTLP: its full name, the module of its messages and their prefix."""

    def __init__(self, service: str, messages: Any, prefix: str) -> None:
        self.requests: list[Any] = []
        self._answer = getattr(messages, f"{prefix}Response")
        self._server = grpc.server(ThreadPoolExecutor(2))
        handler = grpc.unary_unary_rpc_method_handler(
            self._export, getattr(messages, f"{prefix}Request").FromString, self._answer.SerializeToString
        )
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Export": handler}),))
        # As people write it; the server listens on one of its addresses only.
        self.address = SocketAddress("localhost", self._server.add_insecure_port("127.0.0.1:0"))
        self._server.start()

    def _export(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        return self._answer()

    def close(self) -> None:
        self._server.stop(0).wait(PATIENCE_S)
