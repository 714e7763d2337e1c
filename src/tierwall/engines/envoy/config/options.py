"""Options of a compilation to Envoy's configuration: addresses, certificates, answers."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from msgspec import Struct

from tierwall.gateway.model.fields import Profile
from tierwall.tool.profile import ToolProfile

# The largest RE2 program that Envoy accepts (runtime key `re2.max_program_size.error_level`): by default, and in the
# Envoys that Tierwall runs. The default refuses ordinary patterns. RE2 matches in linear time, whatever the size.
DEFAULT_PROGRAM_SIZE, MAX_PROGRAM_SIZE = 100, 1000


class SocketAddress(NamedTuple):
    """A host and a port. The host is an IP address; for backends it may be a DNS name."""

    host: str
    port: int


class Certificate(NamedTuple):
    """A certificate chain and its private key, as PEM."""

    chain: bytes
    key: bytes


class MutualTlsAddress(NamedTuple):
    """An address where the server shows a certificate, and clients need one of the authority."""

    host: str
    port: int
    certificate: Certificate
    authority: bytes


class Denial(StrEnum):
    """How to answer a denied MCP request; plain HTTP always gets 403."""

    # HTTP 200 with a JSON-RPC error: MCP clients treat other status codes as a broken connection and drop the session.
    JSON_RPC = "json-rpc"
    HTTP = "http"


class DenialDetail(StrEnum):
    """How much a denied caller learns."""

    POLICY = "policy"  # the policy that denied
    NOTHING = "nothing"  # only the denial


class EnvoyOptions(Struct, frozen=True, kw_only=True):
    """Compile options. The defaults are for an Envoy that gets its configuration over ADS."""

    # The Gateways to serve, as `namespace/name`; None for all.
    gateways: frozenset[str] | None = None
    # The IP address that listeners bind to, and exceptions by port of a Gateway (`namespace/name:443`).
    address: str = "0.0.0.0"
    bind: Mapping[str, SocketAddress] = {}
    # Addresses that replace DNS, by backend (`XBackend/shop/orders`, `Service/shop/orders`); they speak plain HTTP.
    endpoints: Mapping[str, SocketAddress] = {}
    cluster_domain: str = "cluster.local"
    # For HTTPS listeners that do not name a certificate, or an authority for client certificates.
    certificate: Certificate | None = None
    client_authority: bytes | None = None
    # How settings of AgentgatewayPolicies are merged.
    profile: Profile = "docs"
    denial: Denial = Denial.JSON_RPC
    reveal: DenialDetail = DenialDetail.POLICY
    # Upstream's words tell nobody which policy denied.
    tool_profile: ToolProfile = ToolProfile.TIERWALL
    # How long connections last whose clients show certificates, in seconds; 0 for any time.
    max_connection_seconds: int = 600
    # The largest MCP message, in bytes; Envoy keeps it in memory while reading it.
    largest_message: int = 1 << 20
    # The largest RE2 program that Envoy accepts; `bootstrap` raises it in Envoys that Tierwall runs.
    max_program_size: int = DEFAULT_PROGRAM_SIZE
    # Put routes and secrets into listeners, for an Envoy without a control plane.
    static: bool = False
    # Additions to every listener: AccessLog messages, and HttpFilter messages before the router.
    access_logs: tuple[Any, ...] = ()
    http_filters: tuple[Any, ...] = ()
    # The OpenTelemetry collector that gets traces and metrics; None for neither.
    collector: SocketAddress | None = None
    # Additional Cluster messages.
    clusters: tuple[Any, ...] = ()
