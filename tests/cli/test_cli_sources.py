"""The sources of objects on the command line: `PATH...` and `-f` are one list, and standard input is read once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tierwall.cli.main import root

PODS = """\
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: x, labels: {app: a}}
---
apiVersion: v1
kind: Pod
metadata: {name: b, namespace: x, labels: {app: b}}
"""
POLICY = """\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed, namespace: x}
spec: {podSelector: {}, policyTypes: [Ingress]}
"""
TEST = """\
apiVersion: tierwall.io/v1alpha1
kind: PolicyTest
metadata: {name: t}
spec:
  resources: [pods.yaml]
  cases:
  - {name: c, network: {from: x/a, to: x/b, port: 1}, expect: {verdict: Deny}}
"""
BROKEN = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: n}\nspec: {podSelector: 1}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pods.yaml").write_text(PODS)
    (tmp_path / "policy.yaml").write_text(POLICY)
    return tmp_path


def tierwall(*arguments: str, input: str | None = None) -> Result:
    return CliRunner().invoke(root, arguments, input=input)


@pytest.mark.parametrize(
    "given",
    ["pods.yaml policy.yaml", "pods.yaml -f policy.yaml", "-f pods.yaml -f policy.yaml", ""],
)
def test_paths_and_files_are_one_list_and_this_folder_is_the_default(given: str) -> None:
    assert "x/* => " in tierwall("list", *given.split()).stdout
    summary = json.loads(tierwall("check", *given.split(), "-o", "json").stdout)
    assert (summary["files"], summary["objects"]) == (2, 3)


def test_standard_input_is_a_file_among_others() -> None:
    alone, beside = (
        tierwall("list", "-", input=PODS + "---\n" + POLICY),
        tierwall("list", "-", "policy.yaml", input=PODS),
    )
    assert alone.stdout
    assert alone.stdout == beside.stdout == tierwall("list", "-f", "-", "policy.yaml", input=PODS).stdout


def test_exposure_of_standard_input() -> None:
    shown = tierwall("list", "-", "--exposure", input=PODS + "---\n" + POLICY)
    assert shown.stdout == tierwall("list", "pods.yaml", "policy.yaml", "--exposure").stdout != ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("diff", "-", "-"),
        ("test", "-", "-f", "-"),
        ("explain", "api", "--verb", "create", "--resource", "pods", "-f", "-", "--object", "-"),
        ("explain", "api", "--verb", "create", "--resource", "pods", "--object", "-", "--old-object", "-"),
    ],
)
def test_standard_input_is_not_read_twice(arguments: tuple[str, ...]) -> None:
    result = tierwall(*arguments, input=PODS)
    assert result.exit_code == 2
    assert "standard input (`-`) can be read only once" in result.stderr


def test_files_are_put_under_the_objects_of_every_test(folder: Path) -> None:
    (folder / "test.yaml").write_text(TEST)
    assert tierwall("test", "test.yaml").exit_code == 4
    assert tierwall("test", "test.yaml", "-f", "policy.yaml").exit_code == 0
    assert tierwall("test", "test.yaml", "-f", "-", input=POLICY).exit_code == 0
    assert tierwall("test", "test.yaml", "-f", "nowhere").exit_code == 1


@pytest.mark.parametrize("command", [("run",), ("enforce", "nft"), ("test",), ("authorizer",)])
def test_commands_that_enforce_have_no_default_folder(command: tuple[str, ...]) -> None:
    result = tierwall(*command)
    assert result.exit_code == 2
    assert "Missing" in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("run", "-f", "broken.yaml"),
        ("authorizer", "-f", "broken.yaml", "--listen", "127.0.0.1:0"),
        ("authorizer", "--policies", "broken.yaml", "--listen", "127.0.0.1:0"),
        ("enforce", "nft", "-f", "broken.yaml", "--dry-run"),
    ],
)
def test_commands_that_enforce_take_files_too(command: tuple[str, ...], folder: Path) -> None:
    # An object with an error would not keep the commands from starting.
    (folder / "broken.yaml").write_text("apiVersion: v1\nkind: Pod\nmetadata: {}\nspec: }\n")
    result = tierwall(*command)
    assert result.exit_code == 1
    assert "broken.yaml:4" in result.stderr


def test_list_points_to_audit_for_hits() -> None:
    result = tierwall("list", "--hits")
    assert result.exit_code == 2
    assert "tierwall audit --hits" in result.stderr
