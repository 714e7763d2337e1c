"""Settings of the frontend section: TLS, HTTP and TCP of the connections from clients.

They belong to a port of a Gateway, so every listener there has the same. A change of them gives the port new
connections; those that are open keep what they began with, until they are drained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from envoy.config.core.v3 import proxy_protocol_pb2 as core_pb2
from envoy.extensions.filters.listener.proxy_protocol.v3 import proxy_protocol_pb2
from envoy.extensions.filters.network.rbac.v3 import rbac_pb2
from envoy.extensions.transport_sockets.tls.v3 import common_pb2

from tierwall.engines.envoy.config.connections import keep_alive, limit_connections
from tierwall.engines.envoy.config.matchers import matcher, packed
from tierwall.engines.envoy.config.settings.authorization import rules_decision
from tierwall.engines.envoy.config.settings.conditions import network_condition
from tierwall.engines.envoy.config.settings.measures import nanoseconds
from tierwall.engines.envoy.config.settings.predicates import condition_predicate
from tierwall.engines.envoy.config.settings.values import kilobytes, least_tls_version, older_suites, window
from tierwall.values.time import NANOS

_GROUPS = {"P-256": "P-256", "P-384": "P-384", "X25519": "X25519", "X25519_MLKEM768": "X25519MLKEM768"}
_VERSIONS = {"1.2": common_pb2.TlsParameters.TLSv1_2, "1.3": common_pb2.TlsParameters.TLSv1_3}
_DAY = 86_400


class FrontendSettings(NamedTuple):
    """The settings of a port that Envoy enforces."""

    tls: Mapping[str, Any] = {}
    http: Mapping[str, Any] = {}
    tcp: Mapping[str, Any] = {}
    # None if connections do not begin with a PROXY header.
    proxy_protocol: Mapping[str, Any] | None = None
    # The rules for connections, as a filter.
    network: Any | None = None
    tracing: Any | None = None
    access_log: Any | None = None

    def change_socket(self, context: Any) -> None:
        """Set ALPN, versions, cipher suites and groups of a DownstreamTlsContext."""
        common = context.common_tls_context
        if "alpnProtocols" in self.tls:
            del common.alpn_protocols[:]
            common.alpn_protocols.extend(self.tls["alpnProtocols"])
        common.tls_params.MergeFrom(tls_parameters(self.tls))

    def change_chain(self, chain: Any) -> None:
        """Limit the time of a handshake, and authorize connections before anything else reads them."""
        if self.network is not None:
            filters = list(chain.filters)
            del chain.filters[:]
            chain.filters.add(name="envoy.filters.network.rbac", typed_config=self.network)
            chain.filters.extend(filters)
        if "handshakeTimeout" in self.tls:
            chain.transport_socket_connect_timeout.FromNanoseconds(nanoseconds(self.tls["handshakeTimeout"]))

    def change_manager(self, manager: Any, max_connection_seconds: int) -> None:
        """Set the limits of HTTP, traces and logs.

        `max_connection_seconds` is what already limits connections, 0 for no limit.
        """
        if self.tracing is not None:
            manager.tracing.CopyFrom(self.tracing)
        if self.access_log is not None:
            manager.access_log.append(self.access_log)
        http, common, http2 = self.http, manager.common_http_protocol_options, manager.http2_protocol_options
        if "http1IdleTimeout" in http:
            common.idle_timeout.FromNanoseconds(nanoseconds(http["http1IdleTimeout"]))
        if "http1MaxHeaders" in http:
            common.max_headers_count.value = http["http1MaxHeaders"]
        for field, name in (
            ("http2WindowSize", "initial_stream_window_size"),
            ("http2ConnectionWindowSize", "initial_connection_window_size"),
        ):
            if field in http:
                getattr(http2, name).value = window(http[field], field)
        if "http2KeepaliveInterval" in http or "http2KeepaliveTimeout" in http:
            alive = http2.connection_keepalive
            alive.interval.FromNanoseconds(nanoseconds(http.get("http2KeepaliveInterval", "60s")))
            alive.timeout.FromNanoseconds(nanoseconds(http.get("http2KeepaliveTimeout", "20s")))
        if "http2MaxHeaderSize" in http:
            manager.max_request_headers_kb.value = kilobytes(http["http2MaxHeaderSize"])
        if "maxConnectionDuration" in http:
            seconds = _seconds(http["maxConnectionDuration"])
            limit_connections(manager, min(seconds, max_connection_seconds or seconds))

    def change_listener(self, listener: Any) -> None:
        """Set how TCP notices that a client is gone, and read the PROXY header of a connection."""
        if "keepalive" in self.tcp:
            keep_alive(listener, *keepalive_times(self.tcp["keepalive"]))
        if self.proxy_protocol is not None:
            others = list(listener.listener_filters)
            del listener.listener_filters[:]
            reading = packed(_proxy_protocol(self.proxy_protocol))
            # It comes before everything else that looks at the first bytes.
            listener.listener_filters.add(name="envoy.filters.listener.proxy_protocol", typed_config=reading)
            listener.listener_filters.extend(others)


def network_rules(values: Sequence[Mapping[str, Any]], sources: Sequence[str]) -> Any:
    """Return the filter that authorizes connections by the union of these rules; each value has a source."""
    out = rbac_pb2.RBAC(stat_prefix="settings_network")
    out.matcher.CopyFrom(matcher(rules_decision(values, sources, _connection_predicate)))
    return packed(out)


def _connection_predicate(text: str, *path: str | int) -> Any:
    return condition_predicate(network_condition(text, *path))


def _proxy_protocol(value: Mapping[str, Any]) -> Any:
    """Return how to read PROXY headers: by default only version 2, and no connection goes without."""
    config = core_pb2.ProxyProtocolConfig
    unwanted = {"V1": [config.V2], "V2": [config.V1]}.get(value.get("version", "V2"), [])
    is_optional = value.get("mode", "Strict") == "Optional"
    return proxy_protocol_pb2.ProxyProtocol(
        allow_requests_without_proxy_protocol=is_optional, disallowed_versions=unwanted
    )


def tls_parameters(value: Mapping[str, Any]) -> Any:
    """Return the versions, cipher suites and groups of TLS."""
    out = common_pb2.TlsParameters()
    if (least := least_tls_version(value)) is not None:
        out.tls_minimum_protocol_version = _VERSIONS[least]
    if "maxProtocolVersion" in value:
        out.tls_maximum_protocol_version = _VERSIONS[value["maxProtocolVersion"]]
    out.cipher_suites.extend(map(_suite, older_suites(value)))
    out.ecdh_curves.extend(key_exchange_groups(value))
    return out


def key_exchange_groups(value: Mapping[str, Any]) -> Iterator[str]:
    """Return the names of groups in Envoy's words, each once: Envoy refuses one that is repeated."""
    return (_GROUPS[group] for group in dict.fromkeys(value.get("keyExchangeGroups") or ()))


def _suite(name: str) -> str:
    """Return BoringSSL's name of a suite: `TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256`, `ECDHE-RSA-AES128-GCM-SHA256`."""
    exchange, _, cipher = name.removeprefix("TLS_").partition("_WITH_")
    cipher = cipher.replace("AES_", "AES").removesuffix("_SHA256") if "CHACHA20" in cipher else cipher
    return f"{exchange}_{cipher.replace('AES_', 'AES')}".replace("_", "-")


def keepalive_times(value: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return after how many seconds of silence TCP asks, how often, and how many times."""
    time, interval = (_seconds(value.get(field, default)) for field, default in (("time", "60s"), ("interval", "10s")))
    return time, interval, int(value.get("retries", 6))


def _seconds(text: object) -> int:
    return max(1, min(nanoseconds(text) // NANOS, 365 * _DAY))
