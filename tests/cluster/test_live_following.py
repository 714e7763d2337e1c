"""Following a real API server through a proxy that fails: in the end, what is followed is what the cluster has."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

from tests.labs.fault_proxy import BEFORE_VERSION, WITHIN_WATCH, FaultProxy
from tests.labs.live_client import LiveClient, path_of, pod
from tests.labs.live_follower import LiveFollower, follows
from tests.randomness import rounds
from tierwall.cluster.access import ClusterAccess, find_access

pytestmark = [pytest.mark.engine, pytest.mark.storm]

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
    with FaultProxy(live.url, live.folder / "pki" / "ca.crt") as proxy, contextlib.ExitStack() as stack:
        access = ClusterAccess("storm", proxy.url, "default")
        # Two of them meet twice the faults in the same time.
        followers = [stack.enter_context(LiveFollower(access)) for _ in range(2)]
        writer = Writer(live, namespace, 0)
        proxy.before, proxy.within = 0.4, 0.25
        wanted = rounds(1000)
        while proxy.faults.total() < wanted:
            writer.step()
            for follower in followers:
                follower.values(namespace)
        proxy.calm()
        for follower in followers:
            follows(follower, truth, namespace)
        assert proxy.faults.keys() == {*BEFORE_VERSION, *WITHIN_WATCH}
