"""The HTTPS server that API servers ask at `kubectl apply`: bounded in everything, and never in the way.

Its certificate may be replaced while it runs (`serve.https_server`). A body that is too long, too slow
or not an AdmissionReview gets an error, which `failurePolicy: Ignore` turns into an answer without warnings.

Anybody in the cluster may send reviews, to a process that must renew its lease in the same event loop. To decode a long
review takes a tenth of a second and a hundred times its memory, so only one of them is here at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tierwall.api.wire.review import WireError
from tierwall.serve.authorizer.bridge import AdmissionRequest, read_admission
from tierwall.serve.https_server import HttpsServer

PATH = "/warnings"
# An object has at most 1.5 MiB in etcd, and a review has it twice.
MAX_BODY = 6 << 20
MAX_CONNECTIONS = 64
# A longer review waits until no other long one is here.
LONG_BODY = 1 << 16
READ_S = 5.0


class WebhookServer(HttpsServer):
    """Answers AdmissionReviews. It listens first, and answers once it has a certificate."""

    def __init__(self, answer: Callable[[AdmissionRequest], Awaitable[dict[str, Any]]]) -> None:
        """`answer` returns the review that answers a request."""
        self._answer = answer
        self._long = asyncio.Lock()
        super().__init__(
            Starlette(routes=[Route(PATH, self._review, methods=["POST"])]), READ_S, connections=MAX_CONNECTIONS
        )

    async def _review(self, request: Request) -> Response:
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(READ_S):
                    body = await self._body(request, held)
            except TimeoutError:
                return _problem(408, f"the body did not arrive within {READ_S:g} s")
            if body is None:
                return _problem(413, f"a review has at most {MAX_BODY >> 20} MiB")
            try:
                reply = await self._answer(read_admission(body))
            except WireError as error:
                return _problem(400, str(error))
            return Response(msgspec.json.encode(reply), media_type="application/json")

    async def _body(self, request: Request, held: AsyncExitStack) -> bytes | None:
        """Read the body; None if it is too long. A long one holds the place of long ones."""
        parts: list[bytes] = []
        size = 0
        try:
            async for part in request.stream():
                is_long = size > LONG_BODY
                size += len(part)
                if size > MAX_BODY:
                    return None
                if size > LONG_BODY and not is_long:
                    await held.enter_async_context(self._long)
                parts.append(part)
        except ClientDisconnect:
            return b""
        return b"".join(parts)


def _problem(status: int, reason: str) -> Response:
    # The rest of the body may not have been read, so the connection cannot be used again.
    return JSONResponse({"error": reason}, status, {"connection": "close"})
