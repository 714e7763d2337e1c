"""`kubectl tierwall …` (docs/clusters.md#as-a-kubectl-plugin), with the real kubectl where it is built."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests import ROOT
from tests.labs.control_plane import tool
from tests.labs.served_cluster import ServedCluster, serving
from tierwall.cli.kubectl import PROGRAM, completions
from tierwall.cli.main import root

OBJECTS = ROOT / "examples" / "compare" / "old"
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def cluster() -> Iterator[ServedCluster]:
    with serving(OBJECTS, forbidden={"alice": {}}) as served:
        yield served


@pytest.fixture(autouse=True)
def environment(cluster: ServedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", cluster.kubeconfig)
    monkeypatch.chdir(tmp_path)


def plugin(*arguments: object) -> Result:
    return CliRunner().invoke(root, [str(argument) for argument in arguments], prog_name=PROGRAM)


@pytest.mark.parametrize(
    "command",
    [
        ("list",),
        ("check",),
        ("explain", "network", "--from", "shop/web", "--to", "shop/db", "--port", "5432"),
        ("can-i", "get", "pods", "--as", "alice"),
        ("diff", "--without", "NetworkPolicy/shop/db"),
        ("compile", "nft"),
    ],
)
def test_the_current_context_is_read_without_files(cluster: ServedCluster, command: tuple[str, ...]) -> None:
    before = len(cluster.requests)
    result = plugin(*command)
    assert result.exit_code in (0, 3, 4), result.output
    assert len(cluster.requests) > before


def test_files_are_read_instead_and_with_a_context_over_it(cluster: ServedCluster, tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("apiVersion: v1\nkind: Namespace\nmetadata: {name: x}\n")
    before = len(cluster.requests)
    for command in (("list", "empty.yaml"), ("list", "-f", "empty.yaml"), ("diff", "empty.yaml", "empty.yaml")):
        assert plugin(*command).exit_code == 0
    assert len(cluster.requests) == before
    assert "shop/db" in plugin("list", "empty.yaml", "--context", "alice").stdout
    assert len(cluster.requests) > before


def test_a_change_lies_over_the_current_context(cluster: ServedCluster, tmp_path: Path) -> None:
    (tmp_path / "change.yaml").write_text(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: closed, namespace: shop}\n"
        "spec: {podSelector: {}, policyTypes: [Ingress]}\n"
    )
    result = plugin("diff", "-f", "change.yaml", "--plane", "network")
    assert (result.exit_code, "=> shop/web" in result.stdout) == (4, True)


def test_commands_without_objects_need_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/absent")
    for command in (("crds", "XBackend"), ("cel", "eval", "1 + 1"), ("--version",), ("--help",)):
        assert plugin(*command).exit_code == 0
    result = plugin("list")
    assert (result.exit_code, "TW040" in result.stderr) == (1, True)


def test_policy_tests_are_files(cluster: ServedCluster) -> None:
    before = len(cluster.requests)
    assert plugin("test", ROOT / "examples" / "shop" / "tests").exit_code == 0
    assert len(cluster.requests) == before


def test_help_shows_what_to_type() -> None:
    assert plugin("--help").stdout.startswith("Usage: kubectl tierwall [OPTIONS]")
    shown = plugin("list", "--help").stdout
    assert shown.startswith("Usage: kubectl tierwall list")
    assert "Example: kubectl tierwall list manifests/" in shown
    assert "Example: tierwall list" in CliRunner().invoke(root, ["list", "--help"]).stdout
    assert "'kubectl tierwall list --help'" in plugin("list", "--nope").stderr


def test_words_complete_as_kubectl_expects() -> None:
    assert completions(["lis"]) == ["list\tList which pods, nodes and outside...", ":4"]
    assert completions(["list", "--context", ""]) == ["alice", "root", ":4"]
    assert completions(["list", "--kubeconfig", ""]) == [":0"]
    assert completions([])[-1] == ":4"


@pytest.mark.engine
def test_kubectl_runs_the_plugin(cluster: ServedCluster) -> None:
    kubectl = tool("kubectl")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            [kubectl, *words],
            env={"PATH": path, "KUBECONFIG": cluster.kubeconfig, "HOME": os.getcwd()},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    listed = run("tierwall", "list", "--context", "alice", "-n", "shop")
    assert (listed.returncode, "shop/db" in listed.stdout) == (0, True)
    before = run("--context", "alice", "tierwall", "list")
    assert "flags cannot be placed before plugin name" in before.stderr
    completed = run("__complete", "tierwall", "list", "--context", "a")
    assert completed.stdout.splitlines()[0] == "alice"
    assert run("tierwall", "list", "--help").stdout.startswith("Usage: kubectl tierwall list")
