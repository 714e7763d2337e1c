"""The HTTPS server that API servers ask at `kubectl apply`: bounded in everything, and never in the way.

Its certificate may be replaced while it runs, as in `serve.authorizer.connections`. A body that is too long, too slow
or not an AdmissionReview gets an error, which `failurePolicy: Ignore` turns into an answer without warnings.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tierwall.api.wire.review import WireError
from tierwall.cluster.tls import load_certificate
from tierwall.serve.authorizer.bridge import AdmissionRequest, read_admission
from tierwall.serve.authorizer.connections import TlsServer, new_context, timed_protocol
from tierwall.serve.pages import bind

PATH = "/warnings"
# An object has at most 1.5 MiB in etcd, and a review has it twice.
MAX_BODY = 6 << 20
MAX_CONNECTIONS = 64
READ_S, KEEP_ALIVE_S, STOP_S = 5.0, 120, 2


class WebhookServer:
    """Answers AdmissionReviews. It listens once it is started, and answers once it has a certificate."""

    def __init__(self, answer: Callable[[AdmissionRequest], Awaitable[dict[str, Any]]]) -> None:
        """`answer` returns the review that answers a request."""
        self._answer = answer
        self._newest: ssl.SSLContext | None = None
        self._server: TlsServer | None = None
        self._task: asyncio.Task[None] | None = None
        self.port = 0

    def listen(self, host: str, port: int) -> None:
        """Listen; InputError if the address cannot be used."""
        self._socket = bind(host, port)
        self.port = int(self._socket.getsockname()[1])

    @property
    def has_certificate(self) -> bool:
        """Whether reviews can be answered."""
        return self._newest is not None

    def use(self, certificate: bytes, key: bytes) -> None:
        """Serve with this certificate from the next handshake on, and end connections that have another."""
        newest = new_context()
        load_certificate(newest, certificate + b"\n" + key)
        self._newest = newest
        if self._server is not None:
            self._server.drain(is_authority_new=False)
            return
        context = new_context()
        load_certificate(context, certificate + b"\n" + key)
        context.sni_callback = self._switch
        config = uvicorn.Config(
            Starlette(routes=[Route(PATH, self._review, methods=["POST"])]),
            http=timed_protocol(READ_S),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=STOP_S,
        )
        self._server = TlsServer(config, context, READ_S)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))

    def _switch(self, connection: Any, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._newest

    async def stop(self) -> None:
        """Finish open requests, and stop."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task
        self._socket.close()

    async def _review(self, request: Request) -> Response:
        try:
            async with asyncio.timeout(READ_S):
                body = await _body(request)
        except TimeoutError:
            return _problem(408, f"the body did not arrive within {READ_S:g} s")
        if body is None:
            return _problem(413, f"a review has at most {MAX_BODY >> 20} MiB")
        try:
            review = read_admission(body)
        except WireError as error:
            return _problem(400, str(error))
        return Response(msgspec.json.encode(await self._answer(review)), media_type="application/json")


async def _body(request: Request) -> bytes | None:
    """Read the body; None if it is too long."""
    parts: list[bytes] = []
    left = MAX_BODY
    try:
        async for part in request.stream():
            left -= len(part)
            if left < 0:
                return None
            parts.append(part)
    except ClientDisconnect:
        return b""
    return b"".join(parts)


def _problem(status: int, reason: str) -> Response:
    # The rest of the body may not have been read, so the connection cannot be used again.
    return JSONResponse({"error": reason}, status, {"connection": "close"})
