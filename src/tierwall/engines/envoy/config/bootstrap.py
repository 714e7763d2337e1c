"""Bootstraps (Envoy API reference, `envoy.config.bootstrap.v3`), for an Envoy with a control plane or without.

With a control plane, the only static cluster is the control plane, `tierwall`. Listeners, clusters, routes, secrets and
filters come over one aggregated delta stream. Access logs and external processing use the same cluster. An Envoy that
Tierwall runs reaches the control plane over a Unix socket: private keys come this way, and decisions go back. The admin
interface is such a socket, too, because it can stop the proxy and show its configuration. Only the owner can enter the
folders of these sockets. In a cluster, Envoys reach the replicas of the controller with mutual TLS. Their certificate
and the CA are in files that Envoy reads again when they are replaced.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from envoy.config.bootstrap.v3 import bootstrap_pb2

from tierwall.engines.envoy.config import metrics
from tierwall.engines.envoy.config.compile import XdsResources
from tierwall.engines.envoy.config.options import MAX_PROGRAM_SIZE, SocketAddress

CONTROL_PLANE = "tierwall"


_TYPES = "type.googleapis.com/envoy.extensions"


class RemoteControlPlane(NamedTuple):
    """A control plane with mutual TLS. Its certificate has `server_name`; `folder` has the files of `secret_files`."""

    addresses: tuple[SocketAddress, ...]
    server_name: str
    folder: Path


def secret_files(certificate: str, key: str, authority: str) -> dict[str, dict[str, Any]]:
    """Return the files with which an Envoy shows who it is and trusts its control plane, by name. All are PEM."""
    pair = {"certificate_chain": {"inline_string": certificate}, "private_key": {"inline_string": key}}
    secrets = {
        "certificate": {"tls_certificate": pair},
        "authority": {"validation_context": {"trusted_ca": {"inline_string": authority}}},
    }
    # A file may have one secret only.
    return {
        f"{name}.json": {"resources": [{"@type": f"{_TYPES}.transport_sockets.tls.v3.Secret", "name": name, **secret}]}
        for name, secret in secrets.items()
    }


def bootstrap(
    control_plane: Path | RemoteControlPlane, node: str, admin: Path, collector: SocketAddress | None = None
) -> dict[str, Any]:
    """Return a bootstrap in Envoy's JSON form, for a control plane on a Unix socket or with mutual TLS.

    Envoy sends metrics to the OpenTelemetry collector, if there is one.
    """
    cluster: dict[str, Any] = {
        "name": CONTROL_PLANE,
        "connect_timeout": "1s",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{_TYPES}.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {
                    # Without keepalive, Envoy would never notice that the control plane's machine is gone.
                    "http2_protocol_options": {"connection_keepalive": {"interval": "10s", "timeout": "5s"}}
                },
            }
        },
        # Every open stream of a client is a request to the control plane, too (`control.responses`).
        "circuit_breakers": {"thresholds": [dict.fromkeys(("max_requests", "max_pending_requests"), 100_000)]},
        **_reached(control_plane),
    }
    ads = {"ads": {}, "resource_api_version": "V3"}
    # Reconnect to a returning control plane within a second instead of Envoy's usual half minute.
    again = {"retry_back_off": {"base_interval": "0.1s", "max_interval": "1s"}}
    service = {"envoy_grpc": {"cluster_name": CONTROL_PLANE, "retry_policy": again}, "timeout": "1s"}
    telemetry = metrics.bootstrap_parts(collector) if collector is not None else {}
    clusters = [cluster, telemetry.pop("cluster")] if telemetry else [cluster]
    return {
        "node": {"id": node, "cluster": "tierwall"},
        "admin": {"address": {"pipe": {"path": str(admin), "mode": 0o600}}},
        "static_resources": {"clusters": clusters},
        "dynamic_resources": {
            "ads_config": {
                "api_type": "DELTA_GRPC",
                "transport_api_version": "V3",
                "grpc_services": [service],
                "set_node_on_first_message_only": True,
            },
            "cds_config": ads,
            "lds_config": ads,
        },
        "layered_runtime": {
            "layers": [{"name": "tierwall", "static_layer": {"re2.max_program_size.error_level": MAX_PROGRAM_SIZE}}]
        },
        # A client that keeps opening connections must not exhaust the machine.
        "overload_manager": {
            "resource_monitors": [
                {
                    "name": "envoy.resource_monitors.global_downstream_max_connections",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.resource_monitors"
                        ".downstream_connections.v3.DownstreamConnectionsConfig",
                        "max_active_downstream_connections": 50_000,
                    },
                }
            ]
        },
        **telemetry,
    }


def _reached(control_plane: Path | RemoteControlPlane) -> dict[str, Any]:
    """Return the parts of the control plane's cluster that say where it is, and how it is trusted."""
    if isinstance(control_plane, Path):
        return {"type": "STATIC", "load_assignment": _assignment({"pipe": {"path": str(control_plane)}})}
    addresses = ({"socket_address": {"address": host, "port_value": port}} for host, port in control_plane.addresses)
    name = {"san_type": "DNS", "matcher": {"exact": control_plane.server_name}}
    tls = {
        "tls_certificate_sds_secret_configs": [_secret(control_plane.folder, "certificate")],
        "combined_validation_context": {
            "default_validation_context": {"match_typed_subject_alt_names": [name]},
            "validation_context_sds_secret_config": _secret(control_plane.folder, "authority"),
        },
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
    }
    context = f"{_TYPES}.transport_sockets.tls.v3.UpstreamTlsContext"
    return {
        "type": "STRICT_DNS",
        "load_assignment": _assignment(*addresses),
        "transport_socket": {
            "name": "envoy.transport_sockets.tls",
            "typed_config": {"@type": context, "sni": control_plane.server_name, "common_tls_context": tls},
        },
    }


def _assignment(*addresses: dict[str, Any]) -> dict[str, Any]:
    endpoints = [{"endpoint": {"address": address}} for address in addresses]
    return {"cluster_name": CONTROL_PLANE, "endpoints": [{"lb_endpoints": endpoints}]}


def _secret(folder: Path, name: str) -> dict[str, Any]:
    source = {"path_config_source": {"path": str(folder / f"{name}.json")}, "resource_api_version": "V3"}
    return {"name": name, "sds_config": source}


def static_bootstrap(resources: XdsResources, admin: Path, max_program_size: int) -> Any:
    """Return a bootstrap that contains everything, for an Envoy without a control plane."""
    out = bootstrap_pb2.Bootstrap()
    out.node.id = out.node.cluster = "tierwall"
    out.admin.address.pipe.path = str(admin)
    out.admin.address.pipe.mode = 0o600
    out.static_resources.listeners.extend(resources.listeners.values())
    out.static_resources.clusters.extend(resources.clusters.values())
    out.static_resources.secrets.extend(resources.secrets.values())
    layer = out.layered_runtime.layers.add(name="patterns")
    layer.static_layer.update({"re2.max_program_size.error_level": max_program_size})
    return out
