"""A rule is reported as ineffective if and only if no possible connection reaches it (TW202, TW207).

Every kind of pod, namespace and address that policies of a small alphabet can distinguish is tried against the
reference of the network plane. The proof must report exactly the rules that the reference finds ineffective.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tests.reference import network as reference
from tests.reference.cluster import Cluster
from tests.worlds.network_snapshots import snapshot
from tierwall.analyze.network_shadowed import ShadowProver
from tierwall.network.model.model import network_model
from tierwall.network.model.rules import NetworkRule

Object = dict[str, Any]

# One value that selectors name and two that they do not, so that two namespaces can differ beyond selectors.
TENANTS = (None, "x", "other", "another")
NAMES = ("alpha", "beta", "gamma")
APPS = (None, "x", "y", "other")
PORTS = (80, 81, 82)
BLOCKS = ("10.0.0.0/9", "10.128.0.0/9", "10.0.0.0/8", "0.0.0.0/0", "::/0")
ADDRESSES = ("10.1.1.1", "10.200.1.1", "203.0.113.7", "2001:db8::1")
POOLS = (None, "x", "other")


@st.composite
def selectors(draw: st.DrawFn, key: str, values: tuple[str, ...]) -> Object:
    operator = draw(st.sampled_from(("", "In", "NotIn", "Exists", "DoesNotExist")))
    if not operator:
        return {}
    named = {"values": [draw(st.sampled_from(values))]} if operator in ("In", "NotIn") else {}
    return {"matchExpressions": [{"key": key, "operator": operator, **named}]}


tenants = selectors("tenant", ("x",))
names = selectors("kubernetes.io/metadata.name", ("alpha",)).filter(
    lambda selector: "DoesNotExist" not in str(selector)
)
namespaces = st.one_of(tenants, tenants, names)
apps = selectors("app", ("x", "y"))
relations = st.sampled_from(
    ({"related": "Self"}, {"related": "NotSelf"}, {"sameLabels": ["tenant"]}, {"notSameLabels": ["tenant"]})
)


@st.composite
def pod_peers(draw: st.DrawFn) -> Object:
    where = draw(st.one_of(namespaces.map(lambda selector: {"namespaceSelector": selector}), relations))
    return {"pods": {"namespaces": where, "podSelector": draw(apps)}}


@st.composite
def rules(draw: st.DrawFn, peers: st.SearchStrategy[Object], side: str, actions: tuple[str, ...]) -> Object:
    rule = {"action": draw(st.sampled_from(actions)), side: draw(st.lists(peers, min_size=1, max_size=2))}
    ports = draw(st.sampled_from((None, None, [80], [81], ["web"], [80, "web"])))
    if ports is not None:
        rule["ports"] = [
            {"namedPort": port} if isinstance(port, str) else {"portNumber": {"port": port}} for port in ports
        ]
    return rule


EVERYBODY: Object = {"namespaces": {}}


@st.composite
def subjects(draw: st.DrawFn) -> Object:
    return {"pods": {"namespaceSelector": draw(namespaces), "podSelector": draw(apps)}}


@st.composite
def policies(
    draw: st.DrawFn,
    direction: str,
    subject: st.SearchStrategy[Object],
    peers: st.SearchStrategy[Object],
    chosen: st.SearchStrategy[Object],
    namespaced: st.SearchStrategy[Object],
) -> list[Object]:
    """Draw up to two admin policies, a baseline, and three NetworkPolicies in `alpha`, all of one direction."""
    side = "from" if direction == "ingress" else "to"
    out: list[Object] = []
    for number in range(draw(st.integers(0, 2))):
        drawn_rules = draw(st.lists(rules(peers, side, ("Allow", "Deny", "Pass")), min_size=1, max_size=4))
        out.append(_policy("AdminNetworkPolicy", f"a{number}", {"priority": number, direction: drawn_rules}))
    if draw(st.booleans()):
        drawn_rules = draw(st.lists(rules(peers, side, ("Allow", "Deny")), min_size=1, max_size=3))
        out.append(_policy("BaselineAdminNetworkPolicy", "default", {direction: drawn_rules}))
    for policy in out:
        policy["spec"]["subject"] = draw(st.one_of(st.just(EVERYBODY), subject))
    for number in range(draw(st.integers(0, 3))):
        allow = draw(st.one_of(st.just({}), namespaced.map(lambda peer: {side: [peer]})))
        spec = {"podSelector": draw(chosen), "policyTypes": [direction.title()], direction: [allow]}
        metadata = {"name": f"np{number}", "namespace": "alpha"}
        out.append({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec})
    return out


def _policy(kind: str, name: str, spec: Object) -> Object:
    return {
        "apiVersion": "policy.networking.k8s.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec,
    }  # fmt: skip


def pods(name: str, tenant: str | None, app: str | None, **more: Any) -> Object:
    labels = {"app": app} if app else {}
    namespace = {"kubernetes.io/metadata.name": name} | ({"tenant": tenant} if tenant else {})
    facts = {"pod": True, "namespace": name, "labels": labels, "namespaceLabels": namespace, "addresses": []}
    return {"id": None, "ports": [], **facts, **more}


def pairs_by_label() -> Iterator[tuple[Object, Object]]:
    """Yield every pair of pods; two pods of one namespace agree on its labels."""
    for name, tenant, app in product(NAMES[:2], TENANTS, APPS):
        for other, their_tenant, their_app in product(NAMES, TENANTS, APPS):
            if name != other or tenant == their_tenant:
                yield pods(name, tenant, app), pods(other, their_tenant, their_app)
    for name, tenant, app in product(NAMES[:2], TENANTS, APPS):
        yield pods(name, tenant, app), {"id": None, "pod": False, "addresses": ["203.0.113.7"], "ports": []}


def pairs_by_address() -> Iterator[tuple[Object, Object]]:
    """Yield subjects in namespaces with and without a NetworkPolicy, each with peers that have up to two addresses."""
    held = [(), *combinations(ADDRESSES, 1), *combinations(ADDRESSES, 2)]
    for name, addresses in product(NAMES[:2], held):
        # A pod has one address of each family at most.
        if sum("." in address for address in addresses) < 2:
            yield pods(name, None, None), pods("gamma", None, None, addresses=addresses)
        if addresses:
            yield pods(name, None, None), {"id": None, "pod": False, "addresses": addresses, "ports": []}


BY_LABEL, BY_ADDRESS = list(pairs_by_label()), list(pairs_by_address())


def worlds(objects: list[Object]) -> list[Cluster]:
    """Return the cluster without nodes and, if policies look at nodes, with two nodes of each kind."""
    at = list(product(combinations(ADDRESSES, 2), product(POOLS, POOLS))) if "'nodes'" in str(objects) else []
    nodes = [list(map(node, addresses, pools)) for addresses, pools in at]
    return [Cluster([*objects, *node]) for node in ([], *nodes)]


def node(address: str, pool: str | None) -> Object:
    status = {"addresses": [{"type": "InternalIP", "address": address}]}
    metadata = {"name": address, "labels": {"pool": pool} if pool else {}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}


def first(
    cluster: Cluster, policies: list[Object], direction: str, subject: Object, other: Object, packet: Any
) -> tuple[str, set[str]]:
    """Return the action and place of the first rule that matches."""
    concerned = reference.about(subject, policies)
    return reference.first_match(cluster, concerned, direction, subject, other, packet, set())


def in_vain(objects: list[Object], direction: str, pairs: list[tuple[Object, Object]]) -> set[str]:
    """Return the rules that match a connection but never count, by trying all connections on the reference."""
    matched: set[str] = set()
    counted: set[str] = set()
    alone = {
        f"{reference.ref(policy)} {direction}[{index}]": [{**policy, "spec": {**policy["spec"], direction: [rule]}}]
        for policy in (_with_probes(policy_object, direction) for policy_object in objects)
        for index, rule in enumerate(policy["spec"][direction])
        if policy["kind"] != "NetworkPolicy"
    }
    ports = PORTS if "'ports'" in str(objects) else PORTS[:1]
    # A probe makes a Pass visible as the deciding rule.
    for cluster in worlds([_with_probes(policy_object, direction) for policy_object in objects]):
        for (subject, other), port, named in product(pairs, ports, (False, True) if len(ports) > 1 else (False,)):
            called = [{"name": "web", "containerPort": port}] if named else []
            if direction == "ingress":
                subject = {**subject, "ports": called}
            else:
                other = {**other, "ports": called}
            packet = (subject if direction == "ingress" else other), "TCP", port

            ends = direction, subject, other, packet
            matched |= {
                name for name, probe in alone.items() if name not in matched and first(cluster, probe, *ends)[1]
            }
            action, by = first(cluster, reference.admin(cluster, direction, subject), *ends)
            counted |= by
            isolating = [policy for policy in cluster.kind("NetworkPolicy") if reference.selects(policy, subject)]
            for policy in isolating:
                if reference.np_rule_matches(policy["spec"][direction][0], "alpha", direction, other, packet):
                    place = {f"{reference.ref(policy)} {direction}[0]"}
                    matched |= place
                    counted |= place if action != "Deny" else set()
            if action in ("Pass", "Probe") and not isolating:
                counted |= first(cluster, reference.baseline(cluster, direction, subject), *ends)[1]
    return matched - counted


def _with_probes(policy: Object, direction: str) -> Object:
    written = [
        {**rule, **({"action": "Probe"} if rule.get("action") == "Pass" else {})} for rule in policy["spec"][direction]
    ]
    return {**policy, "spec": {**policy["spec"], direction: written}}


def proved(objects: list[Object]) -> set[str]:
    """Return the rules that are proved to be ineffective."""
    model = network_model(snapshot(objects))
    shadows = ShadowProver(
        model, {rule for tier in model.tiers for policy in tier.policies for rule in policy.all_rules}
    )
    return {
        str(rule)
        for tier in model.tiers
        for policy in tier.policies
        for rule in all_rules(policy)
        if (shadows.denied_before if tier.name == "Namespace" else shadows.settled_before)(rule)
    }


def all_rules(policy: Any) -> tuple[NetworkRule, ...]:
    return (*(policy.egress or ()), *(policy.ingress or ()))


named_peers = st.one_of(
    apps.map(lambda selector: {"podSelector": selector}),
    st.tuples(tenants, apps).map(lambda two: {"namespaceSelector": two[0], "podSelector": two[1]}),
)


@settings(max_examples=examples(25))
@given(policies("ingress", subjects(), pod_peers(), apps, named_peers))
def test_a_rule_with_labels_is_ineffective_if_and_only_if_no_connection_reaches_it(objects: list[Object]) -> None:
    assert proved(objects) == in_vain(objects, "ingress", BY_LABEL)


address_peers = st.one_of(
    st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=2).map(lambda blocks: {"networks": blocks}),
    selectors("pool", ("x",)).map(lambda selector: {"nodes": selector}),
    st.just({"pods": {"podSelector": {}}}),
)
ip_blocks = st.sampled_from(BLOCKS).map(lambda cidr: {"ipBlock": {"cidr": cidr}})


@settings(max_examples=examples(25))
@given(policies("egress", st.just(EVERYBODY), address_peers, st.just({}), ip_blocks))
def test_a_rule_with_addresses_is_ineffective_if_and_only_if_no_connection_reaches_it(objects: list[Object]) -> None:
    assert proved(objects) == in_vain(objects, "egress", BY_ADDRESS)
