"""The sections of objects that a `sectionName` may name (docs/gateway.md#where-a-policy-attaches).

A Gateway or ListenerSet has listeners, a route its named rules, a Service port numbers, an AgentgatewayBackend its MCP
targets, the providers of its groups, or the literal `backend` for its single provider; other backends have none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tierwall.attach.listener import gateway_listeners, listeners
from tierwall.attach.place import BACKEND, GATEWAY, LISTENER_SET, ROUTES, SERVICE, X_LISTENER_SET, Place
from tierwall.resources.once import per_resource
from tierwall.resources.resource import Resource, maps
from tierwall.resources.snapshot import Snapshot

WORDS = {
    GATEWAY: "listener",
    LISTENER_SET: "listener",
    X_LISTENER_SET: "listener",
    SERVICE: "port",
    BACKEND: "sub-backend",
    **dict.fromkeys(ROUTES, "rule"),
}


def inside(value: object, *path: str) -> Mapping[str, Any]:
    """The map at a path inside another one; an empty one where there is none."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


@per_resource
def rules(route: Resource) -> tuple[Mapping[str, Any], ...]:
    """The rules of a route, by number; an HTTPRoute without rules has one, which the API server fills in."""
    listed = route.spec.get("rules")
    found = tuple(item if isinstance(item, dict) else {} for item in listed) if isinstance(listed, list) else ()
    return found or (({},) if route.kind == "HTTPRoute" else ())


def rule_name(rule: Mapping[str, Any]) -> str:
    """A rule's name, or nothing: a rule without one cannot be targeted."""
    name = rule.get("name")
    return name if isinstance(name, str) else ""


def service_ports(service: Resource) -> tuple[int, ...]:
    """The port numbers of a Service."""
    return tuple(port["port"] for port in maps(service.spec.get("ports")) if type(port.get("port")) is int)


class SubBackend:
    """A part of an AgentgatewayBackend that has a name: with its inline policies and where they stand."""

    __slots__ = ("name", "path", "policies", "value")

    def __init__(self, name: str, value: Mapping[str, Any], policies: object, path: tuple[str | int, ...]) -> None:
        self.name = name
        self.value = value
        self.policies: Mapping[str, Any] = policies if isinstance(policies, dict) else {}
        self.path = path


def sub_backends(backend: Resource) -> Iterator[SubBackend]:
    """MCP targets, AI providers of groups, or the single provider; in the order they are written."""
    mcp, ai = backend.spec.get("mcp"), backend.spec.get("ai")
    if isinstance(mcp, dict) and isinstance(mcp.get("targets"), list):
        for index, target in enumerate(mcp["targets"]):
            if isinstance(target, dict) and isinstance(target.get("name"), str):
                static = target.get("static")
                inline = static.get("policies") if isinstance(static, dict) else None
                yield SubBackend(
                    target["name"], target, inline, ("spec", "mcp", "targets", index, "static", "policies")
                )
    if not isinstance(ai, dict):
        return
    if isinstance(ai.get("provider"), dict):
        yield SubBackend("backend", ai["provider"], None, ("spec", "ai", "provider"))
    groups = ai.get("groups")
    for outer, group in enumerate(groups if isinstance(groups, list) else ()):
        providers = group.get("providers") if isinstance(group, dict) else None
        for inner, provider in enumerate(providers if isinstance(providers, list) else ()):
            if isinstance(provider, dict) and isinstance(provider.get("name"), str):
                path = ("spec", "ai", "groups", outer, "providers", inner, "policies")
                yield SubBackend(provider["name"], provider, provider.get("policies"), path)


def sections(resource: Resource) -> tuple[str, ...]:
    """The names that a `sectionName` may have for this object, in the order they are written."""
    key = resource.group, resource.kind
    if key in (GATEWAY, LISTENER_SET, X_LISTENER_SET):
        return tuple(one.name for one in listeners(resource))
    if key in ROUTES:
        return tuple(name for rule in rules(resource) if (name := rule_name(rule)))
    if key == SERVICE:
        return tuple(map(str, service_ports(resource)))
    if key == BACKEND:
        return tuple(dict.fromkeys(one.name for one in sub_backends(resource)))
    return ()


def has(snapshot: Snapshot, resource: Resource, place: Place) -> bool:
    """Whether the section or port of a place is there; a Gateway's ports are also those of its ListenerSets."""
    if place.port:
        return any(one.port == place.port for one in gateway_listeners(snapshot, resource))
    return not place.section or place.section in sections(resource)
