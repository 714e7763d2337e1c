"""The reference of attachment: the rules of the Gateway API, object by object, without indexes.

docs/gateway.md#where-a-policy-attaches.
"""

from __future__ import annotations

from typing import Any

GATEWAY_API = "gateway.networking.k8s.io"
Objects = list[dict[str, Any]]


def find(objects: Objects, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
    return next(
        (candidate for candidate in objects if candidate["kind"] == kind and name_of(candidate) == (namespace, name)),
        None,
    )


def name_of(resource: dict[str, Any]) -> tuple[str, str]:
    return resource["metadata"].get("namespace", ""), resource["metadata"]["name"]


def admits(rule: dict[str, Any], namespace: str, other: str) -> bool:
    labels = {"team": "red"} if other == "a" else {}
    return {"All": True, "None": False, "Same": namespace == other, "Selector": labels == {"team": "red"}}[rule["from"]]


def gateway_of(objects: Objects, added: dict[str, Any]) -> dict[str, Any] | None:
    namespace = added["metadata"]["namespace"]
    parent = added["spec"]["parentRef"]
    gateway = find(objects, "Gateway", parent.get("namespace", namespace), parent["name"])
    if gateway is None:
        return None
    rule = gateway["spec"].get("allowedListeners", {}).get("namespaces", {"from": "None"})
    return gateway if admits(rule, gateway["metadata"]["namespace"], namespace) else None


def host_names_overlap(listener: str | None, names: list[str]) -> bool:
    if not listener or not names:
        return True
    for name in names:
        for wide, narrow in ((listener, name), (name, listener)):
            if wide == narrow or (wide[0] == "*" and narrow.endswith(wide[1:])):
                return True
    return False


def accepts(listener: dict[str, Any], owner: dict[str, Any], route: dict[str, Any]) -> bool:
    allowed = listener.get("allowedRoutes", {"namespaces": {"from": "Same"}})
    return (
        listener["protocol"] == "HTTP"
        and admits(allowed["namespaces"], owner["metadata"]["namespace"], route["metadata"]["namespace"])
        and ("kinds" not in allowed or route["kind"] == allowed["kinds"][0]["kind"])
        and host_names_overlap(listener.get("hostname"), route["spec"].get("hostnames", []))
    )


def gateways_of_route(objects: Objects, route: dict[str, Any]) -> set[tuple[str, str]]:
    """Return the Gateways that a route attaches to by its own parentRefs."""
    out = set()
    for parent in route["spec"]["parentRefs"]:
        namespace = parent.get("namespace", route["metadata"]["namespace"])
        owner = find(objects, parent["kind"], namespace, parent["name"])
        if owner is None or parent["kind"] == "HTTPRoute":
            continue
        gateway = owner if parent["kind"] == "Gateway" else gateway_of(objects, owner)
        for listener in owner["spec"]["listeners"]:
            named = parent.get("sectionName", listener["name"]) == listener["name"]
            at_port = parent.get("port", listener["port"]) == listener["port"]
            if named and at_port and gateway is not None and accepts(listener, owner, route):
                out.add(name_of(gateway))
    return out


def is_granted(objects: Objects, source: dict[str, Any], group: str, kind: str, namespace: str, name: str) -> bool:
    source_namespace = source["metadata"]["namespace"]
    if source_namespace == namespace:
        return True
    for grant in objects:
        if grant["kind"] == "ReferenceGrant" and grant["metadata"]["namespace"] == namespace:
            (source_rule,), (target_rule,) = grant["spec"]["from"], grant["spec"]["to"]
            from_here = (source_rule["kind"], source_rule["namespace"]) == (source["kind"], source_namespace)
            to_there = (target_rule["group"], target_rule["kind"]) == (group, kind)
            if from_here and to_there and target_rule.get("name", name) == name:
                return True
    return False


def references(objects: Objects, resource: dict[str, Any], port: int, grants: str) -> list[tuple[dict[str, Any], int]]:
    """Return the objects that an object refers to, and the port of each reference.

    Of a Service, policies on other ports than the one that is used do not count.
    """
    out = []
    namespace = resource["metadata"]["namespace"]
    refs: list[tuple[dict[str, Any], dict[str, Any]]] = []
    if resource["kind"] in ("HTTPRoute", "GRPCRoute"):
        refs += [(resource, ref) for rule in resource["spec"]["rules"] for ref in rule["backendRefs"]]
    for policy in objects:
        if policy["kind"] == "AgentgatewayPolicy" and policy["metadata"]["namespace"] == namespace:
            for entry in (*policy["spec"].get("targetRefs", ()), *policy["spec"].get("targetSelectors", ())):
                name = entry.get("name", entry.get("matchLabels", {}).get("app"))
                is_used = resource["kind"] != "Service" or entry.get("sectionName", str(port)) == str(port)
                is_here = (entry["kind"], name) == (resource["kind"], resource["metadata"]["name"]) and is_used
                if is_here and "extAuth" in policy["spec"].get("traffic", policy["spec"]["backend"]):
                    section = policy["spec"].get("traffic", policy["spec"]["backend"])
                    refs.append((policy, section["extAuth"]["backendRef"]))
    for owner, ref in refs:
        group, kind = ref.get("group", ""), ref.get("kind", "Service")
        target_namespace = ref.get("namespace", owner["metadata"]["namespace"])
        if kind == owner["kind"] == "HTTPRoute":
            out += [(child, 0) for child in objects if is_child(objects, owner, child, target_namespace, ref["name"])]
            continue
        target = find(objects, kind, target_namespace, ref["name"])
        # Policies need no grant.
        is_permitted = owner["kind"] == "AgentgatewayPolicy" and grants == "route"
        if target is None:
            continue
        if is_permitted or is_granted(objects, owner, group, kind, target_namespace, ref["name"]):
            out.append((target, ref.get("port", 0)))
    return out


def is_child(objects: Objects, parent: dict[str, Any], child: dict[str, Any], namespace: str, name: str) -> bool:
    """Whether a parent delegates to a child by `name`, and the child accepts it: docs/gateway.md#delegation."""
    if child["kind"] != "HTTPRoute" or child["metadata"]["namespace"] != namespace:
        return False
    key, _, value = name.partition("=")
    is_selected = name in ("*", child["metadata"]["name"]) or (
        "=" in name and child["metadata"]["labels"].get(key, "") == value
    )
    if child["spec"]["parentRefs"]:
        return is_selected and any(
            (ref["kind"], ref.get("namespace", namespace), ref["name"]) == ("HTTPRoute", *name_of(parent))
            for ref in child["spec"]["parentRefs"]
        )
    return is_selected and is_granted(objects, parent, GATEWAY_API, "HTTPRoute", *name_of(child))


def reach(objects: Objects, grants: str) -> dict[tuple[str, str, str], dict[tuple[str, str], set[int]]]:
    """Map (kind, namespace, name) of every reached object to the Gateways that lead there, with the ports used."""
    out: dict[tuple[str, str, str], dict[tuple[str, str], set[int]]] = {}

    def mark(resource: dict[str, Any], gateway: tuple[str, str], port: int) -> None:
        here = out.setdefault((resource["kind"], *name_of(resource)), {})
        ports = here.setdefault(gateway, set())
        if port not in ports:
            ports.add(port)
            for target, target_port in references(objects, resource, port, grants):
                mark(target, gateway, target_port if target["kind"] == "Service" else 0)

    for resource in objects:
        if resource["kind"] == "Gateway":
            mark(resource, name_of(resource), 0)
        elif resource["kind"] == "ListenerSet":
            gateway = gateway_of(objects, resource)
            if gateway is not None:
                mark(resource, name_of(gateway), 0)
        elif resource["kind"] in ("HTTPRoute", "GRPCRoute"):
            for gateway_name in gateways_of_route(objects, resource):
                mark(resource, gateway_name, 0)
    return out


def attachment(objects: Objects, policy: dict[str, Any], grants: str = "route") -> set[tuple[Any, ...]]:
    """Return (kind, name, section, problem or Gateways) for each target. `grants` is `--backend-ref-grants`."""
    out: set[tuple[Any, ...]] = set()
    namespace = policy["metadata"]["namespace"]
    graph = reach(objects, grants)
    for entry in (*policy["spec"].get("targetRefs", ()), *policy["spec"].get("targetSelectors", ())):
        kind, section = entry["kind"], entry.get("sectionName", "")
        name = entry.get("name", entry.get("matchLabels", {}).get("app"))
        target = find(objects, kind, namespace, name)
        if target is None and "name" not in entry:
            out.add((kind, None, section, "nothing selected"))
        elif target is None:
            out.add((kind, name, section, "missing object"))
        elif section and section not in sections(target):
            out.add((kind, name, section, "missing section"))
        else:
            gateways = graph.get((kind, namespace, name), {})
            if kind == "Service" and section:
                gateways = {gateway: ports for gateway, ports in gateways.items() if int(section) in ports}
            if not gateways:
                out.add((kind, name, section, "not reachable from any Gateway"))
            else:
                out.add((kind, name, section, tuple(sorted(gateways))))
    return out


def sections(resource: dict[str, Any]) -> list[str]:
    if resource["kind"] == "Service":
        return [str(port["port"]) for port in resource["spec"]["ports"]]
    return [part["name"] for part in resource["spec"]["rules" if "Route" in resource["kind"] else "listeners"]]
