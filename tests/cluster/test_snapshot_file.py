"""The file that `tierwall snapshot` writes: its bytes, and what happens if it is broken (docs/clusters.md)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from tests.cluster.test_snapshot_answers import run, snapshot_of
from tests.labs.served_cluster import ServedObjects, serving
from tierwall.resources.load import Loader, load

Object = dict[str, Any]


def pod(name: str, namespace: str = "shop", app: str = "web", **metadata: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": app}, **metadata},
        "spec": {"containers": [{"name": "c", "image": "i", "env": [{"name": "PASSWORD", "value": "hunter2"}]}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "startTime": "2026-01-01T00:00:00Z"},
    }


def policy(name: str, namespace: str = "shop", **metadata: Any) -> Object:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": {"podSelector": {"matchLabels": {"app": "db"}}, "policyTypes": ["Ingress"]},
    }


FORBIDDEN = {"kind": "Pod", "group": "", "reason": "forbidden", "message": "no"}
SHOP = [pod("web-0"), pod("db-0", app="db"), policy("db"), pod("tool", "ops")]


def write(folder: Path, *documents: object, end: str = "...\n") -> str:
    """Write documents as a file, and return its path."""
    file = folder / "given.yaml"
    file.write_text(yaml.safe_dump_all(documents, explicit_start=True) + end)
    return str(file)


def head(**fields: object) -> Object:
    return {"apiVersion": "tierwall.io/v1alpha1", "kind": "Snapshot", **fields}


def errors(file: str) -> list[tuple[str, str]]:
    return [(problem.code, problem.message) for problem in load([file]).errors]


def test_the_file_begins_with_what_was_read_and_goes_on_in_order() -> None:
    with serving(SHOP, forbidden={"alice": {"networkpolicies": ["shop"]}}, namespace="shop") as cluster:
        first, *objects = yaml.safe_load_all(snapshot_of(cluster, "--context", "alice"))
    assert (first["apiVersion"], first["kind"]) == ("tierwall.io/v1alpha1", "Snapshot")
    assert (first["serverVersion"], first["namespace"], first["objects"]) == ("v1.36.3", "shop", len(objects))
    assert {"apiVersion": "v1", "kind": "Pod"} in first["kinds"]
    (forbidden,) = first["notConsidered"]
    assert (forbidden["reason"], forbidden["kind"], forbidden["readNamespaces"]) == (
        "forbidden",
        "NetworkPolicy",
        ["shop"],
    )
    names = [(value["apiVersion"].rpartition("/")[0], value["kind"], *_name(value)) for value in objects]
    assert names == sorted(names)


def _name(value: Object) -> tuple[str, str]:
    return value["metadata"].get("namespace", ""), value["metadata"]["name"]


def test_what_no_answer_depends_on_is_left_out() -> None:
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": "{}", "note": "y"}
    with serving([pod("web-0", annotations=annotations), policy("db", generation=7)]) as cluster:
        text = snapshot_of(cluster)
    _, *objects = yaml.safe_load_all(text)
    web = next(value for value in objects if value["kind"] == "Pod")
    assert web == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web-0", "namespace": "shop", "labels": {"app": "web"}, "annotations": {"note": "y"}},
        "spec": {"containers": [{}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1"},
    }
    closed = next(value for value in objects if value["kind"] == "NetworkPolicy")
    assert closed["metadata"].keys() == {"name", "namespace", "creationTimestamp"}
    for word in (b"managedFields", b"resourceVersion", b"uid", b"last-applied", b"hunter2"):
        assert word not in text


def test_secrets_are_in_no_snapshot(tmp_path: Path) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "stringData": {"key": "hunter2"}}
    file = tmp_path / "secret.yaml"
    file.write_text(json.dumps(secret) + "\n---\n" + json.dumps(pod("web-0")))
    with serving([{**secret, "metadata": {"name": "key", "namespace": "shop"}}, pod("db-0")]) as cluster:
        result = run("snapshot", "--cluster", "--kubeconfig", cluster.kubeconfig, "-f", str(file))
        assert not [request for request in cluster.requests if "secrets" in request]
    assert result.stderr == "left out: 1 Secret, which is in no snapshot\n"
    assert "hunter2" not in result.stdout
    assert "Secret" not in result.stdout


class ShuffledObjects(ServedObjects):
    """Objects that come in another order each time, with other versions and times of change."""

    rng = Random(1)

    def of(self, place: Any, namespace: str) -> list[Object]:
        listed = super().of(place, namespace)
        self.rng.shuffle(listed)
        return [{key: value[key] for key in self.rng.sample(list(value), len(value))} for value in listed]


def test_the_same_objects_give_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = [pod(f"web-{number}", namespace) for number in range(9) for namespace in ("a", "a-b", "b")]
    with serving([*objects, *SHOP]) as cluster:
        expected = snapshot_of(cluster)
    monkeypatch.setattr("tests.labs.served_cluster.ServedObjects", ShuffledObjects)
    users = {"alice": {"pods": ["a", "b"], "services": []}}
    with serving([*SHOP, *reversed(objects)], forbidden=users) as cluster:
        cluster.put(pod("web-0"))  # another resourceVersion
        assert snapshot_of(cluster) == expected
        partial = {snapshot_of(cluster, "--context", "alice") for _ in range(3)}
        cluster.page = 2
        # A list that is shuffled between its pages has some objects twice and others never, so only the order of
        # lists is random here.
        monkeypatch.setattr(ShuffledObjects, "of", ServedObjects.of)
        partial.add(snapshot_of(cluster, "--context", "alice"))
        assert snapshot_of(cluster) == expected
    assert len(partial) == 1


def test_a_snapshot_of_a_snapshot_is_the_same(tmp_path: Path) -> None:
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "new", "namespace": "shop"},
        "spec": {"selector": {"matchLabels": {"app": "new"}}, "template": {"metadata": {"labels": {"app": "new"}}}},
    }
    change = tmp_path / "change.yaml"
    change.write_text(json.dumps(deployment))
    with serving(SHOP, forbidden={"alice": {"networkpolicies": ["shop"]}}, namespace="shop") as cluster:
        text = snapshot_of(cluster, "--context", "alice", "-f", str(change))
    assert yaml.safe_load(text.partition(b"\n---\n")[0])["fromFiles"] == [
        {"group": "apps", "kind": "Deployment", "name": "new", "namespace": "shop"}
    ]
    file = tmp_path / "first.yaml"
    file.write_bytes(text)
    assert run("snapshot", "-f", str(file)).stdout_bytes == text


def test_files_alone_make_a_snapshot_too(tmp_path: Path) -> None:
    file = write(tmp_path, *SHOP, policy("extra", ""), end="")
    result = run("snapshot", "-f", file, "-n", "ops")
    first, *_ = yaml.safe_load_all(result.stdout)
    assert (first["cluster"], first["namespace"], first["objects"], "kinds" in first) == (False, "ops", 5, False)
    assert "fromFiles" not in first
    again = tmp_path / "again.yaml"
    again.write_text(result.stdout)
    loaded = load([str(again)])
    assert not loaded.diagnostics
    assert loaded.namespace == "ops"
    assert loaded.snapshot.get("networking.k8s.io", "NetworkPolicy", "ops", "extra") is not None
    assert not loaded.snapshot.is_live


def test_a_source_is_needed() -> None:
    result = run("snapshot")
    assert result.exit_code == 2
    assert "name a cluster with --cluster or --context NAME, or files with -f PATH" in result.stderr


def test_every_snapshot_that_is_cut_off_is_noticed(tmp_path: Path) -> None:
    with serving(SHOP[:3], forbidden={"alice": {"networkpolicies": ["shop"]}}) as cluster:
        text = snapshot_of(cluster, "--context", "alice")
    file = tmp_path / "cut.yaml"
    file.write_bytes(text)
    assert not load([str(file)]).diagnostics
    for length in range(len(text) - 1):
        file.write_bytes(text[:length])
        assert load([str(file)]).errors, text[:length]


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (head(objects=2), "the snapshot is not complete: it should have 2 objects, and has 1"),
        (head(objects=0), "the snapshot is not complete: it should have 0 objects, and has 1"),
        (head(objects="1"), "objects in body must be of type integer"),
        (head(namespace=5), "namespace in body must be of type string"),
        (head(namespace=""), "namespace in body should be at least 1 chars long"),
        (head(notConsidered={"kind": "Pod"}), "notConsidered in body must be of type array"),
        (head(notConsidered=[{"kind": "Pod"}]), "Required value"),
        (head(notConsidered=[None]), "notConsidered[0]"),
        (head(fromFiles=["Pod/shop/web-0"]), "fromFiles[0] in body must be of type object"),
        (head(fromFiles=[{"kind": "Pod", "name": None}]), "fromFiles[0].name"),
        (head(kinds=[{"kind": "Pod"}]), "kinds[0].apiVersion: Required value"),
        (head(cluster="yes"), "cluster in body must be of type boolean"),
        (head(surprise=1), 'unknown field "surprise"'),
        (head(notConsidered=[FORBIDDEN] * 10_001), "must have at most 10000 items"),
        ({**head(), "apiVersion": "tierwall.io/v9"}, "expected `tierwall.io/v1alpha1 Snapshot`"),
    ],
)
def test_a_broken_first_document_is_said(tmp_path: Path, first: Object, expected: str) -> None:
    ((code, message),) = errors(write(tmp_path, first, SHOP[0]))
    assert code == "TW045"
    assert expected in message
    assert run("list", "-f", str(tmp_path)).exit_code == 1


def test_a_snapshot_must_be_the_first_document_of_its_file(tmp_path: Path) -> None:
    file = write(tmp_path, SHOP[0], head(objects=1), SHOP[1])
    assert errors(file) == [("TW045", "a Snapshot must be the first document of its file")]
    twice = write(tmp_path, head(objects=1), head(objects=1), SHOP[1])
    assert errors(twice) == [("TW045", "a Snapshot must be the first document of its file")]


def test_a_snapshot_in_a_list_is_not_taken_for_an_object(tmp_path: Path) -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [head(objects=1), SHOP[0]]}
    ((code, message),) = errors(write(tmp_path, listed))
    assert code == "TW006"
    assert message.endswith("found a Snapshot, which must be the first document of its file")


def test_other_files_of_a_folder_lie_over_a_snapshot(tmp_path: Path) -> None:
    with serving(SHOP, namespace="shop") as cluster:
        (tmp_path / "a.yaml").write_bytes(snapshot_of(cluster))
    other = policy("db")
    other["spec"]["policyTypes"] = ["Egress"]
    (tmp_path / "0.json").write_text(json.dumps(other))
    bare = policy("bare")
    del bare["metadata"]["namespace"]
    (tmp_path / "z.json").write_text(json.dumps(bare))
    loaded = load([str(tmp_path)])
    assert not loaded.diagnostics
    policies = {resource.name: resource for resource in loaded.snapshot.of_kind("networking.k8s.io", "NetworkPolicy")}
    assert policies["db"].spec["policyTypes"] == ["Egress"]
    assert policies["db"].metadata["creationTimestamp"] == "2026-01-01T00:00:00Z"
    assert policies["bare"].namespace == "shop"
    assert not run("check", str(tmp_path), "--select", "TW0").exit_code


def test_what_could_not_be_read_is_said() -> None:
    with serving(SHOP, forbidden={"alice": {"networkpolicies": ["shop"]}}) as cluster:
        result = run("snapshot", "--context", "alice", "--kubeconfig", cluster.kubeconfig)
    assert (result.exit_code, result.stderr) == (
        0,
        "not considered: NetworkPolicies (you may not list them in ops)\n",
    )


def test_only_one_cluster_is_read_at_a_time(tmp_path: Path) -> None:
    with serving(SHOP) as cluster:
        for name in ("one.yaml", "two.yaml"):
            (tmp_path / name).write_bytes(snapshot_of(cluster))
        over = run("list", "--cluster", "--kubeconfig", cluster.kubeconfig, "-f", str(tmp_path / "one.yaml"))
    both = run("check", str(tmp_path))
    assert both.exit_code == 1
    assert "are snapshots, each of a whole cluster; only one can be read at a time" in both.stdout
    assert over.exit_code == 1
    assert "a snapshot stands for a whole cluster, so it cannot lie over another one" in over.stderr


def test_a_snapshot_may_be_edited_if_it_no_longer_counts(tmp_path: Path) -> None:
    file = write(tmp_path, head(namespace="shop"), SHOP[0], end="")
    assert not load([file]).diagnostics


def test_a_snapshot_in_another_format_is_complete_without_an_end(tmp_path: Path) -> None:
    with serving(SHOP) as cluster:
        (tmp_path / "first.yaml").write_bytes(snapshot_of(cluster))
    file = tmp_path / "second.json"
    file.write_bytes(run("yaml", str(tmp_path / "first.yaml")).stdout_bytes)
    loaded = load([str(file)])
    assert not loaded.diagnostics
    assert loaded.snapshot.is_live


def test_a_disk_that_is_full_is_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tierwall", "snapshot", "-f", write(tmp_path, *SHOP)]
    with open("/dev/full", "wb") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (result.returncode, result.stderr) == (
        1,
        "error: standard output cannot be written: No space left on device\n",
    )


def test_a_reader_who_goes_away_is_no_error(tmp_path: Path) -> None:
    file = write(tmp_path, *(pod(f"web-{number}") for number in range(5000)))
    command = [sys.executable, "-m", "tierwall", "snapshot", "-f", file]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_a_snapshot_that_is_loaded_again_keeps_its_objects(tmp_path: Path) -> None:
    file, other = Path(write(tmp_path, head(namespace="shop"), *SHOP, end="")), tmp_path / "other.json"
    bare = policy("bare")
    del bare["metadata"]["namespace"]
    other.write_text(json.dumps(bare))
    loader = Loader([str(tmp_path)])
    first = loader.load()
    assert loader.load_if_changed() is None
    other.write_text(json.dumps({**bare, "spec": {"podSelector": {}}}))
    second = loader.load()
    # Nothing of the snapshot was made anew.
    assert second.resources[: len(SHOP)] == first.resources[: len(SHOP)]
    assert [resource.is_live for resource in second.resources] == [True] * len(SHOP) + [False]
    assert second.resources[-1].namespace == "shop"
    file.write_text(file.read_text().replace("namespace: shop", "namespace: ops", 1))
    assert loader.load().resources[-1].namespace == "ops"
    file.write_text(file.read_text().partition("---\n")[2].partition("---\n")[2])
    plain = loader.load()
    assert not plain.snapshot.is_live
    assert {resource.name for resource in plain.resources} == {resource.name for resource in first.resources}
    assert next(resource for resource in plain.resources if resource.name == "bare").namespace == "default"
