"""`tierwall diff --context prod -f change.yaml`: what a change does to a cluster (docs/compare.md)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

import tierwall
from tests import ROOT
from tests.labs.served_cluster import ServedCluster, serving
from tierwall.cli.clusters import PLANES
from tierwall.cli.main import root
from tierwall.cluster.cluster import Cluster

OLD, NEW = (ROOT / "examples" / "compare" / side for side in ("old", "new"))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(root, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def cluster() -> Iterator[ServedCluster]:
    with serving(OLD, forbidden={"alice": {"networkpolicies": ["shop"]}}) as served:
        yield served


def of_cluster(cluster: ServedCluster, *arguments: object) -> Result:
    return run("diff", "--kubeconfig", cluster.kubeconfig, *arguments)


def test_a_change_to_a_cluster_is_compared_on_every_plane_as_two_folders_are(cluster: ServedCluster) -> None:
    before = len(cluster.requests)
    result = of_cluster(cluster, "--cluster", "-f", NEW, "-o", "json")
    reads = [request for request in cluster.requests[before:] if "networkpolicies" in request]
    assert result.exit_code == 4
    folders = run("diff", OLD, NEW, "-o", "json")
    assert json.loads(result.stdout)["differences"] == json.loads(folders.stdout)["differences"]
    assert {entry["plane"] for entry in json.loads(result.stdout)["differences"]} == set(PLANES) - {"ways"}
    assert len(reads) == 1, "both sides are made of one read"


def test_text_is_that_of_two_folders(cluster: ServedCluster) -> None:
    result = of_cluster(cluster, "--context", "root", "-f", NEW)
    assert (result.exit_code, result.stdout) == (4, run("diff", OLD, NEW).stdout)


def test_what_is_there_already_changes_nothing(cluster: ServedCluster) -> None:
    result = of_cluster(cluster, "--cluster", "-f", OLD, "-o", "json")
    assert (result.exit_code, json.loads(result.stdout)["differences"]) == (0, [])


def test_a_cluster_of_which_nothing_can_be_read_is_compared(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with serving() as empty:
        of_empty = of_cluster(empty, "--cluster", "-f", NEW, "-o", "json")
    folders = run("diff", tmp_path / "empty", NEW, "-o", "json")
    assert of_empty.exit_code == 4, of_empty.stderr
    assert json.loads(of_empty.stdout)["differences"] == json.loads(folders.stdout)["differences"]


def test_a_plane_that_is_not_compared_is_not_read(cluster: ServedCluster) -> None:
    before = len(cluster.requests)
    assert of_cluster(cluster, "--cluster", "-f", NEW, "--plane", "api").exit_code == 4
    assert not [request for request in cluster.requests[before:] if "/pods" in request]


def test_without_takes_an_object_from_the_new_side(cluster: ServedCluster) -> None:
    result = of_cluster(cluster, "--cluster", "--without", "NetworkPolicy/shop/db")
    assert result.exit_code == 4
    assert result.stdout.startswith("2 connections open\n+ shop/web => shop/db : TCP 1-5431")
    result = of_cluster(cluster, "--cluster", "-f", NEW, "--without", "NetworkPolicy/shop/bd")
    assert result.exit_code == 1
    assert "there is no NetworkPolicy/shop/bd (did you mean `NetworkPolicy/shop/db`?)" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--cluster", OLD, NEW), "OLD and NEW are not given together with a cluster"),
        (("--cluster",), "nothing would change: name files with -f, or objects with --without"),
        (("-f", NEW), "-f lies over a cluster: add --cluster or --context NAME"),
        ((OLD,), "OLD NEW: the folders to compare, or a cluster and -f PATH"),
        ((OLD, NEW, NEW), "OLD NEW: the folders to compare, or a cluster and -f PATH"),
    ],
)
def test_sides_that_do_not_fit(cluster: ServedCluster, arguments: tuple[object, ...], message: str) -> None:
    result = of_cluster(cluster, *arguments)
    assert (result.exit_code, message in result.stderr) == (2, True)


def test_a_file_that_is_broken_ends_the_comparison(cluster: ServedCluster, tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("a: [")
    result = of_cluster(cluster, "--cluster", "-f", tmp_path)
    assert (result.exit_code, "broken.yaml:1" in result.stderr) == (1, True)


def workload(labels: dict[str, str], replicas: int = 3) -> dict[str, Any]:
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template},
    }


def owner(kind: str, name: str) -> list[dict[str, Any]]:
    return [{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "1", "controller": True}]


def rollout(labels: dict[str, str]) -> list[dict[str, Any]]:
    """A Deployment with the pods that a cluster makes of it, a database, and a policy by addresses and labels."""
    replica_set = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": "web-7d9f", "namespace": "shop", "ownerReferences": owner("Deployment", "web")},
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
    }
    pods: list[dict[str, Any]] = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"web-7d9f-{number}",
                "namespace": "shop",
                "labels": {**labels, "pod-template-hash": "7d9f"},
                "ownerReferences": owner("ReplicaSet", "web-7d9f"),
            },
            "spec": {"containers": [{"name": "c", "image": "i"}], "nodeName": "n"},
            "status": {"podIP": f"10.0.0.{number + 1}"},
        }
        for number in range(3)
    ]
    database = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "db", "namespace": "shop", "labels": {"app": "db"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "db", "namespace": "shop"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "db"}},
            "ingress": [
                {"from": [{"podSelector": {"matchLabels": {"tier": "front"}}}], "ports": [{"port": 5432}]},
                {"from": [{"ipBlock": {"cidr": "10.0.0.0/24"}}], "ports": [{"port": 9090}]},
            ],
        },
    }
    return [workload(labels), replica_set, *pods, database, policy]


@pytest.mark.parametrize(
    ("change", "closed"),
    [
        (workload({"app": "web", "tier": "front"}), []),
        (workload({"app": "web", "tier": "front"}, replicas=9), []),
        (workload({"app": "web"}), [("Deployment/shop/web", "shop/db", 5432)]),
    ],
    ids=["the same", "scaled up", "a label less"],
)
def test_pods_of_a_workload_are_compared_with_themselves_after_the_rollout(
    tmp_path: Path, change: dict[str, Any], closed: list[tuple[str, str, int]]
) -> None:
    (tmp_path / "change.yaml").write_text(yaml.safe_dump(change))
    with serving(rollout({"app": "web", "tier": "front"})) as cluster:
        result = of_cluster(cluster, "--cluster", "-f", tmp_path, "-o", "json")
        world = tierwall.load(cluster=Cluster(kubeconfig=str(cluster.kubeconfig)))
    document = json.loads(result.stdout)
    questions = [entry["question"] for entry in document["differences"]]
    assert [(question["from"], question["to"], question["port"]) for question in questions] == closed
    assert document["notConsidered"] == []
    changed = world.overlay(tmp_path)
    assert [entry.question for entry in tierwall.diff(world, changed)] == questions
    # Both sides answer the question: with the pods of the cluster, and with those of the template.
    for entry in document["differences"]:
        question = tierwall.NetworkQuestion.from_dict(entry["question"])
        verdicts = [str(side.ask(question).verdict) for side in (world, changed)]
        assert verdicts == [entry["before"]["verdict"], entry["after"]["verdict"]] == ["Allow", "Deny"]


def test_a_workload_that_is_scaled_to_zero_takes_its_connections_with_it(tmp_path: Path) -> None:
    labels = {"app": "web", "tier": "front"}
    (tmp_path / "change.yaml").write_text(yaml.safe_dump(workload(labels, replicas=0)))
    with serving(rollout(labels)) as cluster:
        result = of_cluster(cluster, "--cluster", "-f", tmp_path)
    assert result.exit_code == 4
    assert "- shop/web[Deployment] => shop/db : TCP 5432" in result.stdout.replace(" (3)", "")


@pytest.mark.parametrize("given", [{}, {"creationTimestamp": None}, {"creationTimestamp": "2026-06-01T00:00:00Z"}])
def test_a_file_keeps_the_age_of_the_object_that_it_replaces(tmp_path: Path, given: dict[str, Any]) -> None:
    """Two settings of one precedence: the older policy wins, and applying it again does not make it younger."""
    gateway = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": {"name": "edge", "namespace": "shop"},
        "spec": {"gatewayClassName": "agentgateway", "listeners": [{"name": "web", "port": 80, "protocol": "HTTP"}]},
    }

    def policy(name: str, year: int, timeout: str) -> dict[str, Any]:
        return {
            "apiVersion": "agentgateway.dev/v1alpha1",
            "kind": "AgentgatewayPolicy",
            "metadata": {"name": name, "namespace": "shop", "creationTimestamp": f"{year}-01-01T00:00:00Z"},
            "spec": {
                "targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "edge"}],
                "traffic": {"timeouts": {"request": timeout}},
            },
        }

    applied = policy("older", 2020, "1s")
    del applied["metadata"]["creationTimestamp"]
    applied["metadata"] |= given
    (tmp_path / "change.yaml").write_text(yaml.safe_dump(applied))
    with serving([gateway, policy("older", 2020, "1s"), policy("younger", 2021, "2s")]) as cluster:
        result = of_cluster(cluster, "--cluster", "-f", tmp_path, "-o", "json")
    assert json.loads(result.stdout)["differences"] == []


@pytest.mark.parametrize("status", [{}, {"status": {}}, {"status": {"phase": "Failed"}}])
def test_a_file_leaves_the_status_and_the_owner_of_an_object_alone(tmp_path: Path, status: dict[str, Any]) -> None:
    """A pod keeps its address, by which a policy selects it, and its workload."""
    (live,) = [value for value in rollout({"app": "web"}) if value["metadata"]["name"] == "web-7d9f-1"]
    metadata = {key: live["metadata"][key] for key in ("name", "namespace", "labels")}
    applied = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": live["spec"], **status}
    (tmp_path / "change.json").write_text(json.dumps(applied))
    with serving(rollout({"app": "web"})) as cluster:
        result = of_cluster(cluster, "--cluster", "-f", tmp_path, "-o", "json")
        over = tierwall.load(cluster=Cluster(kubeconfig=str(cluster.kubeconfig))).overlay(tmp_path)
    assert (result.exit_code, json.loads(result.stdout)["differences"]) == (0, [])
    pod = over.snapshot.get("", "Pod", "shop", "web-7d9f-1")
    assert pod is not None
    assert pod.value["status"] == live["status"]
    assert pod.metadata["ownerReferences"] == live["metadata"]["ownerReferences"]


def test_an_object_without_a_namespace_is_in_that_of_the_context(tmp_path: Path) -> None:
    policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "shut"}, "spec": {}}
    (tmp_path / "change.json").write_text(json.dumps(policy))
    with serving(OLD) as cluster:
        value = yaml.safe_load(Path(cluster.kubeconfig).read_text())
        for namespace, code in (("default", 0), ("shop", 4)):
            value["contexts"][0]["context"]["namespace"] = namespace
            (tmp_path / "config").write_text(yaml.safe_dump(value))
            change = "--cluster", "-f", tmp_path / "change.json"
            result = run("diff", "--kubeconfig", tmp_path / "config", *change)
            assert result.exit_code == code, result.output
            given = of_cluster(cluster, *change, "-n", namespace)
            assert (given.exit_code, given.stdout) == (code, result.stdout)
