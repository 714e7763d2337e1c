"""The credential of a request: token, rotated token file, client certificate, or what a plugin gives.

A token file is read again after a minute, as the kubelet replaces it before it expires, and after the API server has
refused it; while it cannot be read, its last content counts. To a server without TLS no credential is sent.
"""

from __future__ import annotations

import asyncio
import base64
import time
from pathlib import Path
from urllib.parse import quote

from msgspec import Struct

from tierwall.cluster.access import ClusterAccess, Impersonation
from tierwall.cluster.kubeconfig import kubeconfig_error
from tierwall.cluster.plugin import PluginCredential, run_plugin

# Token files are read again after this many seconds.
_TOKEN_AGE = 60.0
# The characters that Go's client leaves as they are in the key of an impersonation header.
_HEADER_SAFE = "!#$&'*+-.^_`|~"


class Credential(Struct, frozen=True):
    """Headers of a request, and a client certificate with its key as PEM."""

    headers: tuple[tuple[str, str], ...] = ()
    certificate: bytes = b""


class CredentialSource:
    """Gives the credential of the next request."""

    def __init__(self, access: ClusterAccess) -> None:
        self._access = access
        self._impersonation = impersonation_headers(access.impersonation)
        self._is_secure = access.server.startswith("https://")
        self._token_file = _TokenFile(access.token_file) if access.token_file is not None else None
        self._from_plugin: PluginCredential | None = None
        self._lock = asyncio.Lock()

    async def current(self) -> Credential:
        """Return the credential to send now; InputError if it cannot be had."""
        access = self._access
        if not self._is_secure:
            return Credential(self._impersonation)
        token, certificate = access.token, b""
        if access.certificate:
            certificate = access.certificate.read() + b"\n" + access.key.read()
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

    def refused(self, credential: Credential) -> None:
        """Get a new credential for the next request: the API server has refused this one."""
        if self._token_file is not None:
            self._token_file.expire()
        given = self._from_plugin
        if given is not None and (not given.token or ("authorization", f"Bearer {given.token}") in credential.headers):
            self._from_plugin = None

    async def _plugin_credential(self) -> PluginCredential:
        async with self._lock:
            given = self._from_plugin
            if given is None or (given.expires is not None and given.expires <= time.time()):
                given = self._from_plugin = await run_plugin(self._access)
            return given


class _TokenFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._token = ""
        self._read_at = float("-inf")

    def token(self, fallback: str) -> str:
        """Return the token, from the file if it is due; `fallback` if it was never readable."""
        if time.monotonic() - self._read_at >= _TOKEN_AGE:
            try:
                token = self._path.read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                if not self._token and not fallback:
                    reason = error.strerror if isinstance(error, OSError) else "it is not text"
                    raise kubeconfig_error(f"token file `{self._path}` cannot be read: {reason}") from None
                token = ""
            if token:
                self._token, self._read_at = token, time.monotonic()
        return self._token or fallback

    def expire(self) -> None:
        self._read_at = float("-inf")


def impersonation_headers(impersonation: Impersonation) -> tuple[tuple[str, str], ...]:
    """Return the headers that make a request somebody else's."""
    headers = [("Impersonate-User", impersonation.user)] if impersonation.user else []
    headers += [("Impersonate-Group", group) for group in impersonation.groups]
    if impersonation.uid:
        headers.append(("Impersonate-Uid", impersonation.uid))
    for key, values in impersonation.extra:
        headers += [(f"Impersonate-Extra-{quote(key, safe=_HEADER_SAFE)}", value) for value in values]
    return tuple(headers)
