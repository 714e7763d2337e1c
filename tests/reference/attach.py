"""Attachment as the Gateway API words it, object by object, without indexes.

docs/gateway.md#where-a-policy-attaches.
"""

from __future__ import annotations

from typing import Any

Objects = list[dict[str, Any]]


def find(objects: Objects, kind: str, space: str, name: str) -> dict[str, Any] | None:
    return next(
        (one for one in objects if one["kind"] == kind and name_of(one) == (space, name)),
        None,
    )


def name_of(one: dict[str, Any]) -> tuple[str, str]:
    return one["metadata"].get("namespace", ""), one["metadata"]["name"]


def lets_in(rule: dict[str, Any], own: str, other: str) -> bool:
    labels = {"team": "red"} if other == "a" else {}
    return {"All": True, "None": False, "Same": own == other, "Selector": labels == {"team": "red"}}[rule["from"]]


def gateway_of(objects: Objects, added: dict[str, Any]) -> dict[str, Any] | None:
    space = added["metadata"]["namespace"]
    parent = added["spec"]["parentRef"]
    gateway = find(objects, "Gateway", parent.get("namespace", space), parent["name"])
    if gateway is None:
        return None
    rule = gateway["spec"].get("allowedListeners", {}).get("namespaces", {"from": "None"})
    return gateway if lets_in(rule, gateway["metadata"]["namespace"], space) else None


def hosts_meet(listener: str | None, names: list[str]) -> bool:
    if not listener or not names:
        return True
    for name in names:
        for wide, narrow in ((listener, name), (name, listener)):
            if wide == narrow or (wide[0] == "*" and narrow.endswith(wide[1:])):
                return True
    return False


def takes(listener: dict[str, Any], owner: dict[str, Any], route: dict[str, Any]) -> bool:
    allowed = listener.get("allowedRoutes", {"namespaces": {"from": "Same"}})
    return (
        listener["protocol"] == "HTTP"
        and lets_in(allowed["namespaces"], owner["metadata"]["namespace"], route["metadata"]["namespace"])
        and ("kinds" not in allowed or route["kind"] == allowed["kinds"][0]["kind"])
        and hosts_meet(listener.get("hostname"), route["spec"].get("hostnames", []))
    )


def gateways_of_route(objects: Objects, route: dict[str, Any]) -> set[tuple[str, str]]:
    """The Gateways that a route attaches to by its own parentRefs."""
    out = set()
    for parent in route["spec"]["parentRefs"]:
        space = parent.get("namespace", route["metadata"]["namespace"])
        owner = find(objects, parent["kind"], space, parent["name"])
        if owner is None or parent["kind"] == "HTTPRoute":
            continue
        gateway = owner if parent["kind"] == "Gateway" else gateway_of(objects, owner)
        for listener in owner["spec"]["listeners"]:
            named = parent.get("sectionName", listener["name"]) == listener["name"]
            at_port = parent.get("port", listener["port"]) == listener["port"]
            if named and at_port and gateway is not None and takes(listener, owner, route):
                out.add(name_of(gateway))
    return out


def granted(objects: Objects, source: dict[str, Any], group: str, kind: str, space: str, name: str) -> bool:
    own = source["metadata"]["namespace"]
    if own == space:
        return True
    for grant in objects:
        if grant["kind"] == "ReferenceGrant" and grant["metadata"]["namespace"] == space:
            (source_rule,), (target_rule,) = grant["spec"]["from"], grant["spec"]["to"]
            from_here = (source_rule["kind"], source_rule["namespace"]) == (source["kind"], own)
            to_there = (target_rule["group"], target_rule["kind"]) == (group, kind)
            if from_here and to_there and target_rule.get("name", name) == name:
                return True
    return False


