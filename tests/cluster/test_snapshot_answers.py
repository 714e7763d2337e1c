"""A snapshot file gives every answer that its cluster gives (docs/clusters.md#snapshots)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

import tierwall
from tests import ROOT
from tests.labs.served_cluster import ServedCluster, serving
from tests.randomness import examples, seeds
from tests.worlds import api_clusters, gateway_clusters, network_clusters, tool_worlds
from tierwall.cli.main import root
from tierwall.cluster.cluster import Cluster
from tierwall.cluster.load import load_cluster, narrowed
from tierwall.core.diagnostics import InputError
from tierwall.planes import ask
from tierwall.resources.load import load
from tierwall.resources.snapshot import Snapshot

Object = dict[str, Any]


def run(*words: str) -> Result:
    """Run a command."""
    return CliRunner().invoke(root, list(words))


def snapshot_of(cluster: ServedCluster, *words: str) -> bytes:
    """Return the snapshot of the cluster of a context, the current one unless another is given."""
    result = run("snapshot", "--cluster", "--kubeconfig", cluster.kubeconfig, *words)
    assert result.exit_code == 0, result.stderr
    return result.stdout_bytes


def without_source(value: Any) -> Any:
    """Return an answer without the places of its objects."""
    if isinstance(value, dict):
        return {key: without_source(item) for key, item in value.items() if key != "source"}
    return [without_source(item) for item in value] if isinstance(value, list) else value


def outcome(plane: str, snapshot: Snapshot, question: Object) -> Any:
    """Return the whole answer but places, or what is wrong with the question."""
    try:
        return without_source(ask(plane, snapshot, question, {}).to_dict())
    except InputError as error:
        return [(problem.code, problem.message) for problem in error.diagnostics]


def assert_same(
    plane: str,
    objects: Iterable[Object],
    questions: Iterable[Object],
    folder: Path,
    forbidden: dict[str, list[str]] | None = None,
    stale: Iterable[str] = (),
) -> None:
    """Ask a cluster, and its snapshot."""
    file = folder / "cluster.yaml"
    listed = list(
        {
            (o["apiVersion"], o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]): o for o in objects
        }.values()
    )
    with serving(listed, forbidden={"somebody": forbidden or {}}, stale=stale) as cluster:
        file.write_bytes(snapshot_of(cluster, "--context", "somebody"))
        before = load_cluster(Cluster("somebody", cluster.kubeconfig), (plane,))
    loaded = load([str(file)])
    assert not loaded.diagnostics
    after = narrowed(loaded, (plane,)).snapshot
    for question in questions:
        assert outcome(plane, after, question) == outcome(plane, before, question), question


@settings(max_examples=examples(15), deadline=None)
@given(st.data())
def test_connections(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    objects = data.draw(network_clusters.clusters())
    ends = network_clusters.endpoints(objects)
    questions = [
        {
            "from": data.draw(st.sampled_from(ends)),
            "to": data.draw(st.sampled_from(ends)),
            "port": data.draw(st.sampled_from(network_clusters.PORTS)),
            "protocol": data.draw(st.sampled_from(network_clusters.PROTOCOLS)),
        }
        for _ in range(5)
    ]
    assert_same("network", objects, questions, tmp_path_factory.mktemp("cluster"))


LISTS = ("pods", "namespaces", "nodes", "networkpolicies", "adminnetworkpolicies", "clusternetworkpolicies", "roles")


@settings(max_examples=examples(15), deadline=None)
@given(st.data())
def test_what_was_not_read(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """A user who may not list everything gets the same answers and omissions from the snapshot."""
    objects = data.draw(network_clusters.clusters())
    ends = st.sampled_from(network_clusters.endpoints(objects))
    namespaces = st.lists(st.sampled_from((*network_clusters.NAMESPACES, "default")), unique=True)
    forbidden = data.draw(st.dictionaries(st.sampled_from(LISTS), namespaces, min_size=1))
    stale = data.draw(st.sampled_from(((), ("policy.networking.k8s.io",), ("apps", "batch"))))
    questions = [
        {"from": data.draw(ends), "to": data.draw(ends), "port": data.draw(st.sampled_from(network_clusters.PORTS))}
        for _ in range(4)
    ]
    folder = tmp_path_factory.mktemp("cluster")
    assert_same("network", objects, questions, folder, forbidden, stale)


@pytest.mark.parametrize("seed", seeds(6))
def test_tool_calls(seed: int, tmp_path: Path) -> None:
    world = tool_worlds.World(seed)
    assert_same("tool", world.objects, [world.question() for _ in range(8)], tmp_path)


@pytest.mark.parametrize("seed", seeds(4))
def test_settings(seed: int, tmp_path: Path) -> None:
    rng = Random(seed)
    objects = gateway_clusters.cluster(rng)
    assert_same("gateway", objects, [gateway_clusters.question(rng) for _ in range(8)], tmp_path)


@pytest.mark.parametrize("seed", seeds(8))
def test_requests(seed: int, tmp_path: Path) -> None:
    rng = Random(seed)
    objects = api_clusters.cluster(rng, seed % 2 == 1)
    assert_same("api", objects, [api_clusters.question(rng) for _ in range(12)], tmp_path)


def both(cluster: ServedCluster, file: Path, context: str, *words: str) -> tuple[Result, Result]:
    """Run a command with a cluster, and with its snapshot."""
    live = run(*words, "--context", context, "--kubeconfig", cluster.kubeconfig)
    return live, run(*words, "-f", str(file))


EXAMPLES = {
    "shop": ["list", "list --explain", "explain network --from web-0 --to db-0 --port 5432", "status", "check"],
    "tool": [
        "tools --caller agents/shopper",
        "explain tool --gateway prod/prod-gateway --backend prod/payment-service --caller agents/shopper --tool refund",
        "status",
        "check",
    ],
    "gateway": ["effective --gateway infra/edge --listener web", "effective --all", "status", "check"],
    "api": [
        "can-i create persistentvolumeclaims --as alice",
        "can-i --list --as alice",
        "explain api --user alice --verb create --resource persistentvolumeclaims",
        "check",
    ],
}
FOLDERS = {"api": "policies"}
# What no cluster has: the chain of authorizers, and tests.
FILES = ("AuthorizationConfiguration", "PolicyTest")
# Users of the cluster who may not list everything.
USERS: dict[str, dict[str, list[str]]] = {
    "alice": {"networkpolicies": ["shop"], "pods": ["shop"], "gateways": ["infra", "prod"], "clusterrolebindings": []}
}
PODS: list[Object] = [
    {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{app}-0", "namespace": "shop", "labels": {"app": app}},
        "spec": {"containers": [{"name": "c", "ports": [{"name": "postgres", "containerPort": 5432}]}]},
        "status": {"phase": "Running", "podIP": f"10.0.0.{number}"},
    }
    for number, app in enumerate(("web", "api", "db"))
]


def answer(result: Result) -> Any:
    """Return the answer without what says where it comes from."""
    document = without_source(json.loads(result.stdout)) if result.stdout.startswith("{") else result.stdout
    if isinstance(document, dict):
        for place in ("cluster", "files"):
            document.pop(place, None)
        for diagnostic in document.get("diagnostics", ()):
            for place in ("file", "line", "column", "path", "cluster", "related"):
                diagnostic.pop(place, None)
    return document


def by_text(value: Any) -> Any:
    return sorted(value, key=str) if isinstance(value, list) else value


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.parametrize("context", ["root", "alice"])
def test_every_command_answers_alike(example: str, context: str, tmp_path: Path) -> None:
    folder = ROOT / "examples" / example / FOLDERS.get(example, "manifests")
    objects = [resource.value for resource in load([str(folder)]).resources if resource.kind not in FILES]
    file = tmp_path / "cluster.yaml"
    with serving([*objects, *PODS], forbidden=USERS, namespace="shop", stale=["batch"]) as cluster:
        file.write_bytes(snapshot_of(cluster, "--context", context))
        for words in EXAMPLES[example]:
            live, kept = both(cluster, file, context, *words.split(), "-o", "json")
            assert live.exit_code in (0, 3, 4, 5), live.stderr
            assert kept.exit_code == live.exit_code, words
            expected, answered = answer(live), answer(kept)
            if isinstance(answered, dict) and "diagnostics" in answered:
                # Findings are in the order of places.
                expected["diagnostics"], answered["diagnostics"] = map(
                    by_text, (expected["diagnostics"], answered["diagnostics"])
                )
            assert answered == expected, words


def test_a_program_gets_the_same_answers(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    with serving(PODS, namespace="shop", forbidden={"alice": {"networkpolicies": []}}) as cluster:
        file.write_bytes(snapshot_of(cluster, "--context", "alice"))
        live = tierwall.load(cluster=tierwall.Cluster("alice", cluster.kubeconfig))
        kept = tierwall.load(file)
        with pytest.raises(InputError, match="it cannot lie over another one"):
            tierwall.load(file, cluster=tierwall.Cluster(kubeconfig=cluster.kubeconfig))
    question = tierwall.NetworkQuestion(source="web-0", to="db-0", port=5432)
    assert kept.namespace == live.namespace == "shop"
    assert without_source(kept.ask(question).to_dict()) == without_source(live.ask(question).to_dict())
    assert kept.ask(question).not_considered


def test_a_command_takes_from_a_snapshot_only_what_it_would_read(tmp_path: Path) -> None:
    service: Object = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": "v1.metrics.k8s.io"},
        "spec": {"group": "metrics.k8s.io", "version": "v1", "service": {"namespace": "shop", "name": "metrics"}},
    }
    file = tmp_path / "cluster.yaml"
    with serving([*PODS, service], namespace="shop") as cluster:
        file.write_bytes(snapshot_of(cluster))
        live, kept = both(cluster, file, "root", "check", "-o", "json")
    assert b"kind: APIService" in file.read_bytes()
    assert json.loads(kept.stdout)["objects"] == json.loads(live.stdout)["objects"]


CHANGE = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web, new: "yes"}}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed, namespace: shop}
spec: {podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress, Egress]}
"""


