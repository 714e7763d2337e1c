"""Clusters of XBackends, AgentgatewayBackends, Services and authorization services.

A Service is found by its DNS name, which leads to its cluster IP, or to its pods if it is headless. A backend with a
`hostname` is outside the cluster: it is reached over TLS, and its certificate must have that name and come from an
authority of the system. An address from the options is plain HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.common.mutation_rules.v3 import mutation_rules_pb2
from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.header_mutation.v3 import header_mutation_pb2
from envoy.extensions.filters.http.upstream_codec.v3 import upstream_codec_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2
from envoy.extensions.transport_sockets.tls.v3 import tls_pb2
from envoy.extensions.upstreams.http.v3 import http_protocol_options_pb2

from tierwall.engines.envoy.config.agentgateway_backends import BackendTarget
from tierwall.engines.envoy.config.backend_addresses import backend_address, is_host, service_address
from tierwall.engines.envoy.config.connections import tcp_keepalive
from tierwall.engines.envoy.config.matchers import packed
from tierwall.engines.envoy.config.names import backend_cluster_name, target_cluster_name
from tierwall.engines.envoy.config.options import EnvoyOptions, SocketAddress
from tierwall.resources.resource import Resource
from tierwall.values.addresses import read_ip

SYSTEM_AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"
HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def backend_cluster(
    resource: Resource, port: int, options: EnvoyOptions, service: Resource | None = None
) -> Any | None:
    """Return the cluster of a backend, or of a port of a Service; None if the object does not give an address.

    `service` is the Service that an XBackend names.
    """
    located = backend_address(resource, port, options, service)
    return cluster(backend_cluster_name(resource, port), located[0], tls=located[1]) if located is not None else None


def target_cluster(resource: Resource, target: BackendTarget, options: EnvoyOptions) -> Any | None:
    """Return the cluster of one of the MCP servers that a backend joins; None if it has no usable host."""
    name = target_cluster_name(resource, target.section)
    override = options.endpoints.get(f"{resource.reference}/{target.section}")
    if override is not None:
        return cluster(name, override)
    return cluster(name, target.address, tls=target.tls) if is_host(target.address.host) else None


def authorizer_cluster(
    name: str, service: Resource, port: int, grpc: bool, options: EnvoyOptions, allowed_headers: tuple[str, ...] | None
) -> Any:
    """Return the cluster of an authorization service that receives only these request headers (None for all)."""
    override = options.endpoints.get(str(service.reference))
    address = override or service_address(service, port, options)
    return cluster(name, address, http2=grpc, headers=allowed_headers)


def cluster(
    name: str,
    address: SocketAddress,
    *,
    tls: bool = False,
    http2: bool = False,
    either_family: bool = False,
    headers: tuple[str, ...] | None = None,
) -> Any:
    """Return a cluster with one address, to which only these request headers are sent (None for all).

    With TLS, or if `either_family` is set, a name is one host, reached by its IPv4 or IPv6 addresses. Otherwise each
    address is an endpoint.
    """
    out = cluster_pb2.Cluster(name=name)
    out.connect_timeout.seconds = 5
    # A slow DNS answer for one name must not delay the whole Gateway; only the backend of that name answers 503.
    out.wait_for_warm_on_init.value = False
    # Silence ends no stream, so a backend whose machine is gone is noticed by TCP.
    out.upstream_connection_options.tcp_keepalive.CopyFrom(tcp_keepalive())
    is_ip = read_ip(address.host) is not None
    by_name = cluster_pb2.Cluster.LOGICAL_DNS if tls or either_family else cluster_pb2.Cluster.STRICT_DNS
    out.type = cluster_pb2.Cluster.STATIC if is_ip else by_name
    if out.type == cluster_pb2.Cluster.LOGICAL_DNS:
        # Not every cluster reaches both families, and not every server listens on both.
        out.dns_lookup_family = cluster_pb2.Cluster.ALL
    if tls:
        context = tls_pb2.UpstreamTlsContext(sni=address.host)
        authorities = context.common_tls_context.validation_context
        authorities.trusted_ca.filename = SYSTEM_AUTHORITIES
        san = authorities.match_typed_subject_alt_names.add(san_type="IP_ADDRESS" if is_ip else "DNS")
        san.matcher.exact = address.host
        out.transport_socket.name = "envoy.transport_sockets.tls"
        out.transport_socket.typed_config.CopyFrom(packed(context))
    out.load_assignment.cluster_name = name
    socket = out.load_assignment.endpoints.add().lb_endpoints.add().endpoint.address.socket_address
    socket.address, socket.port_value = address
    if http2 or headers is not None:
        options = http_protocol_options_pb2.HttpProtocolOptions()
        chosen = options.explicit_http_config
        (chosen.http2_protocol_options if http2 else chosen.http_protocol_options).SetInParent()
        if headers is not None:
            options.http_filters.extend(_only(headers))
        out.typed_extension_protocol_options[HTTP_OPTIONS].CopyFrom(packed(options))
    return out


def _only(headers: tuple[str, ...]) -> Iterator[Any]:
    """Yield upstream filters that drop all other request headers.

    They copy the allowed headers to names that begin with `~`, remove everything else, and copy them back.
    """
    change = header_mutation_pb2.HeaderMutation()
    steps = change.mutations.request_mutations
    steps.add().remove_on_match.key_matcher.prefix = "~"
    for name in headers:
        steps.append(_copied(f"~{name}", name))
    steps.add().remove_on_match.key_matcher.safe_regex.regex = "[^~:].*"
    for name in headers:
        steps.append(_copied(name, f"~{name}"))
    steps.add().remove_on_match.key_matcher.prefix = "~"
    yield hcm_pb2.HttpFilter(name="tierwall.headers", typed_config=packed(change))
    codec = packed(upstream_codec_pb2.UpstreamCodec())
    yield hcm_pb2.HttpFilter(name="envoy.filters.http.upstream_codec", typed_config=codec)


def _copied(to: str, source: str) -> Any:
    out = mutation_rules_pb2.HeaderMutation()
    out.append.append_action = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    out.append.header.key, out.append.header.value = to, f"%REQ({source})%"
    return out


def empty_cluster(name: str) -> Any:
    """Return a cluster without addresses, for references to missing backends: requests to it fail."""
    out = cluster_pb2.Cluster(name=name, type=cluster_pb2.Cluster.STATIC)
    out.load_assignment.cluster_name = name
    return out
