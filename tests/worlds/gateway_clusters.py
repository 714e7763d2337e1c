"""Random small clusters of Gateways, routes, backends and policies, dense enough that levels, ties and locks collide.

Everything comes from one seed. Policies are valid, except for a few that are meant to be refused.
"""

from __future__ import annotations

from random import Random
from typing import Any

from tests.reference.gateway import CONDITIONS

GATEWAY_API = "gateway.networking.k8s.io"
NAMESPACES = ("a", "b")
# Most objects are in one namespace, so that policies interact.
SPACES = ("a", "a", "a", "b")
TIMES = (None, "2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z", "2024-01-01T01:00:00+01:00")

FACTS: tuple[dict[str, Any], ...] = (
    {},
    {"request.path": "/x"},
    {"request.path": "/abc", "request.method": "POST"},
    {"request.method": "GET", "request.headers": {"x": "1"}},
)

_LIMIT = ({"requests": 1, "unit": "Seconds"}, {"tokens": 5, "unit": "Hours"})


def _global(domain: str) -> dict[str, Any]:
    entries = [{"name": "n", "expression": "request.path"}]
    return {"domain": domain, "url": "http://limits", "descriptors": [{"entries": entries}]}


def _ext(port: int) -> dict[str, Any]:
    return {"backendRef": {"name": "auth", "port": port}, "grpc": {}}


def _authorization(rng: Random) -> dict[str, Any]:
    out: dict[str, Any] = {"policy": {"matchExpressions": [f"request.path == '/{rng.randrange(3)}'"]}}
    if rng.random() < 0.5:
        out["action"] = rng.choice(("Allow", "Deny", "Require"))
    return out


FRONTEND: dict[str, Any] = {
    "tcp": lambda rng: {"keepalive": {"retries": rng.randrange(1, 4)}},
    "connect": lambda rng: {"mode": rng.choice(("Deny", "Route"))},
    "networkAuthorization": _authorization,
}
OBSERVED: dict[str, Any] = {
    "accessLog": lambda rng: {"filter": f"{rng.randrange(3)} == 1"},
    "metrics": lambda rng: {"attributes": {"add": [{"name": f"n{rng.randrange(3)}", "expression": "request.path"}]}},
}
EARLY: dict[str, Any] = {
    "authorization": _authorization,
    "cors": lambda rng: {"allowOrigins": [f"https://{rng.choice('pq')}.example"]},
    "transformation": lambda rng: {"request": {"body": f"'{rng.randrange(3)}'"}},
    "extAuth": lambda rng: _ext(rng.randrange(1, 4)),
}
LATE: dict[str, Any] = EARLY | {
    "timeouts": lambda rng: {"request": f"{rng.randrange(1, 4)}s"},
    "buffer": lambda rng: {"request": {"maxBytes": rng.randrange(1, 4)}},
    "headerModifiers": lambda rng: {
        side: {"remove": [f"h{rng.randrange(3)}"]}
        for side in rng.choice((("request",), ("response",), ("request", "response")))
    },
    "rateLimit": lambda rng: _rate_limit(rng),
    "directResponse": lambda rng: {"status": rng.choice((200, 404))},
}
BACKEND: dict[str, Any] = {
    "tcp": lambda rng: {"connectTimeout": f"{rng.randrange(1, 4)}s"},
    "tls": lambda rng: {"sni": f"{rng.choice('pqr')}.example"},
    "http": lambda rng: {"requestTimeout": f"{rng.randrange(1, 4)}s"},
}
AI: dict[str, Any] = {
    "modelAliases": lambda rng: rng.choice(({}, {"m": "n"}, {"m": "o"})),
    "routes": lambda rng: rng.choice(({}, {"/v1": "Messages"})),
    "defaults": lambda rng: [{"field": "temperature", "value": rng.randrange(3)}],
}
MCP: dict[str, Any] = {"authorization": _authorization}


def _rate_limit(rng: Random) -> dict[str, Any]:
    parts = rng.choice((("local",), ("global",), ("local", "global")))
    return {part: [rng.choice(_LIMIT)] if part == "local" else _global(rng.choice("st")) for part in parts}


