"""`tierwall enforce nft --cluster` as a process: the kernel obeys the cluster, whatever happens to its API server."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.labs.fake_api_server import FakeCluster, FakeKind
from tests.labs.nft_kernel import fresh_namespace
from tests.labs.waiting import eventually
from tierwall.engines.nftables.kernel.apply import list_text, table_exists
from tierwall.engines.nftables.kernel.namespaces import NetworkNamespace

__all__ = ["fresh_namespace"]

pytestmark = pytest.mark.engine

KINDS = (
    FakeKind("", "v1", "Namespace", "namespaces", namespaced=False),
    FakeKind("", "v1", "Node", "nodes", namespaced=False),
    FakeKind("", "v1", "Pod", "pods"),
    FakeKind("", "v1", "Service", "services"),
    FakeKind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies"),
)
# What leads from the address of a pod to its rules.
_CLOSED = re.compile(r"(10\.0\.0\.\d) : goto ingress_")
TIERWALL = str(Path(sys.executable).parent / "tierwall")


class Enforced:
    """A cluster inside a network namespace, and the command that enforces its policies there."""

    def __init__(self, network: NetworkNamespace, folder: Path, kinds: tuple[FakeKind, ...] = KINDS) -> None:
        self.network, self.folder = network, folder
        with network.entered():
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            # Its thread is born in the namespace, and stays there.
            self.cluster = FakeCluster(folder, kinds)
        self.cluster.put("namespaces", metadata={"name": "shop"})
        for number, name in enumerate(("web", "db"), 1):
            self.put_pod(name, f"10.0.0.{number}")
        self.put_policy("db")

    def put_pod(self, name: str, ip: str, app: str = "") -> None:
        metadata = {"name": name, "namespace": "shop", "labels": {"app": app or name}}
        spec = {"nodeName": "worker", "containers": [{"name": "main"}]}
        self.cluster.put("pods", metadata=metadata, spec=spec, status={"phase": "Running", "podIP": ip})

    def put_policy(self, app: str) -> None:
        spec: dict[str, Any] = {"podSelector": {"matchLabels": {"app": app}}, "policyTypes": ["Ingress"]}
        self.cluster.put("networkpolicies", metadata={"name": "closed", "namespace": "shop"}, spec=spec)

    @property
    def table(self) -> str:
        """The table in the kernel."""
        with self.network.entered():
            return list_text() if table_exists() else ""

    @property
    def closed(self) -> set[str]:
        """The pods to which ingress rules apply, by the table in the kernel."""
        return set(_CLOSED.findall(self.table))

    @contextmanager
    def running(self, *more: str) -> Iterator[Path]:
        """Run the command; yield the file with its standard error. SIGTERM ends it."""
        said = self.folder / "stderr"
        command = [TIERWALL, "enforce", "nft", "--cluster", "--kubeconfig", str(self.cluster.kubeconfig), *more]
        with self.network.entered(), said.open("wb") as stderr:
            process = subprocess.Popen([*command, "--node", "worker"], stderr=stderr)
        try:
            yield said
            process.terminate()
            assert process.wait(30) == 0, said.read_text()
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def enforced(fresh_namespace: NetworkNamespace, tmp_path: Path) -> Iterator[Enforced]:
    enforced = Enforced(fresh_namespace, tmp_path)
    with enforced.cluster:
        yield enforced


def _says(said: Path, words: str, times: int = 1) -> None:
    eventually(lambda: said.read_text().count(words) >= times, lambda: said.read_text())


def test_the_kernel_follows_the_cluster_through_an_outage(enforced: Enforced) -> None:
    with enforced.running() as said:
        _says(said, "applied")
        assert enforced.closed == {"10.0.0.2"}
        # A further pod of the policy is a change of elements alone.
        enforced.put_pod("db-1", "10.0.0.3", app="db")
        _says(said, "1 pod followed")
        assert enforced.closed == {"10.0.0.2", "10.0.0.3"}
        # The server goes away, and nothing changes; what happens meanwhile counts when it is back.
        before = enforced.table
        enforced.cluster.go_away()
        assert enforced.table == before
        enforced.put_policy("web")
        enforced.cluster.delete("pods", "shop", "db-1")
        enforced.cluster.come_back()
        eventually(lambda: enforced.closed == {"10.0.0.1"} and "10.0.0.3" not in enforced.table, said.read_text)
        enforced.cluster.delete("networkpolicies", "shop", "closed")
        eventually(lambda: not enforced.closed, said.read_text)
    assert said.read_text().splitlines()[-1].startswith("stopped; the kernel keeps the table that it has")
    assert said.read_text().count("not told what is in force here: that needs --release-namespace NAME\n") == 1
    assert enforced.table


def test_nothing_is_enforced_before_everything_was_read(enforced: Enforced) -> None:
    """SIGTERM ends the waiting."""
    enforced.cluster.go_away()
    with enforced.running() as said:
        url = enforced.cluster.server.url
        _says(said, f"waiting for the API server at {url}: the connection is refused\n")
    assert enforced.table == ""
    with enforced.running() as said:
        _says(said, "waiting for the API server")
        enforced.cluster.come_back()
        _says(said, "applied")
        assert enforced.closed == {"10.0.0.2"}


def test_the_pages_say_whether_the_table_is_in_force(enforced: Enforced) -> None:
    enforced.cluster.go_away()
    with enforced.running("--http", "127.0.0.1:0") as said:
        _says(said, "health and metrics on http://127.0.0.1:")
        served_at = re.search(r"http://127\.0\.0\.1:\d+", said.read_text())
        assert served_at is not None

        def page(path: str) -> tuple[int, str]:
            where = served_at[0].removeprefix("http://")
            with enforced.network.entered(), closing(HTTPConnection(where)) as connection:
                connection.request("GET", path)
                answer = connection.getresponse()
                return answer.status, answer.read().decode()

        # It waits for the cluster: alive, but not ready.
        assert page("/livez") == (200, "ok\n")
        status, body = page("/readyz")
        assert (status, "no table is in force yet" in body) == (503, True)
        enforced.cluster.come_back()
        eventually(lambda: page("/readyz")[0] == 200, said.read_text)
        assert enforced.closed == {"10.0.0.2"}
        assert 'tierwall_loads_total{outcome="good"} 1.0' in page("/metrics")[1]


def test_a_kind_that_this_user_may_not_list_ends_the_start(enforced: Enforced) -> None:
    enforced.cluster.server.forbidden.add("networkpolicies")
    with enforced.network.entered():
        ended = subprocess.run(
            [TIERWALL, "enforce", "nft", "--cluster", "--kubeconfig", str(enforced.cluster.kubeconfig)],
            capture_output=True,
            text=True,
        )
    assert ended.returncode == 1
    assert "this user may not list and watch networkpolicies" in ended.stderr
    assert enforced.table == ""


def test_files_lie_over_the_cluster(enforced: Enforced, tmp_path: Path) -> None:
    """`--dry-run` and `--diff` read the cluster once and show what would be enforced."""
    folder = tmp_path / "files"
    folder.mkdir()
    file = folder / "policy.yaml"
    file.write_text(
        "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: closed, namespace: shop},"
        " spec: {podSelector: {matchLabels: {app: web}}}}"
    )
    command = [TIERWALL, "enforce", "nft", str(folder), "--cluster", "--kubeconfig", str(enforced.cluster.kubeconfig)]
    with enforced.network.entered():
        shown = subprocess.run([*command, "--dry-run"], capture_output=True, text=True)
        assert shown.returncode == 0, shown.stderr
        assert _CLOSED.findall(shown.stdout) == ["10.0.0.1"]
        assert subprocess.run([*command, "--diff"], capture_output=True).returncode == 4
    assert enforced.table == ""
    with enforced.running(str(folder)) as said:
        _says(said, "applied")
        assert enforced.closed == {"10.0.0.1"}
        file.unlink()
        eventually(lambda: enforced.closed == {"10.0.0.2"}, said.read_text)


def test_copies_of_files_need_files(enforced: Enforced, tmp_path: Path) -> None:
    """A cluster is never started from an older copy."""
    command = [TIERWALL, "enforce", "nft", "--cluster", "--kubeconfig", str(enforced.cluster.kubeconfig), "--state"]
    ended = subprocess.run([*command, str(tmp_path / "state")], capture_output=True, text=True)
    assert ended.returncode == 2
    assert "--state keeps copies of files, and none are given" in ended.stderr
