"""Random clusters with policies of every kind. Few names, labels, ports and blocks make rules interact."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st

Object = dict[str, Any]

NAMESPACES = ("alpha", "beta", "gamma")
KEYS, VALUES = ("app", "tenant"), ("x", "y")
PORTS = (79, 80, 81, 443, 8080)
PROTOCOLS = ("TCP", "UDP", "SCTP")
PORT_NAMES = ("web", "dns")
POD_ADDRESSES = ("10.0.0.1", "10.0.0.2", "10.0.1.1", "10.0.1.2", "fd00::1", "fd00::2")
NODE_ADDRESSES = ("172.18.0.2", "172.18.0.3", "198.51.100.2")
OUTSIDE = ("203.0.113.7", "10.9.9.9", "2001:db8::1", "198.51.100.2", "10.0.0.1")
CIDRS = ("0.0.0.0/0", "10.0.0.0/8", "10.0.0.0/24", "10.0.0.1/32", "10.0.1.77/24", "172.18.0.0/16", "::/0", "fd00::/16")
DOMAINS = ("example.org", "www.example.org", "*.example.org")

# Strategies are made once: Hypothesis finds out what it can draw from each new one, which takes longer than to draw.
labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), max_size=2)
container_ports = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(PORT_NAMES), "containerPort": st.sampled_from(PORTS)},
        optional={"protocol": st.sampled_from(("TCP", "UDP"))},
    ),
    max_size=3,
)


@cache
@st.composite
def selectors(draw: st.DrawFn, keys: tuple[str, ...] = KEYS) -> Object:
    """A label selector."""
    out: Object = {}
    if draw(st.booleans()):
        match_labels = draw(st.dictionaries(st.sampled_from(keys), st.sampled_from((*VALUES, *NAMESPACES)), max_size=1))
        out["matchLabels"] = match_labels
    if draw(st.integers(0, 3)) == 0:
        operator = draw(st.sampled_from(("In", "NotIn", "Exists", "DoesNotExist")))
        requirement: Object = {"key": draw(st.sampled_from(keys)), "operator": operator}
        if operator in ("In", "NotIn"):
            requirement["values"] = draw(st.lists(st.sampled_from(VALUES), min_size=1, max_size=2))
        out["matchExpressions"] = [requirement]
    return out


namespace_selectors = selectors(("tenant", "kubernetes.io/metadata.name"))
pod_selectors = selectors(("app",))


@cache
@st.composite
def nested_namespaces(draw: st.DrawFn) -> Object:
    """A `NamespacedPeer` of the KEP."""
    kind = draw(st.sampled_from(("namespaceSelector", "sameLabels", "notSameLabels", "related")))
    if kind == "namespaceSelector":
        return {kind: draw(namespace_selectors)}
    if kind == "related":
        return {kind: draw(st.sampled_from(("Self", "NotSelf", "self")))}
    return {kind: draw(st.lists(st.sampled_from(("tenant", "app")), max_size=2, unique=True))}


@cache
@st.composite
def admin_peers(draw: st.DrawFn, egress: bool, domains: bool) -> Object:
    """A peer of the Admin and Baseline tiers, sometimes an unknown one."""
    kinds = ["namespaces", "pods", "nested", "nestedPods"]
    if egress:
        kinds += ["networks", "nodes", "networks"] + ["domainNames"] * domains
    kind = draw(st.sampled_from([*kinds * 3, "unknown", "unknownNested"]))
    if kind == "namespaces":
        return {kind: draw(namespace_selectors)}
    if kind == "nested":
        return {"namespaces": draw(nested_namespaces())}
    if kind == "pods":
        pods: Object = {"podSelector": draw(pod_selectors)}
        if draw(st.booleans()):
            pods["namespaceSelector"] = draw(namespace_selectors)
        return {"pods": pods}
    if kind == "nestedPods":
        return {"pods": {"namespaces": draw(nested_namespaces()), "podSelector": draw(pod_selectors)}}
    if kind == "networks":
        return {kind: draw(st.lists(st.sampled_from(CIDRS), min_size=1, max_size=2))}
    if kind == "nodes":
        return {kind: draw(selectors(("pool",)))}
    if kind == "domainNames":
        return {kind: draw(st.lists(st.sampled_from(DOMAINS), min_size=1, max_size=2, unique=True))}
    if kind == "unknown":
        return draw(st.sampled_from(({}, {"serviceAccounts": {}}, {"networks": ["10.0.0.0/8"]} if not egress else {})))
    return {"pods": {"namespaces": {}, "podSelector": {}}}


@cache
@st.composite
def admin_port_entries(draw: st.DrawFn) -> Object:
    """A port entry of v1alpha1."""
    kind = draw(st.sampled_from(("portNumber", "portNumber", "portRange", "portRange", "namedPort", "unknown")))
    protocol = draw(st.sampled_from(({}, {"protocol": "TCP"}, {"protocol": "UDP"}, {"protocol": "SCTP"})))
    if kind == "portNumber":
        return {kind: {"port": draw(st.sampled_from(PORTS)), **protocol}}
    if kind == "portRange":
        start, end = sorted((draw(st.sampled_from(PORTS)), draw(st.sampled_from(PORTS))))
        return {kind: {"start": start, "end": end, **protocol}}
    if kind == "namedPort":
        return {kind: draw(st.sampled_from(PORT_NAMES))}
    return {"portSet": "x"}


@cache
@st.composite
def cluster_protocol_entries(draw: st.DrawFn) -> Object:
    """A protocol entry of v1alpha2."""
    kind = draw(st.sampled_from(("tcp", "udp", "sctp", "destinationNamedPort")))
    if kind == "destinationNamedPort":
        return {kind: draw(st.sampled_from(PORT_NAMES))}
    if draw(st.booleans()):
        return {kind: {"destinationPort": {"number": draw(st.sampled_from(PORTS))}}}
    start, end = sorted((draw(st.sampled_from(PORTS)), draw(st.sampled_from(PORTS))))
    return {kind: {"destinationPort": {"range": {"start": start, "end": end}}}}


@cache
@st.composite
def admin_rules(draw: st.DrawFn, kind: str, egress: bool) -> Object:
    """A rule of the Admin or Baseline tier."""
    cluster = kind == "ClusterNetworkPolicy"
    actions = ["Accept" if cluster else "Allow", "Deny"] + ["Pass"] * (kind != "BaselineAdminNetworkPolicy")
    domains = kind != "BaselineAdminNetworkPolicy"
    peers = st.lists(admin_peers(egress, domains), min_size=1, max_size=2)
    rule: Object = {"action": draw(st.sampled_from(actions)), "to" if egress else "from": draw(peers)}
    if draw(st.booleans()):
        entries = cluster_protocol_entries() if cluster else admin_port_entries()
        rule["protocols" if cluster else "ports"] = draw(st.lists(entries, min_size=1, max_size=2))
    return rule


@cache
@st.composite
def subjects(draw: st.DrawFn) -> Object:
    """A subject of a cluster-scoped policy."""
    if draw(st.booleans()):
        return {"namespaces": draw(namespace_selectors)}
    return {"pods": {"namespaceSelector": draw(namespace_selectors), "podSelector": draw(pod_selectors)}}


@cache
@st.composite
def admin_policies(draw: st.DrawFn, name: str) -> Object:
    """An AdminNetworkPolicy or a ClusterNetworkPolicy."""
    kind = draw(st.sampled_from(("AdminNetworkPolicy", "ClusterNetworkPolicy")))
    spec: Object = {"priority": draw(st.integers(0, 3)), "subject": draw(subjects())}
    if kind == "ClusterNetworkPolicy":
        spec["tier"] = draw(st.sampled_from(("Admin", "Baseline")))
    return {
        "apiVersion": f"policy.networking.k8s.io/v1alpha{2 if kind == 'ClusterNetworkPolicy' else 1}",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec | draw(_directions(kind)),
    }


@cache
@st.composite
def baselines(draw: st.DrawFn) -> Object:
    """The BaselineAdminNetworkPolicy."""
    kind = "BaselineAdminNetworkPolicy"
    return {
        "apiVersion": "policy.networking.k8s.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": "default"},
        "spec": {"subject": draw(subjects())} | draw(_directions(kind)),
    }


@cache
@st.composite
def _directions(draw: st.DrawFn, kind: str) -> Object:
    out: Object = {}
    for key in ("ingress", "egress"):
        if draw(st.booleans()):
            out[key] = draw(st.lists(admin_rules(kind, key == "egress"), max_size=3))
    return out


@cache
@st.composite
def network_policy_rules(draw: st.DrawFn, peers_key: str) -> Object:
    """A rule of a NetworkPolicy."""
    rule: Object = {}
    if draw(st.integers(0, 3)):
        rule[peers_key] = draw(st.lists(network_policy_peers(), max_size=2))
    if draw(st.booleans()):
        rule["ports"] = draw(st.lists(network_policy_ports(), max_size=2))
    return rule


@cache
@st.composite
def network_policy_peers(draw: st.DrawFn) -> Object:
    """A peer of a NetworkPolicy."""
    kind = draw(st.sampled_from(("pods", "namespaces", "both", "ipBlock")))
    if kind == "ipBlock":
        block: Object = {"cidr": draw(st.sampled_from(CIDRS))}
        if draw(st.booleans()):
            block["except"] = draw(st.lists(st.sampled_from(CIDRS), max_size=2))
        return {kind: block}
    out: Object = {}
    if kind != "namespaces":
        out["podSelector"] = draw(pod_selectors)
    if kind != "pods":
        out["namespaceSelector"] = draw(namespace_selectors)
    return out


@cache
@st.composite
def network_policy_ports(draw: st.DrawFn) -> Object:
    """A port entry of a NetworkPolicy."""
    out: Object = draw(st.sampled_from(({}, {"protocol": "TCP"}, {"protocol": "UDP"})))
    kind = draw(st.sampled_from(("none", "number", "range", "name")))
    if kind == "number":
        return {**out, "port": draw(st.sampled_from(PORTS))}
    if kind == "range":
        start, end = sorted((draw(st.sampled_from(PORTS)), draw(st.sampled_from(PORTS))))
        return {**out, "port": start, "endPort": end}
    return {**out, "port": draw(st.sampled_from(PORT_NAMES))} if kind == "name" else dict(out)


@cache
@st.composite
def network_policies(draw: st.DrawFn, name: str) -> Object:
    """A NetworkPolicy."""
    spec: Object = {"podSelector": draw(pod_selectors)}
    for key, peers in (("ingress", "from"), ("egress", "to")):
        if draw(st.booleans()):
            spec[key] = draw(st.lists(network_policy_rules(peers), max_size=2))
    if draw(st.booleans()):
        spec["policyTypes"] = draw(st.lists(st.sampled_from(("Ingress", "Egress")), max_size=2, unique=True))
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": draw(st.sampled_from(NAMESPACES))},
        "spec": spec,
    }


@cache
@st.composite
def pods(draw: st.DrawFn, name: str) -> Object:
    """A pod, sometimes on its host's network, sometimes without an address, sometimes with two."""
    host = draw(st.integers(0, 5)) == 0
    known = NODE_ADDRESSES if host else POD_ADDRESSES
    addresses = draw(st.lists(st.sampled_from(known), max_size=2, unique=True))
    ports = draw(container_ports)
    status = {"podIP": addresses[0], "podIPs": [{"ip": address} for address in addresses]} if addresses else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": draw(st.sampled_from(NAMESPACES)), "labels": draw(labels)},
        "spec": {"containers": [{"name": "c", "image": "i", "ports": ports}], "hostNetwork": host},
        "status": status,
    }


