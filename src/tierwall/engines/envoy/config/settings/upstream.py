"""Settings of the backend section that a cluster has: TLS, TCP and HTTP of the connections to a backend.

A backend with such settings has a cluster of its own for each of their values, because other routes may reach it with
others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cryptography import x509
from envoy.extensions.filters.http.upstream_codec.v3 import upstream_codec_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2
from envoy.extensions.transport_sockets.tls.v3 import tls_pb2
from envoy.extensions.upstreams.http.v3 import http_protocol_options_pb2

from tierwall.attach.place import Place
from tierwall.engines.envoy.config.clusters import HTTP_OPTIONS, SYSTEM_AUTHORITIES
from tierwall.engines.envoy.config.matchers import packed
from tierwall.engines.envoy.config.options import Certificate
from tierwall.engines.envoy.config.settings.frontend import keepalive_times, key_exchange_groups
from tierwall.engines.envoy.config.settings.measures import nanoseconds
from tierwall.engines.envoy.config.settings.unenforceable import Unenforceable
from tierwall.engines.envoy.config.tls import UnreadableObject, certificate_problem, object_data
from tierwall.resources.resource import Identity, Resource, list_of_maps, nested_map
from tierwall.resources.snapshot import Snapshot
from tierwall.values.addresses import read_ip

ClusterChange = Callable[[Any], None]
_CODEC = "envoy.filters.http.upstream_codec"


def tcp(value: Mapping[str, Any]) -> ClusterChange:
    """Limit the time to connect, and notice that a backend is gone."""
    timeout = nanoseconds(value["connectTimeout"], "connectTimeout") if "connectTimeout" in value else None
    times = keepalive_times(value["keepalive"]) if "keepalive" in value else None

    def apply(cluster: Any) -> None:
        if timeout is not None:
            cluster.connect_timeout.FromNanoseconds(timeout)
        if times is not None:
            alive = cluster.upstream_connection_options.tcp_keepalive
            alive.keepalive_time.value, alive.keepalive_interval.value, alive.keepalive_probes.value = times

    return apply


def http(value: Mapping[str, Any]) -> ClusterChange:
    """Speak one version of HTTP, and limit the time of each request to the end of its response."""
    version = value.get("version")
    timeout = nanoseconds(value["requestTimeout"], "requestTimeout") if "requestTimeout" in value else None

    def apply(cluster: Any) -> None:
        options = _http_options(cluster)
        chosen = options.explicit_http_config
        if version is not None:
            (chosen.http2_protocol_options if version == "HTTP2" else chosen.http_protocol_options).SetInParent()
        elif options.WhichOneof("upstream_protocol_options") is None:
            chosen.http_protocol_options.SetInParent()
        if timeout is not None:
            options.common_http_protocol_options.max_stream_duration.FromNanoseconds(timeout)
        cluster.typed_extension_protocol_options[HTTP_OPTIONS].CopyFrom(packed(options))

    return apply


def add_filter(cluster: Any, name: str, message: Any) -> None:
    """Add a filter for the requests to a backend, the last before they are sent."""
    options = _http_options(cluster)
    if options.WhichOneof("upstream_protocol_options") is None:
        options.explicit_http_config.http_protocol_options.SetInParent()
    before = [each for each in options.http_filters if each.name != _CODEC]
    del options.http_filters[:]
    options.http_filters.extend((*before, hcm_pb2.HttpFilter(name=name, typed_config=packed(message))))
    options.http_filters.add(name=_CODEC, typed_config=packed(upstream_codec_pb2.UpstreamCodec()))
    cluster.typed_extension_protocol_options[HTTP_OPTIONS].CopyFrom(packed(options))


def _http_options(cluster: Any) -> Any:
    options = http_protocol_options_pb2.HttpProtocolOptions()
    if HTTP_OPTIONS in cluster.typed_extension_protocol_options:
        cluster.typed_extension_protocol_options[HTTP_OPTIONS].Unpack(options)
    return options


def tls(snapshot: Snapshot, policy: Resource, value: Mapping[str, Any]) -> ClusterChange:
    """Reach a backend over TLS, and check who it is."""
    skipped = value.get("insecureSkipVerify")
    context = tls_pb2.UpstreamTlsContext(sni=value.get("sni", ""))
    common = context.common_tls_context
    common.alpn_protocols.extend(value.get("alpnProtocols") or ())
    common.tls_params.ecdh_curves.extend(key_exchange_groups(value))
    for number, ref in enumerate(list_of_maps(value.get("mtlsCertificateRef"))):
        data = _data(snapshot, policy, "Secret", ref["name"], "mtlsCertificateRef", number)
        certificate = Certificate(data.get("tls.crt", b""), data.get("tls.key", b""))
        if problem := certificate_problem(certificate):
            raise Unenforceable(problem, "mtlsCertificateRef", number)
        ours = common.tls_certificates.add()
        ours.certificate_chain.inline_bytes, ours.private_key.inline_bytes = certificate
    if skipped != "All":
        authorities = common.validation_context
        bundle = b"".join(_authorities(snapshot, policy, value))
        if bundle:
            authorities.trusted_ca.inline_bytes = bundle
        else:
            authorities.trusted_ca.filename = SYSTEM_AUTHORITIES

    def apply(cluster: Any) -> None:
        changed = tls_pb2.UpstreamTlsContext()
        changed.CopyFrom(context)
        (endpoints,) = cluster.load_assignment.endpoints
        host = endpoints.lb_endpoints[0].endpoint.address.socket_address.address
        changed.sni = changed.sni or (host if read_ip(host) is None else "")
        if skipped is None:
            for name in value.get("verifySubjectAltNames") or (changed.sni or host,):
                kind = "IP_ADDRESS" if read_ip(name) is not None else "URI" if "://" in name else "DNS"
                san = changed.common_tls_context.validation_context.match_typed_subject_alt_names.add(san_type=kind)
                san.matcher.exact = name
        cluster.transport_socket.name = "envoy.transport_sockets.tls"
        cluster.transport_socket.typed_config.CopyFrom(packed(changed))

    return apply


def _authorities(snapshot: Snapshot, policy: Resource, value: Mapping[str, Any]) -> Iterator[bytes]:
    for number, ref in enumerate(list_of_maps(value.get("caCertificateRefs"))):
        path = "caCertificateRefs", number
        data = _data(snapshot, policy, str(ref.get("kind", "ConfigMap")), ref["name"], *path)
        bundle = data.get("ca.crt", b"")
        try:
            x509.load_pem_x509_certificates(bundle)
        except ValueError:
            raise Unenforceable("`ca.crt` is not a PEM certificate", *path) from None
        yield bundle if bundle.endswith(b"\n") else bundle + b"\n"


def _data(snapshot: Snapshot, policy: Resource, kind: str, name: str, *path: str | int) -> Mapping[str, bytes]:
    data = object_data(snapshot, policy, Place("", kind, policy.namespace, name))
    if isinstance(data, UnreadableObject):
        raise Unenforceable(data.message, *path)
    return data


def objects_named_by(policy: Resource) -> Iterator[Identity]:
    """Yield the Secrets and ConfigMaps that the TLS settings of a policy name."""
    value = nested_map(policy.spec, "backend", "tls")
    for field, kind in (("mtlsCertificateRef", "Secret"), ("caCertificateRefs", "ConfigMap")):
        for ref in list_of_maps(value.get(field)):
            yield "", str(ref.get("kind") or kind), policy.namespace, str(ref.get("name"))
