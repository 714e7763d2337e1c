"""Reading a cluster once: only what the question needs, and what is missing is said (docs/clusters.md#reading)."""

from __future__ import annotations

import pytest

from tests.labs.served_cluster import serving
from tierwall.cluster.cluster import Cluster
from tierwall.cluster.load import load_cluster
from tierwall.cluster.sharing import share_parts

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
