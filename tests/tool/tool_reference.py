"""The tool plane as the AccessPolicy proposal and docs/semantics.md#tool-plane say it: short, slow, and on its own.

Only admission is taken from the library. Expressions are looked up in a table of Python functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from tierwall.resources.admission.admit import admit

Object = dict[str, Any]
GATEWAY = ("gateway.networking.k8s.io", "Gateway")


class Missing(Exception):
    """A CEL error: something that the request does not have."""


def header(request: Mapping[str, Any], name: str) -> str:
    if name not in request["headers"]:
        raise Missing
    return str(request["headers"][name])


def tool(request: Mapping[str, Any]) -> str:
    if request["tool"] is None:
        raise Missing
    return str(request["tool"])


def absorbing_or(left: Callable[[], bool], right: Callable[[], bool]) -> bool:
    failed = False
    for side in (left, right):
        try:
            if side():
                return True
        except Missing:
            failed = True
    if failed:
        raise Missing
    return False


# Each expression with its meaning; None where a controller would refuse it.
EXPRESSIONS: dict[str, Callable[[Mapping[str, Any]], bool] | None] = {
    "true": lambda r: True,
    "request.mcp.tool_name == 'add'": lambda r: tool(r) == "add",
    "request.mcp.tool_name.startsWith('get')": lambda r: tool(r).startswith("get"),
    "request.mcp.tool_name != 'add'": lambda r: tool(r) != "add",
    "request.headers['x-env'] == 'prod'": lambda r: header(r, "x-env") == "prod",
    "!(request.headers['x-env'] == 'prod')": lambda r: header(r, "x-env") != "prod",
    "request.headers['X-Env'] == 'prod'": lambda r: header(r, "X-Env") == "prod",
    "request.headers['x-env'] == 'prod' || request.mcp.tool_name == 'get'": lambda r: absorbing_or(
        lambda: header(r, "x-env") == "prod", lambda: tool(r) == "get"
    ),
    "has(request.mcp.tool_name) && request.mcp.tool_name in ['get', 'set']": lambda r: r["tool"] in ("get", "set"),
    "request.url_path == '/mcp' && request.method == 'POST'": lambda r: (
        r["path"].partition("?")[0] == "/mcp" and r["http_method"] == "POST"
    ),
    "request.mcp.tool_name": None,
    "1 + 1": None,
    "request.mcp.tool_name ==": None,
    "caller == 'me'": None,
    "request.user == 'me'": None,
}


def reference(objects: list[Object], question: Mapping[str, Any]) -> dict[str, Any]:
    """Verdict, `decidedBy` (the policy that settled it), `evaluated` and `level`."""
    gateway, listener, backend = way(objects, question)
    request = plain(question, backend, listener)
    policies = sorted((one for one in objects if one["kind"].endswith("AccessPolicy")), key=seniority)
    evaluated: list[str] = []
    level = "Default"
    for name, target in (("Gateway", gateway), ("Backend", backend)):
        for policy in policies:
            if target is None or over_limit(policy, policies) or not targets(policy, target, listener):
                continue
            evaluated.append(ref(policy))
            level = name
            if not allows(policy, request, question.get("externalAuth") or {}):
                return {"verdict": "Deny", "decidedBy": ref(policy), "evaluated": evaluated, "level": name}
    settled = evaluated[-1] if evaluated else "Default"
    return {"verdict": "Allow", "decidedBy": settled, "evaluated": evaluated, "level": level}


def ref(one: Object) -> str:
    return f"{one['kind']}/{one['metadata']['namespace']}/{one['metadata']['name']}"


def key(one: Object) -> tuple[str, str, str, str]:
    """Group, kind, namespace and name."""
    return one["apiVersion"].rpartition("/")[0], one["kind"], one["metadata"]["namespace"], one["metadata"]["name"]


def way(objects: list[Object], question: Mapping[str, Any]) -> tuple[Object, Object, Object | None]:
    """The Gateway, the listener and the XBackend asked about; a Service is none."""
    named = {
        f"{one['metadata']['namespace']}/{one['metadata']['name']}": one for one in objects if key(one)[:2] == GATEWAY
    }
    gateway = named[question["gateway"]]
    listeners = gateway["spec"]["listeners"]
    wanted = question.get("listener")
    listener = next(one for one in listeners if wanted is None or one["name"] == wanted)
    backends = [
        one
        for one in objects
        if one["kind"] == "XBackend"
        and f"{one['metadata']['namespace']}/{one['metadata']['name']}" == question["backend"]
    ]
    return gateway, listener, backends[0] if backends else None


def plain(question: Mapping[str, Any], backend: Object | None, listener: Object) -> dict[str, Any]:
    """The request with every default filled in."""
    caller = question.get("caller")
    if isinstance(caller, dict):
        namespace, _, name = caller["serviceAccount"].partition("/")
        caller = f"spiffe://cluster.local/ns/{namespace}/sa/{name}"
    home = backend["spec"]["mcp"].get("path", "/mcp") if backend else "/mcp"
    http = question.get("http") or {}
    return {
        "caller": caller,
        "method": question.get("method"),
        "tool": question.get("tool"),
        "uri": question.get("uri"),
        "http_method": http.get("method", "POST"),
        "path": http.get("path", home),
        "host": http.get("host"),
        "headers": {name.lower(): value for name, value in (http.get("headers") or {}).items()},
        "port": listener["port"],
        "home": home,
    }


def seniority(policy: Object) -> tuple[bool, float, str]:
    created = policy["metadata"].get("creationTimestamp")
    when = datetime.fromisoformat(created.replace("Z", "+00:00")).timestamp() if created else 0.0
    return created is None, when, f"{policy['metadata']['namespace']}/{policy['metadata']['name']}"


def target_refs(policy: Object) -> Iterator[tuple[tuple[str, str, str, str], str | None]]:
    for one in policy["spec"].get("targetRefs") or ():
        yield (one["group"], one["kind"], policy["metadata"]["namespace"], one["name"]), one.get("sectionName")


def targets(policy: Object, target: Object, listener: Object) -> bool:
    """Whether a policy names the target, or the listener asked about of it."""
    found = [section for named, section in target_refs(policy) if named == key(target)]
    return None in found or (target["kind"] == "Gateway" and listener["name"] in found)


def over_limit(policy: Object, policies: list[Object]) -> bool:
    """Whether a target has five more senior policies, or a more senior one with action ExternalAuth too."""
    seniors = policies[: next(number for number, one in enumerate(policies) if one is policy)]
    external = policy["spec"].get("action") == "ExternalAuth"
    for named in {named for named, _ in target_refs(policy)}:
        there = [one for one in seniors if named in {other for other, _ in target_refs(one)}]
        if len(there) >= 5 or (external and any(one["spec"].get("action") == "ExternalAuth" for one in there)):
            return True
    return False


def invalid(policy: Object) -> bool:
    if any(problem.refuses for problem in admit(policy)):
        return True
    for rule in policy["spec"].get("rules") or ():
        authorization = rule.get("authorization") or {}
        if "cel" in authorization and EXPRESSIONS[authorization["cel"]["expression"]] is None:
            return True
        for matcher in (*(authorization.get("paths") or ()), *(authorization.get("headers") or ())):
            if matcher.get("type") == "RegularExpression" and matcher["value"] == "[":
                return True
    return False


def allows(policy: Object, request: Mapping[str, Any], answers: Mapping[str, str]) -> bool:
    if invalid(policy):
        return False
    if not policy["apiVersion"].endswith("v1alpha1"):
        return allows_v0(policy, request, answers)
    rules, namespace = policy["spec"].get("rules"), policy["metadata"]["namespace"]
    matches = any(source(one.get("source"), namespace, request) and authorized(one, request) for one in rules or ())
    if policy["spec"]["action"] == "ExternalAuth":
        return not (matches or not rules) or answers.get(ref(policy)) == "Allow"
    return rules is None or matches


def allows_v0(policy: Object, request: Mapping[str, Any], answers: Mapping[str, str]) -> bool:
    mine = [
        one.get("authorization") or {"type": "InlineTools", "tools": one.get("tools", [])}
        for one in policy["spec"]["rules"]
        if source(one["source"], policy["metadata"]["namespace"], request)
    ]
    if not mine or (request["method"] is None and not session(request)):
        return False
    others = [one for one in mine if one["type"] != "ExternalAuth"]
    if len(others) < len(mine) and answers.get(ref(policy)) != "Allow":
        return False
    return not others or request["method"] != "tools/call" or any(granted_v0(one, request) for one in others)


def granted_v0(authorization: Object, request: Mapping[str, Any]) -> bool:
    if authorization["type"] == "CEL":
        return cel(authorization, request)
    return request["tool"] in authorization["tools"]


def source(value: Object | None, namespace: str, request: Mapping[str, Any]) -> bool:
    """All members given must be the caller's, and the one that `type` names must be given."""
    if not value:
        return True
    ids = []
    if "spiffe" in value:
        ids.append(value["spiffe"])
    if "serviceAccount" in value:
        account = value["serviceAccount"]
        ids.append(f"spiffe://cluster.local/ns/{account.get('namespace') or namespace}/sa/{account['name']}")
    member = {"SPIFFE": "spiffe", "ServiceAccount": "serviceAccount"}.get(value.get("type", ""))
    return bool(ids) and all(one == request["caller"] for one in ids) and (member is None or member in value)


