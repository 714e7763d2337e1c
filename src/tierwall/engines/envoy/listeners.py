"""Listeners: a port of a Gateway with its filter chains, and the filters that every request passes.

The filters are the same on every listener and never change with policies, so that a policy never needs a new listener:
connections that are open keep the filters that they were opened with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from envoy.config.core.v3 import protocol_pb2
from envoy.config.listener.v3 import listener_components_pb2, listener_pb2
from envoy.extensions.filters.http.rbac.v3 import rbac_pb2
from envoy.extensions.filters.http.router.v3 import router_pb2
from envoy.extensions.filters.listener.tls_inspector.v3 import tls_inspector_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2

from tierwall.engines.envoy import cors, external_auth, mcp
from tierwall.engines.envoy.matchers import matcher, packed
from tierwall.engines.envoy.names import (
    BODILESS,
    FACTS,
    MCP,
    OPEN,
    ROUTER,
    SLOTS,
    STRICT,
    STRICT_ARGUMENTS,
)
from tierwall.engines.envoy.options import Address, Options
from tierwall.engines.envoy.replies import local_replies

# The policies in force when a request begins decide about it, so nobody may begin one long before it is needed: a
# revocation is complete after this time.
SLOWEST_REQUEST_S = 30

_MANAGER = hcm_pb2.HttpConnectionManager
_REJECT_REQUEST = protocol_pb2.HttpProtocolOptions.REJECT_REQUEST


def http_filters(options: Options, policies: Mapping[str, Any]) -> Iterator[Any]:
    """The filters in their order: read the message, be strict about it, look at it, ask every policy, go on."""
    yield hcm_pb2.HttpFilter(name=cors.FILTER, typed_config=cors.http_filter(), disabled=True)
    yield hcm_pb2.HttpFilter(name=MCP, typed_config=mcp.mcp_filter(options.largest_message), disabled=True)
    yield hcm_pb2.HttpFilter(name=OPEN, typed_config=mcp.open_filter(), disabled=True)
    yield hcm_pb2.HttpFilter(name=BODILESS, typed_config=mcp.bodiless_filter(), disabled=True)
    yield hcm_pb2.HttpFilter(name=FACTS, typed_config=mcp.facts_filter(), disabled=True)
    yield hcm_pb2.HttpFilter(name=STRICT, typed_config=mcp.strict_filter(False), disabled=True)
    yield hcm_pb2.HttpFilter(name=STRICT_ARGUMENTS, typed_config=mcp.strict_filter(True), disabled=True)
    for slot in SLOTS:
        yield from (_policies(slot.policy_filter(shard), options, policies) for shard in slot.shards)
        asking = packed(external_auth.slot_filter(slot))
        yield hcm_pb2.HttpFilter(name=slot.authorizer_filter, typed_config=asking, disabled=True)
    yield from options.http_filters
    yield hcm_pb2.HttpFilter(name=ROUTER, typed_config=packed(router_pb2.Router()))


def _policies(name: str, options: Options, policies: Mapping[str, Any]) -> Any:
    """A filter for policies: it comes by ECDS, and until it has come it denies all."""
    out = hcm_pb2.HttpFilter(name=name, disabled=True)
    if options.static:
        out.typed_config.CopyFrom(policies[name].typed_config)
        return out
    out.config_discovery.config_source.ads.SetInParent()
    out.config_discovery.config_source.resource_api_version = "V3"
    nothing = packed(rbac_pb2.RBAC(matcher=matcher(None)))
    out.config_discovery.default_config.CopyFrom(nothing)
    out.config_discovery.type_urls.append(nothing.type_url)
    return out


def connection_manager(name: str, routes: Any, options: Options, filters: list[Any]) -> Any:
    """How HTTP is read on a listener: nothing ambiguous is passed on."""
    out = _MANAGER(stat_prefix=name.replace("/", "."), codec_type=_MANAGER.AUTO)
    if options.static:
        out.route_config.CopyFrom(routes)
    else:
        out.rds.route_config_name = routes.name
        out.rds.config_source.ads.SetInParent()
        out.rds.config_source.resource_api_version = "V3"
    out.http_filters.extend(filters)
    out.local_reply_config.CopyFrom(local_replies(options))
    out.access_log.extend(options.access_logs)
    # Paths mean to policies what they mean to backends.
    out.normalize_path.value = True
    out.merge_slashes = True
    out.path_with_escaped_slashes_action = _MANAGER.REJECT_REQUEST
    out.use_remote_address.value = True
    # Backends learn who called, and cannot be told by callers.
    out.forward_client_cert_details = _MANAGER.SANITIZE_SET
    out.set_current_client_cert_details.uri = True
    # `mcp_name` is `mcp-name` to some servers.
    out.common_http_protocol_options.headers_with_underscores_action = _REJECT_REQUEST
    out.common_http_protocol_options.idle_timeout.seconds = 3600
    out.request_headers_timeout.seconds = 10
    out.request_timeout.seconds = SLOWEST_REQUEST_S
    out.stream_idle_timeout.seconds = 300
    out.http_protocol_options.SetInParent()
    out.http2_protocol_options.max_concurrent_streams.value = 100
    return out


def listener(name: str, address: Address, chains: list[Any]) -> Any:
    """A port with its filter chains."""
    out = listener_pb2.Listener(name=name)
    out.address.socket_address.address, out.address.socket_address.port_value = address
    out.filter_chains.extend(chains)
    if any(one.filter_chain_match.server_names for one in chains):
        inspector = packed(tls_inspector_pb2.TlsInspector())
        out.listener_filters.add(name="envoy.filters.listener.tls_inspector", typed_config=inspector)
    out.per_connection_buffer_limit_bytes.value = 1 << 20
    return out


def chain(name: str, manager: Any, socket: Any | None, hostname: str) -> Any:
    """The filter chain of a listener of a Gateway; with TLS it is chosen by the server name that a client asks for."""
    out = listener_components_pb2.FilterChain(name=name)
    if socket is not None:
        out.transport_socket.name = "envoy.transport_sockets.tls"
        out.transport_socket.typed_config.CopyFrom(socket)
        if hostname:
            out.filter_chain_match.server_names.append(hostname)
    out.filters.add(name="envoy.filters.network.http_connection_manager", typed_config=packed(manager))
    return out
