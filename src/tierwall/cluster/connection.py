"""Requests to an API server: TLS, proxies, credentials, impersonation, retries, timeouts (docs/clusters.md#kubeconfig).

Written on httpx, as no Python client does all of it (docs/clusters.md#why-not-a-client-library). HTTP/1.1 only: with
HTTP/2 all watches would share one connection, and httpx sends no pings. Redirects are not followed: the credential is
for this server alone.

As with kubectl, the timeout is for a request as a whole, with all its retries. A plugin that gets the credential has
its own time.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
from msgspec import Struct

from tierwall.cluster.access import ClusterAccess
from tierwall.cluster.credential import Credential, CredentialSource
from tierwall.cluster.failures import (
    ApiServerError,
    ClusterError,
    UnreachableError,
    address_of,
    explain,
    no_answer_within,
    not_kubernetes,
    redirected,
)
from tierwall.cluster.kubeconfig import kubeconfig_error
from tierwall.cluster.proxies import environment_proxy
from tierwall.cluster.reply import MAX_BODY, ServerReply, read_body, read_failure
from tierwall.cluster.resolving import can_be_resolved
from tierwall.cluster.tls import proxy_context, server_context
from tierwall.core.diagnostics import InputError
from tierwall.version import __version__

# A cut line is noticed by keep-alive within this many seconds; a stopped server only by the timeout of reading.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
# The largest answer to a write: the object, which has at most 3 MiB, and what the server adds.
MAX_WRITTEN = 8 << 20
# An overloaded server is asked again this often, after as many seconds as it says, but at most these.
_MAX_RETRIES, _MAX_RETRY_AFTER = 5, 10.0


class _Overloaded(Exception):
    """The server says when to ask again."""

    def __init__(self, failure: ApiServerError, seconds: float) -> None:
        super().__init__()
        self.failure, self.seconds = failure, seconds


class _Replaced(UnreachableError):
    """The connection was closed because there is another client certificate or authority now."""


class _Request(Struct, frozen=True):
    """What is asked for, and what is sent. `may_wait`: an overloaded server may be asked again later.

    `check` is called when the first byte is due: whatever it raises, nothing is sent then.
    """

    path: str
    query: Mapping[str, str] | None = None
    accept: str = "application/json"
    method: str = "GET"
    content: bytes | None = None
    content_type: str = "application/json"
    may_wait: bool = True
    check: Callable[[], None] = lambda: None


class _OpenedStream:
    """The connection that a request opens. It is closed if its handshake is given up: httpcore would forget it."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._stream: Any = None
        self._check = check

    async def trace(self, event: str, info: Mapping[str, Any]) -> None:
        if event.endswith("connect_tcp.complete"):
            self._stream = info["return_value"]
        elif event.endswith("start_tls.failed") and self._stream is not None:
            await self._stream.aclose()
        elif event.endswith("send_request_headers.started"):
            self._check()


