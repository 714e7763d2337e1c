"""The network plane as KEP-2091 and docs/semantics.md describe it: one connection at a time, straight from the objects.

It shares nothing with the shipped code: selectors, CIDRs and pods are read independently, in the simplest way.
"""

from __future__ import annotations

from typing import Any

from tests.reference.cluster import Cluster, Object, in_cidr, matches, node_addresses

# A peer or port entry without a known field: the whole rule fails closed.
UNKNOWN = object()
PASS: tuple[str, set[str]] = ("Pass", set())


def decide(cluster: Cluster, source: Any, destination: Any, protocol: str, port: int) -> dict[str, Any]:
    """Return the verdict of each direction and of the whole connection, and the deciders."""
    from_endpoint, to_endpoint = cluster.endpoint(source), cluster.endpoint(destination)
    if from_endpoint.get("ended") or to_endpoint.get("ended"):
        ended = [
            ("Deny", {"Default"}) if end.get("pod") or end.get("ended") else ("NotApplicable", set[str]())
            for end in (from_endpoint, to_endpoint)
        ]
        return {"egress": ended[0], "ingress": ended[1], "verdict": "Deny"}
    if from_endpoint["id"] == to_endpoint["id"]:
        return {"egress": ("NotApplicable", set()), "ingress": ("NotApplicable", set()), "verdict": "Allow"}
    packet = to_endpoint, protocol, port
    egress = direction(cluster, "egress", from_endpoint, to_endpoint, packet)
    ingress = direction(cluster, "ingress", to_endpoint, from_endpoint, packet)
    verdicts = {egress[0], ingress[0]}
    whole = "Deny" if "Deny" in verdicts else "Conditional" if "Conditional" in verdicts else "Allow"
    return {"egress": egress, "ingress": ingress, "verdict": whole}


def direction(cluster: Cluster, which: str, subject: Object, other: Object, packet: Any) -> tuple[str, set[str]]:
    """Try every possible answer of DNS; the verdict is Conditional if the outcomes differ."""
    if not subject["pod"]:
        return "NotApplicable", set()
    names = sorted(all_domains(cluster)) if which == "egress" and other["addresses"] else []
    worlds = [{name for bit, name in enumerate(names) if number >> bit & 1} for number in range(2 ** len(names))]
    outcomes = [evaluate(cluster, which, subject, other, packet, world) for world in worlds if possible(world, names)]
    verdicts = {verdict for verdict, _ in outcomes}
    if len(verdicts) == 1:
        return outcomes[0]  # the outcome if no domain has the address
    return "Conditional", set().union(*(by for _, by in outcomes))


def possible(resolved: set[str], names: list[str]) -> bool:
    """Whether a set of domains is possible: an address of `www.a.b` is also one of `*.a.b`, and so on."""
    wild = {name[1:] for name in names if name.startswith("*")}
    return all(f"*{suffix}" in resolved for name in resolved for suffix in wild if name.lstrip("*").endswith(suffix))


def evaluate(
    cluster: Cluster, which: str, subject: Object, other: Object, packet: Any, resolved: set[str]
) -> tuple[str, set[str]]:
    """Walk through the tiers. The first one that does not pass the connection on decides; the default allows."""
    connection = subject, other, packet, resolved
    for tier, combine in STACK:
        outcome = combine(cluster, tier(cluster, which, subject), which, *connection)
        if outcome != PASS:
            return outcome
    return "Allow", {"Default"}


def admin(cluster: Cluster, which: str, subject: Object) -> list[Object]:
    policies = cluster.kind("AdminNetworkPolicy")
    policies += [policy for policy in cluster.kind("ClusterNetworkPolicy") if policy["spec"]["tier"] == "Admin"]
    return about(subject, sorted(policies, key=by_priority))


def namespace(cluster: Cluster, which: str, subject: Object) -> list[Object]:
    return [
        policy for policy in cluster.kind("NetworkPolicy") if which in policy_types(policy) and selects(policy, subject)
    ]