def _some(rng: Random, table: dict[str, Any], likely: float = 0.4) -> dict[str, Any]:
    names = [name for name in table if rng.random() < likely] or [rng.choice(list(table))]
    return {name: table[name](rng) for name in names}


def _conditional(rng: Random, name: str) -> dict[str, Any]:
    entries: list[dict[str, Any]] = [
        {"condition": rng.choice(list(CONDITIONS)), "policy": LATE[name](rng)} for _ in range(rng.randrange(1, 4))
    ]
    if rng.random() < 0.4:
        entries.append({"policy": LATE[name](rng)})
    return {"conditional": entries}


def _traffic(rng: Random, late: bool) -> dict[str, Any]:
    out = _some(rng, LATE if late else EARLY)
    for name in out:
        if name in ("extAuth", "rateLimit", "transformation", "directResponse") and rng.random() < 0.4:
            out[name] = _conditional(rng, name)
    if not late or rng.random() < 0.2:
        out["phase"] = "PostRouting" if late else "PreRouting"
    return out


def backend_section(rng: Random, ai: bool = False, mcp: bool = False) -> dict[str, Any]:
    out = _some(rng, BACKEND)
    if ai and rng.random() < 0.6:
        out["ai"] = _some(rng, AI)
    if mcp and rng.random() < 0.6:
        out["mcp"] = _some(rng, MCP)
    return out


def _labels(rng: Random) -> dict[str, str]:
    return {"team": rng.choice(("red", "blue"))}


def _object(rng: Random, api: str, kind: str, namespace: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "labels": _labels(rng)}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}


def places(rng: Random) -> list[dict[str, Any]]:
    """Return the objects that policies attach to."""
    out: list[dict[str, Any]] = []
    for space in NAMESPACES:
        listeners = [
            {"name": "web", "port": 80, "protocol": "HTTP"},
            {"name": "admin", "port": 8080, "protocol": "HTTP"},
        ]
        out.append(
            _object(
                rng,
                f"{GATEWAY_API}/v1",
                "Gateway",
                space,
                "gw",
                {
                    "gatewayClassName": "c",
                    "listeners": listeners,
                    "allowedListeners": {"namespaces": {"from": rng.choice(("Same", "None"))}},
                },
            )
        )
        added = [{"name": "web", "port": 81, "protocol": "HTTP"}, {"name": "extra", "port": 8080, "protocol": "HTTP"}]
        out.append(
            _object(
                rng,
                f"{GATEWAY_API}/v1",
                "ListenerSet",
                space,
                "set",
                {"parentRef": {"name": "gw"}, "listeners": added},
            )
        )
        out += [
            _object(
                rng, f"{GATEWAY_API}/v1", kind, space, "r", {"parentRefs": _parents(rng), "rules": _rules(rng, space)}
            )
            for kind in ("HTTPRoute", "GRPCRoute")
        ]
        # Selected by name, by label or with all others; a child if it names no parent.
        child = {"rules": _rules(rng, space)} | ({"parentRefs": _parents(rng)} if rng.random() < 0.3 else {})
        out.append(_object(rng, f"{GATEWAY_API}/v1", "HTTPRoute", space, "s", child))
        ports = [{"port": 80, "name": "p"}, {"port": 8080, "name": "q"}]
        out.append(_object(rng, "v1", "Service", space, "svc", {"ports": ports}))
        out += _backends(rng, space)
        pool = _object(rng, "inference.networking.k8s.io/v1", "InferencePool", space, "pool", {})
        out.append(pool)
        inline = {"tls": {"sni": "m"}, "transformations": [{"field": "x", "expression": "1"}], "headers": {}}
        parent = {"group": GATEWAY_API, "kind": "HTTPRoute", "name": "r", "sectionName": "one"}
        policies = dict(rng.sample(sorted(inline.items()), rng.randrange(1, 4)))
        spec = {"parentRefs": [parent], "provider": "OpenAI", "policies": policies}
        out.append(_object(rng, "agentgateway.dev/v1alpha1", "AgentgatewayModel", space, "m", spec))
    return out