def test_files_lie_over_a_snapshot_as_over_its_cluster(tmp_path: Path) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "controller": True, "uid": "u"}
    objects: list[Object] = [
        {**PODS[0], "metadata": {**PODS[0]["metadata"], "ownerReferences": [owner]}},
        *PODS[1:],
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "shop"}, "spec": {}},
    ]
    change, file, mixed = tmp_path / "change.yaml", tmp_path / "cluster.yaml", tmp_path / "mixed.yaml"
    change.write_text(CHANGE)
    with serving(objects, namespace="shop") as cluster:
        file.write_bytes(snapshot_of(cluster))
        mixed.write_bytes(snapshot_of(cluster, "-f", str(change)))
        for words in ("list", "list --denied", "explain network --from web-0 --to db-0 --port 5432", "diff"):
            over = (*words.split(), "-o", "json", "-f", str(change))
            live, kept = both(cluster, file, "root", *over)
            assert answer(kept) == answer(live), words
            assert kept.exit_code == live.exit_code in (0, 3, 4)
            if words != "diff":
                whole = run(*words.split(), "-o", "json", "-f", str(mixed))
                assert answer(whole) == answer(live), words
    assert not run("diff", str(file), str(file)).exit_code
    assert "shop/web-1" in run("list", "--names", "-f", str(mixed)).stdout


def test_policy_tests_are_judged_against_a_snapshot(tmp_path: Path) -> None:
    test = tmp_path / "test.yaml"
    test.write_text(
        "apiVersion: tierwall.io/v1alpha1\nkind: PolicyTest\nmetadata: {name: smoke}\nspec:\n  cluster: true\n"
        "  cases:\n"
        "  - {name: open, network: {from: web-0, to: db-0, port: 5432}, expect: {verdict: Allow}}\n"
    )
    file = tmp_path / "cluster.yaml"
    with serving(PODS, namespace="shop") as cluster:
        file.write_bytes(snapshot_of(cluster))
        live, kept = both(cluster, file, "root", "test", str(test), "-o", "json")
    assert (kept.exit_code, answer(kept)) == (live.exit_code, answer(live)) == (0, answer(live))
