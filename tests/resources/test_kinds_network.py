"""The network kinds: NetworkPolicy as Kubernetes' Go validation has it, the administrators' kinds in both dialects."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tierwall.resources.admission import admit

ONE_BASELINE = (
    '<nil>: Invalid value: Only one baseline admin network policy with metadata.name="default" can be created in '
    "the cluster"
)
KEP = Path(__file__).resolve().parent.parent / "fixtures" / "kep-2091"


def network_policy(**spec: Any) -> dict[str, Any]:
    head = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "x"}}
    return head | {"spec": {"podSelector": {}} | spec}


def port(**entry: Any) -> dict[str, Any]:
    return network_policy(ingress=[{"ports": [entry]}])


def peer(**entry: Any) -> dict[str, Any]:
    return network_policy(ingress=[{"from": [entry]}])


def refusals(document: dict[str, Any]) -> list[str]:
    return [problem.message for problem in admit(document) if problem.refuses]


def warnings(document: dict[str, Any]) -> list[str]:
    return [problem.message for problem in admit(document) if not problem.refuses]


PORT = "spec.ingress[0].ports[0]"
PEER = "spec.ingress[0].from[0]"
NETWORK_POLICY = {
    "port beyond the last": (
        port(port=65536),
        f"{PORT}.port: Invalid value: 65536: must be between 1 and 65535, inclusive",
    ),
    "port zero": (port(port=0), f"{PORT}.port: Invalid value: 0: must be between 1 and 65535, inclusive"),
    "name without a letter": (
        port(port="80"),
        f'{PORT}.port: Invalid value: "80": must contain at least one letter (a-z)',
    ),
    "end before the beginning": (
        port(port=10, endPort=9),
        f"{PORT}.endPort: Invalid value: 9: must be greater than or equal to `port`",
    ),
    "end of a named port": (
        port(port="http", endPort=90),
        f"{PORT}.endPort: Invalid value: 90: may not be specified when `port` is non-numeric",
    ),
    "end without a port": (
        port(endPort=90),
        f"{PORT}.endPort: Invalid value: 90: may not be specified when `port` is not specified",
    ),
    "protocol": (
        port(protocol="ICMP"),
        f'{PORT}.protocol: Unsupported value: "ICMP": supported values: "TCP", "UDP", "SCTP"',
    ),
    "empty peer": (peer(), f"{PEER}: Required value: must specify a peer"),
    "addresses and pods": (
        peer(ipBlock={"cidr": "10.0.0.0/8"}, podSelector={}),
        f"{PEER}: Forbidden: may not specify both ipBlock and another peer",
    ),
    "no CIDR": (
        peer(ipBlock={"cidr": "10.0.0.1"}),
        f'{PEER}.ipBlock.cidr: Invalid value: "10.0.0.1": must be a valid CIDR value, '
        "(e.g. 10.9.8.0/24 or 2001:db8::/64)",
    ),
    "exception outside": (
        peer(ipBlock={"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16", "11.0.0.0/16"]}),
        f'{PEER}.ipBlock.except[1]: Invalid value: "11.0.0.0/16": must be a strict subset of `cidr`',
    ),
    "exception of everything": (
        peer(ipBlock={"cidr": "10.0.0.0/8", "except": ["10.0.0.0/8"]}),
        f'{PEER}.ipBlock.except[0]: Invalid value: "10.0.0.0/8": must be a strict subset of `cidr`',
    ),
    "exception of the other family": (
        peer(ipBlock={"cidr": "10.0.0.0/8", "except": ["::/96"]}),
        f'{PEER}.ipBlock.except[0]: Invalid value: "::/96": must be a strict subset of `cidr`',
    ),
    "direction": (
        network_policy(policyTypes=["Inbound"]),
        'spec.policyTypes[0]: Unsupported value: "Inbound": supported values: "Ingress", "Egress"',
    ),
    "three directions": (
        network_policy(policyTypes=["Ingress", "Egress", "Ingress"]),
        'spec.policyTypes: Invalid value: ["Ingress","Egress","Ingress"]: may not specify more than two policyTypes',
    ),
    "In without values": (
        network_policy(podSelector={"matchExpressions": [{"key": "a", "operator": "In"}]}),
        "spec.podSelector.matchExpressions[0].values: Required value: "
        "must be specified when `operator` is 'In' or 'NotIn'",
    ),
    "Exists with values": (
        network_policy(podSelector={"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}),
        "spec.podSelector.matchExpressions[0].values: Forbidden: "
        "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
    ),
    "operator": (
        network_policy(podSelector={"matchExpressions": [{"key": "a", "operator": "in", "values": ["b"]}]}),
        'spec.podSelector.matchExpressions[0].operator: Invalid value: "in": not a valid selector operator',
    ),
}


@pytest.mark.parametrize("name", NETWORK_POLICY)
def test_a_network_policy_is_refused_as_by_kubernetes(name: str) -> None:
    document, message = NETWORK_POLICY[name]
    assert refusals(document) == [message]


@pytest.mark.parametrize(
    "document",
    [
        network_policy(),
        network_policy(ingress=[{}], egress=[]),
        port(),
        port(port=1, endPort=65535),
        port(protocol="SCTP", port="a-b"),
        peer(podSelector={}, namespaceSelector={}),
        peer(ipBlock={"cidr": "2001:db8::/32", "except": ["2001:db8:1::/48"]}),
        {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"generateName": "x-"}},
    ],
)
def test_policies_that_kubernetes_accepts_are_accepted(document: dict[str, Any]) -> None:
    assert admit(document) == []


def test_host_bits_of_a_cidr_are_a_warning() -> None:
    document = peer(ipBlock={"cidr": "10.0.0.1/8"})
    assert refusals(document) == []
    assert len(warnings(document)) == 1


def admin(peers: list[Any], direction: str = "ingress", **more: Any) -> dict[str, Any]:
    rule = {"action": "Allow", {"ingress": "from", "egress": "to"}[direction]: peers} | more
    return {
        "apiVersion": "policy.networking.k8s.io/v1alpha1",
        "kind": "AdminNetworkPolicy",
        "metadata": {"name": "x"},
        "spec": {"priority": 1, "subject": {"namespaces": {}}, direction: [rule]},
    }


@pytest.mark.parametrize(
    "peer",
    [
        {"namespaces": {}},
        {"namespaces": {"matchLabels": {"a": "b"}}},
        {"namespaces": {"namespaceSelector": {}}},
        {"namespaces": {"sameLabels": ["tenant"]}},
        {"namespaces": {"notSameLabels": ["tenant"]}},
        {"namespaces": {"related": "Self"}},
        {"pods": {"namespaceSelector": {}, "podSelector": {}}},
        {"pods": {"namespaces": {"related": "NotSelf"}, "podSelector": {}}},
        {"pods": {"namespaces": {"sameLabels": []}, "podSelector": {"matchLabels": {"a": "b"}}}},
    ],
)
def test_flat_and_nested_peers_are_both_accepted(peer: dict[str, Any]) -> None:
    assert admit(admin([peer])) == []
    assert admit(admin([peer], "egress")) == []


@pytest.mark.parametrize(
    ("peer", "words"),
    [
        ({}, "should have at least 1 properties"),
        ({"foo": {}}, 'unknown field "spec.ingress[0].from[0].foo"'),
        ({"networks": ["10.0.0.0/8"]}, "unknown field"),  # no addresses on ingress
        ({"namespaces": {"related": "Self", "sameLabels": ["a"]}}, "at most one of the fields in [namespaceSelector"),
        ({"namespaces": {"matchLabels": {}, "related": "Self"}}, "may not be mixed with"),
        ({"namespaces": {"related": "Other"}}, "must be Self or NotSelf"),
        ({"pods": {"namespaces": {}, "podSelector": {}}}, "should have at least 1 properties"),
        ({"pods": {"podSelector": {}}}, "pods.namespaceSelector: Required value"),
        ({"pods": {"namespaceSelector": {}}}, "pods.podSelector: Required value"),
        ({"namespaces": {}, "pods": {"namespaceSelector": {}, "podSelector": {}}}, "must have at most 1 item"),
    ],
)
def test_a_peer_that_says_nothing_or_too_much_is_refused(peer: dict[str, Any], words: str) -> None:
    assert any(words in message for message in refusals(admin([peer])))


def test_related_is_read_in_any_case_with_a_warning() -> None:
    document = admin([{"namespaces": {"related": "self"}}])
    assert refusals(document) == []
    assert warnings(document) == [
        'spec.ingress[0].from[0].namespaces.related: Invalid value: "self": '
        "is accepted in any case, but should be written Self or NotSelf"
    ]


def test_named_ports_have_no_meaning_for_addresses() -> None:
    document = admin([{"networks": ["10.0.0.0/8"]}], "egress", ports=[{"namedPort": "web"}])
    assert refusals(document) == [
        "spec.egress[0]: Invalid value: networks/nodes/domainNames peer cannot be set with namedPorts "
        "since there are no namedPorts for networks/nodes/domainNames"
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ports": [{"portRange": {"start": 9, "end": 2}}]}, "start is greater than end"),
        ({"ports": [{"portNumber": {"port": 1, "protocol": "ICMP"}}]}, "not TCP, UDP or SCTP"),
        ({"action": "Deny", "to": [{"domainNames": ["a.b"]}]}, "only meant for Allow rules"),
        ({"to": [{"namespaces": {"matchExpressions": [{"key": "a", "operator": "Has"}]}}]}, "not a valid selector"),
    ],
)
def test_a_mistake_that_no_crd_forbids_is_a_warning(changes: dict[str, Any], words: str) -> None:
    document = admin([{"namespaces": {}}], "egress", **changes)
    assert refusals(document) == []
    assert any(words in message for message in warnings(document))


def test_a_baseline_has_one_name_and_two_actions() -> None:
    document = admin([{"namespaces": {}}]) | {"kind": "BaselineAdminNetworkPolicy"}
    del document["spec"]["priority"]
    assert refusals(document) == [ONE_BASELINE]
    document["metadata"]["name"] = "default"
    assert refusals(document) == []
    document["spec"]["ingress"][0]["action"] = "Pass"
    assert refusals(document) == [
        'spec.ingress[0].action: Unsupported value: "Pass": supported values: "Allow", "Deny"'
    ]


def test_a_cluster_network_policy_has_tiers_and_protocols() -> None:
    document = {
        "apiVersion": "policy.networking.k8s.io/v1alpha2",
        "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "x"},
        "spec": {
            "tier": "Baseline",
            "priority": 0,
            "subject": {"pods": {"podSelector": {}}},
            "egress": [
                {
                    "action": "Accept",
                    "to": [{"networks": ["::/0"]}],
                    "protocols": [{"tcp": {"destinationPort": {"range": {"start": 2, "end": 2}}}}],
                }
            ],
        },
    }
    place = "spec.egress[0].protocols[0].tcp.destinationPort.range"
    assert refusals(document) == [f"{place}: Invalid value: Start port must be less than End port"]


BROKEN = {
    "self-example.yaml": [
        ("metadata.name: Required value: name or generateName is required", ""),
        ('unknown field "spec.subject.namespaceSelector"', "did you mean `namespaces`?"),
    ],
    "story-2.yaml": [
        (
            'unknown field "spec.egress[0].to[0].pods.namespaces.namespaceSelector.matchlabels"',
            "did you mean `matchLabels`?",
        ),
        ('unknown field "spec.egress[0].to[0].pods.podSelector.matchlabels"', "did you mean `matchLabels`?"),
    ],
    "story-3.yaml": [
        (
            'spec.egress[0].ports: Invalid value: "object": spec.egress[0].ports in body must be of type array: '
            '"object"',
            "write a list such as `[{portNumber: {protocol: TCP, port: 8080}}]`",
        )
    ],
    "story-5.yaml": [
        (
            ONE_BASELINE,
            "name it `default`",
        ),
        (
            'unknown field "spec.egress[0].to[0].namespaces.namespaceSeletor"',
            "did you mean `namespaceSelector`?",
        ),
    ],
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_broken_samples_of_the_kep_are_refused_with_a_hint(name: str) -> None:
    document = yaml.safe_load((KEP / "broken" / name).read_text())
    refused = [(problem.message, problem.hint) for problem in admit(document) if problem.refuses]
    assert sorted(refused) == sorted(BROKEN[name])


@pytest.mark.parametrize("name", ["same-labels-example.yaml", "story-4.yaml", "story-4-with-pass.yaml"])
def test_a_semicolon_in_a_flow_mapping_is_not_yaml(name: str) -> None:
    with pytest.raises(yaml.YAMLError):
        yaml.safe_load((KEP / "broken" / name).read_text())
    mended = yaml.safe_load((KEP / "broken" / name).read_text().replace("; operator", ", operator"))
    assert refusals(mended)
    hinted = any(problem.hint == "write a list of `{key, operator, values}`" for problem in admit(mended))
    assert hinted is (name != "same-labels-example.yaml")


@pytest.mark.parametrize("path", sorted((KEP / "corrected").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_corrected_samples_of_the_kep_are_accepted(path: Path) -> None:
    assert admit(yaml.safe_load(path.read_text())) == []


def test_an_error_does_not_hide_behind_warnings() -> None:
    policy = {
        "apiVersion": "policy.networking.k8s.io/v1alpha1",
        "kind": "AdminNetworkPolicy",
        "metadata": {"name": "crowded"},
        "spec": {
            "priority": 1,
            "subject": {"namespaces": {"matchExpressions": [{"key": "a", "operator": "Nope"}] * 300}},
            "ingress": [{"action": "Bogus", "from": [{"namespaces": {}}]}],
        },
    }
    problems = admit(policy)
    assert len(problems) == 200
    assert problems[0].refuses
