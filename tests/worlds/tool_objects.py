"""Builders for tool tests: objects, policies of each generation, and a question with defaults."""

from __future__ import annotations

from typing import Any

from tests.worlds.tool_worlds import snapshot
from tierwall.tool.question import ToolQuestion, ask

Object = dict[str, Any]
PROTOTYPE, NETWORKING = "agentic.prototype.x-k8s.io", "agentic.networking.x-k8s.io"
GATEWAY_API = "gateway.networking.k8s.io"
AUTHORIZER = {"protocol": "GRPC", "grpc": {}, "backendRef": {"name": "authorizer", "port": 5000}}
AGENT = "spiffe://cluster.local/ns/prod/sa/agent"
OTHER = "spiffe://cluster.local/ns/prod/sa/other"
BASE = {"mcpBaseProtocolMethodsOption": "MATCH_BASE_PROTOCOL_METHODS"}
T1, T2, T3 = "2026-02-01T00:00:00Z", "2026-02-02T00:00:00Z", "2026-02-03T00:00:00Z"


def manifest(version: str, kind: str, name: str, spec: Object, namespace: str = "prod", **metadata: Any) -> Object:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": spec,
    }


def gateway(name: str = "prod-gateway", *listeners: str, namespace: str = "prod", protocol: str = "HTTP") -> Object:
    ports = enumerate(listeners or ("web",), 8080)
    spec = {
        "gatewayClassName": "c",
        "listeners": [{"name": listener, "port": port, "protocol": protocol} for port, listener in ports],
    }
    return manifest(f"{GATEWAY_API}/v1", "Gateway", name, spec, namespace)


def backend(name: str = "payment-service", group: str = NETWORKING, namespace: str = "prod", **mcp: Any) -> Object:
    spec = {"mcp": {"serviceName": "s", "port": 80, **mcp}}
    return manifest(f"{group}/v0alpha0", "XBackend", name, spec, namespace)


def route(name: str, parent: str, *backends: str, group: str = NETWORKING) -> Object:
    refs = [{"group": group, "kind": "XBackend", "name": backend, "port": 80} for backend in backends]
    spec = {"parentRefs": [{"name": parent}], "rules": [{"backendRefs": refs}]}
    return manifest(f"{GATEWAY_API}/v1", "HTTPRoute", name, spec)


def on_gateway(name: str = "prod-gateway", section: str = "") -> Object:
    ref = {"group": GATEWAY_API, "kind": "Gateway", "name": name}
    return {**ref, "sectionName": section} if section else ref


def on_backend(name: str = "payment-service", group: str = NETWORKING) -> Object:
    return {"group": group, "kind": "XBackend", "name": name}


def sa(name: str = "agent", **more: str) -> Object:
    return {"type": "ServiceAccount", "serviceAccount": {"name": name, **more}}


def spiffe(text: str = AGENT) -> Object:
    return {"type": "SPIFFE", "spiffe": text}


def v1(name: str, target: Object | list[Object], *rules: Object, **spec: Any) -> Object:
    """Build a v1alpha1 policy; rules get names. `rules=` sets no rules or an empty list."""
    created = {"creationTimestamp": spec.pop("created")} if "created" in spec else {}
    kind = spec.pop("kind", "XAccessPolicy")
    listed = [{"name": f"r{number}", **rule} for number, rule in enumerate(rules)]
    body = {"targetRefs": target if isinstance(target, list) else [target], "action": "Allow", "rules": listed, **spec}
    if body["action"] == "ExternalAuth":
        body.setdefault("externalAuth", AUTHORIZER)
    if body["rules"] is None:
        del body["rules"]
    return manifest(f"{NETWORKING}/v1alpha1", kind, name, body, **created)


def v0(name: str, target: Object | list[Object], *rules: Object, **metadata: Any) -> Object:
    """Build a policy of `agentic.networking.x-k8s.io/v0alpha0`."""
    created = {"creationTimestamp": metadata["created"]} if "created" in metadata else {}
    listed = [{"name": f"r{number}", **rule} for number, rule in enumerate(rules)]
    body = {"targetRefs": target if isinstance(target, list) else [target], "rules": listed}
    return manifest(f"{NETWORKING}/v0alpha0", "XAccessPolicy", name, body, **created)


def prototype(name: str, target: Object | list[Object], *rules: Object, **metadata: Any) -> Object:
    """Build a policy of the proposal's own generation, in its spelling."""
    created = {"creationTimestamp": metadata["created"]} if "created" in metadata else {}
    body = {"targetRefs": target if isinstance(target, list) else [target], "rules": list(rules)}
    return manifest(f"{PROTOTYPE}/v0alpha0", "AccessPolicy", name, body, **created)


def inline(*tools: str) -> Object:
    """Build v0alpha0 authorization by a list of tools."""
    return {"type": "InlineTools", "tools": list(tools)}


def cel(text: str, **more: Any) -> Object:
    return {"type": "CEL", "cel": {"expression": text}, **more}


def mcp(*methods: str | Object, **more: Any) -> Object:
    """Build v1alpha1 authorization by methods; a plain name is a method without params."""
    listed = [{"name": method} if isinstance(method, str) else method for method in methods]
    return {"type": "Inline", "mcp": {"methods": listed, **more}}


def calls(*tools: str) -> Object:
    return {"name": "tools/call", "params": list(tools)}


def asked(objects: list[Object], **question: Any) -> Object:
    """Ask a question and return the decision document; Gateway, backend and caller have defaults."""
    defaults: Object = {"gateway": "prod/prod-gateway", "backend": "prod/payment-service", "caller": AGENT}
    whole = {**defaults, **question}
    if "tool" in question and "method" not in question:
        whole["method"] = "tools/call"
    given = {key: value for key, value in whole.items() if value is not None}
    return ask(snapshot(objects), ToolQuestion.from_dict(given)).to_dict()


def verdict(objects: list[Object], **question: Any) -> str:
    return str(asked(objects, **question)["verdict"])


def guarded(*rules: Object, **spec: Any) -> list[Object]:
    """Build a Gateway with rule v1alpha1 policy, and a backend without a policy."""
    return [gateway(), backend(), v1("p", on_gateway(), *rules, **spec)]