def baseline(cluster: Cluster, which: str, subject: Object) -> list[Object]:
    policies = [policy for policy in cluster.kind("ClusterNetworkPolicy") if policy["spec"]["tier"] == "Baseline"]
    return about(subject, sorted(policies, key=by_priority) + cluster.kind("BaselineAdminNetworkPolicy"))


def by_priority(policy: Object) -> Any:
    return policy["spec"]["priority"], policy["metadata"]["name"].encode()


def about(subject: Object, policies: list[Object]) -> list[Object]:
    return [policy for policy in policies if is_subject(policy["spec"]["subject"], subject)]


def first_match(
    cluster: Cluster,
    policies: list[Object],
    which: str,
    subject: Object,
    other: Object,
    packet: Any,
    resolved: set[str],
) -> tuple[str, set[str]]:
    """Return the first matching rule of the first policy. Pass, or no match, leads to the next tier."""
    for policy in policies:
        for index, rule in enumerate(policy["spec"].get(which) or ()):
            place = {f"{ref(policy)} {which}[{index}]"}
            action = "Allow" if rule["action"] == "Accept" else rule["action"]
            peers = [
                peer_matches(cluster, peer, policy["kind"], which, subject, other, resolved)
                for peer in rule["to" if which == "egress" else "from"]
            ]
            entries = rule.get("protocols" if policy["kind"] == "ClusterNetworkPolicy" else "ports")
            ports = [True] if entries is None else [port_matches(entry, packet) for entry in entries]
            if UNKNOWN in peers or UNKNOWN in ports:
                if action == "Allow":
                    continue
                return "Deny", place
            if any(peers) and any(ports):
                return PASS if action == "Pass" else (action, place)
    return PASS


def union_with_isolation(
    cluster: Cluster, policies: list[Object], which: str, subject: Object, other: Object, packet: Any, _: set[str]
) -> tuple[str, set[str]]:
    """Allow what any rule allows. If there is a policy, all policies together deny the rest."""
    allowing = {
        f"{ref(policy)} {which}[{index}]"
        for policy in policies
        for index, rule in enumerate(policy["spec"].get(which) or ())
        if np_rule_matches(rule, policy["metadata"]["namespace"], which, other, packet)
    }
    if allowing:
        return "Allow", allowing
    return ("Deny", {f"{ref(policy)} spec" for policy in policies}) if policies else PASS


# The tiers in order, and how each combines its policies.
STACK = ((admin, first_match), (namespace, union_with_isolation), (baseline, first_match))


def is_subject(subject: Object, end: Object) -> bool:
    if "namespaces" in subject:
        return matches(subject["namespaces"], end["namespaceLabels"])
    pods = subject["pods"]
    return matches(pods.get("namespaceSelector", {}), end["namespaceLabels"]) and matches(
        pods["podSelector"], end["labels"]
    )


def peer_matches(
    cluster: Cluster, peer: Object, kind: str, which: str, subject: Object, other: Object, resolved: set[str]
) -> Any:
    if "namespaces" in peer:
        return other["pod"] and namespaces_match(peer["namespaces"], subject, other)
    if "pods" in peer:
        pods = peer["pods"]
        if "namespaces" in pods:
            if not pods["namespaces"]:
                return UNKNOWN
            here = other["pod"] and namespaces_match(pods["namespaces"], subject, other)
        else:
            here = other["pod"] and matches(pods.get("namespaceSelector", {}), other["namespaceLabels"])
        return here and matches(pods["podSelector"], other["labels"])
    if which == "egress" and "networks" in peer:
        return any(in_cidr(address, cidr) for address in other["addresses"] for cidr in peer["networks"])
    if which == "egress" and "nodes" in peer:
        selected = [node for node in cluster.kind("Node") if matches(peer["nodes"], node["metadata"].get("labels", {}))]
        return any(address in node_addresses(node) for node in selected for address in other["addresses"])
    if which == "egress" and kind != "BaselineAdminNetworkPolicy" and "domainNames" in peer:
        return any(name in resolved for name in peer["domainNames"])
    return UNKNOWN


