"""The credential of a request: token, rotated token file, client certificate, or what a plugin gives.

A token file is read again after a minute, as the kubelet replaces it before it expires, and after the API server has
refused it. Certificates are read from their files for each request. While a file cannot be read, its last content
counts. To a server without TLS no credential is sent.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import quote

from tierwall.cluster.access import ClusterAccess, Impersonation, is_header_value
from tierwall.cluster.kubeconfig import kubeconfig_error
from tierwall.cluster.kubeconfig_entries import ConfidentialData
from tierwall.cluster.pem import certificate_with_key, read_small
from tierwall.cluster.plugin import PluginCredential, run_plugin
from tierwall.core.diagnostics import InputError

# Token files are read again after this many seconds.
_TOKEN_AGE = 60.0
_MAX_TOKEN = 1 << 20
# The characters that Go's client leaves as they are in the key of an impersonation header.
_HEADER_SAFE = "!#$&'*+-.^_`|~"


class Credential(ConfidentialData, frozen=True):
    """Headers of a request, and a client certificate with its key as PEM."""

    headers: tuple[tuple[str, str], ...] = ()
    certificate: bytes = b""


class CredentialSource:
    """Gives the credential of the next request.

    INVARIANT: at most one plugin runs; all requests that need a credential wait for it, and share its failure.
    """

    def __init__(
        self,
        access: ClusterAccess,
        run: Callable[[ClusterAccess], Awaitable[PluginCredential]] = run_plugin,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._access, self._run, self._clock = access, run, clock
        self._impersonation = impersonation_headers(access.impersonation)
        self._is_secure = access.server.startswith("https://")
        self._token_file = _TokenFile(access.token_file) if access.token_file is not None else None
        self._certificate = b""
        self._from_plugin: PluginCredential | None = None
        self._running: asyncio.Future[PluginCredential] | None = None

    async def current(self) -> Credential:
        """Return the credential to send now; InputError if it cannot be had."""
        access = self._access
        if not self._is_secure:
            return Credential(self._impersonation)
        token, certificate = access.token, self._client_certificate()
        if self._token_file is not None:
            token = self._token_file.token(access.token)
        if access.plugin is not None:
            given = await self._plugin_credential()
            token, certificate = given.token or token, given.certificate or certificate
        headers = self._impersonation
        if token:
            headers = (("authorization", f"Bearer {token}"), *headers)
        elif access.basic is not None:
            encoded = base64.b64encode(":".join(access.basic).encode()).decode()
            headers = (("authorization", f"Basic {encoded}"), *headers)
        return Credential(headers, certificate)

    async def renewed(self, refused: Credential) -> Credential | None:
        """Return another credential than the one that the API server has refused; None if there is no other."""
        if self._token_file is not None:
            self._token_file.expire()
        given = self._from_plugin
        if given is not None and _is_of(given, refused):
            self._from_plugin = None
        try:
            credential = await self.current()
        except InputError:
            # That the server refuses the credential says more.
            return None
        return credential if credential != refused else None

    def _client_certificate(self) -> bytes:
        if self._access.certificate:
            try:
                self._certificate = certificate_with_key(self._access.certificate.read(), self._access.key.read())
            except InputError:
                if not self._certificate:
                    raise
        return self._certificate

    async def _plugin_credential(self) -> PluginCredential:
        given = self._from_plugin
        if given is not None and (given.expires is None or given.expires > self._clock()):
            return given
        if self._running is None:
            self._running = asyncio.ensure_future(self._run(self._access))
            self._running.add_done_callback(self._note)
        # One request that is given up does not end the plugin for the others.
        return await asyncio.shield(self._running)

    def _note(self, running: asyncio.Future[PluginCredential]) -> None:
        self._running = None
        if not running.cancelled() and running.exception() is None:
            self._from_plugin = running.result()

    async def close(self) -> None:
        """End a plugin that still runs."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)


class _TokenFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._token = ""
        self._read_at = float("-inf")

    def token(self, fallback: str) -> str:
        """Return the token, from the file if it is due; `fallback` if it was never readable."""
        if time.monotonic() - self._read_at >= _TOKEN_AGE:
            try:
                token = self._read()
            except InputError:
                if not self._token and not fallback:
                    raise
                return self._token or fallback
            if is_header_value(token):
                self._token, self._read_at = token, time.monotonic()
            elif not self._token:
                # A file that can be read wins, whatever is in it: with another token, somebody else would ask.
                raise kubeconfig_error(f"token file `{self._path}` has more than one line")
        return self._token or fallback

    def _read(self) -> str:
        try:
            token = read_small(self._path, _MAX_TOKEN).decode().strip()
        except UnicodeDecodeError:
            raise kubeconfig_error(f"token file `{self._path}` is not text") from None
        if not token:
            raise kubeconfig_error(f"token file `{self._path}` is empty")
        return token

    def expire(self) -> None:
        self._read_at = float("-inf")


def _is_of(given: PluginCredential, sent: Credential) -> bool:
    """Whether a credential is what a plugin gave last."""
    return (not given.token or ("authorization", f"Bearer {given.token}") in sent.headers) and (
        not given.certificate or given.certificate == sent.certificate
    )


def impersonation_headers(impersonation: Impersonation) -> tuple[tuple[str, str], ...]:
    """Return the headers that make a request somebody else's."""
    headers = [("Impersonate-User", impersonation.user)] if impersonation.user else []
    headers += [("Impersonate-Group", group) for group in impersonation.groups]
    if impersonation.uid:
        headers.append(("Impersonate-Uid", impersonation.uid))
    for key, values in impersonation.extra:
        headers += [(f"Impersonate-Extra-{quote(key, safe=_HEADER_SAFE)}", value) for value in values]
    # White space around a value does not arrive; not every library sends it.
    return tuple((name, value.strip(" \t")) for name, value in headers)
