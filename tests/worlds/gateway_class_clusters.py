"""Random clusters with Gateways of several classes, and everything that their statuses depend on."""

from __future__ import annotations

import base64
from functools import cache
from random import Random
from typing import Any

from tierwall.engines.envoy.probe.client import CertificateAuthority
from tierwall.serve.controller.desired import CONTROLLER_NAME

API = "gateway.networking.k8s.io"
SPACES = ("a", "b")
HOSTS = ("a.example.com", "*.example.com", "*.a.example.com", "example.org")
Object = dict[str, Any]
UNKNOWN_FILTER: Object = {
    "type": "ExtensionRef",
    "extensionRef": {"group": "example.org", "kind": "Filter", "name": "x"},
}


def manifest(kind: str, space: str, name: str, spec: Object, api: str = f"{API}/v1") -> Object:
    metadata: Object = {"name": name, "namespace": space, "uid": f"{kind}-{space}-{name}", "generation": 3}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}


def cluster(rng: Random) -> list[Object]:
    """Generate objects in two namespaces: `a` has a label, and some references between them are granted."""
    out: list[Object] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a", "labels": {"team": "red"}}},
        gateway_class("tierwall", CONTROLLER_NAME),
        gateway_class("other", "example.com/other"),
    ]
    for space in SPACES:
        if rng.random() < 0.8:
            out.append(secret(space, is_damaged=rng.random() < 0.2))
        for name in ("g", "h")[: rng.randrange(1, 3)]:
            spec: Object = {"gatewayClassName": rng.choice(("tierwall", "tierwall", "other"))}
            spec["listeners"] = _listeners(rng)
            if rng.random() < 0.6:
                spec["allowedListeners"] = {"namespaces": _namespaces(rng, ("All", "Same", "None", "Selector"))}
            out.append(manifest("Gateway", space, name, spec))
        for name in ("set", "more")[: rng.randrange(3)]:
            parent = {"name": rng.choice(("g", "h"))} | _elsewhere(rng)
            out.append(manifest("ListenerSet", space, name, {"parentRef": parent, "listeners": _listeners(rng)}))
            out[-1]["metadata"]["creationTimestamp"] = f"2026-01-0{rng.randrange(1, 4)}T00:00:00Z"
        services, routes = ("x", "y")[: rng.randrange(1, 3)], ("r", "s")[: rng.randrange(1, 3)]
        out += [manifest("Service", space, name, {"ports": [{"port": 80}]}, "v1") for name in services]
        out += [_route(rng, "HTTPRoute", space, name) for name in routes]
        if rng.random() < 0.3:
            out.append(_route(rng, "GRPCRoute", space, "r"))
        out += [_route(rng, kind, space, "r") for kind in ("TLSRoute", "TCPRoute") if rng.random() < 0.3]
        for kind, target in (("HTTPRoute", "Service"), ("Gateway", "Secret")):
            if rng.random() < 0.5:
                source = {"group": API, "kind": kind, "namespace": rng.choice(SPACES)}
                grant = {"from": [source], "to": [{"group": "", "kind": target}]}
                out.append(manifest("ReferenceGrant", space, target.lower(), grant, f"{API}/v1beta1"))
    rng.shuffle(out)
    return out


def gateway_class(name: str, controller: str) -> Object:
    out = manifest("GatewayClass", "", name, {"controllerName": controller})
    del out["metadata"]["namespace"]
    return out


@cache
def certificate() -> tuple[str, str]:
    """Return a certificate and its key as Base64."""
    server = CertificateAuthority().server()
    return base64.b64encode(server.chain).decode(), base64.b64encode(server.key).decode()


def secret(space: str, name: str = "cert", is_damaged: bool = False) -> Object:
    chain, key = certificate()
    metadata = {"name": name, "namespace": space}
    data = {"tls.crt": chain, "tls.key": "" if is_damaged else key}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "kubernetes.io/tls", "data": data}


