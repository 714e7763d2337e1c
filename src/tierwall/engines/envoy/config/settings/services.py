"""Services that settings refer to: key sets, authorization services. Each gets a cluster of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tierwall.attach.backend import is_permitted, referenced_place
from tierwall.attach.place import SERVICE
from tierwall.engines.envoy.config import clusters
from tierwall.engines.envoy.config.options import EnvoyOptions, SocketAddress
from tierwall.engines.envoy.config.settings.unenforceable import Unenforceable
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

_PORTS = {"http": 80, "https": 443}


class ServiceCluster(NamedTuple):
    """A cluster of a Service, or of a host outside the cluster that is reached over TLS if its URL says so."""

    name: str
    service: Resource | None
    address: SocketAddress
    tls: bool = False
    http2: bool = False

    def message(self, options: EnvoyOptions) -> Any:
        """Return the cluster."""
        if self.service is None:
            return clusters.cluster(self.name, self.address, tls=self.tls, http2=self.http2)
        return clusters.authorizer_cluster(self.name, self.service, self.address.port, self.http2, options, None)


def endpoint(
    snapshot: Snapshot, policy: Resource, value: Mapping[str, Any], use: str, *path: str | int, grpc: bool = False
) -> tuple[ServiceCluster, str]:
    """Return the cluster of a `backendRef` or `url`, and the URL without a final slash."""
    protocol = "grpc" if grpc else "http"
    if "url" in value:
        url = urlsplit(str(value["url"]))
        try:
            port = url.port or _PORTS[url.scheme]
        except (ValueError, KeyError):
            raise Unenforceable(f"`{value['url']}` is not a URL", *path, "url") from None
        host = url.hostname or ""
        name = f"{use}/{protocol}/{url.scheme}/{host}/{port}"
        cluster = ServiceCluster(name, None, SocketAddress(host, port), url.scheme == "https", grpc)
        return cluster, str(value["url"]).rstrip("/")
    ref = value.get("backendRef")
    place = referenced_place(ref, policy.namespace) if isinstance(ref, dict) else None
    if place is None or not isinstance(ref, dict) or place.key != SERVICE or type(ref.get("port")) is not int:
        raise Unenforceable("Envoy asks only Services, by a port", *path, "backendRef")
    service = place.resource(snapshot)
    if service is None:
        raise Unenforceable(f"there is no Service `{place.namespace}/{place.name}`", *path, "backendRef")
    if not is_permitted(snapshot, policy, place):
        words = f"no ReferenceGrant permits Service `{place.namespace}/{place.name}`"
        raise Unenforceable(words, *path, "backendRef")
    port = ref["port"]
    name = f"{use}/{protocol}/service/{service.namespace}/{service.name}/{port}"
    host = f"{service.name}.{service.namespace}"
    return ServiceCluster(name, service, SocketAddress(host, port), http2=grpc), f"http://{host}:{port}"