class Connection:
    """Requests to one API server as one user.

    INVARIANT: everything of a connection happens in one event loop.
    """

    def __init__(
        self, access: ClusterAccess, timeout: float | None, user_agent: str = f"tierwall/{__version__}"
    ) -> None:
        """`timeout` is in seconds; None or 0 lifts the limit."""
        self.access, self._timeout, self._user_agent = access, timeout or None, user_agent
        self._server = address_of(access.server)
        self._proxy = access.proxy_url or environment_proxy(access.server, os.environ)
        self._credentials = CredentialSource(access)
        self._client: httpx.AsyncClient | None = None
        # What the TLS context was made of: a rotated certificate or authority makes a new one.
        self._tls: tuple[bytes, bytes] = (b"", b"")
        self._is_resolved = False

    async def close(self) -> None:
        """Close all connections."""
        await self._credentials.close()
        if self._client is not None:
            await self._client.aclose()

    async def get(
        self, path: str, query: Mapping[str, str] | None = None, accept: str = "application/json"
    ) -> ServerReply:
        """Return the answer to a GET; ApiServerError if it is a failure, UnreachableError if no answer comes."""
        return await self._exchange(_Request(path, query, accept), MAX_BODY)

    async def post(self, path: str, content: bytes, limit: int) -> ServerReply:
        """Return the answer to JSON that is sent; failures as in `get`, and for an answer of more bytes than that."""
        return await self._exchange(_Request(path, method="POST", content=content), limit)

    async def send(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        check: Callable[[], None] = lambda: None,
    ) -> ServerReply:
        """Return the answer to a write; failures as in `get`.

        An overloaded server is not asked again: whoever writes must first check that it still may, and that what it
        writes still holds. `check` is called when a connection is open and the first byte is due; if it raises,
        nothing is sent.
        """
        request = _Request(path, query, "application/json", method, content, content_type, False, check)
        return await self._exchange(request, MAX_WRITTEN)

    async def _exchange(self, request: _Request, limit: int) -> ServerReply:
        credential = await self._credentials.current()
        left, may_renew, retries = self._timeout, True, _MAX_RETRIES
        while True:
            started = _now()
            wait = 0.0
            try:
                async with asyncio.timeout(left), self._answer(request, credential) as response:
                    await self._check(response, request.may_wait)
                    content = await read_body(response, self._server, limit)
                    return ServerReply(self._server, content, response.headers.get("content-type", ""))
            except TimeoutError:
                raise no_answer_within(self._server, self._timeout) from None
            except (ApiServerError, _Overloaded, _Replaced) as error:
                failure: ClusterError = error.failure if isinstance(error, _Overloaded) else error
                if isinstance(error, ApiServerError):
                    renewed = await self._renewed(error, credential) if may_renew else None
                    may_renew, credential = False, renewed or credential
                    is_hopeless = renewed is None
                else:
                    wait = error.seconds if isinstance(error, _Overloaded) else 0.0
                    retries -= 1
                    is_hopeless = retries < 0
            left = max(0.0, left - (_now() - started) - wait) if left is not None else None
            if is_hopeless or left == 0:
                raise failure
            await asyncio.sleep(wait)

    @asynccontextmanager
    async def stream(self, path: str, query: Mapping[str, str], silence: float) -> AsyncIterator[httpx.Response]:
        """Open a stream that may be silent for so many seconds; failures as in `get`. It is never packed."""
        credential = await self._credentials.current()
        for may_renew in (True, False):
            async with self._answer(_Request(path, query), credential, silence) as response:
                try:
                    await self._check(response)
                except ApiServerError as failure:
                    renewed = await self._renewed(failure, credential) if may_renew else None
                    if renewed is None:
                        raise
                    credential = renewed
                else:
                    if response.headers.get("content-encoding", "identity") != "identity":
                        raise not_kubernetes(self._server, "expected a plain stream, found a packed one")
                    yield response
                    return

    async def _renewed(self, failure: ApiServerError, credential: Credential) -> Credential | None:
        """Return another credential if this one was refused, so that a rotated token does not end anything."""
        return await self._credentials.renewed(credential) if failure.code == 401 else None

    @asynccontextmanager
    async def _answer(
        self, request: _Request, credential: Credential, silence: float | None = None
    ) -> AsyncIterator[httpx.Response]:
        """Send a request. `silence` is for a stream, which only has to begin within the timeout."""
        is_packed = self.access.compressed and silence is None
        headers = [
            ("accept", request.accept),
            ("accept-encoding", "gzip" if is_packed else "identity"),
            ("user-agent", self._user_agent),
            *credential.headers,
        ]
        if request.content is not None:
            headers.append(("content-type", request.content_type))
        client: httpx.AsyncClient | None = None
        response: httpx.Response | None = None
        try:
            try:
                async with asyncio.timeout(self._timeout):
                    await self._resolve()
                    client = await self._client_for(credential)
                    built = client.build_request(
                        request.method,
                        self.access.server + request.path,
                        params=request.query,
                        content=request.content,
                        headers=httpx.Headers(headers, encoding="utf-8"),
                        timeout=httpx.Timeout(None, read=silence),
                        extensions={"trace": _OpenedStream(request.check).trace},
                    )
                    response = await client.send(built, stream=True)
            except TimeoutError:
                if response is not None:
                    # It came in the moment in which it was given up.
                    await response.aclose()
                raise no_answer_within(self._server, self._timeout) from None
            except httpx.InvalidURL:
                raise kubeconfig_error(f"`{self._server}` is not an address that can be asked") from None
            # Nobody logs in here by cookies, and a jar could be filled.
            client.cookies.clear()
            try:
                yield response
            finally:
                await response.aclose()
        except httpx.HTTPError as error:
            if client is not None and client is not self._client:
                raise _Replaced(self._server, "its certificate or ours was replaced") from None
            host = self.access.server_name or urlsplit(self.access.server).hostname or ""
            proxy = address_of(self._proxy) if self._proxy else ""
            raise explain(error, self._server, host, proxy, silence or self._timeout) from None

    async def _check(self, response: httpx.Response, may_wait: bool = False) -> None:
        """Raise what a status means, unless it is success."""
        code = response.status_code
        if 300 <= code < 400:
            raise redirected(self._server, response.headers.get("location", ""))
        if code < 200:
            raise not_kubernetes(self._server, f"expected JSON, found status {code}")
        if code >= 400:
            body = await read_failure(response, self._server)
            kind = response.headers.get("content-type", "")
            failure = ApiServerError.of(code, response.reason_phrase, kind, body, self._server)
            if may_wait and code in (429, 503) and "retry-after" in response.headers:
                raise _Overloaded(failure, _retry_after(response.headers["retry-after"]))
            raise failure

    async def _resolve(self) -> None:
        """Look a name up before the first connection, so that the exit never waits for a server of names."""
        if not self._is_resolved:
            parts = urlsplit(self._proxy or self.access.server)
            if not await can_be_resolved(parts.hostname or ""):
                error = httpx.ConnectError("")
                error.__cause__ = socket.gaierror()
                raise error
            self._is_resolved = True

    async def _client_for(self, credential: Credential) -> httpx.AsyncClient:
        old = self._client
        try:
            authority = self.access.authority.read() if self.access.authority.file is not None else b""
            tls = (credential.certificate, authority)
            if old is None or tls != self._tls:
                self._client, self._tls = self._new_client(credential), tls
        except InputError:
            # A file that is being replaced: the old one counts until the new one is whole.
            if old is None:
                raise
        current = self._client
        assert current is not None
        if old is not None and old is not current:
            # Connections with an old certificate must not go on; open watches end and start again.
            await old.aclose()
        return current

    def _new_client(self, credential: Credential) -> httpx.AsyncClient:
        is_secure = self.access.server.startswith("https://")
        context: ssl.SSLContext | bool = server_context(self.access, credential.certificate) if is_secure else False
        options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
        options += [(socket.IPPROTO_TCP, name, value) for name, value in _KEEPALIVE]
        transport = httpx.AsyncHTTPTransport(
            verify=context,
            trust_env=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            socket_options=options,
            proxy=self._proxy_settings(),
        )
        return httpx.AsyncClient(transport=transport, trust_env=False, follow_redirects=False)

    def _proxy_settings(self) -> httpx.Proxy | None:
        if not self._proxy:
            return None
        scheme = urlsplit(self._proxy).scheme
        if scheme.startswith("socks"):
            # Without it, httpx would raise an error that names no extra.
            import socksio  # noqa: F401
        try:
            return httpx.Proxy(self._proxy, ssl_context=proxy_context(self.access) if scheme == "https" else None)
        except (ValueError, httpx.InvalidURL):
            raise kubeconfig_error(
                "the proxy cannot be used", "check `proxy-url` in the kubeconfig, or HTTPS_PROXY and HTTP_PROXY"
            ) from None


def _retry_after(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 1.0
    return min(max(seconds, 0.1), _MAX_RETRY_AFTER)


def _now() -> float:
    return asyncio.get_running_loop().time()
