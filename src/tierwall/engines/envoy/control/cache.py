"""The resources in force. The version of a resource is the hash of its content.

Equal content has an equal version, even after a restart of the control plane, so a proxy that reconnects is sent only
what differs from what it has. A message that is the same Python object as before is not serialised again. So the cost
of a change depends on its size, if the compiler keeps the messages of unchanged policies.

Referenced resources are sent first: clusters, secrets and filter configurations, then listeners, then routes. Removals
are sent in the opposite order, so that a resource is never removed while another refers to it (xDS protocol, "Eventual
consistency").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from envoy.service.discovery.v3 import discovery_pb2
from google.protobuf import any_pb2

from tierwall.engines.envoy.config.compile import XdsResources
from tierwall.engines.envoy.control.crossing import crossing_routes, ended_route

_PREFIX: Final = "type.googleapis.com/envoy"
CLUSTER: Final = f"{_PREFIX}.config.cluster.v3.Cluster"
SECRET: Final = f"{_PREFIX}.extensions.transport_sockets.tls.v3.Secret"
EXTENSION: Final = f"{_PREFIX}.config.core.v3.TypedExtensionConfig"
LISTENER: Final = f"{_PREFIX}.config.listener.v3.Listener"
ROUTE: Final = f"{_PREFIX}.config.route.v3.RouteConfiguration"

# The kinds in sending order, with their fields in `XdsResources`.
FIELDS: Final = {
    CLUSTER: "clusters",
    SECRET: "secrets",
    EXTENSION: "extension_configs",
    LISTENER: "listeners",
    ROUTE: "routes",
}
ORDER: Final = tuple(FIELDS)
# A proxy that subscribes to these kinds without names wants all their resources.
WILDCARD: Final = frozenset((CLUSTER, LISTENER))


class CachedResource(NamedTuple):
    """A resource in force. `message` comes from the compiler, `wire` is what is sent."""

    version: str
    message: Any
    wire: Any


class ResourceCache:
    """The resources in force, by type URL and name; empty before the first `publish`."""

    def __init__(self) -> None:
        self._items: dict[str, dict[str, CachedResource]] = {type_url: {} for type_url in ORDER}
        self._crossing: dict[str, CachedResource] | None = None
        self.generation = 0

    @property
    def is_published(self) -> bool:
        """Whether there is a configuration. Until then proxies are sent nothing, above all no removals."""
        return self.generation > 0

    def of(self, type_url: str) -> Mapping[str, CachedResource]:
        """Return the resources of a kind."""
        return self._items.get(type_url, {})

    def crossing(self, names: Iterable[str]) -> list[CachedResource]:
        """Return routes of these names that carry their policies (`crossing`); those not in force serve nothing."""
        if self._crossing is None:
            routes, filters = (
                {name: item.message for name, item in self.of(kind).items()} for kind in (ROUTE, EXTENSION)
            )
            self._crossing = {
                name: _item(name, ROUTE, message, None) for name, message in crossing_routes(routes, filters).items()
            }
        return [self._crossing.get(name) or ended(name) for name in names]

    def publish(self, resources: XdsResources) -> dict[str, set[str]]:
        """Put a configuration in force; return the names added, changed or removed, by type URL."""
        changed: dict[str, set[str]] = {}
        for type_url, field in FIELDS.items():
            before, messages = self._items[type_url], getattr(resources, field)
            after = {name: _item(name, type_url, message, before.get(name)) for name, message in messages.items()}
            names = {name for name, item in after.items() if name not in before or before[name].version != item.version}
            names |= before.keys() - after.keys()
            if names:
                changed[type_url] = names
            self._items[type_url] = after
        self._crossing = None
        if changed or not self.generation:
            self.generation += 1
        return changed


def ended(name: str) -> CachedResource:
    """Return routes of this name that serve nothing."""
    return _item(name, ROUTE, ended_route(name), None)


def _item(name: str, type_url: str, message: Any, before: CachedResource | None) -> CachedResource:
    if before is not None and before.message is message:
        return before
    content = message.SerializeToString(deterministic=True)
    version = blake2b(content, digest_size=12).hexdigest()
    if before is not None and before.version == version:
        return before._replace(message=message)
    packed = any_pb2.Any(type_url=type_url, value=content)
    return CachedResource(version, message, discovery_pb2.Resource(name=name, version=version, resource=packed))
