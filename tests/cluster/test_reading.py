"""Reading a cluster once: only what the question needs, and what is missing is said (docs/clusters.md#reading)."""

from __future__ import annotations

from tests.labs.served_cluster import serving
from tierwall.cluster.cluster import Cluster
from tierwall.cluster.load import load_cluster

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
