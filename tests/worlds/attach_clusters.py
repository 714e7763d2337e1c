"""Random clusters of Gateways, ListenerSets, routes and policies, with every reason not to attach."""

from __future__ import annotations

from random import Random
from typing import Any

API = "gateway.networking.k8s.io"
SPACES = ("a", "b")
Objects = list[dict[str, Any]]


def manifest(kind: str, space: str, name: str, spec: dict[str, Any], api: str = f"{API}/v1") -> dict[str, Any]:
    metadata = {"name": name, "namespace": space, "labels": {"app": name}}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}


def cluster(rng: Random) -> Objects:
    """Generate objects in two namespaces, with every reason not to attach."""
    out: Objects = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a", "labels": {"team": "red"}}},
    ]
    for space in SPACES:
        for name in ("g", "h"):
            spec: dict[str, Any] = {"gatewayClassName": "c", "listeners": _listeners(rng)}
            if rng.random() < 0.6:
                spec["allowedListeners"] = {"namespaces": _namespaces(rng, ("All", "Same", "None", "Selector"))}
            out.append(manifest("Gateway", space, name, spec))
        if rng.random() < 0.6:
            parent = {"name": rng.choice(("g", "h", "gone"))} | _elsewhere(rng)
            out.append(manifest("ListenerSet", space, "set", {"parentRef": parent, "listeners": _listeners(rng)}))
        for kind in ("HTTPRoute", "GRPCRoute"):
            for name in ("r", "s"):
                out.append(manifest(kind, space, name, _route(rng)))
        for name in ("x", "y"):
            out.append(manifest("Service", space, name, {"ports": [{"port": 80}, {"port": 81}]}, "v1"))
        if rng.random() < 0.5:
            source = {"group": API, "kind": rng.choice(("HTTPRoute", "GRPCRoute")), "namespace": rng.choice(SPACES)}
            if rng.random() < 0.3:
                source |= {"group": "agentgateway.dev", "kind": "AgentgatewayPolicy"}
            to: dict[str, Any] = {"group": "", "kind": "Service"}
            if rng.random() < 0.4:
                to = {"group": API, "kind": "HTTPRoute"}
            if rng.random() < 0.4:
                to["name"] = rng.choice(("x", "y", "r"))
            out.append(manifest("ReferenceGrant", space, "grant", {"from": [source], "to": [to]}, f"{API}/v1beta1"))
    for number in range(rng.randrange(1, 9)):
        out.append(_policy(rng, f"p{number}"))
    rng.shuffle(out)
    return out


def _elsewhere(rng: Random) -> dict[str, Any]:
    return {"namespace": rng.choice(SPACES)} if rng.random() < 0.5 else {}


def _namespaces(rng: Random, words: tuple[str, ...]) -> dict[str, Any]:
    source = rng.choice(words)
    return {"from": source} | ({"selector": {"matchLabels": {"team": "red"}}} if source == "Selector" else {})


def _listeners(rng: Random) -> list[dict[str, Any]]:
    out = []
    for number, name in enumerate(rng.choice((("web",), ("web", "tls"), ("web", "other")))):
        listener: dict[str, Any] = {"name": name, "port": 80 + number, "protocol": rng.choice(("HTTP", "HTTP", "TCP"))}
        if listener["protocol"] == "HTTP" and rng.random() < 0.4:
            listener["hostname"] = rng.choice(("*.example.com", "a.example.com", "other.org"))
        if rng.random() < 0.5:
            listener["allowedRoutes"] = {"namespaces": _namespaces(rng, ("All", "Same", "Selector"))}
            if rng.random() < 0.3:
                listener["allowedRoutes"]["kinds"] = [{"kind": rng.choice(("HTTPRoute", "GRPCRoute"))}]
        out.append(listener)
    return out


def _route(rng: Random) -> dict[str, Any]:
    parents = []
    for _ in range(rng.randrange(3)):
        kind = rng.choice(("Gateway", "Gateway", "ListenerSet", "HTTPRoute"))
        names = {"Gateway": ("g", "h", "gone"), "ListenerSet": ("set",), "HTTPRoute": ("r", "s")}[kind]
        parent: dict[str, Any] = {"kind": kind, "name": rng.choice(names)} | _elsewhere(rng)
        if kind != "HTTPRoute" and rng.random() < 0.3:
            parent["sectionName"] = rng.choice(("web", "tls", "gone"))
        elif kind != "HTTPRoute" and rng.random() < 0.2:
            parent["port"] = rng.choice((80, 81))
        parents.append(parent)
    refs: list[dict[str, Any]] = []
    for _ in range(rng.randrange(3)):
        if rng.random() < 0.75:
            refs.append({"name": rng.choice(("x", "y", "gone")), "port": rng.choice((80, 81))} | _elsewhere(rng))
        else:
            children = rng.choice(("r", "s", "*", "app=r", "team="))
            refs.append({"group": API, "kind": "HTTPRoute", "name": children} | _elsewhere(rng))
    out: dict[str, Any] = {"parentRefs": parents, "rules": [{"name": "one", "backendRefs": refs}]}
    if rng.random() < 0.5:
        out["hostnames"] = rng.sample(("a.example.com", "b.c.example.com", "*.org", "example.com"), 2)
    return out


def _policy(rng: Random, name: str) -> dict[str, Any]:
    kind = rng.choice(("Gateway", "ListenerSet", "HTTPRoute", "GRPCRoute", "Service"))
    names, sections = {
        "Gateway": (("g", "h", "gone"), ("web", "tls", "gone")),
        "ListenerSet": (("set", "gone"), ("web", "gone")),
        "HTTPRoute": (("r", "s", "gone"), ("one", "gone")),
        "GRPCRoute": (("r", "s"), ("one", "gone")),
        "Service": (("x", "y", "gone"), ("80", "81", "82")),
    }[kind]
    group = "" if kind == "Service" else API
    entries = []
    by_label = rng.random() < 0.3
    for _ in range(rng.randrange(1, 3)):
        chosen = rng.choice(names)
        entry: dict[str, Any] = {"group": group, "kind": kind}
        entry |= {"matchLabels": {"app": chosen}} if by_label else {"name": chosen}
        if rng.random() < 0.4:
            entry["sectionName"] = rng.choice(sections)
        entries.append(entry)
    spec: dict[str, Any] = {"targetSelectors" if by_label else "targetRefs": entries}
    spec["backend"] = {"tcp": {"connectTimeout": "1s"}}
    if rng.random() < 0.4:
        ref = {"name": rng.choice(("x", "y", "gone")), "port": rng.choice((80, 81))} | _elsewhere(rng)
        # A chain of Services: only settings of a backend may be on a Service.
        part = spec["backend"] if kind == "Service" else spec.setdefault("traffic", {})
        part["extAuth"] = {"backendRef": ref, "grpc": {}}
    return manifest("AgentgatewayPolicy", rng.choice(SPACES), name, spec, "agentgateway.dev/v1alpha1")
