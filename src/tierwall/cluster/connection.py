"""Requests to an API server: TLS, proxies, credentials, impersonation, retries, and what failures mean.

Written on httpx, as no Python client does all of it (docs/clusters.md#why-not-a-client-library). HTTP/1.1 only: with
HTTP/2 all watches would share one connection, and httpx sends no pings. Environment proxies are honoured as Go's
client does: never for loopback addresses.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

import httpx
import msgspec
from msgspec import Struct

from tierwall.cluster.access import ClusterAccess
from tierwall.cluster.credential import Credential, CredentialSource
from tierwall.cluster.tls import tls_context
from tierwall.errors import TierwallError

# A cut line is noticed by keep-alive within this many seconds; a stopped server only by the timeout of reading.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
_MAX_BODY = 1 << 30
_MAX_ERROR = 64 << 10
# An overloaded server is asked again this often, after as many seconds as it says, but at most these.
_MAX_RETRIES, _MAX_RETRY_AFTER = 5, 10.0


class StatusDetails(Struct, frozen=True):
    """`details` of a Status."""

    kind: str = ""


class ApiStatus(Struct, frozen=True):
    """The `Status` object of a failed request, or an event of a watch."""

    reason: str = ""
    message: str = ""
    code: int = 0


class ApiServerError(TierwallError):
    """The API server has answered with a failure."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason or 'failure'}: {message}")
        self.code, self.reason, self.message = code, reason, message


class UnreachableError(TierwallError):
    """The API server has not answered."""

    def __init__(self, server: str, problem: str) -> None:
        super().__init__(f"the API server at {server} does not answer: {problem}")
        self.server, self.problem = server, problem


class Connection:
    """Requests to one API server as one user.

    INVARIANT: everything of a connection happens in one event loop.
    """

    def __init__(self, access: ClusterAccess, timeout: float | None, user_agent: str) -> None:
        self.access, self._timeout, self._user_agent = access, timeout, user_agent
        self._credentials = CredentialSource(access)
        self._client: httpx.AsyncClient | None = None
        # What the TLS context was made of: a rotated certificate or authority makes a new one.
        self._tls: tuple[bytes, bytes] = (b"", b"")

    async def close(self) -> None:
        """Close all connections."""
        if self._client is not None:
            await self._client.aclose()

    async def get(
        self, path: str, query: Mapping[str, str] | None = None, accept: str = "application/json"
    ) -> httpx.Response:
        """Return the answer to a GET; ApiServerError if it is a failure, UnreachableError if no answer comes."""
        for attempt in range(_MAX_RETRIES + 1):
            async with self._answer(path, query, accept, self._timeout) as response:
                if response.status_code in (429, 503) and attempt < _MAX_RETRIES and "retry-after" in response.headers:
                    await response.aread()
                else:
                    if response.status_code >= 400:
                        raise await _failure(response)
                    await response.aread()
                    return response
            await asyncio.sleep(_retry_after(response))
        raise AssertionError("the last attempt has returned or raised")

    @asynccontextmanager
    async def stream(self, path: str, query: Mapping[str, str], silence: float) -> AsyncIterator[httpx.Response]:
        """Open a stream that may be silent for so many seconds; failures as in `get`."""
        async with self._answer(path, query, "application/json", silence) as response:
            if response.status_code >= 400:
                raise await _failure(response)
            yield response

    @asynccontextmanager
    async def _answer(
        self, path: str, query: Mapping[str, str] | None, accept: str, timeout: float | None
    ) -> AsyncIterator[httpx.Response]:
        """Send a request. One that was refused as unauthenticated is sent again if there is another credential."""
        credential = await self._credentials.current()
        for is_last in (False, True):
            client = await self._client_for(credential)
            request = client.build_request(
                "GET",
                self.access.server + path,
                params=query,
                headers=httpx.Headers(
                    [("accept", accept), ("user-agent", self._user_agent), *credential.headers], encoding="utf-8"
                ),
                timeout=httpx.Timeout(timeout, connect=self._timeout, pool=None),
                extensions={"sni_hostname": self.access.server_name} if self.access.server_name else None,
            )
            try:
                response = await client.send(request, stream=True)
            except httpx.HTTPError as error:
                raise self._unreachable(error) from None
            try:
                if response.status_code == 401 and not is_last:
                    self._credentials.refused(credential)
                    renewed = await self._credentials.current()
                    if renewed != credential:
                        credential = renewed
                        continue
                try:
                    yield response
                except httpx.HTTPError as error:
                    raise self._unreachable(error) from None
                return
            finally:
                await response.aclose()

    async def _client_for(self, credential: Credential) -> httpx.AsyncClient:
        authority = self.access.authority.read() if self.access.authority.file is not None else b""
        tls = (credential.certificate, authority)
        if self._client is None or tls != self._tls:
            # Connections with an old certificate must not go on; open watches end and start again.
            await self.close()
            self._client, self._tls = self._new_client(credential), tls
        return self._client

    def _new_client(self, credential: Credential) -> httpx.AsyncClient:
        is_secure = self.access.server.startswith("https://")
        context: ssl.SSLContext | bool = tls_context(self.access, credential.certificate) if is_secure else False
        options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
        options += [(socket.IPPROTO_TCP, name, value) for name, value in _KEEPALIVE]
        transport = httpx.AsyncHTTPTransport(
            verify=context,
            trust_env=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            socket_options=options,
            proxy=self._proxy(),
        )
        headers = {} if self.access.compressed else {"accept-encoding": "identity"}
        return httpx.AsyncClient(transport=transport, trust_env=False, headers=headers, follow_redirects=False)

    def _proxy(self) -> str | None:
        if self.access.proxy_url:
            return self.access.proxy_url
        address = urlsplit(self.access.server)
        host = address.hostname or ""
        if host == "localhost" or _is_loopback(host):
            return None
        proxies = getproxies_environment()
        if proxy_bypass_environment(address.netloc, proxies):
            return None
        return proxies.get(address.scheme)

    def _unreachable(self, error: httpx.HTTPError) -> UnreachableError:
        address = urlsplit(self.access.server)
        server = f"{address.scheme}://{address.netloc.rpartition('@')[2]}"
        if isinstance(error, httpx.TimeoutException):
            return UnreachableError(server, f"no answer within {self._timeout:g} s" if self._timeout else "no answer")
        return UnreachableError(server, str(error) or type(error).__name__)


async def _failure(response: httpx.Response) -> ApiServerError:
    """Return what the server says. Its body is a Status, or plain text."""
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size > _MAX_ERROR:
            break
    body = b"".join(parts)
    try:
        status = msgspec.json.decode(body, type=ApiStatus)
    except (msgspec.DecodeError, UnicodeDecodeError):
        status = ApiStatus(message=body[:200].decode("utf-8", "replace").strip())
    return ApiServerError(response.status_code, status.reason, status.message or response.reason_phrase)


def _retry_after(response: httpx.Response) -> float:
    try:
        seconds = float(response.headers["retry-after"])
    except ValueError:
        seconds = 1.0
    return min(max(seconds, 0.1), _MAX_RETRY_AFTER)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
