"""`tierwall authorizer --cluster` as a process: its answers follow the cluster (docs/clusters.md#following)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.labs.authorizer_server import access
from tests.labs.fake_api_server import FakeCluster, FakeKind
from tests.labs.waiting import PATIENCE_S, eventually

KINDS = (
    FakeKind("", "v1", "Namespace", "namespaces", namespaced=False),
    FakeKind("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", namespaced=False),
    FakeKind("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", namespaced=False),
    FakeKind("tierwall.io", "v1alpha1", "ClusterAuthorizationPolicy", "clusterauthorizationpolicies", namespaced=False),
    FakeKind("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False),
    FakeKind("apiregistration.k8s.io", "v1", "APIService", "apiservices", namespaced=False),
)
TIERWALL = str(Path(sys.executable).parent / "tierwall")


class Authorizer:
    """A process, and what it says."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self._log = process, log

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    def event(self, name: str) -> dict[str, Any]:
        """Wait for an event, and return the last one of its name."""
        eventually(lambda: any(event["event"] == name for event in self.events()), self._log.read_text)
        return [event for event in self.events() if event["event"] == name][-1]

    @property
    def url(self) -> str:
        return f"http://{self.event('serving')['address']}"

    def allows(self, user: str) -> bool:
        answer = httpx.post(f"{self.url}/authorize", json=access(user), timeout=PATIENCE_S)
        return bool(answer.json()["status"]["allowed"])

    def ready(self) -> httpx.Response:
        return httpx.get(f"{self.url}/readyz", timeout=PATIENCE_S)


@contextmanager
def _running(cluster: FakeCluster, *more: str) -> Iterator[Authorizer]:
    log = cluster.kubeconfig.parent / "stderr"
    command = [TIERWALL, "authorizer", "--cluster", "--kubeconfig", str(cluster.kubeconfig), "--listen", "127.0.0.1:0"]
    with log.open("wb") as stderr:
        process = subprocess.Popen([*command, *more], stderr=stderr)
    try:
        authorizer = Authorizer(process, log)
        yield authorizer
        process.terminate()
        assert process.wait(PATIENCE_S) == 0, log.read_text()
        assert authorizer.events()[-1]["event"] == "stopped"
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeCluster]:
    with FakeCluster(tmp_path, KINDS) as cluster:
        cluster.put("namespaces", metadata={"name": "shop"})
        _allow(cluster, "alice")
        yield cluster


def _policy(user: str) -> dict[str, Any]:
    expression = f'request.userInfo.username == "{user}"'
    return {"metadata": {"name": f"for-{user}"}, "spec": {"effect": "Allow", "expression": expression}}


def _allow(cluster: FakeCluster, user: str) -> None:
    cluster.put("clusterauthorizationpolicies", **_policy(user))


def test_answers_follow_the_cluster_through_an_outage(cluster: FakeCluster) -> None:
    with _running(cluster) as authorizer:
        assert authorizer.allows("alice")
        assert not authorizer.allows("bob")
        assert authorizer.ready().status_code == 200
        _allow(cluster, "bob")
        eventually(lambda: authorizer.allows("bob"), authorizer.events)
        cluster.go_away()
        cluster.delete("clusterauthorizationpolicies", "", "for-alice")
        # The last state counts, and whoever asks is told that it does.
        eventually(lambda: authorizer.ready().status_code == 503, authorizer.events)
        (problem,) = authorizer.ready().json()["problems"]
        assert problem["code"] == "TW043"
        assert "its last state counts: the connection is refused" in problem["message"]
        assert httpx.get(f"{authorizer.url}/healthz").status_code == 200
        assert authorizer.allows("alice")
        cluster.come_back()
        eventually(lambda: not authorizer.allows("alice"), authorizer.events)
        assert authorizer.allows("bob")
        eventually(lambda: authorizer.ready().status_code == 200, authorizer.events)
        reported = [event for event in authorizer.events() if "TW043" in str(event.get("problems"))]
        assert len(reported) == 1, "a failure is reported once"


def test_nothing_is_answered_before_everything_was_read(cluster: FakeCluster) -> None:
    """SIGTERM ends the waiting."""
    cluster.go_away()
    with _running(cluster) as authorizer:
        waiting = authorizer.event("waiting")
        assert waiting["message"] == f"waiting for the API server at {cluster.server.url}: the connection is refused"
    assert all(event["event"] != "serving" for event in authorizer.events())


def test_files_lie_over_the_cluster(cluster: FakeCluster, tmp_path: Path) -> None:
    """A Node authorizer, which only a file can bring, has the pods of the cluster followed as well."""
    folder = tmp_path / "policies"
    folder.mkdir()
    kind = {"apiVersion": "tierwall.io/v1alpha1", "kind": "ClusterAuthorizationPolicy"}
    file = folder / "carol.json"
    file.write_text(json.dumps(kind | _policy("carol")))
    with _running(cluster, "--policies", str(folder)) as authorizer:
        assert authorizer.allows("alice")
        assert authorizer.allows("carol")
        file.unlink()
        eventually(lambda: not authorizer.allows("carol"), authorizer.events)
        assert not any("/pods" in target for target in cluster.server.requests)
    authorizers = [{"type": "Node", "name": "node"}, {"type": "CEL"}]
    chain = {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthorizationConfiguration"}
    (folder / "chain.json").write_text(json.dumps(chain | {"authorizers": authorizers}))
    cluster.server.kinds["pods"] = FakeKind("", "v1", "Pod", "pods")
    with _running(cluster, "--policies", str(folder)) as authorizer:
        assert authorizer.allows("alice")
        assert any("/pods" in target for target in cluster.server.requests)


def test_a_forbidden_kind_ends_the_start(cluster: FakeCluster) -> None:
    cluster.server.forbidden |= {"clusterroles", "clusterauthorizationpolicies"}
    command = [TIERWALL, "authorizer", "--cluster", "--kubeconfig", str(cluster.kubeconfig)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "this user may not list and watch clusterauthorizationpolicies, clusterroles" in ended.stderr
    assert "clusterauthorizationpolicies, clusterroles (this user may not list and watch them)" in ended.stderr


def test_what_controllers_report_about_objects_changes_nothing(cluster: FakeCluster) -> None:
    """Another revision would keep the old policies for a while, as if somebody had changed them."""
    service: dict[str, Any] = {"metadata": {"name": "v1.example.com"}, "spec": {"group": "example.com"}}
    cluster.put("apiservices", **service)
    with _running(cluster) as authorizer:
        revision = authorizer.event("serving")["revision"]
        cluster.put("apiservices", **service, status={"conditions": [{"type": "Available", "status": "False"}]})
        _allow(cluster, "bob")
        eventually(lambda: authorizer.allows("bob"), authorizer.events)
        assert authorizer.event("policies taken")["revision"] != revision
        assert [event["event"] for event in authorizer.events()].count("policies taken") == 1


def test_definitions_of_the_cluster_count_with_their_schemas(cluster: FakeCluster) -> None:
    """A policy that the installed definition accepts has no errors, and neither has the definition."""
    for definition in yaml.safe_load_all(subprocess.run([TIERWALL, "crds"], capture_output=True, check=True).stdout):
        if definition["spec"]["group"] == "tierwall.io":
            cluster.put("customresourcedefinitions", **definition)
    with _running(cluster) as authorizer:
        assert "errors" not in authorizer.event("serving")
        assert authorizer.allows("alice")
