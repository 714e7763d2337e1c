"""Random roles, bindings and CEL policies about few users and namespaces, whose names share parts."""

from __future__ import annotations

from random import Random
from typing import Any

Object = dict[str, Any]

NAMESPACES = ("team-a", "team-b", "team", "teams", "default", "kube-system", "web")
USERS = ("alice", "alice@corp.example", "team-a", "bob", "system:serviceaccount:team-a:web", "system:anonymous")
GROUPS = ("team-a", "team-b", "developers", "system:authenticated", "system:serviceaccounts:team-a", "system:masters")
NAMES = ("web", "web-0", "team", "db", "default")
RESOURCES = ("pods", "services", "widgets", "secrets")
VERBS = ("get", "list", "create", "delete")
CLASSES = ("fast", "team-a", "alice")
# They tell names apart as wholes, by order, or part by part.
WHOLE = (
    'request.userInfo.username == "alice"',
    'request.userInfo.username != "nobody" && request.namespace == "team-a"',
    'request.userInfo.username in ["alice", "bob"]',
    '"team-a" in request.userInfo.groups',
    'request.userInfo.groups.exists(g, g in ["team-b", "developers"])',
    '["team-a", "team-b"].exists(n, n == request.namespace) && request.resource == "pods"',
    'request.namespace.startsWith("team-")',
    'request.userInfo.username.endsWith("@corp.example")',
    'request.userInfo.username == "system:serviceaccount:" + request.namespace + ":web"',
    'request.resource == "widgets" && request.verb in ["get", "list"]',
    'request.name == "web" || request.name == ""',
    "request.namespace == request.name",
    'request.namespace < "team-b"',
    "size(request.namespace) > 0",
    'has(object.metadata.labels.team) && object.metadata.labels.team == "team-a"',
    '"team" in object.metadata.labels && object.metadata.labels["team"] != "team-b"',
    'object.spec.storageClassName == "team-a"',
    'object.spec.storageClassName == "fast"',
    'authorizer.group("").resource("pods").namespace("team-a").check("get").allowed()',
    'authorizer.serviceAccount("team-a", "web").group("").resource("pods").check("list").allowed()',
    '{"alice": "team-a", "bob": "team-b"}[?request.userInfo.username].orValue("") == request.namespace',
)
# They look inside of names.
INSIDE = (
    'request.namespace.startsWith("te")',
    'request.namespace.startsWith("team-a")',
    'request.namespace.endsWith("b")',
    'request.userInfo.username.contains("lic")',
    'request.namespace.matches("^team-[a-z]$")',
    "size(request.namespace) == 4",
    'request.userInfo.username.startsWith("system:serviceaccount:te")',
    'request.namespace.substring(0, 1) == "t"',
    "request.userInfo.username == request.namespace + request.name",
)


def cluster(rng: Random, inside: bool) -> list[Object]:
    """Return roles, bindings and policies; policies look inside of names only if asked to."""
    out = [_object("v1", "Namespace", name, "", {}, {"team": name, "tier": "x"}) for name in NAMESPACES]
    out += [_object("v1", "ServiceAccount", name, rng.choice(NAMESPACES), {}) for name in NAMES]
    everybody = [_named_subject("User", name) for name in USERS] + [_named_subject("Group", name) for name in GROUPS]
    nothing = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "nothing"}
    out.append(_rbac("ClusterRoleBinding", "everybody", "", {"roleRef": nothing, "subjects": everybody}))
    for number in range(rng.randint(1, 4)):
        kind, namespace = rng.choice((("ClusterRole", ""), ("Role", rng.choice(NAMESPACES))))
        rule: Object = {
            "apiGroups": ["", "acme.example"],
            "resources": _some(rng, RESOURCES),
            "verbs": _some(rng, VERBS),
        }
        if rng.random() < 0.4:
            rule["resourceNames"] = _some(rng, NAMES)
        out.append(_rbac(kind, f"role-{number}", namespace, {"rules": [rule]}))
        if rng.random() < 0.8:
            bound = rng.choice(("ClusterRoleBinding", "RoleBinding")) if kind == "ClusterRole" else "RoleBinding"
            place = "" if bound == "ClusterRoleBinding" else namespace or rng.choice(NAMESPACES)
            ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": f"role-{number}"}
            subjects = [_subject(rng) for _ in range(rng.randint(1, 3))]
            out.append(_rbac(bound, f"bind-{number}", place, {"roleRef": ref, "subjects": subjects}))
    for number in range(rng.randint(1, 5)):
        text = rng.choice(INSIDE if inside and rng.random() < 0.5 else WHOLE)
        other = rng.choice((f" && ({rng.choice(WHOLE)})", f" || ({rng.choice(WHOLE)})", ""))
        spec = {"effect": rng.choice(("Allow", "Allow", "Deny")), "expression": f"({text}){other}"}
        api = "tierwall.io/v1alpha1"
        out.append(_object(api, "ClusterAuthorizationPolicy", rng.choice((f"p-{number}", f"team-{number}")), "", spec))
    return out


def question(rng: Random) -> Object:
    """Return a request to an API server."""
    asked: Object = {
        "user": rng.choice(USERS),
        "groups": _some(rng, GROUPS),
        "verb": rng.choice(VERBS),
        "version": "v1",
        "resource": rng.choice(RESOURCES),
        "namespace": rng.choice(NAMESPACES),
        "name": rng.choice(("", *NAMES)),
    }
    if rng.random() < 0.7 and asked["verb"] == "create":
        labels = {} if rng.random() < 0.3 else {"team": rng.choice(NAMESPACES)}
        metadata = {"name": rng.choice(NAMES), "namespace": asked["namespace"], "labels": labels}
        asked["object"] = {"metadata": metadata, "spec": {"storageClassName": rng.choice(CLASSES)}}
    return asked


def _some(rng: Random, items: tuple[str, ...]) -> list[str]:
    return rng.sample(items, rng.randint(1, len(items)))


def _subject(rng: Random) -> Object:
    if rng.random() < 0.3:
        return {"kind": "ServiceAccount", "name": rng.choice(NAMES), "namespace": rng.choice(NAMESPACES)}
    kind, names = rng.choice((("User", USERS), ("Group", GROUPS)))
    return _named_subject(kind, rng.choice(names))


def _named_subject(kind: str, name: str) -> Object:
    return {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}


def _rbac(kind: str, name: str, namespace: str, fields: Object) -> Object:
    return _object("rbac.authorization.k8s.io/v1", kind, name, namespace, {}) | fields


def _object(api: str, kind: str, name: str, namespace: str, spec: Object, labels: Object | None = None) -> Object:
    metadata: Object = {"name": name} | ({"namespace": namespace} if namespace else {})
    metadata |= {"labels": labels} if labels else {}
    return {"apiVersion": api, "kind": kind, "metadata": metadata} | ({"spec": spec} if spec else {})
