"""Attachment as the Gateway API words it, object by object, without indexes; and random clusters to try it on."""

from __future__ import annotations

from random import Random
from typing import Any

API = "gateway.networking.k8s.io"
SPACES = ("a", "b")
Objects = list[dict[str, Any]]


def made(kind: str, space: str, name: str, spec: dict[str, Any], api: str = f"{API}/v1") -> dict[str, Any]:
    metadata = {"name": name, "namespace": space, "labels": {"app": name}}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}


def cluster(rng: Random) -> Objects:
    """Gateways, ListenerSets, routes, Services and policies in two namespaces, with every way of not attaching."""
    out: Objects = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a", "labels": {"team": "red"}}},
    ]
    for space in SPACES:
        for name in ("g", "h"):
            spec: dict[str, Any] = {"gatewayClassName": "c", "listeners": _listeners(rng)}
            if rng.random() < 0.6:
                spec["allowedListeners"] = {"namespaces": _namespaces(rng, ("All", "Same", "None", "Selector"))}
            out.append(made("Gateway", space, name, spec))
        if rng.random() < 0.6:
            parent = {"name": rng.choice(("g", "h", "gone"))} | _elsewhere(rng)
            out.append(made("ListenerSet", space, "set", {"parentRef": parent, "listeners": _listeners(rng)}))
        for kind in ("HTTPRoute", "GRPCRoute"):
            for name in ("r", "s"):
                out.append(made(kind, space, name, _route(rng)))
        for name in ("x", "y"):
            out.append(made("Service", space, name, {"ports": [{"port": 80}, {"port": 81}]}, "v1"))
        if rng.random() < 0.5:
            source = {"group": API, "kind": rng.choice(("HTTPRoute", "GRPCRoute")), "namespace": rng.choice(SPACES)}
            to: dict[str, Any] = {"group": "", "kind": "Service"}
            if rng.random() < 0.4:
                to = {"group": API, "kind": "HTTPRoute"}
            if rng.random() < 0.4:
                to["name"] = rng.choice(("x", "y", "r"))
            out.append(made("ReferenceGrant", space, "grant", {"from": [source], "to": [to]}, f"{API}/v1beta1"))
    for number in range(rng.randrange(1, 9)):
        out.append(_policy(rng, f"p{number}"))
    rng.shuffle(out)
    return out


def _elsewhere(rng: Random) -> dict[str, Any]:
    return {"namespace": rng.choice(SPACES)} if rng.random() < 0.5 else {}


def _namespaces(rng: Random, words: tuple[str, ...]) -> dict[str, Any]:
    source = rng.choice(words)
    return {"from": source} | ({"selector": {"matchLabels": {"team": "red"}}} if source == "Selector" else {})


def _listeners(rng: Random) -> list[dict[str, Any]]:
    out = []
    for number, name in enumerate(rng.choice((("web",), ("web", "tls"), ("web", "other")))):
        one: dict[str, Any] = {"name": name, "port": 80 + number, "protocol": rng.choice(("HTTP", "HTTP", "TCP"))}
        if one["protocol"] == "HTTP" and rng.random() < 0.4:
            one["hostname"] = rng.choice(("*.example.com", "a.example.com", "other.org"))
        if rng.random() < 0.5:
            one["allowedRoutes"] = {"namespaces": _namespaces(rng, ("All", "Same", "Selector"))}
            if rng.random() < 0.3:
                one["allowedRoutes"]["kinds"] = [{"kind": rng.choice(("HTTPRoute", "GRPCRoute"))}]
        out.append(one)
    return out


def _route(rng: Random) -> dict[str, Any]:
    parents = []
    for _ in range(rng.randrange(3)):
        kind = rng.choice(("Gateway", "Gateway", "ListenerSet", "HTTPRoute"))
        names = {"Gateway": ("g", "h", "gone"), "ListenerSet": ("set",), "HTTPRoute": ("r", "s")}[kind]
        parent: dict[str, Any] = {"kind": kind, "name": rng.choice(names)} | _elsewhere(rng)
        if kind != "HTTPRoute" and rng.random() < 0.3:
            parent["sectionName"] = rng.choice(("web", "tls", "gone"))
        elif kind != "HTTPRoute" and rng.random() < 0.2:
            parent["port"] = rng.choice((80, 81))
        parents.append(parent)
    refs: list[dict[str, Any]] = []
    for _ in range(rng.randrange(3)):
        if rng.random() < 0.75:
            refs.append({"name": rng.choice(("x", "y", "gone")), "port": rng.choice((80, 81))} | _elsewhere(rng))
        else:
            refs.append({"group": API, "kind": "HTTPRoute", "name": rng.choice(("r", "s"))} | _elsewhere(rng))
    out: dict[str, Any] = {"parentRefs": parents, "rules": [{"name": "one", "backendRefs": refs}]}
    if rng.random() < 0.5:
        out["hostnames"] = rng.sample(("a.example.com", "b.c.example.com", "*.org", "example.com"), 2)
    return out


def _policy(rng: Random, name: str) -> dict[str, Any]:
    kind = rng.choice(("Gateway", "ListenerSet", "HTTPRoute", "GRPCRoute", "Service"))
    names, sections = {
        "Gateway": (("g", "h", "gone"), ("web", "tls", "gone")),
        "ListenerSet": (("set", "gone"), ("web", "gone")),
        "HTTPRoute": (("r", "s", "gone"), ("one", "gone")),
        "GRPCRoute": (("r", "s"), ("one", "gone")),
        "Service": (("x", "y", "gone"), ("80", "81", "82")),
    }[kind]
    group = "" if kind == "Service" else API
    entries = []
    by_label = rng.random() < 0.3
    for _ in range(rng.randrange(1, 3)):
        chosen = rng.choice(names)
        entry: dict[str, Any] = {"group": group, "kind": kind}
        entry |= {"matchLabels": {"app": chosen}} if by_label else {"name": chosen}
        if rng.random() < 0.4:
            entry["sectionName"] = rng.choice(sections)
        entries.append(entry)
    spec: dict[str, Any] = {"targetSelectors" if by_label else "targetRefs": entries}
    spec["backend"] = {"tcp": {"connectTimeout": "1s"}}
    if kind != "Service" and rng.random() < 0.4:
        ref = {"name": rng.choice(("x", "y", "gone")), "port": rng.choice((80, 81))} | _elsewhere(rng)
        spec["traffic"] = {"extAuth": {"backendRef": ref, "grpc": {}}}
    return made("AgentgatewayPolicy", rng.choice(SPACES), name, spec, "agentgateway.dev/v1alpha1")


# The reference.


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


def reached(objects: Objects) -> dict[tuple[str, str, str], dict[tuple[str, str], set[int]]]:
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


def attachments(objects: Objects, policy: dict[str, Any]) -> set[tuple[Any, ...]]:
    """For each target: (kind, name, section, problem or the Gateways)."""
    out: set[tuple[Any, ...]] = set()
    space = policy["metadata"]["namespace"]
    graph = reached(objects)
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
