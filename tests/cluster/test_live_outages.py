"""A real API server that forgets, stops and restarts (docs/clusters.md#what-happens-when-something-fails).

One cluster serves all steps: to start one takes longer than the steps.
"""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.labs.fault_proxy import FaultProxy
from tests.labs.live_client import LiveClient, pod
from tests.labs.live_cluster import LiveCluster
from tests.labs.live_follower import LiveFollower, follows
from tests.labs.waiting import PATIENCE_S, eventually
from tierwall.cluster.access import find_access

pytestmark = [pytest.mark.engine, pytest.mark.slow]

PODS = 600
GROUP = "policy.networking.k8s.io"
DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
ASK = ("explain", "network", "--from", "many/pod-000", "--to", f"many/pod-{PODS - 1}", "--port", "80")
# An API of somebody else, with policies that Tierwall names.
AGGREGATED = {
    "apiVersion": "apiregistration.k8s.io/v1",
    "kind": "APIService",
    "metadata": {"name": "v1.security.istio.io"},
    "spec": {
        "group": "security.istio.io",
        "version": "v1",
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "service": {"namespace": "many", "name": "absent"},
    },
}


class ForgetfulCluster(LiveCluster):
    """A cluster that keeps old versions for seconds, not for minutes."""

    more_flags = ("--etcd-compaction-interval=1s",)

    def delete_in_etcd(self, key: str) -> None:
        """Delete an object behind the back of the API server."""
        body = json.dumps({"key": base64.b64encode(f"/registry/{key}".encode()).decode()}).encode()
        with urlopen(Request(f"{self.etcd_url}/v3/kv/deleterange", body), timeout=PATIENCE_S) as answer:
            assert json.load(answer)["deleted"] == "1"


def test_a_server_that_forgets_fails_and_restarts(tmp_path: Path) -> None:
    cluster = ForgetfulCluster(tmp_path)
    try:
        cluster.start()
        live = LiveClient(tmp_path)
        live.namespace("many")
        live.create_many(
            pod("many", f"pod-{number:03}", {}, f"10.245.{number // 250}.{number % 250}") for number in range(PODS)
        )
        _pages_that_expire(live)
        _api_that_is_down(live)
        _other_versions(live)
        _silence(cluster, live)
        _restart(cluster, live)
        live.close()
    finally:
        cluster.stop()


def _pages_that_expire(live: LiveClient) -> None:
    """The mark of the second page expires before it is used: everything is read again, and nothing is missing."""
    held: list[str] = []
    first_pages: list[str] = []

    def hold(target: str) -> str | None:
        if target.startswith("/api/v1/pods?"):
            if "continue=" not in target:
                first_pages.append(target)
            elif not held:
                held.append(target)
                eventually(lambda: live.request("GET", target)[0] == 410, "the end of a mark")
        return None

    with FaultProxy(live.url, live.folder / "pki" / "ca.crt") as proxy:
        proxy.always = hold
        config = {
            "clusters": [{"name": "c", "cluster": {"server": proxy.url}}],
            "contexts": [{"name": "slow", "context": {"cluster": "c", "user": ""}}],
        }
        (live.folder / "slow").write_text(json.dumps(config))
        done = live.tierwall(*ASK, "--context", "slow", "--kubeconfig", "slow", "--request-timeout", "0", "-o", "json")
    assert json.loads(done.stdout)["verdict"] == "Allow", done.stderr
    # On a slow machine, the next mark expires, too.
    assert len(held) == 1
    assert len(first_pages) >= 2


def _api_that_is_down(live: LiveClient) -> None:
    """The policies of an aggregated API that does not answer are unknown, and the answer says so."""
    live.create(AGGREGATED)
    eventually(lambda: "Stale" in str(live.request("GET", "/apis", accept=DISCOVERY)[1]), "a stale API")
    done = live.tierwall(*ASK, "--context", "admin", "--strict", "-o", "json")
    entries = json.loads(done.stdout)["notConsidered"]
    assert {(entry["reason"], entry["group"]) for entry in entries} == {("unavailable", "security.istio.io")}, entries
    assert done.returncode == 6
    live.delete(AGGREGATED)


def _other_versions(live: LiveClient) -> None:
    """A version that Tierwall does not know makes a policy fail closed; it is not left out."""
    spec = {"priority": 1, "subject": {"namespaces": {}}, "ingress": [{"action": "Deny", "from": [{"namespaces": {}}]}]}
    admin = {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "AdminNetworkPolicy",
        "metadata": {"name": "closed"},
        "spec": spec,
    }
    live.create(admin)
    definition = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/adminnetworkpolicies.{GROUP}"
    versions = live.request("GET", definition)[1]["spec"]["versions"]
    versions += [versions[0] | {"name": "v9", "storage": False}]
    versions[0] = versions[0] | {"served": False}
    assert live.request("PATCH", definition, {"spec": {"versions": versions}})[0] == 200
    path = f"/apis/{GROUP}/v9/adminnetworkpolicies"
    eventually(lambda: live.request("GET", path)[0] == 200, "another version")
    eventually(lambda: '"v9"' in json.dumps(live.request("GET", "/apis", accept=DISCOVERY)[1]), "its discovery")
    answer = json.loads(live.tierwall(*ASK, "--context", "admin", "-o", "json").stdout)
    assert answer["verdict"] == "Deny"
    assert [entry["kind"] for entry in answer["notConsidered"]] == ["AdminNetworkPolicy"]
    versions[0] |= {"served": True}
    assert live.request("PATCH", definition, {"spec": {"versions": versions[:1]}})[0] == 200
    eventually(lambda: live.request("GET", path)[0] == 404, "the end of a version")
    eventually(lambda: live.request("GET", path.replace("v9", "v1alpha1"))[0] == 200, "the version from before")
    live.delete(admin)


def _silence(cluster: LiveCluster, live: LiveClient) -> None:
    """Neither process answers any more, although the kernel still accepts connections."""
    for name in ("api-server", "etcd"):
        with _stopped(cluster, name):
            done = live.tierwall(*ASK, "--context", "admin", "--request-timeout", "2s")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done
        assert f"the API server at {live.url} does not answer: no answer within 2 s" in done.stderr


@contextmanager
def _stopped(cluster: LiveCluster, name: str) -> Iterator[None]:
    cluster.send_signal(name, signal.SIGSTOP)
    try:
        yield
    finally:
        cluster.send_signal(name, signal.SIGCONT)


def _restart(cluster: ForgetfulCluster, live: LiveClient) -> None:
    """After a restart, the server knows no version from before: 410 for every watch. Deletions are noticed."""
    access = find_access("admin", str(live.kubeconfig), {})
    with LiveFollower(access) as follower:
        follows(follower, access, "many")
        cluster.stop_process("api-server", kill=True)
        cluster.delete_in_etcd("pods/many/pod-007")
        cluster.start_api_server()
        live.create(pod("many", "newcomer", {}, "10.245.9.9"))
        follows(follower, access, "many")
        names = {identity[3] for identity in follower.values("many")}
        assert "newcomer" in names
        assert "pod-007" not in names
        with _stopped(cluster, "api-server"):
            eventually(lambda: follower.followed.take().lost, "the report of a stopped server")
        live.create(pod("many", "latecomer", {}, "10.245.9.10"))
        follows(follower, access, "many")
