"""`tierwall envoy`: an Envoy for one Gateway, fed by controllers in the cluster (docs/fleet.md#an-envoy).

It makes a key in memory, has it signed by a controller, which recognizes the pod by its token, and starts an Envoy with
the certificate. The key is written only into a folder of this process' own, which in a cluster is in memory. The
certificate is renewed, with a new key, when two thirds of its life are over. Envoy goes on whatever happens to the
controllers: it keeps what it has, and connects again by itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tierwall.engines.envoy.config.bootstrap import RemoteControlPlane, secret_files
from tierwall.engines.envoy.config.options import SocketAddress
from tierwall.engines.envoy.control.process import EnvoyProcess, find_envoy
from tierwall.engines.private import private_folder, write_private
from tierwall.serve.cluster import first_of
from tierwall.serve.decisionlog import DecisionLog
from tierwall.serve.pages import HttpServer

# The limit of one request, and the pauses after failures, in seconds.
TIMEOUT_S, FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 0.5, 15.0
# Envoy has had a configuration from a controller since it started.
_LISTENED = "listener_manager.lds.update_success"


class ProxySettings(Struct, frozen=True, kw_only=True):
    """Settings of `tierwall envoy`."""

    # `namespace/name`.
    gateway: str
    node: str
    # The controllers' xDS servers, where they sign certificates, and the name in their certificates.
    xds: tuple[SocketAddress, ...]
    certificates: SocketAddress
    server_name: str
    # Files: the CA of controllers (PEM), and the token of the pod.
    authority: Path
    token: Path
    http: tuple[str, int] = ("127.0.0.1", 0)
    envoy: str | None = None
    concurrency: int | None = None


class SignedKey(NamedTuple):
    """A key with its certificate, and the CA of the controller that has signed it: PEM."""

    key: str
    certificate: str
    authority: str

    @property
    def due(self) -> datetime:
        """When two thirds of the certificate's life are over."""
        certificate = x509.load_pem_x509_certificate(self.certificate.encode())
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        return begin + (end - begin) * 2 / 3


class GatewayProxy:
    """An Envoy of a Gateway with its certificate."""

    def __init__(self, settings: ProxySettings, send_message: Callable[[str], None]) -> None:
        self._settings, self._send_message = settings, send_message
        self._authority = ""
        self._last_failure = ""
        self.process: EnvoyProcess | None = None
        self.http = HttpServer([Route("/livez", self._alive), Route("/readyz", self._ready)])

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set; InputError if there is no suitable Envoy, or an address is in use."""
        settings = self._settings
        envoy = find_envoy(settings.envoy)
        host, port = settings.http
        self._send_message(f"health on http://{host}:{await self.http.start(host, port)}")
        folder = private_folder()
        control_plane = RemoteControlPlane(settings.xds, settings.server_name, Path(folder.name))
        try:
            signed = await self._until_signed(stop)
            if signed is None:
                return
            self._write(control_plane.folder, signed)
            records = DecisionLog.open("-").append
            self.process = EnvoyProcess(
                envoy, control_plane, settings.node, self._send_message, records, settings.concurrency
            )
            await self.process.start()
            while not stop.is_set():
                seconds = max(0.0, (signed.due - datetime.now(UTC)).total_seconds())
                if await first_of(None, stop, seconds):
                    return
                if (renewed := await self._until_signed(stop)) is not None:
                    signed = renewed
                    self._write(control_plane.folder, signed)
        finally:
            if self.process is not None:
                await self.process.stop()
            await self.http.stop()
            folder.cleanup()

    async def _until_signed(self, stop: asyncio.Event) -> SignedKey | None:
        """Ask until a controller has signed a new key; None if `stop` is set before."""
        pause = FIRST_PAUSE_S
        while not stop.is_set():
            try:
                signed = await self._sign()
            except (httpx.HTTPError, OSError, ssl.SSLError, ValueError, KeyError) as error:
                reason = str(error) or type(error).__name__
                if reason != self._last_failure:
                    self._last_failure = reason
                    self._send_message(f"no certificate for Gateway {self._settings.gateway} yet: {reason}")
                await first_of(None, stop, pause * random.uniform(0.5, 1.5))
                pause = min(2 * pause, LONGEST_PAUSE_S)
                continue
            self._last_failure = ""
            return signed
        return None

    async def _sign(self) -> SignedKey:
        settings = self._settings
        key = ec.generate_private_key(ec.SECP256R1())
        request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
        wish = {
            "gateway": settings.gateway,
            "request": request.public_bytes(serialization.Encoding.PEM).decode(),
        }
        # A CA that the controller has announced since counts, too.
        context = ssl.create_default_context(cadata=settings.authority.read_text() + self._authority)
        host, port = settings.certificates
        url = f"https://{f'[{host}]' if ':' in host else host}:{port}/certificate"
        async with httpx.AsyncClient(verify=context, timeout=TIMEOUT_S, trust_env=False) as client:
            answer = await client.post(
                url,
                json=wish,
                headers={"Authorization": f"Bearer {self._token()}"},
                extensions={"sni_hostname": settings.server_name},
            )
        document = answer.json()
        if answer.status_code != 200:
            raise ValueError(f"{answer.status_code}: {document.get('error', '')}")
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        signed = SignedKey(private.decode(), str(document["certificate"]), str(document["authority"]))
        # What cannot be read must not replace a certificate that works.
        x509.load_pem_x509_certificates(signed.authority.encode())
        x509.load_pem_x509_certificate(signed.certificate.encode())
        self._authority = signed.authority
        return signed

    def _token(self) -> str:
        """Return the token of the pod; ValueError, which never shows it, if the file has something else."""
        file = self._settings.token
        token = file.read_text(errors="replace").strip()
        if not token or not (token.isascii() and token.isprintable()):
            raise ValueError(f"`{file}` does not hold a token")
        return token

    def _write(self, folder: Path, signed: SignedKey) -> None:
        """Replace the files: Envoy notices that another file has the name."""
        for name, secret in secret_files(signed.certificate, signed.key, signed.authority).items():
            new = folder / f"new-{name}"
            new.unlink(missing_ok=True)
            write_private(new, json.dumps(secret).encode())
            os.replace(new, folder / name)

    async def _alive(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _ready(self, request: Request) -> Response:
        """Answer whether Envoy serves what a controller sent."""
        if self.process is None:
            return PlainTextResponse("Envoy waits for its certificate\n", 503)
        try:
            transport = httpx.AsyncHTTPTransport(uds=str(self.process.admin))
            async with httpx.AsyncClient(transport=transport, base_url="http://envoy", timeout=TIMEOUT_S) as client:
                ready: Any = await client.get("/ready")
                counted = await client.get("/stats", params={"filter": f"^{_LISTENED}$"})
        except (httpx.HTTPError, OSError):
            return PlainTextResponse("Envoy does not answer\n", 503)
        number = counted.text.strip().rpartition(": ")[2]
        if ready.status_code != 200 or number in ("", "0"):
            return PlainTextResponse("Envoy has no configuration of a controller yet\n", 503)
        return PlainTextResponse("ok\n")


def run_proxy(settings: ProxySettings, send_message: Callable[[str], None]) -> None:
    """Run until SIGTERM or SIGINT; InputError if it cannot start."""
    from tierwall.serve.follower import until_signalled

    until_signalled(GatewayProxy(settings, send_message).run)
