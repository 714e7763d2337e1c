"""Following a real API server through a proxy that fails: in the end, what is followed is what the cluster has."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import pytest

from tests.labs.fault_proxy import FaultProxy
from tests.labs.live_client import LiveClient, path_of, pod
from tests.labs.waiting import PATIENCE_S, eventually
from tests.randomness import rounds
from tierwall.cluster.access import ClusterAccess, find_access
from tierwall.cluster.connection import Connection
from tierwall.cluster.following import FollowedCluster
from tierwall.cluster.reading import read_cluster
from tierwall.cluster.reflector import Timing
from tierwall.cluster.shapes import ApiObject, MetadataObject, PodObject

pytestmark = [pytest.mark.engine, pytest.mark.storm]

WANTED: dict[tuple[str, str], type[Any]] = {
    ("", "Pod"): PodObject,
    ("", "Namespace"): MetadataObject,
    ("", "Service"): ApiObject,
    ("networking.k8s.io", "NetworkPolicy"): ApiObject,
    ("policy.networking.k8s.io", "AdminNetworkPolicy"): ApiObject,
    ("tierwall.io", "AuthorizationPolicy"): ApiObject,
}
# Kinds beside pods: built-in ones, and custom resources with and without a namespace.
SPECS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "policy": ("networking.k8s.io/v1", "NetworkPolicy", {"podSelector": {}, "policyTypes": ["Ingress"]}),
    "service": ("v1", "Service", {"ports": [{"port": 80}]}),
    "admin": (
        "policy.networking.k8s.io/v1alpha1",
        "AdminNetworkPolicy",
        {"priority": 10, "subject": {"namespaces": {"matchLabels": {"kubernetes.io/metadata.name": "nowhere"}}}},
    ),
    "rights": ("tierwall.io/v1alpha1", "AuthorizationPolicy", {"effect": "Allow", "expression": "false"}),
}
HASTE = Timing(
    watch=(1, 2),
    grace=0.5,
    bookmark=1.5,
    opening=1,
    initial=3,
    first_wait=0.01,
    longest_wait=0.2,
    patience=0.3,
    outage=5,
    relist=(20, 40),
    discovery=1,
)


class Follower:
    """Applies what a followed cluster reports, as an engine does."""

    def __init__(self, access: ClusterAccess, timeout: float = 1.0) -> None:
        self.state: dict[Any, Any] = {}
        self.news = threading.Event()
        self.followed = FollowedCluster(access, WANTED, timeout, self.news.set, HASTE)

    def __enter__(self) -> Follower:
        self.followed.start()
        assert self.followed.is_complete(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.followed.close()

    def values(self, namespace: str) -> dict[Any, Any]:
        """Return the objects of a namespace as they are followed."""
        for identity, resource in self.followed.take().objects.items():
            if resource is None:
                # It may have come and gone since the last look.
                self.state.pop(identity, None)
            else:
                self.state[identity] = resource.value
        return _in(self.state, namespace)


def _in(values: dict[Any, Any], namespace: str) -> dict[Any, Any]:
    return {
        identity: value
        for identity, value in values.items()
        if identity[2].startswith(namespace) or identity[3].startswith(namespace)
    }


def _truth(access: ClusterAccess, namespace: str) -> dict[Any, Any]:
    """Return the objects of a namespace as one list has them."""

    async def read() -> dict[Any, Any]:
        connection = Connection(access, 30.0, "test")
        try:
            result = await read_cluster(connection, WANTED)
            assert result.unlisted == ()
            values = {resource.identity: resource.value for resource in result.resources}
            for value in values.values():
                # Followed objects do not keep it.
                value["metadata"].pop("resourceVersion", None)
            return values
        finally:
            await connection.close()

    return _in(asyncio.run(read()), namespace)


class Writer:
    """Changes objects of a namespace at random."""

    def __init__(self, live: LiveClient, namespace: str, seed: int) -> None:
        self._live, self._namespace, self._random = live, namespace, random.Random(seed)
        self._there: dict[str, dict[str, Any]] = {}

    def step(self) -> None:
        """Create, change or delete an object."""
        name = f"{self._random.choice(['pod', *SPECS])}-{self._random.randrange(6)}"
        known = self._there.get(name)
        if known is None:
            value = self._there[name] = self._value(name)
            self._live.create(value)
        elif self._random.random() < 0.4:
            self._live.delete(self._there.pop(name))
        else:
            patch = {"metadata": {"labels": {"turn": str(self._random.randrange(1000))}}}
            status, answer = self._live.request("PATCH", f"{path_of(known)}/{known['metadata']['name']}", patch)
            assert status == 200, answer

    def _value(self, name: str) -> dict[str, Any]:
        metadata: dict[str, Any] = {
            "name": name,
            "namespace": self._namespace,
            # U+0085 ends a line for `str.splitlines`, and the server sends it as it is.
            "annotations": {"note": "a\x85b"},
        }
        kind = name.partition("-")[0]
        if kind == "pod":
            value = pod(self._namespace, name, {}, f"10.244.{self._random.randrange(200)}.7")
            return value | {"metadata": metadata}
        version, kind, spec = SPECS[kind]
        if kind == "AdminNetworkPolicy":
            metadata["name"] = f"{metadata.pop('namespace')}-{name}"
        return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def test_after_many_faults_the_followed_cluster_is_the_servers(live: LiveClient) -> None:
    """Cuts, delays, halves of answers, forged 410s, 403s and 503s, silence: nothing is lost, nothing invented."""
    namespace = live.namespace("storm")
    truth = find_access("admin", str(live.kubeconfig), {})
    with FaultProxy(live.url, live.folder / "pki" / "ca.crt") as proxy:
        access = ClusterAccess("storm", proxy.url, "default")
        with Follower(access) as follower:
            writer = Writer(live, namespace, 0)
            proxy.before, proxy.within = 0.25, 0.15
            wanted = rounds(100)
            while proxy.faults.total() < wanted:
                writer.step()
                follower.values(namespace)
            proxy.calm()
            expected = _truth(truth, namespace)
            eventually(
                lambda: follower.values(namespace) == expected,
                lambda: _difference(follower.values(namespace), expected),
            )
            assert len(proxy.faults) > 8, proxy.faults
    assert _truth(truth, namespace) == expected


def _difference(state: dict[Any, Any], expected: dict[Any, Any]) -> str:
    different = [key for key in state.keys() | expected.keys() if state.get(key) != expected.get(key)]
    return "\n".join(f"{key}: followed {state.get(key)}, expected {expected.get(key)}" for key in different)
