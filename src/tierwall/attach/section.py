"""The sections of objects that a `sectionName` may name (docs/gateway.md#where-a-policy-attaches).

The sections of a Gateway or ListenerSet are its listeners, of a route its named rules, of a Service its port numbers.
An AgentgatewayBackend has its MCP targets, the providers of its groups, or `backend` for its single provider. Other
backends have no sections.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tierwall.attach.listener import gateway_listeners, listeners
from tierwall.attach.place import BACKEND, GATEWAY, LISTENER_SET, MODEL, ROUTES, SERVICE, X_LISTENER_SET, Place
from tierwall.resources.once import per_resource
from tierwall.resources.resource import Resource, list_of_maps, nested_map
from tierwall.resources.snapshot import Snapshot

WORDS = {
    GATEWAY: "listener",
    LISTENER_SET: "listener",
    X_LISTENER_SET: "listener",
    SERVICE: "port",
    BACKEND: "sub-backend",
    MODEL: "section",
    **dict.fromkeys(ROUTES, "rule"),
}


@per_resource
def rules(route: Resource) -> tuple[Mapping[str, Any], ...]:
    """Return the rules of a route; an HTTPRoute without rules has one empty rule, the API server's default."""
    return tuple(list_of_maps(route.spec.get("rules"))) or (({},) if route.kind == "HTTPRoute" else ())


def rule_name(rule: Mapping[str, Any]) -> str:
    """Return the name of a rule; empty if it has no name and so cannot be targeted."""
    name = rule.get("name")
    return name if isinstance(name, str) else ""


def service_ports(service: Resource) -> tuple[int, ...]:
    """Return the port numbers of a Service."""
    return tuple(port["port"] for port in list_of_maps(service.spec.get("ports")) if type(port.get("port")) is int)


class SubBackend(NamedTuple):
    """A named part of an AgentgatewayBackend, with its inline policies and their path."""

    name: str
    value: Mapping[str, Any]
    policies: Mapping[str, Any]
    path: tuple[str | int, ...]


def sub_backends(backend: Resource) -> Iterator[SubBackend]:
    """Yield the MCP targets, the AI providers of groups or the single provider, in the order of the document."""
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
    """Return the valid names for `sectionName` of this object, in the order of the document."""
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
    """Whether the section or port of a place exists; a Gateway also has the ports of its ListenerSets."""
    if place.port:
        return any(gateway_listener.port == place.port for gateway_listener in gateway_listeners(snapshot, resource))
    return not place.section or place.section in sections(resource)
