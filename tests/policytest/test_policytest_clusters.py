"""Policy tests that name a cluster (docs/policy-tests.md#smoke-tests-for-a-live-cluster)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import tierwall
from tests import ROOT
from tests.labs.served_cluster import ServedCluster, serving
from tierwall import InputError
from tierwall.cli.main import root
from tierwall.cluster.cluster import Cluster

OBJECTS = ROOT / "examples" / "compare" / "old"
TEST = """\
apiVersion: tierwall.io/v1alpha1
kind: PolicyTest
metadata: {name: smoke}
spec:
  CLUSTER
  cases:
  - name: the database is closed
    network: {from: shop/web, to: shop/db, port: 22}
    expect: {verdict: Deny, decidedBy: NetworkPolicy/shop/db, notConsidered: []}
"""
OPEN = """\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec: {podSelector: {}, ingress: [{}]}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[ServedCluster]:
    with serving(OBJECTS, forbidden={"alice": {"networkpolicies": []}}, namespace="shop") as served:
        yield served


@pytest.fixture(autouse=True)
def folder(cluster: ServedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KUBECONFIG", cluster.kubeconfig)
    monkeypatch.chdir(tmp_path)
    cluster.requests.clear()
    return tmp_path


def write(name: str, cluster: str) -> None:
    Path(name).write_text(TEST.replace("CLUSTER", cluster))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(root, ["test", *(str(argument) for argument in arguments)])


def lists(cluster: ServedCluster, plural: str) -> int:
    return sum(request.split("?")[0].endswith(f"/{plural}") for request in cluster.requests)


@pytest.mark.parametrize("line", ["cluster: true", "context: root", "cluster: true\n  context: root"])
def test_a_test_names_a_cluster(line: str) -> None:
    write("t.yaml", line)
    result = run("t.yaml")
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    assert tierwall.run_tests("t.yaml").passed == 1


@pytest.mark.parametrize("line", ["cluster: false", "objects: []"])
def test_other_tests_read_no_cluster(cluster: ServedCluster, line: str) -> None:
    write("t.yaml", line)
    assert (run("t.yaml").exit_code, cluster.requests) == (4, [])


def test_objects_of_the_test_lie_over_the_cluster() -> None:
    Path("open.yaml").write_text(OPEN)
    write("t.yaml", "cluster: true\n  resources: [open.yaml]")
    assert run("t.yaml").exit_code == 4
    write("t.yaml", f"cluster: true\n  objects: [{json.dumps(_closed())}]")
    assert run("t.yaml").exit_code == 0
    write("t.yaml", "cluster: true")
    # `-f` lies between the cluster and the objects of the test.
    assert run("t.yaml", "-f", "open.yaml").exit_code == 4
    write("t.yaml", f"cluster: true\n  objects: [{json.dumps(_closed())}]")
    assert run("t.yaml", "-f", "open.yaml").exit_code == 0
    write("t.yaml", "cluster: true")
    assert run("t.yaml", "--without", "NetworkPolicy/shop/db").exit_code == 4


def _closed() -> dict[str, object]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "db", "namespace": "shop"},
        "spec": {"podSelector": {}},
    }


def test_a_cluster_is_read_once_and_only_for_the_planes_that_cases_need(cluster: ServedCluster) -> None:
    write("a.yaml", "cluster: true")
    write("b.yaml", "context: root")
    write("c.yaml", "context: root")
    assert run(".").exit_code == 0
    assert (lists(cluster, "networkpolicies"), lists(cluster, "clusterroles")) == (1, 0)
    cluster.requests.clear()
    question = "api: {user: a, verb: get, resource: pods}\n    expect: {verdict: NoOpinion}\n"
    Path("d.yaml").write_text(
        TEST.replace("CLUSTER", "cluster: true").split("  cases:")[0]
        + f"""\
  cases:
  - name: nobody
    {question}  - name: an object of a defined kind
    admit: {{object: {json.dumps(_closed())}}}
    expect: {{verdict: Allow}}
"""
    )
    assert run("d.yaml").exit_code == 0
    assert (lists(cluster, "clusterroles"), lists(cluster, "pods")) == (1, 0)


def test_the_command_line_beats_the_test(cluster: ServedCluster) -> None:
    write("t.yaml", "context: absent")
    assert run("t.yaml", "--context", "root").exit_code == 0
    assert run("t.yaml", "--cluster").exit_code == 0
    world = tierwall.load(cluster=Cluster())
    assert tierwall.run_tests("t.yaml", world=world).passed == 1
    with pytest.raises(InputError, match="context `absent` does not exist"):
        tierwall.run_tests("t.yaml", world=tierwall.load(OBJECTS))


def test_options_of_the_command_line_apply(cluster: ServedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/absent")
    write("t.yaml", "context: root")
    result = run("t.yaml", "--kubeconfig", cluster.kubeconfig)
    assert (result.exit_code, result.stderr) == (0, "")
    result = run("t.yaml", "--kubeconfig", cluster.kubeconfig, "--cluster-as", "alice", "-o", "json")
    assert (result.exit_code, json.loads(result.stdout)["failed"]) == (4, 1)


def test_a_cluster_that_cannot_be_read_is_one_sentence_and_no_test_runs(folder: Path) -> None:
    config = {
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "contexts": [{"name": "down", "context": {"cluster": "c"}}],
        "current-context": "down",
    }
    (folder / "config.json").write_text(json.dumps(config))
    write("a.yaml", "cluster: true")
    write("b.yaml", "context: down")
    result = run("a.yaml", "b.yaml", "--kubeconfig", "config.json")
    assert (result.exit_code, result.stdout) == (1, "")
    (sentence,) = result.stderr.splitlines()
    assert "127.0.0.1:1" in sentence
    assert sentence.startswith("error[TW042]: ")


def test_a_context_that_does_not_exist_is_named_where_it_stands() -> None:
    write("a.yaml", "context: rot")
    write("b.yaml", "context: rot")
    result = run("a.yaml", "b.yaml")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[0].startswith(
        "a.yaml:5:12: error[TW040]: context `rot` does not exist (did you mean `root`?)"
    )


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("cluster: prod", "t.yaml:5:12: error[TW701]: spec.cluster"),
        ("cluster: 1", "spec.cluster"),
        ("context: true", "spec.context"),
        ("context: ''", "spec.context"),
        (
            "cluster: false\n  context: root",
            "`context` names a cluster to read, and `cluster: false` says to read none",
        ),
    ],
)
def test_values_that_do_not_fit(cluster: ServedCluster, line: str, problem: str) -> None:
    write("t.yaml", line)
    result = run("t.yaml")
    assert (result.exit_code, problem in result.stderr, cluster.requests) == (1, True, []), result.stderr
    result = CliRunner().invoke(root, ["check", "t.yaml"])
    assert (result.exit_code, problem.rpartition(": ")[2] in result.stdout) == (4, True)


def test_a_test_that_cannot_run_reads_no_cluster(cluster: ServedCluster) -> None:
    write("a.yaml", "cluster: true\n  resources: [absent.yaml]")
    write("b.yaml", "cluster: 7")
    result = run(".")
    assert (result.exit_code, cluster.requests) == (1, [])
    assert "a.yaml:6:15: error[TW702]" in result.stderr
    assert "b.yaml:5:12: error[TW701]" in result.stderr
