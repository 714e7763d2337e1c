"""The sections of objects that a `sectionName` may name (docs/gateway.md#where-a-policy-attaches).

A Gateway or ListenerSet has listeners, a route its named rules, a Service port numbers, an AgentgatewayBackend its MCP
targets, the providers of its groups, or the literal `backend` for its single provider; other backends have none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tierwall.attach.listener import gateway_listeners, listeners
from tierwall.attach.place import BACKEND, GATEWAY, LISTENER_SET, ROUTES, SERVICE, X_LISTENER_SET, Place
from tierwall.resources.once import per_resource
from tierwall.resources.resource import Resource, list_of_maps, nested_map
from tierwall.resources.snapshot import Snapshot

WORDS = {
    GATEWAY: "listener",
    LISTENER_SET: "listener",
    X_LISTENER_SET: "listener",
    SERVICE: "port",
    BACKEND: "sub-backend",
    **dict.fromkeys(ROUTES, "rule"),
}


@per_resource
def rules(route: Resource) -> tuple[Mapping[str, Any], ...]:
    """The rules of a route, by number; an HTTPRoute without rules has one, which the API server fills in."""
    return tuple(list_of_maps(route.spec.get("rules"))) or (({},) if route.kind == "HTTPRoute" else ())


def rule_name(rule: Mapping[str, Any]) -> str:
    """A rule's name, or nothing: a rule without one cannot be targeted."""
    name = rule.get("name")
    return name if isinstance(name, str) else ""


def service_ports(service: Resource) -> tuple[int, ...]:
    """The port numbers of a Service."""
    return tuple(port["port"] for port in list_of_maps(service.spec.get("ports")) if type(port.get("port")) is int)


class SubBackend(NamedTuple):
    """A part of an AgentgatewayBackend that has a name: with its inline policies and where they stand."""

    name: str
    value: Mapping[str, Any]
    policies: Mapping[str, Any]
    path: tuple[str | int, ...]


def sub_backends(backend: Resource) -> Iterator[SubBackend]:
    """MCP targets, AI providers of groups, or the single provider; in the order they are written."""
    for index, target in enumerate(list_of_maps(nested_map(backend.spec, "mcp").get("targets"))):
        if isinstance(target.get("name"), str):
            path: tuple[str | int, ...] = ("spec", "mcp", "targets", index, "static", "policies")
            yield SubBackend(target["name"], target, nested_map(target, "static", "policies"), path)
    ai = nested_map(backend.spec, "ai")
    if isinstance(ai.get("provider"), dict):
        yield SubBackend("backend", ai["provider"], {}, ("spec", "ai", "provider"))
    for outer, group in enumerate(list_of_maps(ai.get("groups"))):
        for inner, provider in enumerate(list_of_maps(group.get("providers"))):
            if isinstance(provider.get("name"), str):
                path = ("spec", "ai", "groups", outer, "providers", inner, "policies")
                yield SubBackend(provider["name"], provider, nested_map(provider, "policies"), path)


def sections(resource: Resource) -> tuple[str, ...]:
    """The names that a `sectionName` may have for this object, in the order they are written."""
    key = resource.group, resource.kind
    if key in (GATEWAY, LISTENER_SET, X_LISTENER_SET):
        return tuple(listener.name for listener in listeners(resource))
    if key in ROUTES:
        return tuple(name for rule in rules(resource) if (name := rule_name(rule)))
    if key == SERVICE:
        return tuple(map(str, service_ports(resource)))
    if key == BACKEND:
        return tuple(dict.fromkeys(sub_backend.name for sub_backend in sub_backends(resource)))
    return ()


def has_section(snapshot: Snapshot, resource: Resource, place: Place) -> bool:
    """Whether the section or port of a place is there; a Gateway's ports are also those of its ListenerSets."""
    if place.port:
        return any(gateway_listener.port == place.port for gateway_listener in gateway_listeners(snapshot, resource))
    return not place.section or place.section in sections(resource)
