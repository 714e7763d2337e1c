"""The reference of statuses of Gateways and routes: what the Gateway API says, object by object, without indexes.

docs/controller.md#gateways-and-routes. Objects are those of `tests.worlds.gateway_class_clusters`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tests.reference.routes import is_child

Object = dict[str, Any]
Key = tuple[str, str, str, str]


def key(owner: Object, listener: Object) -> Key:
    return owner["kind"], owner["metadata"]["namespace"], owner["metadata"]["name"], listener["name"]


def find(objects: list[Object], kind: str, namespace: str, name: str) -> Object | None:
    return next((each for each in objects if (each["kind"], *name_of(each)) == (kind, namespace, name)), None)


def name_of(each: Object) -> tuple[str, str]:
    return each["metadata"].get("namespace", ""), each["metadata"]["name"]


def is_ours(objects: list[Object], gateway: Object) -> bool:
    class_of = find(objects, "GatewayClass", "", gateway["spec"]["gatewayClassName"])
    return class_of is not None and class_of["spec"]["controllerName"] == "tierwall.io/controller"


def admits(rule: Object, namespace: str, other: str) -> bool:
    return {"All": True, "None": False, "Same": namespace == other, "Selector": other == "a"}[rule["from"]]


def is_granted(objects: list[Object], source: Object, namespace: str, kind: str) -> bool:
    """Whether an object may refer to objects of a kind in a namespace."""
    here = source["metadata"]["namespace"]
    wanted = {"kind": source["kind"], "namespace": here, "group": "gateway.networking.k8s.io"}
    grants = [each for each in objects if each["kind"] == "ReferenceGrant" and name_of(each)[0] == namespace]
    return here == namespace or any(
        wanted in grant["spec"]["from"] and any(to["kind"] == kind for to in grant["spec"]["to"]) for grant in grants
    )


def gateway_of(objects: list[Object], owner: Object) -> Object | None:
    """Return the Gateway itself, or the one that a ListenerSet names."""
    if owner["kind"] == "Gateway":
        return owner
    parent = owner["spec"]["parentRef"]
    return find(objects, "Gateway", parent.get("namespace", name_of(owner)[0]), parent["name"])


def is_let_in(gateway: Object, owner: Object) -> bool:
    rule = gateway["spec"].get("allowedListeners", {}).get("namespaces", {"from": "None"})
    return owner is gateway or admits(rule, name_of(gateway)[0], name_of(owner)[0])


def problems(objects: list[Object], gateway: Object, served: Collection[Key]) -> dict[Key, str]:
    """Return why each listener of a Gateway and its ListenerSets is not served; empty if it is.

    The Gateway's own come first, then those that are served already, then the oldest ListenerSets.
    """
    added = [each for each in objects if each["kind"] == "ListenerSet" and gateway_of(objects, each) is gateway]
    added = [each for each in added if is_let_in(gateway, each)]
    added.sort(key=lambda each: (each["metadata"]["creationTimestamp"], "/".join(name_of(each))))
    every = [(owner, listener) for owner in (gateway, *added) for listener in owner["spec"]["listeners"]]
    every.sort(key=lambda each: (each[0] is not gateway, key(*each) not in served))
    kept: list[Object] = []
    out: dict[Key, str] = {}
    for owner, listener in every:
        rivals = [other for other in kept if other["port"] == listener["port"]]
        if listener["protocol"] == "UDP":
            out[key(owner, listener)] = "UnsupportedProtocol"
        elif listener["protocol"] == "TLS" and listener["tls"]["mode"] == "Terminate":
            out[key(owner, listener)] = "UnsupportedValue"
        elif any(transport(other) != transport(listener) for other in rivals):
            out[key(owner, listener)] = "ProtocolConflict"
        elif any(other.get("hostname") == listener.get("hostname") for other in rivals):
            out[key(owner, listener)] = "HostnameConflict"
        else:
            kept.append(listener)
            out[key(owner, listener)] = certificate_problem(objects, owner, listener)
    return out


KINDS = {
    **dict.fromkeys(("HTTP", "HTTPS"), ("HTTPRoute", "GRPCRoute")),
    "TLS": ("TLSRoute", "TCPRoute"),
    "TCP": ("TCPRoute",),
}


def transport(listener: Object) -> str:
    """HTTPS and TLS may share a port: the server name of a connection tells them apart."""
    return "TLS" if listener["protocol"] == "HTTPS" else str(listener["protocol"])


def kinds(listener: Object) -> list[str]:
    """Return the kinds of routes that a listener serves."""
    if listener["protocol"] in ("HTTP", "HTTPS"):
        return ["HTTPRoute", "GRPCRoute"]
    is_passed = listener["protocol"] == "TCP" or listener.get("tls", {}).get("mode") == "Passthrough"
    return [f"{listener['protocol']}Route"] if is_passed else []


def certificate_problem(objects: list[Object], owner: Object, listener: Object) -> str:
    if listener["protocol"] != "HTTPS":
        return ""
    (ref,) = listener["tls"]["certificateRefs"]
    namespace = ref.get("namespace", name_of(owner)[0])
    if not is_granted(objects, owner, namespace, "Secret"):
        return "RefNotPermitted"
    secret = find(objects, "Secret", namespace, ref["name"])
    return "" if secret is not None and secret["data"]["tls.key"] else "InvalidCertificateRef"


def overlap(first: str | None, other: str | None) -> bool:
    if not first or not other or first == other:
        return True
    pairs = ((first, other), (other, first))
    return any(wide[0] == "*" and narrow.endswith(wide[1:]) for wide, narrow in pairs)


def accepted(objects: list[Object], route: Object, parent: Object) -> tuple[str, list[Key]] | None:
    """Return the reason of `Accepted`, and the listeners that take the route; None if the parent is not ours."""
    owner = find(objects, parent["kind"], parent.get("namespace", name_of(route)[0]), parent["name"])
    gateway = gateway_of(objects, owner) if owner is not None else None
    if owner is None or gateway is None or not is_ours(objects, gateway):
        return None
    listeners = [
        listener
        for listener in (owner["spec"]["listeners"] if is_let_in(gateway, owner) else ())
        if parent.get("sectionName", listener["name"]) == listener["name"]
        and parent.get("port", listener["port"]) == listener["port"]
    ]
    if not listeners:
        return "NoMatchingParent", []
    listeners = [listener for listener in listeners if takes(owner, listener, route)]
    if not listeners:
        return "NotAllowedByListeners", []
    names = route["spec"].get("hostnames") or [None]
    listeners = [each for each in listeners if any(overlap(each.get("hostname"), name) for name in names)]
    if not listeners:
        return "NoMatchingListenerHostname", []
    listeners = [each for each in listeners if route["kind"] in kinds(each)]
    if not listeners:
        return "NotAllowedByListeners", []
    if all(rule_fault(objects, route, rule) == "whole" for rule in route["spec"]["rules"]):
        return "UnsupportedValue", []
    return "Accepted", [key(owner, listener) for listener in listeners]


def takes(owner: Object, listener: Object, route: Object) -> bool:
    """Whether a listener lets a route attach."""
    allowed = listener.get("allowedRoutes", {"namespaces": {"from": "Same"}})
    return (
        route["kind"] in KINDS.get(listener["protocol"], ())
        and admits(allowed["namespaces"], name_of(owner)[0], name_of(route)[0])
        and ("kinds" not in allowed or {"kind": route["kind"]} in allowed["kinds"])
    )


def rule_fault(objects: list[Object], route: Object, rule: Object) -> str:
    """Return how much of a rule is not supported: `whole`, `part` or nothing."""
    if has_unknown_filter(rule):
        return "whole"
    used = [ref for ref in rule["backendRefs"] if ref.get("weight", 1)]
    if any(delegates(route, ref) for ref in used) and (len(used) > 1 or "filters" in used[0]):
        return "whole"
    resolved = [ref for ref in used if not unresolved(objects, route, ref)]
    filtered = [ref for ref in resolved if has_unknown_filter(ref)]
    patterns = [match["path"].get("value") == "/(a" for match in rule.get("matches", [{"path": {}}])]
    if all(patterns) or (filtered and filtered == resolved):
        return "whole"
    return "part" if any(patterns) or filtered else ""


def has_unknown_filter(owner: Object) -> bool:
    return any(each["type"] == "ExtensionRef" for each in owner.get("filters", ()))


def refs(rule: Object) -> list[Object]:
    """Return the references of a rule: to its backends, and to those that get copies."""
    copies = [each["requestMirror"]["backendRef"] for each in rule.get("filters", ()) if "requestMirror" in each]
    return [*rule["backendRefs"], *copies]


def delegates(route: Object, ref: Object) -> bool:
    return (ref.get("kind"), route["kind"]) == ("HTTPRoute", "HTTPRoute")


def unresolved(objects: list[Object], route: Object, ref: Object) -> str:
    kind, namespace = ref.get("kind", "Service"), ref.get("namespace", name_of(route)[0])
    if delegates(route, ref):
        child = find(objects, kind, namespace, ref["name"])
        if child is None:
            return "BackendNotFound"
        return "" if is_child(objects, route, child, ref) else "RefNotPermitted"
    if kind != "Service":
        return "InvalidKind"
    if not is_granted(objects, route, namespace, kind):
        return "RefNotPermitted"
    return "" if find(objects, kind, namespace, ref["name"]) is not None else "BackendNotFound"


def resolved(objects: list[Object], route: Object) -> str:
    """Return the reason of `ResolvedRefs`: the first of these that applies to a backendRef."""
    kinds_of_failure = {unresolved(objects, route, ref) for rule in route["spec"]["rules"] for ref in refs(rule)}
    reasons = ("InvalidKind", "RefNotPermitted", "BackendNotFound")
    return next((reason for reason in reasons if reason in kinds_of_failure), "ResolvedRefs")
