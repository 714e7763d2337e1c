"""How a listener reads HTTP: one connection manager with the filters of all policies, in their order.

All listeners have the same filters, whatever the policies are, so that a policy never needs a new listener: open
connections keep the filters that they were opened with. Ambiguous requests are not forwarded
(docs/enforce-tools.md#what-is-refused-whatever-policies-say).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from envoy.config.core.v3 import protocol_pb2
from envoy.extensions.filters.http.cors.v3 import cors_pb2
from envoy.extensions.filters.http.rbac.v3 import rbac_pb2
from envoy.extensions.filters.http.router.v3 import router_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2

from tierwall.engines.envoy.config import external_auth, joined_backends, mcp, telemetry
from tierwall.engines.envoy.config.connections import limit_connections, limit_streams
from tierwall.engines.envoy.config.matchers import matcher, packed
from tierwall.engines.envoy.config.names import (
    ACCEPTS,
    BODILESS,
    CORS,
    FACTS,
    MCP,
    OPEN,
    ROUTER,
    SLOTS,
    STRICT,
    STRICT_ARGUMENTS,
    WATCH,
)
from tierwall.engines.envoy.config.options import EnvoyOptions
from tierwall.engines.envoy.config.replies import local_replies
from tierwall.engines.envoy.config.settings.filters import aggregated, settings_filters
from tierwall.engines.envoy.config.settings.mcp_rules import MCP_RULES

# The policies in force when a request begins decide on it. This limit keeps clients from beginning requests long before
# they need them: after this time a revocation is complete.
MAX_REQUEST_SECONDS = 30

_MANAGER = hcm_pb2.HttpConnectionManager
_REJECT_REQUEST = protocol_pb2.HttpProtocolOptions.REJECT_REQUEST


def http_filters(options: EnvoyOptions, policies: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the filters in order: read the message, check it, copy its facts, ask every policy, forward the request."""
    yield hcm_pb2.HttpFilter(name=CORS, typed_config=packed(cors_pb2.Cors()), disabled=True)
    yield from settings_filters(options.static, policies)
    yield joined_backends.choosing_filter()
    yield hcm_pb2.HttpFilter(name=ACCEPTS, typed_config=mcp.accepts_filter(), disabled=True)
    yield hcm_pb2.HttpFilter(name=MCP, typed_config=mcp.mcp_filter(options.largest_message), disabled=True)
    yield hcm_pb2.HttpFilter(name=OPEN, typed_config=mcp.open_filter(), disabled=True)
    yield hcm_pb2.HttpFilter(name=WATCH, typed_config=mcp.watch_filter(), disabled=True)
    yield hcm_pb2.HttpFilter(name=BODILESS, typed_config=mcp.bodiless_filter(), disabled=True)
    yield hcm_pb2.HttpFilter(name=FACTS, typed_config=mcp.facts_filter(), disabled=True)
    yield hcm_pb2.HttpFilter(name=STRICT, typed_config=mcp.strict_filter(False), disabled=True)
    yield hcm_pb2.HttpFilter(name=STRICT_ARGUMENTS, typed_config=mcp.strict_filter(True), disabled=True)
    yield hcm_pb2.HttpFilter(name=MCP_RULES, typed_config=packed(rbac_pb2.RBAC()), disabled=True)
    for slot in SLOTS:
        yield from (_policy_filter(slot.policy_filter(shard), options, policies) for shard in slot.shards)
        asking = packed(external_auth.slot_filter(slot))
        yield hcm_pb2.HttpFilter(name=slot.authorizer_filter, typed_config=asking, disabled=True)
    yield from options.http_filters
    yield joined_backends.joining_filter()
    yield hcm_pb2.HttpFilter(name=ROUTER, typed_config=packed(router_pb2.Router()))


def _policy_filter(name: str, options: EnvoyOptions, policies: Mapping[str, Any]) -> Any:
    """Return a policy filter: its configuration comes by ECDS, and until then it denies everything."""
    out = hcm_pb2.HttpFilter(name=name, disabled=True)
    if options.static:
        out.typed_config.CopyFrom(policies[name].typed_config)
        return out
    out.config_discovery.config_source.CopyFrom(aggregated())
    nothing = packed(rbac_pb2.RBAC(matcher=matcher(None)))
    out.config_discovery.default_config.CopyFrom(nothing)
    out.config_discovery.type_urls.append(nothing.type_url)
    return out


def connection_manager(
    name: str, routes: Any, options: EnvoyOptions, filters: list[Any], identifies: bool = False
) -> Any:
    """Return how a listener reads HTTP: ambiguous requests are not forwarded.

    `identifies` says that clients show certificates, so that their connections must end some time.
    """
    out = _MANAGER(stat_prefix=name.replace("/", "."), codec_type=_MANAGER.AUTO)
    if options.static:
        out.route_config.CopyFrom(routes)
    else:
        out.rds.route_config_name = routes.name
        out.rds.config_source.CopyFrom(aggregated())
    out.http_filters.extend(filters)
    out.local_reply_config.CopyFrom(local_replies(options))
    out.access_log.extend(options.access_logs)
    if options.collector is not None:
        out.tracing.CopyFrom(telemetry.tracing())
    # Policies must see paths as backends do.
    out.normalize_path.value = True
    out.merge_slashes = True
    out.path_with_escaped_slashes_action = _MANAGER.REJECT_REQUEST
    out.use_remote_address.value = True
    # Backends learn the caller from Envoy, never from the caller.
    out.forward_client_cert_details = _MANAGER.SANITIZE_SET
    out.set_current_client_cert_details.uri = True
    out.early_header_mutation_extensions.append(mcp.without_our_headers())
    # Some servers read `mcp_name` as `mcp-name`.
    out.common_http_protocol_options.headers_with_underscores_action = _REJECT_REQUEST
    out.common_http_protocol_options.idle_timeout.seconds = 3600
    limit_streams(out, MAX_REQUEST_SECONDS)
    if identifies and options.max_connection_seconds:
        limit_connections(out, options.max_connection_seconds)
    out.http_protocol_options.SetInParent()
    out.http2_protocol_options.max_concurrent_streams.value = 100
    return out
