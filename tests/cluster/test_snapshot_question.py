"""`snapshot --for` keeps what one question needs, and `--redact` no names (docs/clusters.md#one-question)."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import ROOT
from tests.cluster.test_snapshot_answers import outcome, run, snapshot_of, without_source
from tests.cluster.test_snapshot_file import SHOP, pod, policy
from tests.labs.served_cluster import serving
from tests.randomness import examples, seeds
from tests.worlds import api_clusters, gateway_clusters, network_clusters, tool_worlds
from tierwall.analyze.needed import needed_objects
from tierwall.resources.load import load_objects
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

Object = dict[str, Any]
QUESTIONS = {
    "shop": "network --from shop/web-0 --to shop/db-0 --port 5432",
    "tool": "tool --gateway prod/prod-gateway --backend prod/payment-service --caller agents/shopper --tool refund",
    "gateway": "effective --gateway infra/edge --listener web --route HTTPRoute/team/chat",
    "api": "can-i create persistentvolumeclaims --as alice -n dev",
}
FOLDERS = {"api": "policies"}


def assert_needed(plane: str, objects: list[Object], question: Object) -> None:
    """Ask about all objects, and about those that are needed."""
    resources = load_objects(objects)

    def ask(some: Any) -> Any:
        return outcome(plane, Snapshot.of(tuple(some)), question)

    left = needed_objects(resources, ask)
    assert ask(left) == ask(resources)
    assert len(left) <= len(resources)
    for resource in left:
        assert ask([other for other in left if other is not resource]) != ask(resources), resource


@settings(max_examples=examples(10), deadline=None)
@given(st.data())
def test_a_connection_needs_few_objects(data: st.DataObject) -> None:
    objects = data.draw(network_clusters.clusters())
    ends = st.sampled_from(network_clusters.endpoints(objects))
    port = data.draw(st.sampled_from(network_clusters.PORTS))
    assert_needed("network", objects, {"from": data.draw(ends), "to": data.draw(ends), "port": port})


@pytest.mark.parametrize("seed", seeds(4))
def test_a_tool_call_needs_few_objects(seed: int) -> None:
    world = tool_worlds.World(seed)
    assert_needed("tool", world.objects, world.question())


@pytest.mark.parametrize("seed", seeds(3))
def test_a_setting_needs_few_objects(seed: int) -> None:
    rng = Random(seed)
    assert_needed("gateway", gateway_clusters.cluster(rng), gateway_clusters.question(rng))


@pytest.mark.parametrize("seed", seeds(6))
def test_a_request_needs_few_objects(seed: int) -> None:
    rng = Random(seed)
    assert_needed("api", api_clusters.cluster(rng, False), api_clusters.question(rng))


def test_few_questions_are_asked_of_many_objects() -> None:
    objects = [pod(f"web-{number}", f"team-{number % 50}") for number in range(2000)]
    resources = load_objects([*objects, *SHOP, *(policy(f"p-{number}", "team-1") for number in range(500))])
    sizes: list[int] = []

    def ask(some: Any) -> Any:
        listed: list[Resource] = list(some)
        sizes.append(len(listed))
        question = {"from": "shop/web-0", "to": "shop/db-0", "port": 5432}
        return outcome("network", Snapshot.of(tuple(listed)), question)

    left = needed_objects(resources, ask)
    assert [str(resource.reference) for resource in left] == [
        "Pod/shop/web-0",
        "Pod/shop/db-0",
        "NetworkPolicy/shop/db",
    ]
    # Only the first question is asked of everything.
    assert [size for size in sizes if size > 100] == [len(resources)]
    assert len(sizes) < 20


def answer(words: str, file: Path) -> Any:
    """Return the answer of a question to a file."""
    command = shlex.split(words if words.startswith(("can-i", "effective")) else f"explain {words}")
    result = run(*command, "-f", str(file), "-o", "json")
    assert result.exit_code in (0, 3, 5), result.stderr
    return without_source(json.loads(result.stdout))


@pytest.mark.parametrize("example", QUESTIONS)
def test_the_file_of_a_question_has_its_answer(example: str, tmp_path: Path) -> None:
    folder, question = ROOT / "examples" / example / FOLDERS.get(example, "manifests"), QUESTIONS[example]
    result = run("snapshot", "-f", str(folder), "--for", question)
    assert (result.exit_code, result.stderr) == (0, "")
    file = tmp_path / "question.yaml"
    file.write_text(result.stdout)
    assert answer(question, file) == answer(question, folder)
    all_objects = yaml.safe_load(run("snapshot", "-f", str(folder)).stdout.partition("\n---\n")[0])["objects"]
    assert yaml.safe_load(result.stdout.partition("\n---\n")[0])["objects"] < all_objects


@pytest.mark.parametrize("example", QUESTIONS)
def test_a_redacted_question_has_the_same_verdict(example: str, tmp_path: Path) -> None:
    folder, question = ROOT / "examples" / example / FOLDERS.get(example, "manifests"), QUESTIONS[example]
    result = run("snapshot", "-f", str(folder), "--redact", "--for", question)
    (renamed,) = (line.removeprefix("ask: ") for line in result.stderr.splitlines() if line.startswith("ask: "))
    assert renamed != question
    file = tmp_path / "redacted.yaml"
    file.write_text(result.stdout)
    before, after = answer(question, folder), answer(renamed, file)
    for key in ("verdict", "level"):
        assert after.get(key) == before.get(key)
    assert len(after.get("trace", ())) == len(before.get("trace", ()))
    for name in ("shop", "payment", "alice", "infra"):
        assert f" {name}\n" not in result.stdout


def test_a_question_of_a_cluster_reads_only_what_it_needs(tmp_path: Path) -> None:
    question = "network --from web-0 --to db-0 --port 5432"
    file = tmp_path / "question.yaml"
    users = {"alice": {"networkpolicies": ["shop"], "nodes": []}}
    with serving([*SHOP, pod("other", "ops")], namespace="shop", forbidden=users) as cluster:
        file.write_bytes(snapshot_of(cluster, "--context", "alice", "--for", question))
        assert not [request for request in cluster.requests if "clusterroles" in request]
        live = run(
            *("explain", *question.split(), "-o", "json", "--context", "alice", "--kubeconfig", cluster.kubeconfig)
        )
    assert answer(question, file) == without_source(json.loads(live.stdout))
    first, *objects = yaml.safe_load_all(file.read_text())
    assert first["namespace"] == "shop"
    assert sorted(value["metadata"]["name"] for value in objects) == ["db", "db-0", "web-0"]


def test_nothing_of_a_cluster_is_left_of_its_names(tmp_path: Path) -> None:
    users = {"alice": {"networkpolicies": ["shop"], "pods": ["shop", "vault"]}}
    objects = [*SHOP, pod("secretive", "vault")]
    with serving(objects, namespace="vault", forbidden=users, failing={"services": 500}) as cluster:
        text = snapshot_of(cluster, "--context", "alice", "--redact").decode()
    for name in ("shop", "vault", "alice", "secretive", "10.0.0.1", "web"):
        assert name not in text
    file = tmp_path / "redacted.yaml"
    file.write_text(text)
    first = yaml.safe_load(text.partition("\n---\n")[0])
    entries = {entry["kind"]: entry for entry in first["notConsidered"]}
    assert first["namespace"] in entries["Pod"]["readNamespaces"]
    assert entries["Service"]["reason"] == "unavailable"
    assert run("check", str(file)).exit_code in (0, 4)


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("", "expected a question that begins with one of network, tool, gateway, api, path, can-i, effective"),
        ("list", "expected a question that begins with one of network, tool, gateway, api, path, can-i, effective"),
        ("network 'a", "cannot be read: no closing quotation"),
        ("network --from a/b", "Missing option '--to'"),
        ("effective --all", "--all asks many questions: name one place"),
        ("can-i --list", "--list asks many questions: name a verb and a resource"),
        ("can-i get pods -f x", "--for takes a question alone: give -f to `snapshot`"),
        ("network --from a/b --to a/c --port 1 -n x", "--for takes a question alone: give --namespace to `snapshot`"),
    ],
)
def test_a_question_that_cannot_be_asked(question: str, expected: str) -> None:
    result = run("snapshot", "-f", str(ROOT / "examples/shop/manifests"), "--for", question)
    assert (result.exit_code, result.stdout) == (2, "")
    assert expected in result.stderr


def test_a_question_about_nobody_is_an_error() -> None:
    question = "explain network --from shop/nope --to shop/db-0 --port 1"
    result = run("snapshot", "-f", str(ROOT / "examples/shop/manifests"), "--for", question)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there is no pod `nope` in namespace `shop`" in result.stderr