def _parents(rng: Random) -> list[dict[str, Any]]:
    parents = ({"name": "gw"}, {"name": "gw", "sectionName": "web"}, {"kind": "ListenerSet", "name": "set"})
    return rng.choice(([parents[0]], [parents[1]], [parents[2]], [parents[0], parents[2]]))


def _rules(rng: Random, space: str) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for name in ("one", None, "two"):
        refs: list[dict[str, Any]] = [{"name": "svc", "port": port} for port in (80, 8080) if rng.random() < 0.7]
        for backend in ("llm", "group", "tools"):
            if rng.random() < 0.5:
                namespace = rng.choice(NAMESPACES)
                tool_ref = {"group": "agentgateway.dev", "kind": "AgentgatewayBackend", "name": backend}
                refs.append(tool_ref | ({} if namespace == space and rng.random() < 0.5 else {"namespace": namespace}))
        for ref in refs:
            if rng.random() < 0.6:
                ref["policies"] = backend_section(rng, ai=True, mcp=True)
        if rng.random() < 0.3:
            refs.append({"group": GATEWAY_API, "kind": "HTTPRoute", "name": rng.choice(("s", "*", "team=red"))})
        out.append(({"name": name} if name else {}) | {"backendRefs": refs})
    return out


def _backends(rng: Random, space: str) -> list[dict[str, Any]]:
    def inline(spec: dict[str, Any], **allowed: bool) -> dict[str, Any]:
        return spec | ({"policies": backend_section(rng, **allowed)} if rng.random() < 0.6 else {})

    providers: list[dict[str, Any]] = [
        {"name": name, "openai": {}} | ({"policies": backend_section(rng, ai=True)} if rng.random() < 0.6 else {})
        for name in ("p", "q")
    ]
    static = {"host": "h", "port": 80} | ({"policies": backend_section(rng)} if rng.random() < 0.6 else {})
    specs = {
        "llm": inline({"ai": {"provider": {"openai": {}}}}, ai=True),
        "group": inline({"ai": {"groups": [{"providers": providers}]}}, ai=True),
        "tools": inline({"mcp": {"targets": [{"name": "t", "static": static}]}}, mcp=True),
    }
    return [
        _object(rng, "agentgateway.dev/v1alpha1", "AgentgatewayBackend", space, name, spec)
        for name, spec in specs.items()
    ]


_TARGETS = {
    "Gateway": (GATEWAY_API, ("gw",), ("web", "admin", "extra", "gone")),
    "ListenerSet": (GATEWAY_API, ("set",), ("web", "extra")),
    "HTTPRoute": (GATEWAY_API, ("r", "s", "gone"), ("one", "two")),
    "GRPCRoute": (GATEWAY_API, ("r",), ("one", "two")),
    "Service": ("", ("svc",), ("80", "8080", "08080")),
    "AgentgatewayBackend": ("agentgateway.dev", ("llm", "group", "tools"), ("backend", "p", "q", "t")),
    "InferencePool": ("inference.networking.k8s.io", ("pool",), ("x",)),
}


