"""Builders for the objects of gateway tests, all in one namespace by default."""

from __future__ import annotations

from typing import Any

from tierwall.gateway.question import GatewayQuestion, ask
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

GATEWAY_API = "gateway.networking.k8s.io"
GROUPS = {
    "Service": "",
    "AgentgatewayBackend": "agentgateway.dev",
    "InferencePool": "inference.networking.k8s.io",
}
FULL = {
    "gateway": "ns/gw",
    "listener": "web",
    "route": "HTTPRoute/ns/route",
    "rule": "rule",
    "backend": "AgentgatewayBackend/ns/tools",
    "backendSection": "target",
}


def manifest(
    api: str, kind: str, name: str, spec: dict[str, Any], namespace: str = "ns", **metadata: Any
) -> dict[str, Any]:
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": spec,
    }


def gateway(name: str = "gw", *listeners: dict[str, Any], namespace: str = "ns", **spec: Any) -> dict[str, Any]:
    listed = list(listeners) or [
        {"name": "web", "port": 80, "protocol": "HTTP"},
        {"name": "admin", "port": 8080, "protocol": "HTTP"},
    ]
    return manifest(
        f"{GATEWAY_API}/v1", "Gateway", name, {"gatewayClassName": "c", "listeners": listed} | spec, namespace
    )


def listener_set(name: str = "set", namespace: str = "ns", parent: dict[str, Any] | None = None) -> dict[str, Any]:
    listed = [{"name": "web", "port": 81, "protocol": "HTTP"}, {"name": "extra", "port": 82, "protocol": "HTTP"}]
    spec = {"parentRef": parent or {"name": "gw"}, "listeners": listed}
    return manifest(f"{GATEWAY_API}/v1", "ListenerSet", name, spec, namespace)


def route(
    name: str = "route",
    rules: list[dict[str, Any]] | None = None,
    parents: list[dict[str, Any]] | None = None,
    kind: str = "HTTPRoute",
    namespace: str = "ns",
    **spec: Any,
) -> dict[str, Any]:
    default = [{"name": "rule", "backendRefs": [tools_ref(), {"name": "svc", "port": 80}]}, {"backendRefs": []}]
    content = {"parentRefs": parents if parents is not None else [{"name": "gw"}], "rules": rules or default} | spec
    return manifest(f"{GATEWAY_API}/v1", kind, name, content, namespace)


def tools_ref(**more: Any) -> dict[str, Any]:
    return {"group": "agentgateway.dev", "kind": "AgentgatewayBackend", "name": "tools"} | more


def service(name: str = "svc", *ports: int, namespace: str = "ns") -> dict[str, Any]:
    return manifest("v1", "Service", name, {"ports": [{"port": port} for port in ports or (80, 8080)]}, namespace)


def tools(
    policies: dict[str, Any] | None = None, target_policies: dict[str, Any] | None = None, name: str = "tools"
) -> dict[str, Any]:
    static = {"host": "h", "port": 80} | ({"policies": target_policies} if target_policies else {})
    spec: dict[str, Any] = {"mcp": {"targets": [{"name": "target", "static": static}]}}
    return manifest(
        "agentgateway.dev/v1alpha1", "AgentgatewayBackend", name, spec | ({"policies": policies} if policies else {})
    )


def model(
    policies: dict[str, Any] | None = None, providers: list[dict[str, Any]] | None = None, name: str = "llm"
) -> dict[str, Any]:
    ai: dict[str, Any] = {"groups": [{"providers": providers}]} if providers else {"provider": {"openai": {}}}
    spec = {"ai": ai} | ({"policies": policies} if policies else {})
    return manifest("agentgateway.dev/v1alpha1", "AgentgatewayBackend", name, spec)


def policy(
    name: str,
    *targets: str,
    namespace: str = "ns",
    created: str | None = None,
    override: bool = False,
    **sections: Any,
) -> dict[str, Any]:
    """Return a policy on targets such as `Gateway/gw`, `HTTPRoute/route#rule` or `Gateway/gw:80`."""
    spec: dict[str, Any] = {"targetRefs": [ref(target) for target in targets], **sections}
    if override:
        spec["strategy"] = {"inheritance": "Override"}
    metadata = {"creationTimestamp": created} if created else {}
    return manifest("agentgateway.dev/v1alpha1", "AgentgatewayPolicy", name, spec, namespace, **metadata)


def ref(target: str) -> dict[str, Any]:
    kind, _, rest = target.partition("/")
    name, _, section = rest.partition("#")
    name, _, port = name.partition(":")
    out: dict[str, Any] = {"group": GROUPS.get(kind, GATEWAY_API), "kind": kind, "name": name}
    if section:
        out["sectionName"] = section
    if port:
        out["port"] = int(port)
    return out


def places() -> list[dict[str, Any]]:
    return [gateway(), listener_set(), route(), route(kind="GRPCRoute"), service(), tools(), model()]


def snapshot(*objects: dict[str, Any]) -> Snapshot:
    """Return a snapshot of the objects, and of the usual places that are not among them."""
    given = {(resource["kind"], resource["metadata"]["name"]) for resource in objects}
    rest = [place for place in places() if (place["kind"], place["metadata"]["name"]) not in given]
    return Snapshot.of(load_objects([*rest, *objects]))


def answer(*objects: dict[str, Any], profile: str = "docs", **question: Any) -> dict[str, Any]:
    """Return the decision document of a question that has the keys of a policy test."""
    return ask(snapshot(*objects), GatewayQuestion.from_dict(question | {"profile": profile})).to_dict()


def settled(document: dict[str, Any], field: str) -> str | list[str] | None:
    """Return the bare names of the policies that set a field."""
    entry = document["effective"].get(field)
    if entry is None:
        return None
    if isinstance(entry["from"], list):
        return [source.removeprefix("AgentgatewayPolicy/ns/") for source in entry["from"]]
    return str(entry["from"]).removeprefix("AgentgatewayPolicy/ns/")


TIMEOUT: dict[str, Any] = {"timeouts": {"request": "5s"}}
TCP: dict[str, Any] = {"tcp": {"connectTimeout": "1s"}}
ALLOW: dict[str, Any] = {"authorization": {"policy": {"matchExpressions": ["request.path == '/'"]}}}
