"""Objects for tests of settings that Envoy obeys: a Gateway, routes, Services and AgentgatewayPolicies in `shop`."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]
_GROUPS = {"Service": "", "AgentgatewayBackend": "agentgateway.dev"}


def gateway(**listener: Any) -> Object:
    listeners = [{"name": "http", "port": 8080, "protocol": "HTTP", **listener}]
    return _object("gateway.networking.k8s.io/v1", "Gateway", "edge", gatewayClassName="tierwall", listeners=listeners)


def route(name: str, rules: list[Object], **spec: Any) -> Object:
    parents = [{"name": "edge"}]
    return _object("gateway.networking.k8s.io/v1", "HTTPRoute", name, parentRefs=parents, rules=rules, **spec)


def service(name: str, port: int = 80) -> Object:
    return _object("v1", "Service", name, ports=[{"port": port}])


def policy(
    name: str, target: str, *, section: str | None = None, inheritance: str | None = None, **spec: Any
) -> Object:
    """A policy on `Kind/name`; `spec` has its sections."""
    kind, _, target_name = target.partition("/")
    ref = {"group": _GROUPS.get(kind, "gateway.networking.k8s.io"), "kind": kind, "name": target_name}
    refs = [ref if section is None else {**ref, "sectionName": section}]
    if inheritance is not None:
        spec["strategy"] = {"inheritance": inheritance}
    return _object("agentgateway.dev/v1alpha1", "AgentgatewayPolicy", name, targetRefs=refs, **spec)


def secret(name: str, labels: Object | None = None, **data: str) -> Object:
    """A Secret of an Opaque type with these texts."""
    metadata = {"name": name, "namespace": "shop", **({"labels": labels} if labels else {})}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data}


def _object(version: str, kind: str, name: str, **spec: Any) -> Object:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "shop"}, "spec": spec}


def to(*services: str) -> list[Object]:
    return [{"name": name, "port": 80} for name in services]


# A Gateway, and a route with a named rule `a` for `/a` and a rule for everything else.
PLAIN = (
    gateway(),
    service("one"),
    route(
        "web",
        [
            {"name": "a", "matches": [{"path": {"value": "/a"}}], "backendRefs": to("one")},
            {"backendRefs": to("one")},
        ],
    ),
)
