"""Objects that no cluster would have are named in every answer that they could change (docs/reference/sources.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

import tierwall
from tests.worlds import gateway_objects as gateway
from tests.worlds import tool_objects as tool
from tests.worlds.network_objects import namespace, pod
from tierwall.cli.main import root
from tierwall.resources.kinds.registry import all_kinds, read_data

Object = dict[str, Any]
PODS = (pod("shop", "web"), pod("shop", "db"), pod("bank", "vault"))
ISOLATED = "refused by an API server; here selected pods are isolated, and what cannot be read allows nothing"
MEANT = "refused by an API server and left out here: did you mean `NetworkPolicy`?"


def named(api_version: str, kind: str, name: str, namespace: str = "", **more: Any) -> Object:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **more}


def network_policy(name: str = "bad", namespace: str = "shop", **spec: Any) -> Object:
    return named("networking.k8s.io/v1", "NetworkPolicy", name, namespace, spec=spec)


def lines(answer: tierwall.Answer) -> list[str]:
    return [f"{omission.reason} {omission.kind} {omission.count}" for omission in answer.not_considered]


def network(*objects: Object, to: str = "shop/db") -> list[str]:
    world = tierwall.load(objects=(*PODS, *objects))
    return lines(world.ask(tierwall.NetworkQuestion(source="shop/web", to=to, port=80)))


def test_an_invalid_policy_is_named_where_it_could_matter() -> None:
    here, elsewhere = network_policy(podSelectr={}), network_policy(namespace="bank", podSelectr={})
    assert network(here) == ["invalid NetworkPolicy 1"]
    assert network(elsewhere) == []
    assert network(here, elsewhere, to="bank/vault") == ["invalid NetworkPolicy 2"]
    assert network(network_policy(podSelector={})) == []


def test_an_invalid_policy_of_administrators_always_matters() -> None:
    spec = {"priority": 5000, "subject": {"namespaces": {}}}
    bad = named("policy.networking.k8s.io/v1alpha1", "AdminNetworkPolicy", "bad", spec=spec)
    assert network(bad) == ["invalid AdminNetworkPolicy 1"]


def test_the_effect_says_how_the_object_is_judged() -> None:
    world = tierwall.load(objects=(*PODS, network_policy(podSelectr={})))
    (omission,) = world.ask(tierwall.NetworkQuestion(source="shop/web", to="shop/db", port=80)).not_considered
    assert omission.effect == ISOLATED
    assert [str(reference) for reference in omission.examples] == ["NetworkPolicy/shop/bad"]


def test_a_misspelled_kind_is_named_where_it_could_matter() -> None:
    typo = named("networking.k8s.io/v1", "NetworkPolcy", "a", "shop", spec={"podSelector": {}})
    assert network(typo) == ["invalid NetworkPolcy 1"]
    assert network({**typo, "metadata": {"name": "a", "namespace": "bank"}}) == []
    world = tierwall.load(objects=(*PODS, typo))
    assert [omission.effect for omission in world.not_considered] == [MEANT]
    # A Gateway decides about no connection.
    assert network(named("gateway.networking.k8s.io/v1", "Gatway", "g", "shop")) == []


def test_a_kind_with_a_definition_is_not_misspelled() -> None:
    names = {"kind": "NetworkPolcy", "plural": "networkpolcies", "singular": "networkpolcy", "listKind": "PolcyList"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    spec = {"group": "networking.k8s.io", "names": names, "scope": "Namespaced", "versions": [version]}
    crd = named("apiextensions.k8s.io/v1", "CustomResourceDefinition", "networkpolcies.networking.k8s.io", spec=spec)
    crd["metadata"]["annotations"] = {"api-approved.kubernetes.io": "unapproved"}
    assert network(crd, named("networking.k8s.io/v1", "NetworkPolcy", "a", "shop")) == []


def test_a_policy_in_a_version_that_is_not_served_is_named() -> None:
    old = {**network_policy(podSelector={}), "apiVersion": "extensions/v1beta1"}
    assert network(old) == ["version NetworkPolicy 1"]
    assert network({**old, "metadata": {"name": "old", "namespace": "bank"}}) == []
    (omission,) = tierwall.load(objects=[old]).not_considered
    assert omission.group == "extensions"
    assert omission.effect == "not served by any supported API server as `extensions/v1beta1`; left out here"


def test_pods_and_namespaces_are_named_if_the_question_is_about_them() -> None:
    assert network(pod("shop", "db", app="no label!")) == ["invalid Pod 1"]
    assert network(pod("shop", "other", app="no label!")) == []
    assert network(namespace("shop", team="no label!")) == ["invalid Namespace 1"]
    assert network(namespace("bank", team="no label!")) == []
    template = {"metadata": {"labels": {"app": 1}}}
    deployment = named("apps/v1", "Deployment", "api", "shop", spec={"template": template, "replicas": 1})
    assert network(deployment, to="shop/api-0") == ["invalid Deployment 1"]
    # A world as a whole, and `check`, is about all of them.
    assert [omission.kind for omission in tierwall.load(objects=[deployment]).not_considered] == ["Deployment"]


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"name": "db", "namespace": "shop", "labels": {"app": 1}}},
        {"metadata": {"name": "db", "namespace": "shop", "labels": {"a b": "c"}}},
        {"metadata": {"name": "db", "namespace": "shop", "labels": []}},
        {"spec": {"containers": 5}},
        {"spec": {"containers": [5]}},
        {"spec": {"containers": [{"ports": {}}]}},
        {"spec": {"containers": [{"ports": [{"containerPort": "80"}]}]}},
        {"spec": {"hostNetwork": "yes"}},
        {"spec": []},
    ],
)
def test_whatever_is_odd_about_a_pod_is_judged(change: Object) -> None:
    assert network({**pod("shop", "db"), **change}) == ["invalid Pod 1"]


def test_api_answers_name_roles_that_grant_nothing() -> None:
    role = named("rbac.authorization.k8s.io/v1", "Role", "r", "shop", rules=[{"verbs": "get"}])
    world = tierwall.load(objects=[role])
    question = tierwall.ApiQuestion(user="alice", verb="get", resource="pods", namespace="shop")
    assert lines(world.ask(question)) == ["invalid Role 1"]
    assert lines(world.ask(tierwall.ApiQuestion(user="alice", verb="get", resource="pods", namespace="bank"))) == []


def test_tool_answers_name_policies_that_close_their_targets() -> None:
    world = tierwall.load(objects=tool.guarded({"source": tool.sa(), "nonsense": 1}))
    answer = world.ask(tierwall.ToolQuestion(gateway="prod/prod-gateway", backend="prod/payment-service"))
    assert lines(answer) == ["invalid XAccessPolicy 1"]


def test_gateway_answers_name_policies_that_set_nothing() -> None:
    bad = gateway.policy("bad", "Gateway/gw", nonsense=1)
    world = tierwall.load(objects=[gateway.gateway("gw"), bad])
    assert lines(world.effective(gateway="ns/gw")) == ["invalid AgentgatewayPolicy 1"]


@pytest.mark.parametrize(
    "command",
    [
        ("explain", "network", "--from", "shop/web", "--to", "shop/db", "--port", "80"),
        ("list",),
        ("check",),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_every_command_names_them(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump_all([*PODS, network_policy(podSelectr={})]))
    text = CliRunner().invoke(root, [*command, "-f", str(tmp_path)])
    assert f"not considered: 1 NetworkPolicy ({ISOLATED}), first {tmp_path}/a.yaml:" in text.stdout
    output = CliRunner().invoke(root, [*command, "-f", str(tmp_path), "-o", "json"])
    (entry,) = json.loads(output.stdout)["notConsidered"]
    assert (entry["reason"], entry["kind"]) == ("invalid", "NetworkPolicy")
    assert entry["examples"] == ["NetworkPolicy/shop/bad"]
    assert CliRunner().invoke(root, [*command, "-f", str(tmp_path), "--strict"]).exit_code == 6


def test_every_kind_of_ours_is_read_by_a_plane() -> None:
    lines = (line for line in read_data("planes.json") if line.get("judged", True))
    table = {(line["group"], kind) for line in lines for kind in line["kinds"]}
    not_policies = {("tierwall.io", kind) for kind in ("NodeReport", "PolicyTest", "Snapshot")}
    assert table == {(kind.group, kind.kind) for kind in all_kinds()} - not_policies


@pytest.mark.parametrize("engine", ["nft", "envoy"])
def test_compiling_says_what_an_api_server_would_refuse(tmp_path: Path, engine: str) -> None:
    typo = named("networking.k8s.io/v1", "NetworkPolcy", "a", "shop")
    old = {**network_policy("old", podSelector={}), "apiVersion": "extensions/v1beta1"}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump_all([*PODS, network_policy(podSelectr={}), typo, old]))
    result = CliRunner().invoke(root, ["compile", engine, "-f", str(tmp_path)])
    assert result.exit_code == 0
    assert [code for code in ("TW101", "TW110", "TW115") if f"[{code}]" in result.stderr] == ["TW101", "TW110", "TW115"]