def authorized(rule: Object, request: Mapping[str, Any]) -> bool:
    authorization = rule.get("authorization")
    if not authorization:
        return True
    if not http(authorization, request) or not mcp(authorization.get("mcp") or {}, request):
        return False
    return authorization["type"] != "CEL" or (request["method"] == "tools/call" and cel(authorization, request))


def cel(authorization: Object, request: Mapping[str, Any]) -> bool:
    meaning = EXPRESSIONS[authorization["cel"]["expression"]]
    assert meaning is not None
    try:
        return meaning(request)
    except Missing:
        return False


def mcp(value: Object, request: Mapping[str, Any]) -> bool:
    methods, base = value.get("methods") or [], value.get("mcpBaseProtocolMethodsOption", "").startswith("MATCH")
    if not methods and not base:
        return True
    return any(method(one, request) for one in methods) or (base and in_base_set(request))


def method(value: Object, request: Mapping[str, Any]) -> bool:
    asked = request["method"]
    if asked is None:
        return False
    if "/" not in value["name"]:
        return bool(asked.startswith(value["name"] + "/"))
    named = request["uri"] if asked.startswith("resources/") else request["tool"]
    return asked == value["name"] and (not value.get("params") or named in value["params"])


def in_base_set(request: Mapping[str, Any]) -> bool:
    asked = request["method"]
    if asked is None:
        return session(request)
    return asked in ("initialize", "tools/list", "ping") or asked.startswith(
        ("completion/", "logging/", "notifications/")
    )