@cache
@st.composite
def clusters(draw: st.DrawFn, most_policies: int = 5) -> list[Object]:
    """All objects of a random cluster."""
    out: list[Object] = []
    for name in draw(st.lists(st.sampled_from(NAMESPACES), unique=True)):
        drawn = draw(labels)
        out.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": drawn}})
    for number in range(draw(st.integers(0, 2))):
        addresses = draw(st.lists(st.sampled_from(NODE_ADDRESSES), max_size=2, unique=True))
        kinds = draw(st.sampled_from((("InternalIP", "ExternalIP"), ("InternalIP", "Hostname"))))
        status = {"addresses": [{"type": k, "address": a} for k, a in zip(kinds, addresses, strict=False)]}
        metadata = {"name": f"n{number}", "labels": draw(st.sampled_from(({}, {"pool": "x"}, {"pool": "y"})))}
        out.append({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status})
    out += [draw(pods(f"p{number}")) for number in range(draw(st.integers(2, 5)))]
    for number in range(draw(st.integers(0, most_policies))):
        make = draw(st.sampled_from((admin_policies, admin_policies, network_policies)))
        out.append(draw(make(f"q{number}")))
    if draw(st.booleans()):
        out.append(draw(baselines()))
    return draw(st.permutations(out))


def endpoints(objects: list[Object]) -> list[Any]:
    """Return every endpoint of a cluster as a question writes it; addresses of pods are left out."""
    pods = [resource for resource in objects if resource["kind"] == "Pod"]
    taken = {ip["ip"] for pod in pods for ip in pod["status"].get("podIPs", ())}
    names: list[Any] = [f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in pods]
    names += [{"node": resource["metadata"]["name"]} for resource in objects if resource["kind"] == "Node"]
    return names + [{"ip": address} for address in OUTSIDE if address not in taken]