def leads_to(objects: Objects, one: dict[str, Any]) -> list[tuple[dict[str, Any], int]]:
    """What an object refers to, and by which port."""
    out = []
    space = one["metadata"]["namespace"]
    refs: list[tuple[dict[str, Any], dict[str, Any]]] = []
    if one["kind"] in ("HTTPRoute", "GRPCRoute"):
        refs += [(one, ref) for rule in one["spec"]["rules"] for ref in rule["backendRefs"]]
    for policy in objects:
        if policy["kind"] == "AgentgatewayPolicy" and policy["metadata"]["namespace"] == space:
            for entry in (*policy["spec"].get("targetRefs", ()), *policy["spec"].get("targetSelectors", ())):
                name = entry.get("name", entry.get("matchLabels", {}).get("app"))
                if (entry["kind"], name) == (one["kind"], one["metadata"]["name"]) and "traffic" in policy["spec"]:
                    refs.append((policy, policy["spec"]["traffic"]["extAuth"]["backendRef"]))
    for owner, ref in refs:
        group, kind = ref.get("group", ""), ref.get("kind", "Service")
        target_space = ref.get("namespace", owner["metadata"]["namespace"])
        target = find(objects, kind, target_space, ref["name"])
        if target is None:
            continue
        is_child = kind == "HTTPRoute" and any(
            (parent["kind"], parent.get("namespace", target_space), parent["name"]) == (owner["kind"], *name_of(owner))
            for parent in target["spec"]["parentRefs"]
        )
        if is_child or granted(objects, owner, group, kind, target_space, ref["name"]):
            out.append((target, ref.get("port", 0)))
    return out


def reach(objects: Objects) -> dict[tuple[str, str, str], dict[tuple[str, str], set[int]]]:
    """(kind, namespace, name) of every reached object to the Gateways that lead there, with the ports used."""
    out: dict[tuple[str, str, str], dict[tuple[str, str], set[int]]] = {}

    def mark(one: dict[str, Any], gateway: tuple[str, str], port: int) -> None:
        here = out.setdefault((one["kind"], *name_of(one)), {})
        known = gateway in here
        here.setdefault(gateway, set()).add(port)
        if not known:
            for target, through in leads_to(objects, one):
                mark(target, gateway, through)

    for one in objects:
        if one["kind"] == "Gateway":
            mark(one, name_of(one), 0)
        elif one["kind"] == "ListenerSet":
            gateway = gateway_of(objects, one)
            if gateway is not None:
                mark(one, name_of(gateway), 0)
        elif one["kind"] in ("HTTPRoute", "GRPCRoute"):
            for gateway_name in gateways_of_route(objects, one):
                mark(one, gateway_name, 0)
    return out


def attachment(objects: Objects, policy: dict[str, Any]) -> set[tuple[Any, ...]]:
    """For each target: (kind, name, section, problem or the Gateways)."""
    out: set[tuple[Any, ...]] = set()
    space = policy["metadata"]["namespace"]
    graph = reach(objects)
    for entry in (*policy["spec"].get("targetRefs", ()), *policy["spec"].get("targetSelectors", ())):
        kind, section = entry["kind"], entry.get("sectionName", "")
        name = entry.get("name", entry.get("matchLabels", {}).get("app"))
        target = find(objects, kind, space, name)
        if target is None and "name" not in entry:
            out.add((kind, None, section, "nothing selected"))
        elif target is None:
            out.add((kind, name, section, "missing object"))
        elif section and section not in sections(target):
            out.add((kind, name, section, "missing section"))
        else:
            ways = graph.get((kind, space, name), {})
            ports = {port for used in ways.values() for port in used}
            if not ways or (kind == "Service" and section and int(section) not in ports):
                out.add((kind, name, section, "not reachable from any Gateway"))
            else:
                out.add((kind, name, section, tuple(sorted(ways))))
    return out


def sections(one: dict[str, Any]) -> list[str]:
    if one["kind"] == "Service":
        return [str(port["port"]) for port in one["spec"]["ports"]]
    return [part["name"] for part in one["spec"]["rules" if "Route" in one["kind"] else "listeners"]]
