"""Listeners of Gateways and ListenerSets, the namespaces that they admit, and the host names that they serve.

Gateway API: `allowedListeners`, `from: Same | All | Selector | None`, `Listener.hostname` and `HTTPRoute.hostnames`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tierwall.attach.place import GATEWAY, GATEWAY_API, LISTENER_SET, X_LISTENER_SET
from tierwall.core.labels import Selector, SelectorError
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource, list_of_maps, nested_map
from tierwall.resources.snapshot import Snapshot


class Listener(NamedTuple):
    """One entry of `spec.listeners` of its `owner`, a Gateway or ListenerSet."""

    owner: Resource
    number: int
    name: str
    port: int
    protocol: str
    hostname: str
    value: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.owner.reference}#{self.name}"


def listeners(owner: Resource) -> tuple[Listener, ...]:
    """Return the listeners of a Gateway or ListenerSet; a missing or invalid port is 0."""
    out = []
    for index, value in enumerate(list_of_maps(owner.spec.get("listeners"))):
        if isinstance(value.get("name"), str):
            port, protocol, hostname = value.get("port"), value.get("protocol"), value.get("hostname")
            out.append(
                Listener(
                    owner,
                    index,
                    value["name"],
                    port if type(port) is int else 0,
                    protocol if isinstance(protocol, str) else "",
                    hostname if isinstance(hostname, str) else "",
                    value,
                )
            )
    return tuple(out)


def terminates(listener: Listener) -> bool:
    """Whether a listener of protocol TLS ends TLS itself, which is the default."""
    return listener.protocol == "TLS" and nested_map(listener.value, "tls").get("mode") != "Passthrough"


def parent_gateway(snapshot: Snapshot, listener_set: Resource) -> tuple[Resource | None, str]:
    """Return the Gateway that a ListenerSet adds listeners to, or None and the reason."""
    parent = nested_map(listener_set.spec, "parentRef")
    if (parent.get("group", GATEWAY_API), parent.get("kind", "Gateway")) != GATEWAY:
        return None, "parentRef is not a Gateway"
    namespace, name = parent.get("namespace") or listener_set.namespace, parent.get("name")
    gateway = snapshot.get(*GATEWAY, str(namespace), str(name))
    if gateway is None:
        return None, f"Gateway {namespace}/{name} not found"
    if not namespace_allowed(snapshot, _allowed(gateway), "None", gateway.namespace, listener_set.namespace):
        return None, f"Gateway {namespace}/{name} does not allow listeners from namespace {listener_set.namespace}"
    return gateway, ""


def admits_listener_sets(gateway: Resource) -> bool:
    """Whether ListenerSets of any namespace may add listeners to a Gateway."""
    return bool(_allowed(gateway).get("from", "None") != "None")


def _allowed(gateway: Resource) -> Mapping[str, Any]:
    return nested_map(gateway.spec, "allowedListeners", "namespaces")


def listener_sets(snapshot: Snapshot, gateway: Resource) -> tuple[Resource, ...]:
    """Return the ListenerSets that add listeners to a Gateway, in tie-break order."""
    return _listener_sets(snapshot).get((gateway.namespace, gateway.name), ())


@per_snapshot
def _listener_sets(snapshot: Snapshot) -> Mapping[tuple[str, str], tuple[Resource, ...]]:
    by_gateway: dict[tuple[str, str], list[Resource]] = {}
    for key in (LISTENER_SET, X_LISTENER_SET):
        for resource in snapshot.of_kind(*key):
            gateway, _ = parent_gateway(snapshot, resource)
            if gateway is not None:
                by_gateway.setdefault((gateway.namespace, gateway.name), []).append(resource)
    return {
        name: tuple(sorted(sets, key=lambda listener_set: listener_set.seniority)) for name, sets in by_gateway.items()
    }


def gateway_listeners(snapshot: Snapshot, gateway: Resource) -> tuple[Listener, ...]:
    """Return the listeners of a Gateway, then those of its ListenerSets."""
    added = (listener for listener_set in listener_sets(snapshot, gateway) for listener in listeners(listener_set))
    return (*listeners(gateway), *added)


NAME_LABEL = "kubernetes.io/metadata.name"


def namespace_labels(snapshot: Snapshot, namespace: str) -> Mapping[str, str]:
    """Return the labels of a namespace; an undeclared namespace has only the label with its name."""
    declared = snapshot.get("", "Namespace", "", namespace)
    return {**(declared.labels if declared is not None else {}), NAME_LABEL: namespace}


def namespace_allowed(snapshot: Snapshot, rule: Mapping[str, Any], default: str, namespace: str, other: str) -> bool:
    """Whether a rule `{from, selector}` of an owner in `namespace` admits the namespace `other`."""
    source = rule.get("from", default)
    if source == "Selector":
        try:
            selector = Selector.parse(rule.get("selector"))
        except SelectorError:
            return False
        # A rule without a selector admits no namespace.
        return rule.get("selector") is not None and selector.matches(namespace_labels(snapshot, other))
    return source == "All" or (source == "Same" and namespace == other)


def narrower_hostname(first: str, other: str) -> str | None:
    """Return the narrower of two host names that overlap, or None. `*.x` is every name below x, at any depth."""
    first, other = first.lower(), other.lower()
    if first == other:
        return first
    for wide, narrow in ((first, other), (other, first)):
        # `*.a.b` also ends with `.b`: the longer of two wildcards is narrower.
        if wide.startswith("*.") and narrow.endswith(wide[1:]):
            return narrow
    return None


def shared_hostnames(listener: str, route: Iterable[str]) -> tuple[str, ...] | None:
    """Return the host names that a route serves on a listener (`()`: all), or None if they share no name."""
    wanted = tuple(route)
    if not listener or not wanted:
        return wanted or ((listener,) if listener else ())
    hostnames = tuple(dict.fromkeys(name for each in wanted if (name := narrower_hostname(listener, each)) is not None))
    return hostnames or None
