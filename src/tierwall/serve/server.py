"""Servers that listen: sockets, certificates, and handshakes that keep nobody out.

A handshake must be finished within a time limit. Uvicorn knows nothing of connections before that, so their number is
limited: one more ends the oldest. An honest handshake takes milliseconds, so a flood of silent connections keeps nobody
out.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar

import msgspec
import uvicorn

from tierwall.core.diagnostics import Diagnostic, InputError

# The number of connections that may be in their handshake at the same time.
MAX_HANDSHAKES = 256


class SignallessServer(uvicorn.Server):
    """A uvicorn server that leaves signals to its owner."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals."""
        yield


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; InputError with the reason if the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    out = socket.socket(family, socket.SOCK_STREAM)
    try:
        out.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        out.bind((host, port))
        out.listen(128)
    except OSError as error:
        out.close()
        raise InputError([Diagnostic("TW631", f"cannot listen on `{host}:{port}`: {error.strerror}")]) from error
    return out


class TlsFiles(msgspec.Struct, frozen=True):
    """The files of the certificate, its key, and the CA of client certificates."""

    certificate: str
    key: str
    client_ca: str | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of all files."""
        return tuple(path for path in (self.certificate, self.key, self.client_ca) if path is not None)

    def contents(self) -> list[bytes]:
        """Return the contents of each file; empty if it cannot be read."""
        contents = []
        for path in self.paths:
            try:
                contents.append(Path(path).read_bytes())
            except OSError:
                contents.append(b"")
        return contents


def read_context(files: TlsFiles) -> ssl.SSLContext:
    """Return the TLS context of a server; InputError says which file is wrong."""
    context = new_context()
    what = f"certificate `{files.certificate}` and key `{files.key}`"
    # Without a password callback OpenSSL would ask at the terminal.
    _try(what, lambda: context.load_cert_chain(files.certificate, files.key, password=lambda: b""))
    if (ca := files.client_ca) is not None:
        _try(f"client CA `{ca}`", lambda: context.load_verify_locations(ca))
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def new_context() -> ssl.SSLContext:
    """Return the TLS context of a server that has no certificate yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION
    context.num_tickets = 0
    context.set_alpn_protocols(["http/1.1"])
    return context


def _try(what: str, load: Callable[[], None]) -> None:
    try:
        load()
    except (OSError, ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        raise InputError([Diagnostic("TW512", f"{what} cannot be used: {reason}")]) from None


class HeaderLimit:
    """A time limit for protocols of uvicorn: a connection ends if the headers of a request do not arrive in time."""

    header_seconds: ClassVar[float]
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _deadline: asyncio.TimerHandle | None = None

    def _due(self) -> None:
        self._deadline = self.loop.call_later(self.header_seconds, self._late)

    def _done(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()


class TlsServer(SignallessServer):
    """A server with TLS whose connections must finish their handshake within so many seconds."""

    def __init__(self, config: uvicorn.Config, context: ssl.SSLContext, seconds: float) -> None:
        super().__init__(config)
        self._context, self._seconds = context, seconds
        # The connections in their handshake, the oldest first.
        self._pending: dict[socket.socket, asyncio.Task[None]] = {}
        self._accepting: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections on these sockets."""
        await super().startup(sockets=[])
        for listening in sockets or ():
            listening.setblocking(False)
            self._accepting.append(asyncio.create_task(self._accept(listening)))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, and finish open requests."""
        for task in (*self._accepting, *self._pending.values()):
            task.cancel()
        await super().shutdown(sockets)

    def drain(self, is_authority_new: bool) -> None:
        """End all connections, each after the request that it is answering, so that every client is checked again.

        Handshakes end only for a new client CA. Otherwise both sides still trust each other.
        """
        while is_authority_new and self._pending:
            self._end_oldest()
        for connection in list(self.server_state.connections):
            connection.shutdown()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
            except OSError:
                # Too many open files, or the client is gone already. A place is made for the next one.
                self._end_oldest()
                await asyncio.sleep(0.01)
                continue
            if len(self._pending) >= MAX_HANDSHAKES:
                self._end_oldest()
            self._pending[connection] = asyncio.create_task(self._shake_hands(connection))

    def _end_oldest(self) -> None:
        if self._pending:
            oldest = next(iter(self._pending))
            del self._pending[oldest]
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)

    async def _shake_hands(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol, connection, ssl=self._context, ssl_handshake_timeout=self._seconds
            )
        except (OSError, TimeoutError):
            connection.close()
        finally:
            self._pending.pop(connection, None)

    def _protocol(self) -> asyncio.Protocol:
        protocol: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol
