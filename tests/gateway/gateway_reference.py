"""The merge as the decisions word it, without indexes: read it beside them (gateway plane, 1 to 17).

Works on plain objects. Conditions are looked up in the table of `gateway_clusters`, so that no CEL engine is in it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from gateway_clusters import CONDITIONS

from tierwall.resources.admission import admit

UNION = ("traffic.authorization", "frontend.networkAuthorization", "backend.mcp.authorization")
PARTS = {
    "traffic": ("rateLimit", "headerModifiers"),
    "backend": ("ai", "mcp"),
    "frontend": (),
}
CONDITIONAL = ("extAuth", "extProc", "rateLimit", "transformation", "directResponse")
NULL = object()


def reference(objects: list[dict[str, Any]], question: dict[str, Any], profile: str) -> dict[str, Any]:
    """`effective` and `conflicts` of a question."""
    policies = [one for one in objects if one["kind"] == "AgentgatewayPolicy" and not refused(one)]
    phase, facts = question.get("phase", "PostRouting"), question.get("request", {})
    effective: dict[str, Any] = {}
    conflicts: set[str] = set()
    for section in ("frontend", "traffic", "backend"):
        stack = []
        for kind, name, part in levels(objects, question, section, profile):
            if kind == "inline":
                stack.append([(name, False, said(section, part, facts, profile))])
                continue
            here = [one for one in policies if attaches(objects, one, kind, name, part)]
            here.sort(key=age)
            stack.append(
                [
                    (
                        f"AgentgatewayPolicy/{full_name(one)}",
                        one["spec"].get("strategy", {}).get("inheritance") == "Override",
                        said(section, one["spec"].get(section), facts, profile),
                    )
                    for one in here
                    if section != "traffic" or one["spec"].get("traffic", {}).get("phase", "PostRouting") == phase
                ]
            )
        for field in sorted({field for level in stack for _, _, fields in level for field in fields}):
            parties = [[party for party in level if field in party[2]] for level in stack]
            parties = [level for level in parties if level]
            locks = section == "traffic" and not (profile == "agentgateway" and phase == "PreRouting")
            if field in UNION:
                effective[field] = union(field, parties, locks)
                continue
            if any(len({source for source, _, _ in level if source.startswith("Ag")}) > 1 for level in parties):
                conflicts.add(field)
            source, value = winner(field, parties, locks, profile)
            if value is not NULL:
                effective[field] = {"value": value, "from": source}
    return {"effective": effective, "conflicts": conflicts}


def refused(policy: dict[str, Any]) -> bool:
    return any(not problem.is_warning for problem in admit(policy))


def winner(field: str, levels: list[Any], locks: bool, profile: str) -> tuple[str, Any]:
    if field == "traffic.buffer" and profile == "agentgateway":
        levels = levels[:1]
    for level in levels:
        source, override, fields = level[0]
        if override and locks and field != ("traffic.buffer" if profile == "agentgateway" else None):
            break
    return source, fields[field]


def union(field: str, levels: list[Any], locks: bool) -> dict[str, Any]:
    sources: list[str] = []
    values = []
    for level in levels:
        for source, _, fields in level:
            if source not in sources:
                sources.append(source)
                values.append(fields[field])
        if locks and any(override for _, override, _ in level):
            break
    return {"value": values, "from": sources}


def levels(
    objects: list[dict[str, Any]], ask: dict[str, Any], section: str, profile: str
) -> list[tuple[str, str, Any]]:
    """(kind, namespace/name, section) of each level, or ("inline", source, value)."""
    gateway, listener, added = ask.get("gateway"), ask.get("listener"), ask.get("listenerSet")
    at_listener = [("Gateway", gateway, listener)] if gateway and listener else []
    if added and profile == "docs":
        at_listener = []
    at_gateway = [("Gateway", gateway, None)] if gateway else []
    if section == "frontend":
        port = None
        if gateway and listener:
            owner = find(objects, "ListenerSet", added) if added else find(objects, "Gateway", gateway)
            port = next(one["port"] for one in owner["spec"]["listeners"] if one["name"] == listener)
        return at_gateway + ([("Gateway", gateway, port)] if port else []) + at_listener
    at_set = [("ListenerSet", added, None)] if added else []
    if added and listener:
        at_set.append(("ListenerSet", added, listener))
    at_route: list[Any] = []
    at_reference: list[Any] = []
    backend_kind, _, backend = ask.get("backend", "").partition("/")
    part = str(ask["backendSection"]) if "backendSection" in ask else None
    if "route" in ask:
        kind, _, name = ask["route"].partition("/")
        at_route = [(kind, name, None)]
        if "rule" in ask:
            rules = find(objects, kind, name)["spec"]["rules"]
            number = next(i for i, rule in enumerate(rules) if ask["rule"] in (i, rule.get("name")))
            label = rules[number].get("name", number)
            if "name" in rules[number]:
                at_route.append((kind, name, label))
            for ref in rules[number]["backendRefs"]:
                space = ref.get("namespace", name.split("/")[0])
                same = (ref.get("kind", "Service"), f"{space}/{ref['name']}") == (backend_kind, backend)
                if same and (backend_kind != "Service" or str(ref["port"]) == part) and "policies" in ref:
                    at_reference.append(("inline", f"{kind}/{name}#{label}", ref["policies"]))
    if section == "traffic":
        return at_gateway + at_set + at_listener + at_route
    at_backend = [(backend_kind, backend, None)] if backend else []
    at_section = [(backend_kind, backend, part)] if backend and part else []
    inline: list[Any] = []
    sub_inline: list[Any] = []
    if backend_kind == "AgentgatewayBackend":
        spec = find(objects, backend_kind, backend)["spec"]
        if "policies" in spec:
            inline = [("inline", ask["backend"], spec["policies"])]
        subs = [(one["name"], one["static"]) for one in spec.get("mcp", {}).get("targets", ())]
        subs += [(p["name"], p) for group in spec.get("ai", {}).get("groups", ()) for p in group["providers"]]
        sub_inline = [
            ("inline", f"{ask['backend']}#{part}", value["policies"])
            for name, value in subs
            if name == part and "policies" in value
        ]
    if profile == "docs":
        below = at_gateway + at_set + at_listener + at_route
        return below + at_backend + at_section + inline + sub_inline + at_reference
    below = at_gateway + at_listener + at_backend
    if backend_kind == "AgentgatewayBackend":
        return below + at_route + inline + at_reference + at_section + sub_inline
    return below + at_section + at_route + at_reference


def said(section: str, value: Any, facts: dict[str, Any], profile: str) -> dict[str, Any]:
    """What a section sets: field to value, NULL where a list of agentgateway selects nothing."""
    out: dict[str, Any] = {}
    for name, content in (value or {}).items():
        if (section, name) == ("traffic", "phase"):
            continue
        if section == "traffic" and name in CONDITIONAL and "conditional" in content:
            out |= chosen(name, content["conditional"], facts, profile)
        elif name in PARTS[section]:
            out |= {f"{section}.{name}.{part}": inner for part, inner in content.items()}
        else:
            out[f"{section}.{name}"] = content
    if profile == "agentgateway":
        for field in ("backend.ai.modelAliases", "backend.ai.routes"):
            if out.get(field) == {}:
                del out[field]
    return out


def chosen(name: str, entries: list[Any], facts: dict[str, Any], profile: str) -> dict[str, Any]:
    def first(among: list[Any]) -> Any:
        for entry in among:
            if "condition" not in entry or CONDITIONS[entry["condition"]](facts):
                return entry["policy"]
        return None

    if name != "rateLimit":
        found = first(entries)
        if found is None:
            return {} if profile == "docs" else {f"traffic.{name}": NULL}
        return {f"traffic.{name}": found}
    if profile == "docs":
        return {f"traffic.rateLimit.{part}": value for part, value in (first(entries) or {}).items()}
    out = {}
    for part in ("local", "global"):
        having = [entry for entry in entries if part in entry["policy"]]
        if having:
            found = first(having)
            out[f"traffic.rateLimit.{part}"] = NULL if found is None else found[part]
    return out


def attaches(objects: list[dict[str, Any]], policy: dict[str, Any], kind: str, name: str, part: Any) -> bool:
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


def find(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    return next(one for one in objects if one["kind"] == kind and full_name(one) == name)


def full_name(one: dict[str, Any]) -> str:
    return f"{one['metadata']['namespace']}/{one['metadata']['name']}"


def age(one: dict[str, Any]) -> tuple[bool, float, str]:
    when = one["metadata"].get("creationTimestamp")
    seconds = datetime.fromisoformat(when).timestamp() if when else 0.0
    return when is None, seconds, full_name(one)