def session(request: Mapping[str, Any]) -> bool:
    """GET, or DELETE of a session, on exactly the backend's path."""
    ends = request["http_method"] == "DELETE" and "mcp-session-id" in request["headers"]
    return (request["http_method"] == "GET" or ends) and request["path"].partition("?")[0] == request["home"]


def http(value: Object, request: Mapping[str, Any]) -> bool:
    path = request["path"].partition("?")[0]
    families = [
        [one == request["http_method"] for one in value.get("methods") or ()],
        [text(one, path, "PathPrefix") for one in value.get("paths") or ()],
        [host(one, request["host"]) for one in value.get("hosts") or ()],
        [one == request["port"] for one in value.get("ports") or ()],
    ]
    headers = [
        one["name"].lower() in request["headers"] and text(one, request["headers"][one["name"].lower()], "Exact")
        for one in value.get("headers") or ()
    ]
    return all(any(family) for family in families if family) and all(headers)


def text(matcher: Object, value: str, default: str) -> bool:
    kind, wanted = matcher.get("type", default), matcher.get("value", "")
    if kind == "Exact":
        return bool(value == wanted)
    if kind == "RegularExpression":
        return re.fullmatch(wanted, value) is not None
    elements = [one for one in wanted.split("/") if one]
    return value.split("/")[1 : len(elements) + 1] == elements


def host(wanted: str, value: str | None) -> bool:
    if value is None:
        return False
    name = re.sub(r":\d+$", "", value).lower()
    return name.endswith(wanted[1:]) and name != wanted[1:] if wanted.startswith("*.") else name == wanted
