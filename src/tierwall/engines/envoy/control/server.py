"""The xDS server: one gRPC server for any number of proxies; access logs and external processing share its address.

Who can connect can read the private keys of Gateways, write decisions and say that a configuration is refused. So there
is a Unix socket in a folder that only its owner can enter, or an address with mutual TLS, on loopback, too.

What a proxy gets depends on its group (`proxies`): with `tierwall run` all proxies are in one, and in a cluster each
Gateway has its own.
"""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import grpc
from cryptography import x509
from envoy.service.discovery.v3 import discovery_pb2

from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.engines.envoy.config.options import MutualTlsAddress
from tierwall.engines.envoy.control.proxies import ProxyGroup
from tierwall.engines.private import MAX_SOCKET_PATH, folder_problem

SERVICE = "envoy.service.discovery.v3.AggregatedDiscoveryService"
# A response holds the changes of one kind; the first response holds all its resources.
MAX_MESSAGE_BYTES = 256 * 1024 * 1024
# Connections are limited, because whoever can reach the address could open so many that no file can be opened any more.
MAX_CONNECTIONS = 10_000


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


class ProxyNode(NamedTuple):
    """A proxy that connects: its node, as in its first request, and the URIs of its verified client certificate."""

    node: Any
    uris: tuple[str, ...]


class UnservedProxyError(Exception):
    """A proxy gets nothing here; it may try again, unless `is_final`. It keeps what it has."""

    def __init__(self, message: str, is_final: bool = True) -> None:
        super().__init__(message)
        self.is_final = is_final


# Returns the group of a proxy, or raises UnservedProxyError.
FindGroup = Callable[[ProxyNode], ProxyGroup]


class DiscoveryServer:
    """Serves proxies, each with what its group gets."""

    def __init__(self, find_group: FindGroup, handlers: Iterable[Any] = ()) -> None:
        self._find_group = find_group
        self._handlers = tuple(handlers)
        self._server: Any = None
        self._credentials: Any = None
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
            self.renew(address)
            # Asked at each handshake: a renewed certificate or authority counts for new connections.
            credentials = grpc.dynamic_ssl_server_credentials(self._credentials, lambda: self._credentials, True)
            add = partial(self._server.add_secure_port, server_credentials=credentials)
        try:
            port = add(where)
        except RuntimeError:
            port = 0
        if not port:
            raise _unusable(f"cannot listen on `{where}` for xDS: {reason}")
        if not isinstance(address, Path):
            self.port = port

    def renew(self, address: MutualTlsAddress) -> None:
        """Use another certificate and authority from now on; connections stay as they are."""
        pairs = [(address.certificate.key, address.certificate.chain)]
        self._credentials = grpc.ssl_server_certificate_configuration(pairs, address.authority)

    async def stop(self, grace: float = 0.2) -> None:
        """Disconnect all proxies; they keep their configuration."""
        if self._server is not None:
            await self._server.stop(grace)
            self._server = None

    async def _delta(self, requests: AsyncIterator[Any], context: Any) -> None:
        first = await anext(aiter(requests), None)
        if first is None:
            return
        try:
            group = self._find_group(ProxyNode(first.node, _certificate_uris(context)))
        except UnservedProxyError as error:
            code = grpc.StatusCode.PERMISSION_DENIED if error.is_final else grpc.StatusCode.UNAVAILABLE
            await context.abort(code, str(error))
        stream = group.connect()
        try:
            stream.receive(first)
            await stream.run(requests, context.write)
        except OverflowError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        finally:
            group.disconnect(stream)


def _certificate_uris(context: Any) -> tuple[str, ...]:
    """Return the URIs of the client certificate, which TLS has verified; none on a Unix socket."""
    for pem in context.auth_context().get("x509_pem_cert", ()):
        try:
            names = x509.load_pem_x509_certificate(pem).extensions.get_extension_for_class(x509.SubjectAlternativeName)
        except (ValueError, x509.ExtensionNotFound):
            return ()
        return tuple(names.value.get_values_for_type(x509.UniformResourceIdentifier))
    return ()


class XdsServer(ProxyGroup):
    """A server whose proxies all get the same configuration."""

    def __init__(self, changed: Callable[[], None] = lambda: None, handlers: Iterable[Any] = ()) -> None:
        super().__init__(changed)
        self._server = DiscoveryServer(lambda _: self, handlers)

    async def start(self, address: Path | MutualTlsAddress) -> None:
        """Listen on a Unix socket, or with mutual TLS on `port`; InputError if the address cannot be used."""
        await self._server.start(address)

    async def stop(self, grace: float = 0.2) -> None:
        """Disconnect all proxies; they keep their configuration."""
        await self._server.stop(grace)

    @property
    def port(self) -> int:
        """The port of an address with mutual TLS."""
        return self._server.port
