"""The model of the objects: workloads and their pods, addresses, and policies that cannot be understood."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds.network_snapshots import document, snapshot
from tierwall.network.model.model import NetworkModel
from tierwall.values.addresses import Span, format_address, merge_ranges, parse_address, parse_cidr

Object = dict[str, Any]


def workload(kind: str, name: str, group: str = "apps", **spec: Any) -> Object:
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    metadata = {"name": name, "namespace": "shop"}
    return {"apiVersion": f"{group}/v1", "kind": kind, "metadata": metadata, "spec": {"template": template, **spec}}


def pod(name: str, owner: tuple[str, str, str] | None = None, **more: Any) -> Object:
    metadata: Object = {"name": name, "namespace": "shop", "labels": {"app": name}}
    if owner:
        api_version, kind, owner_name = owner
        metadata["ownerReferences"] = [
            {"apiVersion": api_version, "kind": kind, "name": owner_name, "controller": True, "uid": "u"}
        ]
    spec = {"containers": [{"name": "c", "image": "i"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, **more}


def pods(*objects: Object) -> list[str]:
    return sorted(str(pod) for pod in NetworkModel(snapshot(objects)).pods)


def test_a_template_has_as_many_pods_as_replicas_but_at_most_two() -> None:
    assert pods(workload("Deployment", "web")) == ["shop/web-0"]
    assert pods(workload("Deployment", "web", replicas=7)) == ["shop/web-0", "shop/web-1"]
    assert pods(workload("StatefulSet", "db", replicas=0)) == []
    assert pods(workload("ReplicaSet", "rs", replicas=2)) == ["shop/rs-0", "shop/rs-1"]
    assert pods(workload("Job", "once", "batch", parallelism=2)) == ["shop/once-0", "shop/once-1"]
    job = workload("Job", "x", "batch")["spec"]
    cron = workload("CronJob", "nightly", "batch") | {"spec": {"jobTemplate": {"spec": job}}}
    assert pods(cron) == ["shop/nightly-0"]


def test_a_daemon_set_has_one_pod_per_node() -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    assert pods(workload("DaemonSet", "agent"), node) == ["shop/agent-0"]
    assert pods(workload("DaemonSet", "agent")) == ["shop/agent-0", "shop/agent-1"]


def test_a_workload_whose_pods_are_in_the_snapshot_adds_none() -> None:
    replica_set = workload("ReplicaSet", "web-abc", replicas=2)
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "controller": True, "uid": "u"}
    replica_set["metadata"]["ownerReferences"] = [owner]
    deployment = workload("Deployment", "web", replicas=2)
    assert pods(deployment, replica_set) == ["shop/web-0", "shop/web-1"]
    shown = pod("web-abc-x", ("apps/v1", "ReplicaSet", "web-abc"))
    assert pods(deployment, replica_set, shown) == ["shop/web-abc-x"]
    (replica,) = NetworkModel(snapshot([deployment, replica_set, shown])).pods
    assert str(replica.workload) == "Deployment/shop/web"
    # A workload whose owner is not in the snapshot still counts.
    assert pods(replica_set) == ["shop/web-abc-0", "shop/web-abc-1"]


def test_two_workloads_with_the_same_name_have_different_pods() -> None:
    assert pods(workload("Deployment", "web"), workload("StatefulSet", "web")) == [
        "shop/statefulset:web-0",
        "shop/web-0",
    ]
    assert pods(pod("web-0"), workload("Deployment", "web")) == ["shop/deployment:web-0", "shop/web-0"]


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("10.0.2.77/24", "10.0.2.0", "10.0.2.255"),
        ("0.0.0.0/0", "0.0.0.0", "255.255.255.255"),
        ("010.001.000.000/16", "10.1.0.0", "10.1.255.255"),
        ("fd00::1/8", "fd00::", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ],
)
def test_a_cidr_is_its_masked_range(text: str, low: str, high: str) -> None:
    span = parse_cidr(text)
    assert span is not None
    assert (format_address(span.low), format_address(span.high)) == (low, high)


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0.0",
        "10.0.0.0/33",
        "10.0.0/8",
        "x/8",
        "::/129",
        "::ffff:10.0.0.0/104",
        "10.0.0.0/-1",
        "10.0.0.0/ 8",
        7,
        None,
    ],
)
def test_an_invalid_cidr_is_refused(text: Any) -> None:
    assert parse_cidr(text) is None


def test_an_ipv4_address_written_as_ipv6_is_the_ipv4_address() -> None:
    assert parse_address("::ffff:10.0.0.1") == parse_address("10.0.0.1")
    assert parse_address("fe80::1%eth0") is None


def test_neighbouring_spans_are_joined_but_never_across_families() -> None:
    assert merge_ranges([Span(5, 9), Span(0, 4), Span(2**32 - 1, 2**32 - 1), Span(2**32, 2**32 + 1)]) == [
        Span(0, 9),
        Span(2**32 - 1, 2**32 - 1),
        Span(2**32, 2**32 + 1),
    ]


WEB, API = pod("web", status={"podIP": "10.0.0.1"}), pod("api", status={"podIP": "10.0.0.2"})


def admin(kind: str = "AdminNetworkPolicy", **spec: Any) -> Object:
    version = "v1alpha2" if kind == "ClusterNetworkPolicy" else "v1alpha1"
    whole = {"priority": 5, "subject": {"namespaces": {}}, **spec}
    return {
        "apiVersion": f"policy.networking.k8s.io/{version}",
        "kind": kind,
        "metadata": {"name": "p"},
        "spec": {key: value for key, value in whole.items() if value != "absent"},
    }


def netpol(**spec: Any) -> Object:
    metadata = {"name": "np", "namespace": "shop"}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}


def ingress_of(*policies: Object, source: Any = "shop/web") -> tuple[str, str]:
    """Return the ingress verdict for shop/api and the notes of its trace, with `fails closed: ` where it applies."""
    got = document(snapshot([WEB, API, *policies]), {"from": source, "to": "shop/api", "port": 80})
    notes = [
        ("fails closed: " if step["reason"] == "FailsClosed" else "") + step.get("note", "")
        for step in got["trace"]
        if step["direction"] == "ingress"
    ]
    return got["ingress"]["verdict"], "; ".join(filter(None, notes))


NOBODY: Object = {"namespaces": {"matchLabels": {"no": "such"}}}
BROKEN_RULES: dict[str, Object] = {
    "peer without a known field": {"from": [NOBODY, {}]},
    "peer of the future": {"from": [NOBODY, {"serviceAccounts": {}}]},
    "two fields in a peer": {"from": [{"namespaces": {}, "pods": {"podSelector": {}}}]},
    "no peers": {"from": []},
    "peers missing": {},
    "peers no list": {"from": {"namespaces": {}}},
    "peer no map": {"from": ["x"]},
    "pods without podSelector": {"from": [{"pods": {"namespaceSelector": {}}}]},
    "nested namespaces without a field": {"from": [{"pods": {"namespaces": {}, "podSelector": {}}}]},
    "flat selector inside pods.namespaces": {
        "from": [{"pods": {"namespaces": {"matchLabels": {}}, "podSelector": {}}}]
    },
    "null selector": {"from": [{"namespaces": {"namespaceSelector": None}}]},
    "misspelled selector": {"from": [{"namespaces": {"matchlabels": {"a": "b"}}}]},
    "bad operator": {"from": [{"namespaces": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}]},
    "In without values": {"from": [{"namespaces": {"matchExpressions": [{"key": "a", "operator": "In"}]}}]},
    "expressions no list": {"from": [{"namespaces": {"matchExpressions": {"key": "a"}}}]},
    "bad relation": {"from": [{"namespaces": {"related": "Other"}}]},
    "addresses on ingress": {"from": [{"networks": ["10.0.0.0/8"]}]},
    "port entry without a known field": {"from": [NOBODY], "ports": [{"portSet": 1}]},
    "no port entries": {"from": [NOBODY], "ports": []},
    "port out of range": {"from": [NOBODY], "ports": [{"portNumber": {"port": 65536}}]},
    "port as text": {"from": [NOBODY], "ports": [{"portNumber": {"port": "80"}}]},
    "range backwards": {"from": [NOBODY], "ports": [{"portRange": {"start": 9, "end": 8}}]},
    "unknown protocol": {"from": [NOBODY], "ports": [{"portNumber": {"port": 80, "protocol": "ICMP"}}]},
    "the other dialect's ports": {"from": [NOBODY], "protocols": [{"tcp": {"destinationPort": {"number": 80}}}]},
    "the other direction's peers": {"to": [NOBODY]},
}


@pytest.mark.parametrize("what", BROKEN_RULES)
def test_a_rule_that_is_not_understood_fails_closed_as_a_whole(what: str) -> None:
    rule = BROKEN_RULES[what]
    for action in ("Deny", "Pass"):
        verdict, note = ingress_of(admin(ingress=[{"action": action, **rule}]))
        assert verdict == "Deny"
        assert note.startswith("fails closed: ")
        assert ingress_of(admin(ingress=[{"action": action, **rule}]), source={"ip": "203.0.113.7"})[0] == "Deny"
    behind = {"action": "Deny", "from": [{"namespaces": {}}]}
    assert ingress_of(admin(ingress=[{"action": "Allow", **rule}, behind]))[0] == "Deny"
    assert ingress_of(admin(ingress=[{"action": "Allow", **rule}]))[0] == "Allow"


@pytest.mark.parametrize(
    "rule", [{"action": "Permit", "from": [NOBODY]}, {"from": [NOBODY]}, {"action": ["Allow"]}, "x", None]
)
def test_a_rule_without_a_known_action_denies(rule: Any) -> None:
    assert ingress_of(admin(ingress=[rule]))[0] == "Deny"


@pytest.mark.parametrize(
    "spec",
    [
        {"subject": "absent"},
        {"subject": {}},
        {"subject": {"serviceAccounts": {}}},
        {"subject": {"namespaceSelector": {}}},
        {"subject": {"pods": {"namespaceSelector": {}, "podSelector": {"matchLabel": {}}}}},
        {"priority": "absent"},
        {"priority": "10"},
        {"kind": "ClusterNetworkPolicy", "tier": "Platform"},
    ],
)
def test_a_policy_whose_subject_or_precedence_is_not_understood_only_denies(spec: Object) -> None:
    rules: list[Object] = [{"action": action, "from": [{"namespaces": {}}]} for action in ("Pass", "Allow", "Deny")]
    for rule in rules:
        written = {**rule, "action": "Accept"} if "kind" in spec and rule["action"] == "Allow" else rule
        verdict, _ = ingress_of(admin(**{**spec, "ingress": [written]}))
        assert verdict == ("Allow" if rule["action"] == "Allow" else "Deny")
    # Its peers still count: it denies only those.
    assert ingress_of(admin(**{**spec, "ingress": [{"action": "Deny", "from": [NOBODY]}]}))[0] == "Allow"


@pytest.mark.parametrize(
    "rule",
    [
        {"from": [{}]},
        {"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}]},
        {"from": [{"ipBlock": {"cidr": "nonsense"}}]},
        {"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["x"]}}]},
        {"from": {"podSelector": {}}},
        {"from": ""},
        {"from": [{"podSelector": {"matchLabels": {"app": 1}}}]},
        {"ports": [{"port": 80, "endPort": 79}]},
        {"ports": [{"endPort": 79}]},
        {"ports": [{"port": "web", "endPort": 90}]},
        {"ports": [{"port": 0}]},
        {"ports": [{"protocol": "tcp"}]},
        {"ports": {"port": 80}},
        {"to": [{"podSelector": {}}]},
        "everything",
    ],
)
def test_a_network_policy_rule_that_is_not_understood_allows_nothing(rule: Any) -> None:
    assert ingress_of(netpol(podSelector={}, ingress=[rule]))[0] == "Deny"
    assert ingress_of(netpol(podSelector={}, ingress=[rule, {}]))[0] == "Allow"


@pytest.mark.parametrize(
    "selector", ["", [], {"matchLabel": {}}, {"matchExpressions": [{"key": "a", "operator": "in"}]}]
)
def test_a_network_policy_whose_pods_are_not_understood_isolates_its_namespace(selector: Any) -> None:
    verdict, note = ingress_of(netpol(podSelector=selector, ingress=[{}]))
    assert verdict == "Deny"
    assert "the pods cannot be understood" in note


def test_a_network_policy_with_unknown_types_isolates_both_directions() -> None:
    got = document(
        snapshot([WEB, API, netpol(podSelector={}, policyTypes=["ingress"])]),
        {"from": "shop/web", "to": "shop/api", "port": 80},
    )
    assert (got["egress"]["verdict"], got["ingress"]["verdict"]) == ("Deny", "Deny")


def test_a_known_field_beside_an_unknown_one_counts() -> None:
    rule = {"action": "Deny", "from": [{"namespaces": {}, "comment": "x"}]}
    assert ingress_of(admin(ingress=[rule])) == ("Deny", "")
