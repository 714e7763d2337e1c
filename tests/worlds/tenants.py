"""Tenants of one Envoy, each with a Gateway, routes, backends and policies, and a Gateway that all of them share."""

from __future__ import annotations

import base64
import copy
from collections.abc import Mapping
from functools import cache
from typing import Any

from tests.worlds.tool_objects import GATEWAY_API, NETWORKING, manifest
from tierwall.engines.envoy.probe.client import CertificateAuthority

Object = dict[str, Any]
GOOD, HOSTILE = "tenant", "aaa"
GOOD_PORT, HOSTILE_PORT, SHARED_PORT = 8443, 9443, 8080


@cache
def authority() -> CertificateAuthority:
    return CertificateAuthority()


def encoded(data: Mapping[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(content).decode() for name, content in data.items()}


@cache
def certificate() -> dict[str, str]:
    pair = authority().server()
    return encoded({"tls.crt": pair.chain, "tls.key": pair.key})


def tenant(namespace: str, port: int, host: str = "") -> list[Object]:
    """Return all that one tenant has: a Gateway with TLS, routes, backends, policies, and what they need."""
    listener: Object = {
        "name": "tls",
        "port": port,
        "protocol": "HTTPS",
        "tls": {"mode": "Terminate", "certificateRefs": [{"name": "cert"}]},
    }
    if host:
        listener["hostname"] = host
    authorities = [{"group": "", "kind": "ConfigMap", "name": "ca"}]
    backend = {"group": NETWORKING, "kind": "XBackend", "name": "tools"}
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": f"/{namespace}"}}],
        "backendRefs": [{**backend, "port": 80}],
    }
    plain = {
        "matches": [{"path": {"type": "PathPrefix", "value": f"/{namespace}/plain"}}],
        "backendRefs": [{"name": "web", "port": 80}],
    }
    parents = [{"name": "gate"}, {"name": "shared", "namespace": "infra"}]
    allow = {
        "name": "r0",
        "authorization": {
            "type": "Inline",
            "mcp": {"methods": [{"name": "tools/call", "params": ["add"]}]},
        },
    }
    expression = {
        "name": "r1",
        "authorization": {"type": "CEL", "cel": {"expression": "request.mcp.tool_name == 'sub'"}},
    }
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": {"team": namespace}}},
        manifest(
            f"{GATEWAY_API}/v1",
            "Gateway",
            "gate",
            {
                "gatewayClassName": "c",
                "listeners": [listener],
                "tls": {"frontend": {"default": {"validation": {"caCertificateRefs": authorities}}}},
                "allowedListeners": {"namespaces": {"from": "Same"}},
            },
            namespace,
        ),
        manifest(
            f"{GATEWAY_API}/v1",
            "ListenerSet",
            "more",
            {
                "parentRef": {"name": "gate"},
                "listeners": [{**listener, "name": "more", "hostname": f"more.{namespace}.test"}],
            },
            namespace,
        ),
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "cert", "namespace": namespace},
            "type": "kubernetes.io/tls",
            "data": certificate(),
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "ca", "namespace": namespace},
            "data": {"ca.crt": authority().pem.decode()},
        },
        manifest(f"{NETWORKING}/v0alpha0", "XBackend", "tools", {"mcp": {"serviceName": "web", "port": 80}}, namespace),
        manifest("v1", "Service", "web", {"ports": [{"port": 80}]}, namespace),
        manifest(f"{GATEWAY_API}/v1", "HTTPRoute", "tools", {"parentRefs": parents, "rules": [rule, plain]}, namespace),
        manifest(
            f"{GATEWAY_API}/v1beta1",
            "ReferenceGrant",
            "grant",
            {
                "from": [{"group": GATEWAY_API, "kind": "HTTPRoute", "namespace": namespace}],
                "to": [{"group": "", "kind": "Service"}],
            },
            namespace,
        ),
        manifest(
            f"{NETWORKING}/v1alpha1",
            "XAccessPolicy",
            "tools",
            {"targetRefs": [backend], "action": "Allow", "rules": [allow, expression]},
            namespace,
        ),
    ]


def shared() -> list[Object]:
    """Return a Gateway of the platform that serves the routes of every tenant."""
    listener = {
        "name": "web",
        "port": SHARED_PORT,
        "protocol": "HTTP",
        "allowedRoutes": {"namespaces": {"from": "All"}},
    }
    return [
        manifest(f"{GATEWAY_API}/v1", "Gateway", "shared", {"gatewayClassName": "c", "listeners": [listener]}, "infra")
    ]


def good() -> list[Object]:
    objects = copy.deepcopy([*shared(), *tenant(GOOD, GOOD_PORT)])
    for each in objects:
        each["metadata"]["creationTimestamp"] = "2024-01-01T00:00:00Z"
    return objects
