"""Reading a cluster once: only what the question needs, and what is missing is said (docs/clusters.md#reading)."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import tierwall
from tests.labs.served_cluster import serving
from tierwall.cluster.cluster import Cluster
from tierwall.cluster.load import load_cluster
from tierwall.cluster.sharing import share_parts
from tierwall.resources.resource import Resource

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "shop"}, "spec": {"containers": []}}


def test_a_question_about_permissions_reads_no_pods() -> None:
    with serving([POD]) as cluster:
        snapshot = load_cluster(Cluster(kubeconfig=cluster.kubeconfig), ("api",))
    assert not [request for request in cluster.requests if "/pods" in request or "/services" in request]
    assert ("rbac.authorization.k8s.io", "Role") not in snapshot.kinds


def test_the_pods_of_a_cluster_are_read() -> None:
    with serving([POD]) as cluster:
        snapshot = load_cluster(Cluster(kubeconfig=cluster.kubeconfig), ("network",))
    pod = snapshot.get("", "Pod", "shop", "web")
    assert pod is not None
    assert pod.is_live


def test_what_objects_have_in_common_is_kept_once() -> None:
    """Memory: the pods of a workload differ in little but names."""
    containers = [{"name": "main", "image": "i", "ports": [{"containerPort": 8080}]}]
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"web-{number}",
                "namespace": "shop",
                "labels": {"app": "web", "number": str(number % 2)},
            },
            "spec": {"containers": containers, "nodeName": "node"},
        }
        for number in range(700)
    ]
    with serving(pods) as cluster:
        snapshot = load_cluster(Cluster(kubeconfig=cluster.kubeconfig), ("network",))
    read = [resource.value for resource in snapshot.of_kind("", "Pod")]
    assert {value["metadata"]["name"]: value["metadata"]["labels"] for value in read} == {
        f"web-{number}": {"app": "web", "number": str(number % 2)} for number in range(700)
    }
    assert len({id(value["metadata"]["labels"]) for value in read}) == 2
    assert len({id(value["spec"]["containers"]) for value in read}) == 1
    assert read[0]["spec"]["containers"] == [{"ports": [{"containerPort": 8080}]}]


@pytest.mark.parametrize("strange", [10**30, [[[]]], {"a": {"b": 1.5}}, "x" * 5000, None, True])
def test_parts_of_a_strange_form_stay_what_they_are(strange: object) -> None:
    parts: dict[bytes | str, object] = {}
    for _ in range(2):
        value = {"metadata": {"labels": strange}, "spec": strange, "status": {"phase": strange}}
        share_parts(value, parts)
        assert value == {"metadata": {"labels": strange}, "spec": strange, "status": {"phase": strange}}
    other = {"metadata": {"labels": 1}}
    share_parts(other, parts)
    assert other["metadata"]["labels"] is not True


def test_a_server_that_has_just_started_is_asked_again() -> None:
    with serving([POD], forbidden={"alice": {"pods": []}}) as cluster:
        cluster.is_starting = True
        refusal, refused = cluster.refusal, []

        def starting(user: str, plural: str, group: str, namespace: str) -> tuple[int, str] | None:
            failure = refusal(user, plural, group, namespace)
            if plural == "pods" and namespace and failure is not None:
                # Now the server knows its roles.
                refused.append(plural)
                cluster.forbidden["alice"] = {}
            return failure

        cluster.refusal = starting  # type: ignore[method-assign]
        snapshot = load_cluster(Cluster(context="alice", kubeconfig=cluster.kubeconfig), ("network",))
    assert (len(list(snapshot.of_kind("", "Pod"))), snapshot.unlisted) == (1, ())
    assert len(refused) == 1


@pytest.mark.parametrize("times", [1, 2, 20])
def test_a_list_that_expires_while_it_is_read_is_read_again(times: int) -> None:
    """Each time from its beginning: the way on that a server offers would skip changes. At last in one answer."""
    pods: list[dict[str, Any]] = [
        {**POD, "metadata": {"name": f"web-{number:02}", "namespace": "shop"}} for number in range(20)
    ]
    with serving(pods) as cluster:
        cluster.page, cluster.expiring = 6, times
        snapshot = load_cluster(Cluster(kubeconfig=cluster.kubeconfig), ("network",))
    assert [pod.name for pod in snapshot.of_kind("", "Pod")] == [pod["metadata"]["name"] for pod in pods]
    assert snapshot.unlisted == ()
    lists = [request for request in cluster.requests if request.startswith("/api/v1/pods")]
    assert len([request for request in lists if "continue" not in request]) == min(times, 3) + 1
    assert ("limit" in lists[-1]) == (times < 3)


@pytest.mark.parametrize("silent", [None, "nodes"])
def test_a_list_without_an_answer_is_left_out_and_a_server_without_any_is_an_error(silent: str | None) -> None:
    ended = threading.Event()
    with serving([POD]) as cluster:
        settings = Cluster(kubeconfig=cluster.kubeconfig, timeout=3)
        answer = cluster.refusal

        def waiting(user: str, plural: str, group: str, namespace: str) -> tuple[int, str] | None:
            if silent in (None, plural):
                ended.wait(60)
            return answer(user, plural, group, namespace)

        cluster.refusal = waiting  # type: ignore[method-assign]
        try:
            if silent is None:
                with pytest.raises(
                    tierwall.InputError, match=r"the API server at .* does not answer: no answer within"
                ):
                    load_cluster(settings, ("network",))
                return
            snapshot = load_cluster(settings, ("network",))
        finally:
            ended.set()
    (entry,) = snapshot.unlisted
    assert (entry.kind, entry.reason, entry.message) == ("Node", "unavailable", "no answer within 3 s")
    assert snapshot.get("", "Pod", "shop", "web") is not None


def test_the_result_is_never_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python would write it into the words of an error, when asyncio drops its handler of signals."""
    written: list[str] = []

    def write(resource: Resource) -> str:
        written.append(resource.name)
        return resource.name

    monkeypatch.setattr(Resource, "__repr__", write)
    with serving([POD]) as cluster:
        assert load_cluster(Cluster(kubeconfig=cluster.kubeconfig), ("network",)).is_live
    assert written == []