def authority(space: str, name: str) -> Object:
    """Return a ConfigMap with an authority."""
    metadata = {"name": name, "namespace": space}
    data = {"ca.crt": base64.b64decode(certificate()[0]).decode()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _elsewhere(rng: Random) -> Object:
    return {"namespace": rng.choice(SPACES)} if rng.random() < 0.4 else {}


def _namespaces(rng: Random, words: tuple[str, ...]) -> Object:
    source = rng.choice(words)
    return {"from": source} | ({"selector": {"matchLabels": {"team": "red"}}} if source == "Selector" else {})


def _listeners(rng: Random) -> list[Object]:
    out = []
    for name in ("one", "two", "three")[: rng.randrange(1, 4)]:
        protocol = rng.choice(("HTTP", "HTTP", "HTTP", "HTTPS", "HTTPS", "TLS", "TCP", "UDP"))
        listener: Object = {"name": name, "port": rng.choice((80, 443)), "protocol": protocol}
        if protocol not in ("TCP", "UDP") and rng.random() < 0.6:
            listener["hostname"] = rng.choice(HOSTS)
        if protocol == "HTTPS":
            listener["tls"] = {"certificateRefs": [{"name": "cert"} | _elsewhere(rng)]}
        elif protocol == "TLS":
            ends = {"mode": "Terminate", "certificateRefs": [{"name": "cert"}]}
            listener["tls"] = rng.choice(({"mode": "Passthrough"}, {"mode": "Passthrough"}, ends))
        if rng.random() < 0.5:
            listener["allowedRoutes"] = {"namespaces": _namespaces(rng, ("All", "All", "Same", "Selector"))}
            if rng.random() < 0.3:
                kinds = rng.sample(("HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute"), rng.randrange(1, 4))
                listener["allowedRoutes"]["kinds"] = [{"kind": kind} for kind in kinds]
        out.append(listener)
    return out


def _route(rng: Random, kind: str, space: str, name: str) -> Object:
    parents: list[Object] = []
    for _ in range(rng.randrange(1, 4)):
        owner = rng.choice(("Gateway", "Gateway", "ListenerSet"))
        parent: Object = {"kind": owner, "name": rng.choice(("g", "h") if owner == "Gateway" else ("set", "more"))}
        parent |= _elsewhere(rng)
        if rng.random() < 0.3:
            parent["sectionName"] = rng.choice(("one", "two", "gone"))
        elif rng.random() < 0.2:
            parent["port"] = rng.choice((80, 443, 8080))
        if parent not in parents:
            parents.append(parent)
    makers = (_rule,) if kind == "HTTPRoute" else (_plain_rule,)
    is_stream = kind in ("TLSRoute", "TCPRoute")
    number = 1 if is_stream else rng.randrange(1, 4)
    spec: Object = {"parentRefs": parents, "rules": [rng.choice(makers)(rng) for _ in range(number)]}
    if is_stream:
        for ref in spec["rules"][0]["backendRefs"]:
            ref.pop("filters", None)
    if kind == "TLSRoute" or (kind != "TCPRoute" and rng.random() < 0.6):
        spec["hostnames"] = rng.sample((*HOSTS, "b.a.example.com"), rng.randrange(1, 3))
    out = manifest(kind, space, name, spec)
    if rng.random() < 0.3:
        out["status"] = {"parents": [{"controllerName": CONTROLLER_NAME}, {"controllerName": "example.com/other"}]}
    return out


def _plain_rule(rng: Random) -> Object:
    return {"backendRefs": [_backend(rng) for _ in range(rng.randrange(1, 3))]}


def _rule(rng: Random) -> Object:
    rule: Object = {"backendRefs": [_backend(rng) for _ in range(rng.randrange(3))]}
    if rng.random() < 0.2:
        rule["filters"] = [UNKNOWN_FILTER]
    elif rng.random() < 0.2:
        to = {"name": rng.choice(("x", "gone")), "port": 80} | _elsewhere(rng)
        rule["filters"] = [{"type": "RequestMirror", "requestMirror": {"backendRef": to}}]
    if rng.random() < 0.3:
        paths = ({"value": "/shop"}, {"type": "RegularExpression", "value": "/(a"}, {"type": "Exact", "value": "/b"})
        rule["matches"] = [{"path": path} for path in rng.sample(paths, rng.randrange(1, 3))]
    return rule


def _backend(rng: Random) -> Object:
    ref: Object = {"name": rng.choice(("x", "x", "y", "gone")), "port": 80} | _elsewhere(rng)
    if rng.random() < 0.1:
        ref = {"group": API, "kind": "HTTPRoute", "name": "r"}
    if rng.random() < 0.15:
        changed = {"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": ["x"]}}
        ref["filters"] = [rng.choice((changed, UNKNOWN_FILTER))]
    if rng.random() < 0.15:
        ref["weight"] = 0
    return ref
