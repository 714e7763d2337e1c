"""A reference model of the tool plane: the AccessPolicy proposal and docs/semantics.md#tool-plane, short and slow.

Only admission comes from the library. A table of Python functions gives the meaning of expressions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from tests.reference.expressions import EXPRESSIONS, is_true
from tierwall.resources.admission.admit import admit

Object = dict[str, Any]
GATEWAY = ("gateway.networking.k8s.io", "Gateway")
OF_TASKS = ("tasks/get", "tasks/result", "tasks/update", "tasks/cancel")
GROUPS = ("agentic.networking.x-k8s.io", "agentic.prototype.x-k8s.io")


class Tier(NamedTuple):
    name: str
    policies: list[Object]


class AccessRule(NamedTuple):
    """The place of a rule in its policy, and its own name."""

    label: str
    name: str | None


class PolicyEvaluation(NamedTuple):
    """The evaluation of one policy; `rule` settled it."""

    policy: str
    verdict: str
    rule: AccessRule


SPEC = AccessRule("spec", None)


def decide(objects: list[Object], question: Mapping[str, Any]) -> dict[str, Any]:
    """Verdict, `decidedBy`, `evaluated` and `level`: the first policy that denies decides alone, else all decide."""
    gateway, listener, backend = way(objects, question)
    request = request_of(question, backend, listener)
    evaluated: list[PolicyEvaluation] = []
    level = "Default"
    for tier in stack(objects, gateway, listener, backend):
        for policy in tier.policies:
            evaluation = evaluate(policy, request, question.get("externalAuth") or {})
            evaluated.append(evaluation)
            level = tier.name
            if evaluation.verdict == "Deny":
                return answer("Deny", [evaluation], evaluated, level)
    return answer("Allow", evaluated, evaluated, level)


def answer(
    verdict: str, deciding: list[PolicyEvaluation], evaluated: list[PolicyEvaluation], level: str
) -> dict[str, Any]:
    named = (
        {"policy": evaluation.policy, "rule": evaluation.rule.label, "name": evaluation.rule.name}
        for evaluation in deciding
    )
    decided_by = [{key: text for key, text in decider.items() if text} for decider in named]
    references = [evaluation.policy for evaluation in evaluated]
    decided = decided_by or [{"policy": "Default"}]
    return {"verdict": verdict, "decidedBy": decided, "evaluated": references, "level": level}


def stack(objects: list[Object], gateway: Object, listener: Object, backend: Object | None) -> list[Tier]:
    """Return the policies on the Gateway, then those on the backend, by age and then name."""
    policies = sorted((value for value in objects if value["kind"].endswith("AccessPolicy")), key=seniority)
    kept = [policy for policy in policies if not over_limit(policy, policies)]
    return [
        Tier(
            name,
            [
                policy
                for policy in kept
                if target is not None and (targets(policy, target, listener) or may_have_named(policy, target))
            ],
        )
        for name, target in (("Gateway", gateway), ("Backend", backend))
    ]


def name_of(value: Object) -> str:
    return f"{value['metadata']['namespace']}/{value['metadata']['name']}"


def reference(value: Object) -> str:
    return f"{value['kind']}/{name_of(value)}"


def key(value: Object) -> tuple[str, str, str]:
    """Group, kind, and namespace with name."""
    return value["apiVersion"].rpartition("/")[0], value["kind"], name_of(value)


def way(objects: list[Object], question: Mapping[str, Any]) -> tuple[Object, Object, Object | None]:
    """Return the Gateway, the listener and the XBackend of a question; None in place of a Service."""
    gateway = next(value for value in objects if key(value)[:2] == GATEWAY and name_of(value) == question["gateway"])
    wanted = question.get("listener", gateway["spec"]["listeners"][0]["name"])
    listener = next(value for value in gateway["spec"]["listeners"] if value["name"] == wanted)
    backends = (value for value in objects if value["kind"] == "XBackend" and name_of(value) == question["backend"])
    return gateway, listener, next(backends, None)


def request_of(question: Mapping[str, Any], backend: Object | None, listener: Object) -> dict[str, Any]:
    """Return the request with every default."""
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
    return created is None, when, name_of(policy)


def spec_of(policy: Object) -> Object:
    return policy["spec"] if isinstance(policy.get("spec"), dict) else {}


def target_refs(policy: Object) -> Iterator[tuple[tuple[str, str, str], str | None]]:
    """Yield the targets that can be read, and their sections."""
    refs = spec_of(policy).get("targetRefs")
    for ref in refs if isinstance(refs, list) else ():
        if isinstance(ref, dict) and all(isinstance(ref.get(part), str) for part in ("group", "kind", "name")):
            section = ref.get("sectionName")
            target = ref["group"], ref["kind"], f"{policy['metadata']['namespace']}/{ref['name']}"
            yield target, section if isinstance(section, str) else None


def may_have_named(policy: Object, target: Object) -> bool:
    """Whether an invalid policy may have named a Gateway or backend of its namespace in what cannot be read."""
    if not invalid(policy) or target["metadata"]["namespace"] != policy["metadata"]["namespace"]:
        return False
    refs = spec_of(policy).get("targetRefs")
    if not isinstance(refs, list) or not refs:
        return True
    own_backend = (policy["apiVersion"].partition("/")[0], "XBackend")
    guarded = [GATEWAY, own_backend]
    if policy["apiVersion"].endswith("v1alpha1"):
        guarded = [GATEWAY, *((group, "XBackend") for group in GROUPS)]
    for ref in refs:
        name = ref.get("name") if isinstance(ref, dict) else None
        if not isinstance(name, str) or not name:
            return True
        section = ref.get("sectionName", "s")
        readable = (ref.get("group"), ref.get("kind")) in guarded and isinstance(section, str)
        if name == target["metadata"]["name"] and not (readable and re.fullmatch("[a-z0-9.-]+", section)):
            return True
    return False


def targets(policy: Object, target: Object, listener: Object) -> bool:
    """Whether a policy names the target, or its listener in question."""
    sections = [section for named, section in target_refs(policy) if named == key(target)]
    return None in sections or (target["kind"] == "Gateway" and listener["name"] in sections)


def over_limit(policy: Object, policies: list[Object]) -> bool:
    """Whether a target has five senior policies, or a senior policy with the action ExternalAuth too."""
    seniors = policies[: next(number for number, other in enumerate(policies) if other is policy)]
    for target in {target for target, _ in target_refs(policy)}:
        seniors_at_target = [senior for senior in seniors if target in {other for other, _ in target_refs(senior)}]
        actions = [spec_of(value).get("action") for value in (policy, *seniors_at_target)]
        if len(seniors_at_target) >= 5 or (actions[0] == "ExternalAuth" and "ExternalAuth" in actions[1:]):
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


def evaluate(policy: Object, request: Mapping[str, Any], external_auth: Mapping[str, str]) -> PolicyEvaluation:
    name, authorizer_answer = reference(policy), external_auth.get(reference(policy))
    if invalid(policy) or unreadable(request):
        return PolicyEvaluation(name, "Deny", SPEC)
    asked, granted = (v1alpha1 if policy["apiVersion"].endswith("v1alpha1") else v0alpha0)(policy, request)
    if granted is None:
        return PolicyEvaluation(name, "Deny", SPEC)
    if asked is not None:
        return PolicyEvaluation(name, "Allow" if authorizer_answer == "Allow" else "Deny", asked)
    return PolicyEvaluation(name, "Allow", granted)


# The rule that asks the authorizer, and the rule that grants the request.
MatchingRules = tuple[AccessRule | None, AccessRule | None]


def v1alpha1(policy: Object, request: Mapping[str, Any]) -> MatchingRules:
    """Return the rules that match; without rules everything is granted, or asked about."""
    namespace, listed = policy["metadata"]["namespace"], policy["spec"].get("rules")
    about = [(rule, value) for rule, value in named(policy) if source(value.get("source"), namespace, request)]

    def matching(*requests: Mapping[str, Any]) -> AccessRule | None:
        return next((rule for rule, value in about if any(authorized(value, request) for request in requests)), None)

    completed = completes(request)
    if policy["spec"]["action"] == "ExternalAuth":
        either = (request, *(use for uses in completed for use in uses))
        return (matching(*either) if listed else SPEC), SPEC
    if listed is None:
        return None, SPEC
    return None, matching(request) if all(matching(*uses) for uses in completed) else None


def v0alpha0(policy: Object, request: Mapping[str, Any]) -> MatchingRules:
    """Return the rules that match: they grant their caller every method except calls, and the calls they list."""
    of_caller = [
        (rule, value.get("authorization") or {"type": "InlineTools", "tools": value.get("tools", [])})
        for rule, value in named(policy)
        if source(value["source"], policy["metadata"]["namespace"], request)
    ]
    if request["method"] is None and not session(request):
        return None, None
    asked = next((rule for rule, authorization in of_caller if authorization["type"] == "ExternalAuth"), None)
    others = [(rule, authorization) for rule, authorization in of_caller if authorization["type"] != "ExternalAuth"]
    if not others:
        return asked, asked
    is_call = request["method"] == "tools/call"
    return asked, next((rule for rule, value in others if not is_call or granted_v0(value, request)), None)


def named(policy: Object) -> list[tuple[AccessRule, Object]]:
    rules = policy["spec"].get("rules") or ()
    return [(AccessRule(f"rules[{number}]", value.get("name")), value) for number, value in enumerate(rules)]


def granted_v0(authorization: Object, request: Mapping[str, Any]) -> bool:
    if authorization["type"] == "CEL":
        return is_true(authorization["cel"], request)
    return request["tool"] in authorization["tools"]


def source(value: Object | None, namespace: str, request: Mapping[str, Any]) -> bool:
    """Whether every given member is the caller, and the member that `type` names is given."""
    if not value:
        return True
    ids = [value["spiffe"]] if "spiffe" in value else []
    if "serviceAccount" in value:
        account = value["serviceAccount"]
        ids.append(f"spiffe://cluster.local/ns/{account.get('namespace') or namespace}/sa/{account['name']}")
    member = {"SPIFFE": "spiffe", "ServiceAccount": "serviceAccount"}.get(value.get("type", ""))
    return set(ids) == {request["caller"]} and (member is None or member in value)


def authorized(rule: Object, request: Mapping[str, Any]) -> bool:
    authorization = rule.get("authorization")
    if not authorization:
        return True
    if not http(authorization, request) or not mcp(authorization.get("mcp") or {}, request):
        return False
    if authorization["type"] != "CEL":
        return True
    is_call = request["method"] == "tools/call"
    return request["method"] in OF_TASKS or (is_call and is_true(authorization["cel"], request))


def mcp(value: Object, request: Mapping[str, Any]) -> bool:
    methods, base = value.get("methods") or [], value.get("mcpBaseProtocolMethodsOption", "").startswith("MATCH")
    if not methods and not base:
        return True
    return any(method(value, request) for value in methods) or (base and in_base_set(request))


def method(value: Object, request: Mapping[str, Any]) -> bool:
    asked = judged(request)
    if asked is None:
        return False
    if asked in OF_TASKS:
        return value["name"] in ("tools", "tools/call")
    if "/" not in value["name"]:
        return bool(asked.startswith(value["name"] + "/"))
    named = request["uri"] if asked.startswith("resources/") else request["tool"]
    return asked == value["name"] and (not value.get("params") or named in value["params"])


def in_base_set(request: Mapping[str, Any]) -> bool:
    asked = judged(request)
    if asked is None:
        return session(request)
    single = ("initialize", "server/discover", "ping", "tools/list", "subscriptions/listen")
    return asked in single or asked.startswith(("completion/", "logging/", "notifications/"))


def judged(request: Mapping[str, Any]) -> str | None:
    """Return the method that rules judge: a subscription to a resource is judged as the older method for that."""
    listens = request["method"] == "subscriptions/listen" and request["uri"] is not None
    return "resources/subscribe" if listens else request["method"]


def completes(request: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """Return the requests that must be granted besides a completion: of each list, one."""
    if request["method"] != "completion/complete":
        return []
    prompt = [{**request, "method": "prompts/get"}] if request["tool"] is not None else []
    uses = ("read", "subscribe", "unsubscribe") if request["uri"] is not None else ()
    return [each for each in (prompt, [{**request, "method": f"resources/{use}"} for use in uses]) if each]


def unreadable(request: Mapping[str, Any]) -> bool:
    """Whether the headers contradict the message, or its method is the word for answers."""
    method, headers = request["method"], request["headers"]
    if method is None:
        return False
    name = {"tools/call": request["tool"], "prompts/get": request["tool"], "resources/read": request["uri"]}.get(method)
    wrong_name = headers.get("mcp-name") and headers["mcp-name"] != name and method not in OF_TASKS
    version = headers.get("mcp-protocol-version", "")
    nameless = method in ("tools/call", "prompts/get", "resources/read") and not name and version == "2026-07-28"
    return bool(
        nameless
        or "," in version
        or headers.get("mcp-method", method) != method
        or wrong_name
        or method == "__jsonrpc_response"
    )


def session(request: Mapping[str, Any]) -> bool:
    """Whether it is GET, or DELETE of a session, on exactly the backend's path."""
    ends = request["http_method"] == "DELETE" and "mcp-session-id" in request["headers"]
    return (request["http_method"] == "GET" or ends) and request["path"].partition("?")[0] == request["home"]


