"""The merge as docs/semantics.md#gateway-plane describes it, without indexes: read it beside that page.

It works on plain objects, and uses the names of `gateway/decide.py` and `gateway/model`. Conditions are looked up in a
table, so that it does not need a CEL engine.
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from tierwall.resources.admission import admit

Object = dict[str, Any]
UNION_FIELDS = ("traffic.authorization", "frontend.networkAuthorization", "backend.mcp.authorization")
PARTS = {
    "traffic": ("rateLimit", "headerModifiers"),
    "backend": ("ai", "mcp"),
    "frontend": (),
}
CONDITIONAL = ("extAuth", "extProc", "rateLimit", "transformation", "directResponse")
# The value of a field whose list wins and selects no entry.
NOTHING = object()

# Conditions, and functions that say whether they are true for the facts of a request.
CONDITIONS: dict[str, Any] = {
    "true": lambda facts: True,
    "false": lambda facts: False,
    'request.path == "/x"': lambda facts: facts.get("request.path") == "/x",
    'request.method == "GET" || request.path.startsWith("/a")': lambda facts: (
        facts.get("request.method") == "GET" or str(facts.get("request.path", "")).startswith("/a")
    ),
    'request.headers["x"] == "1"': lambda facts: facts.get("request.headers", {}).get("x") == "1",
    "request.path": lambda facts: False,
    "nonsense(": lambda facts: False,
    "1 / 0 == 1": lambda facts: False,
}


class Candidate(NamedTuple):
    """The values that one object sets, by field."""

    source: str
    override: bool
    written: dict[str, Any]


class Tier(NamedTuple):
    """A level and its objects, in the order that breaks ties."""

    level: str
    candidates: list[Candidate]


class MergedField(NamedTuple):
    """The result for one field, and for each object that sets it the level and the reason why it wins or loses."""

    setting: dict[str, Any] | None
    conflict: bool
    steps: list[tuple[str, str, str]]


def merge(objects: list[Object], question: Object, profile: str) -> dict[str, MergedField]:
    """Return every field that an object at the place sets."""
    phase, facts = question.get("phase", "PostRouting"), question.get("request", {})
    merged: dict[str, MergedField] = {}
    for section in ("frontend", "traffic", "backend"):
        locks = section == "traffic" and not (profile == "agentgateway" and phase == "PreRouting")
        stack = tiers(objects, question, section, profile, phase, facts)
        for field in {field for tier in stack for candidate in tier.candidates for field in candidate.written}:
            about = [
                Tier(level, [candidate for candidate in candidates if field in candidate.written])
                for level, candidates in stack
            ]
            merged[field] = merge_field(field, [tier for tier in about if tier.candidates], locks, profile)
    return merged


def tiers(objects: list[Object], question: Object, section: str, profile: str, phase: str, facts: Object) -> list[Tier]:
    policies = [policy for policy in objects if policy["kind"] == "AgentgatewayPolicy" and not refused(policy)]
    stack: list[Tier] = []
    for level, kind, name, part in levels(objects, question, section, profile):
        if kind == "inline":
            candidate = Candidate(name, False, written(section, part, facts, profile))
            if stack and stack[-1].level == level:
                stack[-1].candidates.append(candidate)
            else:
                stack.append(Tier(level, [candidate]))
            continue
        here = [policy for policy in policies if attaches(objects, policy, kind, name, part)]
        candidates = [
            Candidate(
                f"AgentgatewayPolicy/{full_name(policy)}",
                policy["spec"].get("strategy", {}).get("inheritance") == "Override",
                written(section, policy["spec"].get(section), facts, profile),
            )
            for policy in sorted(here, key=age)
            if section != "traffic" or policy["spec"].get("traffic", {}).get("phase", "PostRouting") == phase
        ]
        stack.append(Tier(level, candidates))
    return stack


def merge_field(field: str, stack: list[Tier], locks: bool, profile: str) -> MergedField:
    """Return the result of the last tier, or of the first that locks; for a union, of all tiers up to that one."""
    union, number, locked = field in UNION_FIELDS, len(stack) - 1, False
    if field == "traffic.buffer" and profile == "agentgateway":
        number = 0
    elif locks:
        for index, tier in enumerate(stack):
            if any(candidate.override for candidate in (tier.candidates if union else tier.candidates[:1])):
                number, locked = index, True
                break
    in_force: dict[str, Any] = {}
    for tier in stack[: number + 1] if union else ():
        for candidate in tier.candidates:
            in_force.setdefault(candidate.source, candidate.written[field])
    if not union:
        in_force = {stack[number].candidates[0].source: stack[number].candidates[0].written[field]}
    steps = []
    reported: set[str] = set()
    for index, tier in enumerate(stack):
        for candidate in tier.candidates:
            if candidate.source in in_force:
                if candidate.source not in reported and (union or index == number):
                    reason = "NoEntrySelected" if candidate.written[field] is NOTHING else "SetsField"
                    steps.append((tier.level, candidate.source, "JoinsUnion" if union else reason))
                    reported.add(candidate.source)
            elif index > number:
                steps.append((tier.level, candidate.source, "LockedByOverride" if locked else "LeastSpecificKept"))
            else:
                steps.append((tier.level, candidate.source, "LessSpecific" if index < number else "LosesTie"))
    policies = [
        {candidate.source for candidate in tier.candidates if candidate.source.startswith("Agentgateway")}
        for tier in stack
    ]
    conflict = not union and any(len(sources) > 1 for sources in policies)
    if union:
        return MergedField({"value": list(in_force.values()), "from": list(in_force)}, conflict, steps)
    ((source, value),) = in_force.items()
    return MergedField(None if value is NOTHING else {"value": value, "from": source}, conflict, steps)


def refused(policy: Object) -> bool:
    return _refused(json.dumps(policy))


@lru_cache(1000)
def _refused(policy: str) -> bool:
    # A world is asked many questions, and admission costs far more than the rest of this model.
    return any(problem.refuses for problem in admit(json.loads(policy)))


def levels(objects: list[Object], ask: Object, section: str, profile: str) -> list[tuple[str, str, str, Any]]:
    """Return (level, kind, namespace/name, section) of each level, or (level, "inline", source, value)."""
    gateway, listener, added = ask.get("gateway"), ask.get("listener"), ask.get("listenerSet")
    at_listener: list[Any] = [("Gateway listener", "Gateway", gateway, listener)] if gateway and listener else []
    if added and profile == "docs":
        at_listener = []
    at_gateway: list[Any] = [("Gateway", "Gateway", gateway, None)] if gateway else []
    if section == "frontend":
        port = None
        if gateway and listener:
            owner = find(objects, "ListenerSet", added) if added else find(objects, "Gateway", gateway)
            port = next(other["port"] for other in owner["spec"]["listeners"] if other["name"] == listener)
        return at_gateway + ([("Gateway port", "Gateway", gateway, port)] if port else []) + at_listener
    at_set: list[Any] = [("ListenerSet", "ListenerSet", added, None)] if added else []
    if added and listener:
        at_set.append(("ListenerSet listener", "ListenerSet", added, listener))
    at_route: list[Any] = []
    at_reference: list[Any] = []
    backend_kind, _, backend = ask.get("backend", "").partition("/")
    part = str(ask["backendSection"]) if "backendSection" in ask else None
    # docs/gateway.md#delegation: each parent counts as a route of its own, below the routes that it delegates to.
    for parent in ask.get("parents", ()):
        name, _, rule = parent.removeprefix("HTTPRoute/").partition("#")
        rules = find(objects, "HTTPRoute", name)["spec"]["rules"]
        label = next(other.get("name") for i, other in enumerate(rules) if rule in (str(i), other.get("name")))
        at_route.append((f"Parent route {name}", "HTTPRoute", name, None))
        if label:
            at_route.append((f"Parent route rule {name}#{label}", "HTTPRoute", name, label))
    if "route" in ask:
        kind, _, name = ask["route"].partition("/")
        at_route.append(("Route", kind, name, None))
        if "rule" in ask:
            rules = find(objects, kind, name)["spec"]["rules"]
            number = next(i for i, rule in enumerate(rules) if ask["rule"] in (i, rule.get("name")))
            label = rules[number].get("name", number)
            if "name" in rules[number]:
                at_route.append(("Route rule", kind, name, label))
            for ref in rules[number]["backendRefs"]:
                space = ref.get("namespace", name.split("/")[0])
                same = (ref.get("kind", "Service"), f"{space}/{ref['name']}") == (backend_kind, backend)
                if same and (backend_kind != "Service" or str(ref["port"]) == part) and "policies" in ref:
                    inline_level = ("backendRef inline", "inline", f"{kind}/{name}#{label}", ref["policies"])
                    at_reference.append(inline_level)
    if section == "traffic":
        return at_gateway + at_set + at_listener + at_route
    at_backend = [("Backend", backend_kind, backend, None)] if backend else []
    at_section = [("Backend section", backend_kind, backend, part)] if backend and part else []
    inline: list[Any] = []
    sub_inline: list[Any] = []
    if backend_kind == "AgentgatewayBackend":
        spec = find(objects, backend_kind, backend)["spec"]
        if "policies" in spec:
            inline = [("Backend inline", "inline", ask["backend"], spec["policies"])]
        subs = [(target["name"], target["static"]) for target in spec.get("mcp", {}).get("targets", ())]
        subs += [(p["name"], p) for group in spec.get("ai", {}).get("groups", ()) for p in group["providers"]]
        sub_inline = [
            ("Sub-backend inline", "inline", f"{ask['backend']}#{part}", value["policies"])
            for name, value in subs
            if name == part and "policies" in value
        ]
    if backend_kind == "AgentgatewayModel":
        # docs/gateway.md#models: the same settings as in a backend section, some of them below `ai` there.
        policies = find(objects, backend_kind, backend)["spec"]["policies"]
        section_of_model = {name: policies[name] for name in ("auth", "tls", "tunnel", "health") if name in policies}
        of_ai = {name: policies[name] for name in ("promptGuard", "transformations") if name in policies}
        inline = [("Backend inline", "inline", ask["backend"], section_of_model | ({"ai": of_ai} if of_ai else {}))]
    if profile == "docs":
        below = at_gateway + at_set + at_listener + at_route
        return below + at_backend + at_section + inline + sub_inline + at_reference
    below = at_gateway + at_listener + at_backend
    if backend_kind in ("AgentgatewayBackend", "AgentgatewayModel"):
        return below + at_route + inline + at_reference + at_section + sub_inline
    return below + at_section + at_route + at_reference


def written(section: str, value: Any, facts: Object, profile: str) -> Object:
    """Return the values that a section sets, by field; NOTHING if a list of agentgateway selects no entry."""
    out: Object = {}
    for name, content in (value or {}).items():
        if (section, name) == ("traffic", "phase"):
            continue
        if section == "traffic" and name in CONDITIONAL and "conditional" in content:
            out |= choose(name, content["conditional"], facts, profile)
        elif name in PARTS[section]:
            out |= {f"{section}.{name}.{part}": inner for part, inner in content.items()}
        else:
            out[f"{section}.{name}"] = content
    if profile == "agentgateway":
        for field in ("backend.ai.modelAliases", "backend.ai.routes"):
            if out.get(field) == {}:
                del out[field]
    return out


def choose(name: str, entries: list[Any], facts: Object, profile: str) -> Object:
    def first(among: list[Any]) -> Any:
        for entry in among:
            if "condition" not in entry or CONDITIONS[entry["condition"]](facts):
                return entry["policy"]
        return None

    if name != "rateLimit":
        selected = first(entries)
        if selected is None:
            return {} if profile == "docs" else {f"traffic.{name}": NOTHING}
        return {f"traffic.{name}": selected}
    if profile == "docs":
        return {f"traffic.rateLimit.{part}": value for part, value in (first(entries) or {}).items()}
    out = {}
    for part in ("local", "global"):
        having = [entry for entry in entries if part in entry["policy"]]
        if having:
            selected = first(having)
            out[f"traffic.rateLimit.{part}"] = NOTHING if selected is None else selected[part]
    return out


def attaches(objects: list[Object], policy: Object, kind: str, name: str, part: Any) -> bool:
    space = policy["metadata"]["namespace"]
    if name.split("/")[0] != space:
        return False
    labels = find(objects, kind, name)["metadata"]["labels"]
    spec = policy["spec"]
    for entry in (*spec.get("targetRefs", ()), *spec.get("targetSelectors", ())):
        if entry["kind"] != kind:
            continue
        if "name" in entry and f"{space}/{entry['name']}" != name:
            continue
        if "name" not in entry and any(labels.get(key) != text for key, text in entry["matchLabels"].items()):
            continue
        section = entry.get("port", entry.get("sectionName"))
        if kind == "Service" and section is not None:
            section = str(int(section))
        if kind == "InferencePool":
            section = None
        if section == part:
            return True
    return False


def find(objects: list[Object], kind: str, name: str) -> Object:
    return next(resource for resource in objects if resource["kind"] == kind and full_name(resource) == name)


def full_name(resource: Object) -> str:
    return f"{resource['metadata']['namespace']}/{resource['metadata']['name']}"


def age(resource: Object) -> tuple[bool, float, str]:
    when = resource["metadata"].get("creationTimestamp")
    seconds = datetime.fromisoformat(when).timestamp() if when else 0.0
    return when is None, seconds, full_name(resource)
