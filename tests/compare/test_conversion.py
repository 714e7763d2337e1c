"""Converted policies are admitted, decide alike, or the difference is reported (docs/compare.md#convert)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tests.reference import network as reference
from tests.reference.cluster import Cluster
from tests.worlds.network_clusters import PORTS, PROTOCOLS, clusters, endpoints, pods
from tests.worlds.network_objects import admin, namespace, network_policy, pod, rule
from tests.worlds.network_snapshots import snapshot
from tierwall.analyze.conversion import KINDS, ConversionResult, convert
from tierwall.cli.main import root
from tierwall.loading import loads
from tierwall.resources.load import load_objects
from tierwall.resources.validity import objections
from tierwall.world import World

Object = dict[str, Any]
ADMIN = ("AdminNetworkPolicy", "BaselineAdminNetworkPolicy")
SHOP = {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}
MONITORING = {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}
EVERY_POD: Object = {"namespaces": {}}


def verdicts(objects: Sequence[Object], ends: list[Any]) -> dict[Any, str]:
    """Decide every connection between some endpoints with the reference model."""
    cluster = Cluster(list(objects))
    return {
        (number, other, protocol, port): reference.decide(cluster, source, destination, protocol, port)["verdict"]
        for number, source in enumerate(ends)
        for other, destination in enumerate(ends)
        if number != other
        for protocol in PROTOCOLS
        for port in (*PORTS, 9)
    }


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(60), deadline=None)
@given(objects=clusters(most_policies=4), later=st.lists(pods("later"), max_size=1))
def test_a_conversion_decides_alike_or_says_what_changes(kind: str, objects: list[Object], later: list[Object]) -> None:
    conversion = convert(snapshot(objects), kind)
    compared = conversion.compare()
    dropped = ADMIN if kind == "ClusterNetworkPolicy" else (*ADMIN, "ClusterNetworkPolicy")
    converted = [*(value for value in objects if value["kind"] not in dropped), *conversion.manifests]
    ends = endpoints(objects)
    assert compared.given or verdicts(objects, ends) == verdicts(converted, ends)
    if not compared.given and not compared.future and compared.is_complete:
        more = [*ends, *(f"{value['metadata']['namespace']}/later" for value in later)]
        assert verdicts([*objects, *later], more) == verdicts([*converted, *later], more)
    for resource in load_objects(list(conversion.manifests)):
        assert objections(conversion.after, resource) == []


def converted(kind: str, *objects: Object) -> ConversionResult:
    return convert(snapshot(objects), kind)


def test_an_admin_network_policy_becomes_a_cluster_network_policy() -> None:
    policy = admin(
        "guard",
        {
            "name": "web",
            "action": "Allow",
            "from": [{"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "web"}}}}],
            "ports": [
                {"portNumber": {"port": 80}},
                {"portRange": {"protocol": "UDP", "start": 5, "end": 9}},
                {"portRange": {"start": 7, "end": 7}},
                {"namedPort": "http"},
            ],
        },
        {"action": "Pass", "from": [{"namespaces": {"namespaceSelector": SHOP}}]},
        priority=7,
        egress=[{"action": "Deny", "to": [{"networks": ["10.1.2.3/8"]}, {"nodes": {}}]}],
    )
    policy["metadata"] |= {"labels": {"team": "a"}, "annotations": {"why": "x"}, "uid": "u"}
    conversion = converted("ClusterNetworkPolicy", pod("shop", "a", app="web"), policy)
    assert list(conversion.manifests) == [
        {
            "apiVersion": "policy.networking.k8s.io/v1alpha2",
            "kind": "ClusterNetworkPolicy",
            "metadata": {"name": "guard", "labels": {"team": "a"}, "annotations": {"why": "x"}},
            "spec": {
                "tier": "Admin",
                "priority": 7,
                "subject": {"namespaces": {}},
                "ingress": [
                    {
                        "name": "web",
                        "action": "Accept",
                        "from": [{"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "web"}}}}],
                        "protocols": [
                            {"tcp": {"destinationPort": {"number": 80}}},
                            {"udp": {"destinationPort": {"range": {"start": 5, "end": 9}}}},
                            {"tcp": {"destinationPort": {"number": 7}}},
                            {"destinationNamedPort": "http"},
                        ],
                    },
                    {"action": "Pass", "from": [{"namespaces": SHOP}]},
                ],
                "egress": [{"action": "Deny", "to": [{"networks": ["10.0.0.0/8"]}, {"nodes": {}}]}],
            },
        }
    ]
    assert conversion.compare().is_proven


def test_the_baseline_comes_last_and_gets_another_name_if_its_own_is_taken() -> None:
    policy = admin("other", rule("Allow", **EVERY_POD))
    policies = {**policy, "metadata": {"name": "default"}}, admin("default", rule("Deny", **EVERY_POD))
    conversion = converted("ClusterNetworkPolicy", pod("shop", "a"), *policies)
    named = {manifest["metadata"]["name"]: manifest["spec"] for manifest in conversion.manifests}
    assert {name: (spec["tier"], spec["priority"]) for name, spec in named.items()} == {
        "default": ("Admin", 5),
        "default-baseline": ("Baseline", 1000),
    }
    assert conversion.compare().is_proven


def test_a_rule_with_too_many_peers_and_ports_becomes_several() -> None:
    peers = [{"namespaces": {"matchLabels": {"n": str(number)}}} for number in range(30)]
    ports = [{"portNumber": {"port": number + 1}} for number in range(40)]
    wide = {"name": "wide", "action": "Allow", "from": peers, "ports": ports}
    conversion = converted("ClusterNetworkPolicy", pod("shop", "a"), admin("a", wide))
    (manifest,) = conversion.manifests
    assert [entry["name"] for entry in manifest["spec"]["ingress"]] == ["wide-1", "wide-2", "wide-3", "wide-4"]
    assert conversion.compare().is_proven


@pytest.mark.parametrize(
    ("kind", "policy", "why"),
    [
        (
            "ClusterNetworkPolicy",
            admin("a", {"action": "Deny", "from": [{"namespaces": {"sameLabels": ["tenant"]}}]}),
            "a ClusterNetworkPolicy cannot compare namespaces (`sameLabels`)",
        ),
        (
            "ClusterNetworkPolicy",
            admin("a", *([rule("Deny", 1, **EVERY_POD), rule("Pass", 2, **EVERY_POD)] * 13)),
            "it has 26 ingress rules, and a ClusterNetworkPolicy at most 25",
        ),
        ("NetworkPolicy", admin("a", rule("Pass", **EVERY_POD)), "a NetworkPolicy cannot pass on"),
        (
            "NetworkPolicy",
            admin("a", rule("Deny", 80, **EVERY_POD)),
            "a NetworkPolicy cannot deny some connections and leave others open",
        ),
        (
            "NetworkPolicy",
            admin(
                "a",
                egress=[{"action": "Allow", "to": [{"nodes": {}}]}, {"action": "Deny", "to": [EVERY_POD]}],
            ),
            "a NetworkPolicy has no `nodes`",
        ),
        (
            "NetworkPolicy",
            admin(
                "a",
                egress=[
                    {"action": "Allow", "to": [{"domainNames": ["example.org"]}]},
                    {"action": "Deny", "to": [EVERY_POD]},
                ],
            ),
            "a NetworkPolicy has no `domainNames`",
        ),
    ],
)
def test_what_cannot_be_said_is_named_and_left_out(kind: str, policy: Object, why: str) -> None:
    conversion = converted(kind, pod("shop", "a"), policy)
    assert conversion.manifests == ()
    (problem,) = conversion.problems
    assert problem.code == "TW710"
    assert why in problem.message


def test_allow_rules_and_a_deny_of_every_pod_become_a_network_policy_per_namespace() -> None:
    tenants = [namespace("red", tenant="r"), namespace("blue", tenant="b"), namespace("plain")]
    policy = admin(
        "tenants",
        {"action": "Allow", "from": [{"namespaces": {"sameLabels": ["tenant"]}}]},
        {"action": "Allow", "from": [{"namespaces": {"related": "Self"}}], "ports": [{"namedPort": "web"}]},
        rule("Deny", **EVERY_POD),
        subject={"namespaces": {"matchExpressions": [{"key": "tenant", "operator": "Exists"}]}},
    )
    conversion = converted("NetworkPolicy", *tenants, pod("red", "a"), pod("blue", "a"), pod("plain", "a"), policy)
    red = next(manifest for manifest in conversion.manifests if manifest["metadata"]["namespace"] == "red")
    assert {manifest["metadata"]["namespace"] for manifest in conversion.manifests} == {"red", "blue"}
    assert red["spec"] == {
        "podSelector": {},
        "policyTypes": ["Ingress"],
        "ingress": [
            {"from": [{"namespaceSelector": {"matchLabels": {"tenant": "r"}}}]},
            {
                "from": [{"podSelector": {}}],
                "ports": [{"protocol": protocol, "port": "web"} for protocol in ("TCP", "UDP", "SCTP")],
            },
        ],
    }
    compared = conversion.compare()
    # A NetworkPolicy also keeps out what comes from outside, and a namespace made later has none.
    assert {str(entry.sources) for entry in compared.given} == {"outside"}
    assert any("in a namespace with tenant" in str(entry.destinations) for entry in compared.future)


def test_an_allow_is_added_to_the_pods_that_are_isolated_and_to_no_others() -> None:
    world = (
        pod("shop", "db", app="db"),
        pod("shop", "web", app="web"),
        pod("monitoring", "prom"),
        network_policy("db", podSelector={"matchLabels": {"app": "db"}}),
        admin("monitoring", rule("Allow", 9090, namespaces=MONITORING)),
    )
    conversion = converted("NetworkPolicy", *world)
    (manifest,) = conversion.manifests
    assert manifest["metadata"] == {"name": "monitoring", "namespace": "shop"}
    assert manifest["spec"]["podSelector"] == {"matchLabels": {"app": "db"}}
    compared = conversion.compare()
    assert not compared.is_proven
    assert (compared.given, compared.future, compared.is_complete) == ((), (), True)


def test_an_allow_of_the_baseline_opens_nothing_that_a_network_policy_isolates() -> None:
    conversion = converted(
        "NetworkPolicy",
        pod("shop", "db", app="db"),
        pod("shop", "web"),
        network_policy("db", podSelector={"matchLabels": {"app": "db"}}),
        admin("default", rule("Allow", **EVERY_POD)),
    )
    assert conversion.manifests == ()
    assert conversion.compare().given == ()


def run(tmp_path: Path, to: str, *objects: Object) -> Result:
    (tmp_path / "all.json").write_text("\n".join(json.dumps(value) for value in objects))
    return CliRunner().invoke(root, ["convert", str(tmp_path), "--to", to])


def test_the_command_prints_manifests_that_can_be_read_again(tmp_path: Path) -> None:
    result = run(tmp_path, "ClusterNetworkPolicy", pod("shop", "a"), admin("guard", rule("Deny", 80, **EVERY_POD)))
    assert result.exit_code == 0
    assert result.stderr.splitlines() == ["1 of 1 policies converted", "nothing changes, for all pods"]
    world = loads(result.stdout)
    assert isinstance(world, World)
    assert [str(resource.reference) for resource in world.objects()] == ["ClusterNetworkPolicy/guard"]
    assert world.diagnostics == ()


def test_the_command_says_what_changes_and_where(tmp_path: Path) -> None:
    policy = admin("guard", {"action": "Deny", "from": [{"namespaces": {"related": "NotSelf"}}]})
    result = run(tmp_path, "ClusterNetworkPolicy", pod("shop", "a"), pod("b", "b"), policy)
    assert result.exit_code == 4
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[0].endswith(
        "warning[TW710]: AdminNetworkPolicy/guard ingress[0] cannot be part of a ClusterNetworkPolicy: a "
        "ClusterNetworkPolicy cannot compare namespaces (`related: NotSelf`); the policy is left out"
    )
    assert lines[0].startswith(f"{tmp_path}/all.json:3:")
    assert lines[1:4] == ["0 of 1 policies converted", "what changes for the given pods:", "+ shop/a => b/b : all"]


def test_without_policies_there_is_nothing_to_do(tmp_path: Path) -> None:
    result = run(tmp_path, "NetworkPolicy", pod("shop", "a"))
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "there are no policies to convert\n"
    document = CliRunner().invoke(root, ["convert", str(tmp_path), "--to", "NetworkPolicy", "-o", "json"])
    assert json.loads(document.stdout) == {"apiVersion": "v1", "kind": "List", "items": []}


def test_policies_of_other_systems_are_named_and_nothing_spoils_the_manifests(tmp_path: Path) -> None:
    foreign = {"apiVersion": "cilium.io/v2", "kind": "CiliumClusterwideNetworkPolicy", "metadata": {"name": "x"}}
    policy = admin("guard", rule("Deny", **EVERY_POD))
    result = run(tmp_path, "ClusterNetworkPolicy", pod("shop", "a"), policy, {**foreign, "spec": {}})
    assert result.exit_code == 0
    assert result.stderr.splitlines()[-1].startswith("not considered: 1 CiliumClusterwideNetworkPolicy (")
    assert "Cilium" not in result.stdout
    result = CliRunner().invoke(root, ["convert", str(tmp_path), "--to", "ClusterNetworkPolicy", "--strict"])
    assert result.exit_code == 6
