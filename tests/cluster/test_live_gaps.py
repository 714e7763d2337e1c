"""A user who may read one namespace of a real cluster: what is known, and what is said not to be.

docs/reference/sources.md#what-could-not-be-read.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.labs.live_client import LiveClient, pod
from tierwall.cluster.cluster import Cluster
from tierwall.cluster.connection import Connection
from tierwall.cluster.decoding import ItemReader
from tierwall.cluster.load import load_cluster
from tierwall.cluster.shapes import MetadataObject

pytestmark = pytest.mark.engine

MINE, THEIRS = "gaps-mine", "gaps-theirs"


@pytest.fixture(scope="module")
def shared(live: LiveClient) -> LiveClient:
    """Two namespaces, one of which the developers may read."""
    with live.lock():
        if live.request("GET", f"/api/v1/namespaces/{MINE}")[0] == 404:
            live.create(*objects())
            live.grant(MINE)
    return live


def objects() -> Iterator[dict[str, Any]]:
    for namespace in (MINE, THEIRS):
        yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        yield from (pod(namespace, name) for name in ("web", "db"))
        metadata = {"name": "closed", "namespace": namespace}
        spec = {"podSelector": {}, "policyTypes": ["Ingress"]}
        yield {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}


def asked(live: LiveClient, to: str, *more: str) -> Any:
    ends = ("--from", f"{MINE}/web", "--to", to, "--port", "80")
    return live.tierwall("explain", "network", *ends, "--context", "developer", *more)


def test_a_developer_knows_the_own_namespace(shared: LiveClient) -> None:
    result = asked(shared, f"{MINE}/db", "-o", "json")
    answer = json.loads(result.stdout)
    assert (result.returncode, answer["verdict"]) == (3, "Deny")
    # Cluster-scoped policies, and those of other systems, which developers may not list anywhere.
    kinds = {entry["kind"] for entry in answer["notConsidered"]}
    assert kinds >= {"AdminNetworkPolicy", "ClusterNetworkPolicy", "CiliumNetworkPolicy"}
    assert kinds.isdisjoint({"NetworkPolicy", "Pod", "Namespace", "Node", "Deployment", "Service"})
    assert {entry["reason"] for entry in answer["notConsidered"]} == {"forbidden"}
    assert asked(shared, f"{MINE}/db", "--strict").returncode == 6


def test_a_pod_elsewhere_is_unknown_not_absent(shared: LiveClient) -> None:
    result = asked(shared, f"{THEIRS}/db")
    assert result.returncode == 1
    assert f"is not known: you may not list Pods in {THEIRS}" in result.stderr


def test_the_administrator_misses_nothing(shared: LiveClient) -> None:
    ends = ("--from", f"{MINE}/web", "--to", f"{THEIRS}/db", "--port", "80")
    result = shared.tierwall("explain", "network", *ends, "--context", "admin", "--strict", "-o", "json")
    assert (result.returncode, json.loads(result.stdout)["notConsidered"]) == (3, [])


def test_two_reads_of_a_cluster_are_alike(shared: LiveClient) -> None:
    cluster = Cluster(context="developer", kubeconfig=str(shared.kubeconfig))
    first, second = (load_cluster(cluster, ("network", "ways", "api"), namespaces=(MINE,)) for _ in range(2))
    assert [resource.identity for resource in first if resource.namespace == MINE] == [
        resource.identity for resource in second if resource.namespace == MINE
    ]
    assert first.unlisted == second.unlisted


def test_of_workloads_a_server_sends_only_metadata(shared: LiveClient) -> None:
    template = {"metadata": {"labels": {"app": "w"}}, "spec": {"containers": [{"name": "c", "image": "secret-image"}]}}
    spec = {"selector": {"matchLabels": {"app": "w"}}, "template": template}
    metadata = {"name": "w", "namespace": "workloads"}
    # In a namespace of its own: another test compares two reads of the other one.
    shared.namespace("workloads")
    shared.create({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
    access = Cluster(context="admin", kubeconfig=str(shared.kubeconfig)).access()

    async def read() -> bytes:
        connection = Connection(access, 10.0)
        try:
            path = "/apis/apps/v1/namespaces/workloads/deployments"
            return (await connection.get(path, None, ItemReader(MetadataObject).accept)).content
        finally:
            await connection.close()

    body = asyncio.run(read())
    page = ItemReader(MetadataObject).page(body)
    assert [item.metadata.name for item in page.items or ()] == ["w"]
    assert b"secret-image" not in body
