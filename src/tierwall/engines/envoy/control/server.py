"""The xDS server: one gRPC server for any number of proxies; access logs and external processing share its address.

Who can connect can read the private keys of Gateways, write decisions and say that a configuration is refused. So there
is a Unix socket in a folder that only its owner can enter, or an address with mutual TLS, on loopback, too.

Proxies are independent of each other. Each has its own stream and its own unacknowledged responses, so a proxy that
never acknowledges does not delay the others.
"""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import grpc
from envoy.service.discovery.v3 import discovery_pb2

from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.engines.envoy.config.compile import XdsResources
from tierwall.engines.envoy.config.options import MutualTlsAddress
from tierwall.engines.envoy.control.cache import ResourceCache
from tierwall.engines.envoy.control.refusal import ProxyAnswers
from tierwall.engines.envoy.control.stream import Proxy, XdsStream
from tierwall.engines.private import MAX_SOCKET_PATH, folder_problem

SERVICE = "envoy.service.discovery.v3.AggregatedDiscoveryService"
# A response holds the changes of one kind; the first response holds all its resources.
MAX_MESSAGE_BYTES = 256 * 1024 * 1024
# Connections are limited, because whoever can reach the address could open so many that no file can be opened any more.
MAX_CONNECTIONS = 10_000
# How long a disconnected proxy is expected back, in seconds, and how many such proxies are remembered.
ABSENT_SECONDS, MAX_ABSENT = 600.0, 10_000
# A proxy that has been silent for this long, in seconds, is not waited for.
SILENT_SECONDS = 2.0


class ProxyStatus(NamedTuple):
    """The status of a proxy: whether it has everything in force, and what it refuses."""

    proxy: Proxy
    is_current: bool
    refusals: tuple[str, ...]


class GatewayCondition(NamedTuple):
    """A condition of the Gateway API."""

    status: str
    reason: str
    message: str


def programmed(proxy_statuses: Sequence[ProxyStatus], is_published: bool) -> GatewayCondition:
    """Return the `Programmed` condition; a refusal contains the proxy's own message."""
    if not is_published:
        return GatewayCondition("False", "Pending", "no configuration is in force yet")
    refusing = [status for status in proxy_statuses if status.refusals]
    if refusing:
        words = "; ".join(f"{status.proxy.id} refuses {text}" for status in refusing for text in status.refusals)
        return GatewayCondition("False", "Invalid", words)
    if not proxy_statuses:
        return GatewayCondition("False", "Pending", "no proxy is connected")
    waiting = [status.proxy.id for status in proxy_statuses if not status.is_current]
    if waiting:
        return GatewayCondition("False", "Pending", f"not acknowledged yet by {', '.join(waiting)}")
    return GatewayCondition(
        "True", "Programmed", f"acknowledged by {', '.join(status.proxy.id for status in proxy_statuses)}"
    )


def _unusable(message: str, code: str = "TW631") -> InputError:
    return InputError([Diagnostic(code, message)])


def _check_private(path: Path) -> None:
    """Refuse a path where the socket would be open to others, or is that of a running server."""
    if why := folder_problem(path.parent):
        raise _unusable(f"the folder `{path.parent}` of the xDS socket is not private: {why}", "TW641")
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        expected = f"expected a path of at most {MAX_SOCKET_PATH} bytes for the xDS socket"
        raise _unusable(f"{expected}, found {len(os.fsencode(path))} bytes: `{path}`", "TW641")
    with socket.socket(socket.AF_UNIX) as client:
        if client.connect_ex(str(path)) == 0:
            raise _unusable(f"cannot listen on `unix:{path}` for xDS: another server does")