def namespaces_match(peer: Object, subject: Object, other: Object) -> bool:
    mine, theirs = subject["namespaceLabels"], other["namespaceLabels"]
    if "related" in peer:
        is_self: bool = subject["namespace"] == other["namespace"]
        return is_self is (peer["related"].lower() == "self")
    for key, same in (("sameLabels", True), ("notSameLabels", False)):
        if key in peer:
            keys = peer[key]
            if not keys or any(label not in mine or label not in theirs for label in keys):
                return False
            return all(mine[label] == theirs[label] for label in keys) is same
    return matches(peer.get("namespaceSelector", peer), theirs)


def port_matches(entry: Object, packet: Any) -> Any:
    destination, protocol, port = packet
    for key in ("namedPort", "destinationNamedPort"):
        if key in entry:
            return named(destination, entry[key], protocol, port)
    for key in ("tcp", "udp", "sctp"):
        if key in entry:
            wanted = entry[key]["destinationPort"]
            low, high = wanted.get("number"), wanted.get("number")
            if "range" in wanted:
                low, high = wanted["range"]["start"], wanted["range"]["end"]
            return protocol == key.upper() and low <= port <= high
    if "portNumber" in entry:
        return protocol == entry["portNumber"].get("protocol", "TCP") and port == entry["portNumber"]["port"]
    if "portRange" in entry:
        wanted = entry["portRange"]
        return protocol == wanted.get("protocol", "TCP") and wanted["start"] <= port <= wanted["end"]
    return UNKNOWN


def policy_types(policy: Object) -> list[str]:
    types = policy["spec"].get("policyTypes")
    if types:
        return [policy_type.lower() for policy_type in types]
    return ["ingress", "egress"] if policy["spec"].get("egress") else ["ingress"]


def selects(policy: Object, subject: Object) -> bool:
    same = policy["metadata"]["namespace"] == subject["namespace"]
    return same and matches(policy["spec"]["podSelector"], subject["labels"])


def np_rule_matches(rule: Object, namespace: str, which: str, other: Object, packet: Any) -> bool:
    destination, protocol, port = packet
    peers, ports = rule.get("to" if which == "egress" else "from"), rule.get("ports")
    if ports and not any(np_port(entry, destination, protocol, port) for entry in ports):
        return False
    return not peers or any(np_peer(peer, namespace, other) for peer in peers)


def np_port(entry: Object, destination: Object, protocol: str, port: int) -> bool:
    if entry.get("protocol", "TCP") != protocol:
        return False
    wanted = entry.get("port")
    if isinstance(wanted, str):
        return named(destination, wanted, protocol, port)
    if wanted is None:
        return True
    first, last = int(wanted), int(entry.get("endPort") or wanted)
    return first <= port <= last


def np_peer(peer: Object, namespace: str, other: Object) -> bool:
    if "ipBlock" in peer:
        block = peer["ipBlock"]
        return any(
            in_cidr(address, block["cidr"]) and not any(in_cidr(address, cidr) for cidr in block.get("except", ()))
            for address in other["addresses"]
        )
    if not other["pod"]:
        return False
    if "namespaceSelector" in peer:
        here = matches(peer["namespaceSelector"], other["namespaceLabels"])
    else:
        here = other["namespace"] == namespace
    return here and matches(peer.get("podSelector", {}), other["labels"])


def named(destination: Object, name: str, protocol: str, port: int) -> bool:
    return any(
        container_port.get("name") == name
        and container_port.get("protocol", "TCP") == protocol
        and container_port["containerPort"] == port
        for container_port in destination["ports"]
    )


def all_domains(cluster: Cluster) -> set[str]:
    policies = cluster.kind("AdminNetworkPolicy", "ClusterNetworkPolicy")
    peers = [peer for policy in policies for rule in policy["spec"].get("egress") or () for peer in rule["to"]]
    return {name for peer in peers for name in peer.get("domainNames", ())}


def ref(policy: Object) -> str:
    namespace = policy["metadata"].get("namespace")
    return "/".join(part for part in (policy["kind"], namespace, policy["metadata"]["name"]) if part)
