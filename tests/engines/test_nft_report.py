"""`tierwall enforce nft --cluster --node NODE` reports what is in force in the kernel, and nothing else."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.test_nft_cluster import KINDS, TIERWALL, Enforced, fresh_namespace
from tests.labs.fake_api_server import FakeKind
from tests.labs.waiting import eventually
from tierwall.engines.nftables.kernel.namespaces import NetworkNamespace
from tierwall.serve.generations import PolicyVersion, part_digests

__all__ = ["fresh_namespace"]

pytestmark = pytest.mark.engine

REPORTING = (
    *KINDS,
    FakeKind("policy.networking.k8s.io", "v1alpha1", "AdminNetworkPolicy", "adminnetworkpolicies", namespaced=False),
    FakeKind("coordination.k8s.io", "v1", "Lease", "leases"),
    FakeKind("tierwall.io", "v1alpha1", "NodeReport", "nodereports"),
)
HERE = ("--release-namespace", "system")
PLACE = ("system", "worker")


class Reporting(Enforced):
    """A cluster that takes reports."""

    def __init__(self, network: NetworkNamespace, folder: Path) -> None:
        super().__init__(network, folder, REPORTING)
        self.cluster.put("nodes", metadata={"name": "worker", "uid": "node-1"})
        self.cluster.delete("networkpolicies", "shop", "closed")

    def put_version(self, name: str, generation: int, *rules: dict[str, Any]) -> None:
        metadata = {"name": name, "uid": f"uid-of-{name}", "generation": generation}
        spec = {"priority": 5, "subject": {"namespaces": {}}, "egress": list(rules)}
        self.cluster.put("adminnetworkpolicies", metadata=metadata, spec=spec)

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.cluster.objects("nodereports").get(PLACE, {}).get("status") or {}
        return status

    def reports(self, *policies: tuple[str, int]) -> None:
        """Wait until these policies are in force in these generations, by the report."""
        lines = sorted(f"uid-of-{name} {generation}\n" for name, generation in policies)
        digest = hashlib.sha256("".join(lines).encode()).hexdigest()
        eventually(lambda: self.status.get("generations") == digest, lambda: f"{self.status}, {self.said}")
        versions = [PolicyVersion(f"uid-of-{name}", generation) for name, generation in policies]
        assert self.status["digests"] == part_digests(versions)
        assert self.status["table"]["policies"] == len(policies)

    @property
    def said(self) -> str:
        return (self.folder / "stderr").read_text()


def deny(*ports: int) -> dict[str, Any]:
    return {
        "action": "Deny",
        "to": [{"namespaces": {}}],
        "ports": [{"portNumber": {"protocol": "TCP", "port": port}} for port in ports],
    }


@pytest.fixture
def reporting(fresh_namespace: NetworkNamespace, tmp_path: Path) -> Iterator[Reporting]:
    reporting = Reporting(fresh_namespace, tmp_path)
    with reporting.cluster:
        yield reporting


def test_the_report_follows_the_kernel(reporting: Reporting) -> None:
    reporting.put_version("one", 1, deny(80))
    with reporting.running(*HERE):
        reporting.reports(("one", 1))
        assert "dport 80 " in reporting.table
        first = reporting.status["table"]
        assert (reporting.status["node"], first["pods"]) == ("worker", 2)
        # A new generation and a new policy.
        reporting.put_version("one", 2, deny(81))
        reporting.put_version("two", 1, deny(82))
        reporting.reports(("one", 2), ("two", 1))
        assert "dport 81 " in reporting.table
        assert reporting.status["table"]["hash"] != first["hash"]
        # Another pod on this node is another number, and neither other rules nor another load.
        before = reporting.status["table"]
        reporting.put_pod("db-1", "10.0.0.3", app="db")
        eventually(lambda: reporting.status["table"] == before | {"pods": 3}, lambda: str(reporting.status))
        reporting.cluster.delete("adminnetworkpolicies", "", "one")
        reporting.reports(("two", 1))
        assert "tierwall-node-worker" in {name for _, name in reporting.cluster.objects("leases")}
        assert "behind" not in reporting.status
    assert "cannot be written" not in reporting.said
    # Removing the table empties the report.
    command = [TIERWALL, "enforce", "nft", "--remove", "--cluster", "--node", "worker", *HERE]
    with reporting.network.entered():
        subprocess.run([*command, "--kubeconfig", str(reporting.cluster.kubeconfig)], check=True)
    assert reporting.table == ""
    assert reporting.status == {"node": "worker", "message": "the table was removed, no policies are in force"}


def test_a_policy_that_is_not_enforced_as_written_is_behind(reporting: Reporting) -> None:
    """The kernel knows no domain names, so this rule opens nothing."""
    named = {"action": "Allow", "to": [{"domainNames": ["example.com"]}]}
    reporting.put_version("named", 3, named)
    reporting.put_version("plain", 1, deny(80))
    with reporting.running(*HERE):
        reporting.reports(("plain", 1))
        (behind,) = reporting.status["behind"]
        assert behind["policy"] == "AdminNetworkPolicy/named"
        assert behind["generation"] == 3
        assert "inForce" not in behind
        assert "which the kernel does not know" in behind["message"]
        reporting.put_version("named", 4, deny(81))
        reporting.reports(("plain", 1), ("named", 4))
        assert "behind" not in reporting.status


def test_a_node_that_has_restarted_says_that_nothing_is_in_force(reporting: Reporting) -> None:
    """The report of before is replaced before everything is read; a table that is still there keeps its report."""
    reporting.put_version("one", 1, deny(80))
    with reporting.running(*HERE):
        reporting.reports(("one", 1))
    before = reporting.status
    with reporting.running(*HERE):
        eventually(lambda: "in force already" in reporting.said, lambda: reporting.said)
    assert reporting.status["generations"] == before["generations"]
    with reporting.network.entered():
        subprocess.run(["nft", "flush", "ruleset"], check=True)
    # Nothing can be read, so nothing comes into force.
    reporting.cluster.server.is_ready = False
    with reporting.running(*HERE):
        message = "no policies are in force yet"
        eventually(lambda: reporting.status == {"node": "worker", "message": message}, lambda: str(reporting.status))
        reporting.cluster.server.is_ready = True
        reporting.reports(("one", 1))