class XdsServer:
    """Serves proxies. It calls `changed` whenever a proxy connects, disconnects or answers."""

    def __init__(self, changed: Callable[[], None] = lambda: None, handlers: Iterable[Any] = ()) -> None:
        self.cache = ResourceCache()
        self._changed = changed
        self._handlers = tuple(handlers)
        self._streams: list[XdsStream] = []
        self._absent: dict[str, float] = {}
        self._server: Any = None
        self.port = 0

    async def start(self, address: Path | MutualTlsAddress) -> None:
        """Listen on a Unix socket, or with mutual TLS on `port`; InputError if the address cannot be used."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        options = [
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ("grpc.so_reuseport", 0),
            # Notice proxies whose machine is gone, and accept the keepalive pings of proxies.
            ("grpc.keepalive_time_ms", 10_000),
            ("grpc.keepalive_timeout_ms", 5_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
            ("grpc.http2.max_ping_strikes", 0),
            # Whoever connects and shows no certificate must not keep the connection.
            ("grpc.server_handshake_timeout_ms", 15_000),
            ("grpc.max_allowed_incoming_connections", min(MAX_CONNECTIONS, files // 2)),
        ]
        self._server = grpc.aio.server(options=options)
        handler = grpc.stream_stream_rpc_method_handler(
            self._delta,
            discovery_pb2.DeltaDiscoveryRequest.FromString,
            discovery_pb2.DeltaDiscoveryResponse.SerializeToString,
        )
        discovery = grpc.method_handlers_generic_handler(SERVICE, {"DeltaAggregatedResources": handler})
        self._server.add_generic_rpc_handlers((discovery, *self._handlers))
        try:
            self._listen(address)
        except InputError:
            self._server = None
            raise
        await self._server.start()
        if isinstance(address, Path):
            # The folder keeps others out already.
            address.chmod(0o600)

    def _listen(self, address: Path | MutualTlsAddress) -> None:
        if isinstance(address, Path):
            _check_private(address)
            where, reason = f"unix:{quote(str(address))}", "the socket cannot be made"
            add = self._server.add_insecure_port
        else:
            host = f"[{address.host}]" if ":" in address.host else address.host
            where, reason = f"{host}:{address.port}", "the address is in use"
            pairs = [(address.certificate.key, address.certificate.chain)]
            credentials = grpc.ssl_server_credentials(pairs, address.authority, require_client_auth=True)
            add = partial(self._server.add_secure_port, server_credentials=credentials)
        try:
            port = add(where)
        except RuntimeError:
            port = 0
        if not port:
            raise _unusable(f"cannot listen on `{where}` for xDS: {reason}")
        if not isinstance(address, Path):
            self.port = port

    async def stop(self, grace: float = 0.2) -> None:
        """Disconnect all proxies; they keep their configuration."""
        if self._server is not None:
            await self._server.stop(grace)
            self._server = None

    def publish(self, resources: XdsResources) -> dict[str, set[str]]:
        """Put a configuration in force; return the changed names by type URL. Call it in the server's event loop."""
        first = not self.cache.is_published
        changed = self.cache.publish(resources)
        if changed or first:
            for stream in self._streams:
                stream.wake()
        self._notify()
        return changed

    @property
    def proxy_statuses(self) -> list[ProxyStatus]:
        """The status of every connected proxy, sorted by id."""
        known = [
            ProxyStatus(stream.proxy, stream.is_current and self.cache.is_published, tuple(map(str, stream.refusals)))
            for stream in self._streams
            if stream.subscriptions
        ]
        return sorted(known)

    @property
    def programmed(self) -> GatewayCondition:
        """The `Programmed` condition over all proxies."""
        return programmed(self.proxy_statuses, self.cache.is_published)

    @property
    def is_acknowledged(self) -> bool:
        """Whether every proxy has acknowledged everything; a recently disconnected proxy may not have."""
        now = time.monotonic()
        self._absent = {name: since for name, since in self._absent.items() if now - since < ABSENT_SECONDS}
        return not self._absent and all(stream.is_acknowledged for stream in self._streams)

    def answers(self, ignored: Collection[Hashable] = ()) -> ProxyAnswers:
        """Return what proxies say about the configuration in force. `ignored` proxies are not waited for."""
        now = time.monotonic()
        known = [stream for stream in self._streams if stream.subscriptions]
        awaited = [
            stream
            for stream in known
            if stream not in ignored and (stream.is_acknowledged or now - stream.last_message < SILENT_SECONDS)
        ]
        return ProxyAnswers(
            {stream: tuple(stream.refusals) for stream in known if stream.refusals},
            all(stream.is_settled for stream in awaited),
            bool(awaited) and all(stream.is_acknowledged for stream in awaited),
        )

    def _notify(self, stream: XdsStream | None = None) -> None:
        if stream is not None:
            self._absent.pop(stream.proxy.id, None)
        self._changed()

    def connect(self) -> XdsStream:
        """Return the stream of a proxy that connects."""
        stream = XdsStream(self.cache, self._notify)
        self._streams.append(stream)
        return stream

    def disconnect(self, stream: XdsStream) -> None:
        """Forget the stream of a proxy, which is expected back for a while."""
        self._streams.remove(stream)
        there = {stream.proxy.id for stream in self._streams}
        if stream.proxy.id not in there and len(self._absent) < MAX_ABSENT:
            self._absent[stream.proxy.id] = time.monotonic()
        self._notify()

    async def _delta(self, requests: AsyncIterator[Any], context: Any) -> None:
        stream = self.connect()
        try:
            await stream.run(requests, context.write)
        except OverflowError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        finally:
            self.disconnect(stream)
