"""The HTTP interface of the authorizer, as a plain ASGI application: any framework would cost more than a decision.
POST /authorize     SubjectAccessReview; also AuthorizationConditionsReview, for callers with one address for both
POST /conditions    AuthorizationConditionsReview
POST /admit         AdmissionReview (the bridge)
GET  /healthz /readyz /metrics
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from functools import partial
from time import perf_counter, time
from typing import Any, TypeAlias

import msgspec
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from tierwall.api.wire import condition_sets
from tierwall.render.engines import review_line
from tierwall.render.json import diagnostic_document
from tierwall.serve.authorizer.asking import decide_with_answers
from tierwall.serve.authorizer.metrics import AuthorizerMetrics
from tierwall.serve.authorizer.policies import PolicyFollower
from tierwall.serve.authorizer.review_head import MAX_HEAD_BYTES
from tierwall.serve.authorizer.reviews import (
    ADMIT,
    AUTHORIZE,
    CANARY,
    CONDITIONS,
    MAX_BYTES,
    ReviewReply,
    Reviews,
    too_long,
)
from tierwall.serve.decisionlog import DecisionLog

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

PHASES = {"/authorize": AUTHORIZE, "/conditions": CONDITIONS, "/admit": ADMIT}
PAGES = ("/healthz", "/readyz", "/metrics")
READ_SECONDS = 10.0
# The number of problems on the page of readiness.
MAX_PROBLEMS = 20
# A body this far over its limit is cut off. Until then it is drained, so that its sender reads why it was refused.
MAX_DRAINED_BYTES = 64 << 20
_JSON = (b"content-type", b"application/json")
_NOT_ALLOWED = b'{"error":"method not allowed"}'
_CONDITIONS_KIND = condition_sets.KIND.encode()


class UnreadBody(Exception):
    """A body that was not read, with the HTTP status and the reason; `head` is the beginning of a long one."""

    def __init__(self, status: int, reason: str, head: bytes = b"") -> None:
        super().__init__(reason)
        self.status, self.reason, self.head = status, reason, head


class CallerGone(Exception):
    """The caller closed the connection."""


class App:
    """The application. `pages` is an application too, for an address that only serves health and metrics."""

    def __init__(
        self,
        reviews: Reviews,
        follower: PolicyFollower,
        metrics: AuthorizerMetrics,
        log: DecisionLog | None = None,
        *,
        read_seconds: float = READ_SECONDS,
        log_event: Callable[..., None] = lambda event, **fields: None,
    ) -> None:
        self._reviews = reviews
        self._follower = follower
        self._metrics = metrics
        self._log = log
        self._unlogged: list[bytes] = []
        self._read_seconds = read_seconds
        self._log_event = log_event
        self.stopping = False
        # While policies are prepared for the first time. Reviews are answered, but another replica would be faster.
        self.warming = False
        # Why the Namespaces of the API server are not known, if they should be.
        self.namespace_problem: Callable[[], str] = str

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request: a review or a page."""
        phase = PHASES.get(scope["path"]) if scope["type"] == "http" else None
        if phase is None:
            await self.pages(scope, receive, send)
        elif scope["method"] == "POST":
            await self._review(phase, receive, send)
        else:
            await _send(send, 405, _NOT_ALLOWED, [_JSON, (b"allow", b"POST")])

    async def pages(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request for health or metrics."""
        if scope["type"] != "http":
            return
        path, method = scope["path"], scope["method"]
        if path not in PAGES:
            await _send(send, 404, b'{"error":"not found"}', [_JSON])
        elif method not in ("GET", "HEAD"):
            await _send(send, 405, _NOT_ALLOWED, [_JSON, (b"allow", b"GET, HEAD")])
        else:
            status, kind, body = self._page(path)
            await _send(send, status, body if method == "GET" else b"", [(b"content-type", kind)])

    async def _review(self, phase: str, receive: Receive, send: Send) -> None:
        headers = [_JSON]
        try:
            body = await self._body(phase, receive)
        except CallerGone:
            return
        except UnreadBody as error:
            # The rest of the body is not read, so the connection cannot be used again.
            headers.append((b"connection", b"close"))
            answer = partial(self._reviews.refusal, phase, error.status, error.reason)
            if phase == ADMIT and error.head:
                answer = partial(self._reviews.answer_head, error.head)
        else:
            answer = partial(self._reviews.answer, phase, body)
        # How long a client takes to send its review and to read the answer says nothing about the authorizer.
        start = perf_counter()
        reply = await self._decide(answer)
        seconds = perf_counter() - start
        await _send(send, reply.status, reply.body, headers)
        self._remember(reply, seconds)

    async def _decide(self, answer: Callable[[], ReviewReply]) -> ReviewReply:
        """Answer a review; if the chain asks other servers, wait for those that this review needs."""
        return await decide_with_answers(answer) if self._follower.current.asks_others else answer()

    async def _body(self, phase: str, receive: Receive) -> bytes:
        # Only the body tells the kind of review, and callers with one address send both kinds to /authorize.
        limit = max(MAX_BYTES[phase], MAX_BYTES[CONDITIONS])
        body = _Body(limit)
        first = _StartedMessage(receive())
        # Nearly every body has arrived already and needs no timer.
        if first.message is None or not body.takes(first.message):
            try:
                async with asyncio.timeout(self._read_seconds):
                    is_whole = first.message is None and body.takes(await first)
                    while not is_whole:
                        is_whole = body.takes(await receive())
            except TimeoutError:
                raise UnreadBody(408, f"the body did not arrive within {self._read_seconds:g} s") from None
        if body.size > limit:
            raise UnreadBody(413, too_long(phase), body.head if body.size <= MAX_DRAINED_BYTES else b"")
        whole = body.whole()
        if body.size > MAX_BYTES[phase] and _CONDITIONS_KIND not in whole:
            raise UnreadBody(413, too_long(phase))
        return whole

    def _remember(self, reply: ReviewReply, seconds: float) -> None:
        record = reply.record
        self._metrics.observe(record, seconds)
        if self._log is not None and record.phase != CANARY:
            if not self._unlogged:
                asyncio.get_running_loop().call_soon(self._write_log, self._log)
            self._unlogged.append(review_line(record, time(), seconds))

    def _write_log(self, log: DecisionLog) -> None:
        """Write the decisions of one round of the event loop together: a system call costs more than a record."""
        lines, self._unlogged = self._unlogged, []
        try:
            log.append(lines)
        except OSError as error:
            # A full disk must not stop authorization. The counter and the first message report it.
            if self._metrics.log_failures._value.get() == 0:
                self._log_event("decision log refused", why=str(error))
            self._metrics.log_failures.inc(len(lines))

    def _page(self, path: str) -> tuple[int, bytes, bytes]:
        if path == "/metrics":
            return 200, CONTENT_TYPE_LATEST.encode(), generate_latest(self._metrics.registry)
        if path == "/healthz":
            return 200, b"text/plain", b"ok\n"
        readiness = self.readiness()
        return 200 if readiness["ready"] else 503, b"application/json", msgspec.json.encode(readiness)

    def readiness(self) -> dict[str, Any]:
        """Return what is in force, and what is wrong with the newest objects.

        An object that is closed for its own error is in force. A load or a chain that is kept out is not.
        """
        follower, policies = self._follower, self._follower.current
        page: dict[str, Any] = {
            "ready": not self.stopping and not self.warming and not follower.stale,
            "revision": policies.revision,
            "policies": policies.policies,
            "objects": policies.objects,
            "bridge": self._reviews.bridged,
            # Superseded policies that are still enforced where they granted something.
            "retained": len(follower.retained),
            # The files differ from what is in force.
            "stale": bool(follower.stale),
        }
        if follower.refusal:
            page["message"] = "what is newest cannot be read or used; the last good objects are in force"
        elif follower.stale:
            page["message"] = "the newest chain cannot be used; the last good one is in force, over the newest policies"
        elif self.warming:
            page["message"] = "policies are being prepared"
        elif follower.newest_errors:
            page["message"] = "objects with errors fail closed; all others are in force"
        if self._reviews.bridged:
            admission = self._reviews.admission()
            page["admission"] = {"live": admission.is_live, "reason": admission.reason}
            problem = self.namespace_problem()
            for what, words in (("admission", "" if admission.is_live else admission.words()), ("namespaces", problem)):
                if words:
                    line = f"{what}: {words}"
                    page["message"] = f"{page['message']}\n{line}" if "message" in page else line
        if errors := follower.stale or follower.newest_errors:
            page["problems"] = [diagnostic_document(diagnostic) for diagnostic in errors[:MAX_PROBLEMS]]
        return page


class _Body:
    """The parts of a body that have arrived."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self.size = 0
        # The beginning of a body over the limit.
        self.head = b""

    def takes(self, message: Message) -> bool:
        """Take in one message; True if no further one is wanted."""
        if message["type"] != "http.request":
            raise CallerGone
        self.size += len(part := message.get("body", b""))
        if self.size <= self._limit:
            self._parts.append(part)
        elif not self.head:
            # Nothing but its head is kept of a body over the limit.
            self.head = b"".join((*self._parts, part))[:MAX_HEAD_BYTES]
            self._parts.clear()
        return not message.get("more_body", False) or self.size > MAX_DRAINED_BYTES

    def whole(self) -> bytes:
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)


class _StartedMessage:
    """A message that is only awaited if it has not arrived yet: a timer per request would cost more than the check.

    The coroutine runs until it would wait, and stays there until this object is awaited.
    """

    def __init__(self, coming: Awaitable[Message]) -> None:
        self.message: Message | None = None
        self._rest = coming.__await__()
        try:
            self._waits_for = next(self._rest)
        except StopIteration as done:
            self.message = done.value

    def __await__(self) -> Generator[Any, Any, Message]:
        try:
            yield self._waits_for
        except BaseException as error:
            # Cancelled while waiting: the coroutine is told, too, so that it cleans up.
            self._rest.throw(error)
            raise
        return (yield from self._rest)


async def _send(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