def policy(rng: Random, name: str) -> dict[str, Any]:
    """Return a policy that admission accepts in nearly all cases."""
    kind = rng.choice(list(_TARGETS))
    group, names, sections = _TARGETS[kind]
    spec: dict[str, Any] = {}
    roles = [role for role in ("frontend", "traffic", "backend") if role in _roles(kind)]
    chosen = rng.sample(roles, rng.randrange(1, len(roles) + 1))
    ports = chosen == ["frontend"] and rng.random() < 0.5
    sectioned = rng.random() < 0.5 and not ports
    if "frontend" in chosen:
        spec["frontend"] = _some(rng, OBSERVED if sectioned else FRONTEND | OBSERVED)
    if "traffic" in chosen:
        spec["traffic"] = _traffic(rng, late=kind not in ("Gateway", "ListenerSet") or rng.random() < 0.7)
        if chosen == ["traffic"] and rng.random() < 0.4:
            spec["strategy"] = {"inheritance": rng.choice(("Default", "Override", "Override"))}
    if "backend" in chosen:
        mcp = kind != "Service" and not (kind == "AgentgatewayBackend" and sectioned)
        spec["backend"] = backend_section(rng, ai=kind != "Service", mcp=mcp)

    def entry() -> dict[str, Any]:
        out: dict[str, Any] = {"group": group, "kind": kind}
        if ports and rng.random() < 0.8:
            out["port"] = rng.choice((80, 81, 8080))
        elif sectioned and rng.random() < 0.8:
            out["sectionName"] = rng.choice(sections)
        return out

    if rng.random() < 0.7:
        spec["targetRefs"] = [entry() | {"name": rng.choice(names)} for _ in range(rng.randrange(1, 4))]
    else:
        spec["targetSelectors"] = [entry() | {"matchLabels": _labels(rng)} for _ in range(rng.randrange(1, 3))]
    if rng.random() < 0.05:
        spec["traffic"] = {"timeouts": {"request": "never"}}
    metadata: dict[str, Any] = {"name": name, "namespace": rng.choice(SPACES)}
    if when := rng.choice(TIMES):
        metadata["creationTimestamp"] = when
    return {"apiVersion": "agentgateway.dev/v1alpha1", "kind": "AgentgatewayPolicy", "metadata": metadata, "spec": spec}


def _roles(kind: str) -> tuple[str, ...]:
    if kind == "Gateway":
        return ("frontend", "traffic", "backend")
    return ("backend",) if kind in ("Service", "AgentgatewayBackend") else ("traffic", "backend")


def cluster(rng: Random, policies: int = 30) -> list[dict[str, Any]]:
    """Return places and policies, in no particular order."""
    out = places(rng) + [policy(rng, f"p{number}") for number in range(rng.randrange(1, policies))]
    rng.shuffle(out)
    return out


def question(rng: Random) -> dict[str, Any]:
    """Return a question about an existing place."""
    out: dict[str, Any] = {}
    space = rng.choice(SPACES)
    if rng.random() < 0.8:
        out["gateway"] = f"{space}/gw"
    if rng.random() < 0.4:
        out["listenerSet"] = f"{space}/set"
    if ("gateway" in out or "listenerSet" in out) and rng.random() < 0.7:
        out["listener"] = rng.choice(("web", "extra") if "listenerSet" in out else ("web", "admin"))
    if rng.random() < 0.7:
        out["route"] = f"{rng.choice(('HTTPRoute', 'GRPCRoute'))}/{rng.choice(SPACES)}/r"
        if rng.random() < 0.8:
            out["rule"] = rng.choice((0, 1, 2, "one", "two"))
        if rng.random() < 0.4:
            # The routes `r` and `s` of a namespace, so that a chain has up to three routes.
            parents = rng.sample(
                [f"{space}/{name}" for space in NAMESPACES for name in ("r", "s")], rng.randrange(1, 3)
            )
            out["parents"] = [f"HTTPRoute/{parent}#{rng.choice((0, 1, 'two'))}" for parent in parents]
    if rng.random() < 0.7 or not out:
        backend, section = rng.choice(_BACKENDS)
        out["backend"] = backend.format(rng.choice(SPACES))
        if section is not None and rng.random() < 0.7:
            out["backendSection"] = section
    if rng.random() < 0.5:
        out["phase"] = rng.choice(("PostRouting", "PreRouting"))
    if rng.random() < 0.6:
        out["request"] = rng.choice(FACTS)
    return out


_BACKENDS: tuple[tuple[str, Any], ...] = (
    ("Service/{}/svc", 80),
    ("Service/{}/svc", "8080"),
    ("AgentgatewayBackend/{}/llm", "backend"),
    ("AgentgatewayBackend/{}/group", "p"),
    ("AgentgatewayBackend/{}/group", "q"),
    ("AgentgatewayBackend/{}/tools", "t"),
    ("InferencePool/{}/pool", None),
    ("AgentgatewayModel/{}/m", None),
)
