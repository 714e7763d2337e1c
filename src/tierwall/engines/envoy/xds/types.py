"""The kinds of xDS resources, and the order in which a proxy gets them (xDS protocol, "Eventual consistency").

What is referred to comes first: clusters and their endpoints, secrets and filter configurations, then listeners, then
routes. Removals go the other way round, so that nothing that is still referred to goes away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

_PREFIX: Final = "type.googleapis.com/envoy"
CLUSTER: Final = f"{_PREFIX}.config.cluster.v3.Cluster"
ENDPOINT: Final = f"{_PREFIX}.config.endpoint.v3.ClusterLoadAssignment"
SECRET: Final = f"{_PREFIX}.extensions.transport_sockets.tls.v3.Secret"
EXTENSION: Final = f"{_PREFIX}.config.core.v3.TypedExtensionConfig"
LISTENER: Final = f"{_PREFIX}.config.listener.v3.Listener"
ROUTE: Final = f"{_PREFIX}.config.route.v3.RouteConfiguration"

ORDER: Final = (CLUSTER, ENDPOINT, SECRET, EXTENSION, LISTENER, ROUTE)
# A proxy that names none of these kinds' resources asks for all of them.
WILDCARD: Final = frozenset((CLUSTER, LISTENER))


class Resources(Protocol):
    """A whole configuration, as the compiler makes it: messages by name, kind by kind.

    It may have `endpoints`, too, for clusters that get theirs over EDS.
    """

    @property
    def listeners(self) -> Mapping[str, Any]: ...
    @property
    def routes(self) -> Mapping[str, Any]: ...
    @property
    def clusters(self) -> Mapping[str, Any]: ...
    @property
    def secrets(self) -> Mapping[str, Any]: ...
    @property
    def extension_configs(self) -> Mapping[str, Any]: ...


def by_type(resources: Resources) -> dict[str, Mapping[str, Any]]:
    """The messages of a configuration by type URL, in the order of sending."""
    return {
        CLUSTER: resources.clusters,
        ENDPOINT: getattr(resources, "endpoints", {}),
        SECRET: resources.secrets,
        EXTENSION: resources.extension_configs,
        LISTENER: resources.listeners,
        ROUTE: resources.routes,
    }


def short(type_url: str) -> str:
    """A kind as people call it: `Listener`, `RouteConfiguration`."""
    return type_url.rpartition(".")[2]