def http(value: Object, request: Mapping[str, Any]) -> bool:
    path = request["path"].partition("?")[0]
    families = [
        [wanted == request["http_method"] for wanted in value.get("methods") or ()],
        [text(matcher, path, "PathPrefix") for matcher in value.get("paths") or ()],
        [host(wanted, request["host"]) for wanted in value.get("hosts") or ()],
        [wanted == request["port"] for wanted in value.get("ports") or ()],
    ]
    headers = [header(matcher, request["headers"]) for matcher in value.get("headers") or ()]
    return all(any(family) for family in families if family) and all(headers)


def header(matcher: Object, headers: Mapping[str, str]) -> bool:
    name = matcher["name"].lower()
    return name in headers and text(matcher, headers[name], "Exact")


def text(matcher: Object, value: str, default: str) -> bool:
    kind, wanted = matcher.get("type", default), matcher.get("value", "")
    if kind == "Exact":
        return bool(value == wanted)
    if kind == "RegularExpression":
        return re.fullmatch(wanted, value) is not None
    elements = [element for element in wanted.split("/") if element]
    return value.split("/")[1 : len(elements) + 1] == elements


def host(wanted: str, value: str | None) -> bool:
    if value is None:
        return False
    name = re.sub(r":\d+$", "", value).lower()
    return name.endswith(wanted[1:]) and name != wanted[1:] if wanted.startswith("*.") else name == wanted
