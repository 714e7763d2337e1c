"""Reads under conditions on a real kube-apiserver: what it tells authorizers, and what real kubectl gets to see."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.labs.control_plane import unverified
from tests.labs.kube_cluster import Cluster
from tests.labs.review_recorder import ReviewRecorder
from tests.labs.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.engine, pytest.mark.slow]

PODS = 'request.apiGroup == "" && request.resource == "pods" && request.userInfo.username == "alice"'
READS = 'request.verb in ["list", "watch"]'
POLICIES = (
    ("own-pods", "Allow", f'{PODS} && {READS} && object.metadata.labels.owner == "alice"'),
    ("free-pods", "Allow", f'{PODS} && {READS} && (!has(object.spec.nodeName) || object.spec.nodeName == "")'),
    (
        "own-pods-go",
        "Allow",
        f'{PODS} && request.verb == "deletecollection" && oldObject.metadata.labels.owner == "alice"',
    ),
)


class ReadCluster(Cluster):
    """A cluster whose API server asks a recorder first."""

    def __init__(self, folder: Path, recorder: ReviewRecorder) -> None:
        super().__init__(folder)
        self._recorder = recorder

    def _start_api_server(self, *more: str) -> None:
        self._recorder.put_first(self.pki / "authorization.yaml")
        super()._start_api_server(*more)

    def get(self, path: str) -> int:
        """Ask the API server as alice; return the status."""
        headers = {"Authorization": "Bearer alice-token"}
        try:
            with urlopen(
                Request(f"{self.url}{path}", headers=headers), timeout=PATIENCE_S, context=unverified()
            ) as said:
                return int(said.status)
        except HTTPError as error:
            return error.code

    def told(self, path: str) -> dict[str, Any]:
        """Return what the authorizers are told about a request."""
        before = len(self._recorder.specs)
        self.get(path)
        (spec,) = [spec for spec in self._recorder.specs[before:] if spec.get("user") == "alice"]
        attributes: dict[str, Any] = spec["resourceAttributes"]
        return attributes


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReadCluster]:
    recorder = ReviewRecorder()
    cluster = ReadCluster(tmp_path_factory.mktemp("cluster"), recorder)
    cluster.policy("reads.yaml", *POLICIES)
    try:
        cluster.start()
        for name, owner in (("a-1", "alice"), ("b-1", "bob")):
            _make_pod(cluster, name, owner)
        yield cluster
    finally:
        cluster.stop()
        recorder.close()


def _make_pod(cluster: Cluster, name: str, owner: str, node: str = "n1") -> None:
    spec = {"containers": [{"name": "main", "image": "example"}], **({"nodeName": node} if node else {})}
    metadata = {"name": name, "namespace": "dev", "labels": {"owner": owner}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": spec if node else {**spec, "nodeName": None},
    }
    said = cluster.apply("admin", "create", pod)
    assert said.is_done, said


def _in(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": list(values)}


def _not_in(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "NotIn", "values": list(values)}


@pytest.mark.parametrize(
    ("query", "labels", "fields"),
    [
        ("labelSelector=owner%3Dalice", [_in("owner", "alice")], None),
        ("labelSelector=owner%3D%3Dalice", [_in("owner", "alice")], None),
        ("labelSelector=owner%21%3Dalice", [_not_in("owner", "alice")], None),
        (
            "labelSelector=owner+in+(a,b),%21x,y+notin+(1,2),z",
            [
                _in("owner", "a", "b"),
                {"key": "x", "operator": "DoesNotExist"},
                _not_in("y", "1", "2"),
                {"key": "z", "operator": "Exists"},
            ],
            None,
        ),
        ("labelSelector=owner%3D", [_in("owner", "")], None),
        ("labelSelector=owner+in+()", [_in("owner", "")], None),
        ("labelSelector=n%3E5", None, None),
        ("labelSelector=((", None, None),
        ("labelSelector=owner%3Dalice,owner%3Dbob", [_in("owner", "alice"), _in("owner", "bob")], None),
        ("labelSelector=owner%3Dalice&labelSelector=owner%3Dbob", [_in("owner", "alice")], None),
        ("fieldSelector=spec.nodeName%3Dn1", None, [_in("spec.nodeName", "n1")]),
        ("fieldSelector=spec.nodeName%21%3Dn1", None, [_not_in("spec.nodeName", "n1")]),
        ("fieldSelector=spec.nodeName%3D", None, [_in("spec.nodeName", "")]),
        ("fieldSelector=metadata.name%3Da", None, [_in("metadata.name", "a")]),
        ("fieldSelector=spec.foo%3Da", None, [_in("spec.foo", "a")]),
    ],
)
@pytest.mark.parametrize("verb", ["list", "watch"])
def test_an_api_server_tells_authorizers_the_selectors_like_this(
    cluster: ReadCluster,
    verb: str,
    query: str,
    labels: list[dict[str, Any]] | None,
    fields: list[dict[str, Any]] | None,
) -> None:
    """A later release that tells them otherwise is noticed here."""
    watch = "&watch=1&timeoutSeconds=1" if verb == "watch" else ""
    told = cluster.told(f"/api/v1/namespaces/dev/pods?{query}{watch}")
    assert told["verb"] == verb
    assert (told.get("labelSelector") or {}).get("requirements") == labels
    assert (told.get("fieldSelector") or {}).get("requirements") == fields
    assert told.get("name") == ("a" if "metadata.name" in query else None)


def test_what_has_no_selectors_for_authorizers(cluster: ReadCluster) -> None:
    for path in (
        "/api/v1/namespaces/dev/pods/a-1",
        "/api/v1/watch/namespaces/dev/pods?labelSelector=owner%3Dalice&timeoutSeconds=1",
    ):
        told = cluster.told(path)
        assert "labelSelector" not in told, path
        assert "fieldSelector" not in told, path


def test_alice_sees_her_own_pods_with_her_selector(cluster: ReadCluster) -> None:
    said = cluster.kubectl("alice", "get", "pods", "-l", "owner=alice", "-o", "name", expect=True)
    assert said.text.split() == ["pod/a-1"]
    assert cluster.kubectl("alice", "get", "pods", "-l", "owner in (alice),x!=y", "-o", "name").text.split() == [
        "pod/a-1"
    ]


@pytest.mark.parametrize(
    "selector", [(), ("-l", "owner!=bob"), ("-l", "owner=bob"), ("-l", "owner"), ("-l", "owner in (alice,bob)")]
)
def test_without_it_she_is_refused_and_told_why(cluster: ReadCluster, selector: tuple[str, ...]) -> None:
    said = cluster.kubectl("alice", "get", "pods", *selector, expect=False)
    assert said.is_forbidden
    assert 'object.metadata.labels.owner == "alice"' in said.text
    assert "it would show {" in said.text
    assert "with -l owner=alice it would be allowed" in said.text


def test_a_field_that_is_not_there_is_selected_by_its_empty_text(cluster: ReadCluster) -> None:
    """Reads of pods without a node show just those."""
    _make_pod(cluster, "free", "bob", node="")
    said = cluster.kubectl("alice", "get", "pods", "--field-selector", "spec.nodeName=", "-o", "name")
    # An object without `spec` would make the condition fail, and nobody knows here that every pod has one.
    assert said.is_forbidden
    cluster.policy("free.yaml", ("free", "Allow", f'{PODS} && {READS} && object.?spec.?nodeName.orValue("") == ""'))
    said = cluster.kubectl("alice", "get", "pods", "--field-selector", "spec.nodeName=", "-o", "name", expect=True)
    assert said.text.split() == ["pod/free"]


def test_a_watch_shows_her_own_pods_alone(cluster: ReadCluster) -> None:
    kubectl = [cluster._programs["kubectl"], "--kubeconfig", str(cluster.folder / "alice.kubeconfig")]
    asked = [*kubectl, "get", "pods", "-l", "owner=alice", "--watch", "-o", "jsonpath={.metadata.name} "]
    shown = cluster.folder / "watch.txt"
    with shown.open("wb") as output, subprocess.Popen(asked, stdout=output) as watch:
        try:
            eventually(lambda: "a-1" in shown.read_text(), "the list")
            _make_pod(cluster, "b-2", "bob")
            _make_pod(cluster, "a-2", "alice")
            eventually(lambda: "a-2" in shown.read_text(), "the watch")
            assert set(shown.read_text().split()) == {"a-1", "a-2"}
        finally:
            watch.kill()


def test_a_deletecollection_is_enforced_by_admission_or_implied(cluster: ReadCluster) -> None:
    path = "/api/v1/namespaces/dev/pods"
    assert cluster.kubectl("alice", "delete", "--raw", f"{path}?labelSelector=owner%3Dbob").is_forbidden
    before = len(cluster.records())
    said = cluster.kubectl("alice", "delete", "--raw", f"{path}?labelSelector=owner%3Dalice")
    assert said.is_done, said
    asked = [record for record in cluster.records()[before:] if record["phase"] == "authorize"]
    assert [(record["verdict"], record["verb"]) for record in asked] == [("Allow", "deletecollection")]
    left = cluster.kubectl("admin", "get", "pods", "-o", "json", expect=True)
    assert {
        pod["metadata"]["labels"]["owner"]
        for pod in json.loads(left.text)["items"]
        if "deletionTimestamp" not in pod["metadata"]
    } == {"bob"}
