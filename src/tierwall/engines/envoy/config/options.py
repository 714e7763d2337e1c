"""What a compilation to Envoy's configuration depends on besides the objects: addresses, certificates, answers."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from msgspec import Struct


class SocketAddress(NamedTuple):
    """Where something listens; the host is an IP address, or a DNS name for backends."""

    host: str
    port: int


class Certificate(NamedTuple):
    """A certificate chain and its private key, as PEM."""

    chain: bytes
    key: bytes


class Denial(StrEnum):
    """How a denied MCP request is answered; plain HTTP always gets 403."""

    # HTTP 200 with a JSON-RPC error: clients of MCP take other codes for a broken connection and drop the session.
    JSON_RPC = "json-rpc"
    HTTP = "http"


class Reveal(StrEnum):
    """What a denied caller is told."""

    POLICY = "policy"  # which policy denied
    NOTHING = "nothing"  # only that it was denied


class EnvoyOptions(Struct, frozen=True, kw_only=True):
    """How to compile. The defaults are for an Envoy that gets its configuration over ADS."""

    # The Gateways to serve, as `namespace/name`; None: all.
    gateways: frozenset[str] | None = None
    # The IP address that listeners bind to, and other addresses for ports of Gateways (`namespace/name:443`).
    address: str = "0.0.0.0"
    bind: Mapping[str, SocketAddress] = {}
    # Where backends are, by reference (`XBackend/shop/orders`, `Service/shop/orders`), instead of DNS; plain HTTP.
    endpoints: Mapping[str, SocketAddress] = {}
    cluster_domain: str = "cluster.local"
    # What HTTPS listeners use that name no certificate of their own, or no authority for those of clients.
    certificate: Certificate | None = None
    client_authority: bytes | None = None
    denial: Denial = Denial.JSON_RPC
    reveal: Reveal = Reveal.POLICY
    # The largest MCP message, in bytes; Envoy holds it in memory while it is read.
    largest_message: int = 1 << 20
    # The largest RE2 program that Envoy takes (its runtime key `re2.max_program_size.error_level`).
    largest_pattern: int = 100
    # Routes and secrets inside listeners, for an Envoy without a control plane.
    static: bool = False
    # Added to every listener: AccessLog messages, and HttpFilter messages in front of the router.
    access_logs: tuple[Any, ...] = ()
    http_filters: tuple[Any, ...] = ()
    # Added as they are: Cluster messages.
    clusters: tuple[Any, ...] = ()
