"""The pre-commit hooks, run by pre-commit itself on a repository as people have them (docs/ci.md#pre-commit)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
import yaml

from tests import ROOT
from tests.labs.wheel_environment import requirements
from tests.labs.wheel_index import write_wheels

NAMESPACE = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n"
POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: db-0, namespace: shop, labels: {app: db}}\n"
POLICY = """\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec: {podSelector: {matchLabels: {app: db}}}
"""
TEST = """\
apiVersion: tierwall.io/v1alpha1
kind: PolicyTest
metadata: {name: db}
spec:
  resources: [../manifests]
  cases:
  - {name: closed, network: {from: shop/db-0, to: {ip: 192.0.2.1}, port: 80}, expect: {verdict: %s}}
"""
BROKEN = POLICY.replace("podSelector", "podSelektor")
# A repository as people have them: manifests, and much else that ends in `.yaml` or `.json`.
FILES = {
    "manifests/namespace.yaml": NAMESPACE,
    "manifests/pod.yaml": POD,
    "manifests/policy.yaml": POLICY,
    "package.json": '{"name": "shop"}\n',
    "docker-compose.yml": "services: {web: {image: web}}\n",
    "settings.yaml": "- a list\n- of words\n",
    "mkdocs.yml": "emoji: !!python/name:material.extensions.emoji.twemoji\n",
    "playbook.yml": "- name: {{ name }}\n  when: {% if a %}b{% endif %}\n",
    "chart/Chart.yaml": "apiVersion: v2\nname: shop\nversion: 1.0.0\n",
    "chart/values.yaml": "replicas: 2\n",
    "chart/templates/pod.yaml": "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {{ .Release.Name }}\n",
    ".github/workflows/ci.yaml": "on: push\njobs: {}\n",
    "python/pyvenv.cfg": "home = /usr/bin\n",
    "python/lib/broken.yaml": BROKEN,
    "node_modules/thing/broken.yaml": BROKEN,
}


def git(folder: Path, *arguments: object) -> str:
    """Run git as nobody in particular."""
    who = ("-c", "user.name=Test", "-c", "user.email=test@example.com", "-c", "init.defaultBranch=main")
    command = ["git", *who, *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def hooks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository with the hooks and the package, as they are in this work tree."""
    folder = tmp_path_factory.mktemp("hooks")
    for name in (".pre-commit-hooks.yaml", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "hooks")
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of pre-commit, with wheels of everything that the hooks install."""
    folder = tmp_path_factory.mktemp("home")
    packages = {"hatchling"} | requirements(distribution("hatchling")) | requirements(distribution("tierwall"))
    write_wheels(folder / "wheels", packages)
    return folder


class Repository:
    """A repository that uses the hooks."""

    def __init__(self, folder: Path, hooks: Path, home: Path) -> None:
        self._folder, self._home = folder, home
        git(folder, "init", "-q")
        for name, text in FILES.items():
            self.write(name, text)
        entry = {
            "repo": str(hooks),
            "rev": git(hooks, "rev-parse", "HEAD").strip(),
            "hooks": [{"id": "tierwall-check"}, {"id": "tierwall-test"}],
        }
        self.write(".pre-commit-config.yaml", yaml.safe_dump({"repos": [entry]}))

    def write(self, name: str, text: str) -> None:
        file = self._folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        git(self._folder, "add", "--force", name)

    def run(self) -> subprocess.CompletedProcess[str]:
        """Run all hooks on the staged files, as a commit does."""
        environment = {key: text for key, text in os.environ.items() if not key.startswith(("PIP_", "GIT_"))}
        return subprocess.run(
            [sys.executable, "-m", "pre_commit", "run", "--verbose", "--color", "never"],
            cwd=self._folder,
            env={
                **environment,
                "PRE_COMMIT_HOME": str(self._home / "pre-commit"),
                "PIP_NO_INDEX": "1",
                "PIP_FIND_LINKS": str(self._home / "wheels"),
                "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        )


@pytest.mark.slow
def test_the_hooks_judge_manifests_in_one_process_and_nothing_else(tmp_path: Path, hooks: Path, home: Path) -> None:
    repository = Repository(tmp_path, hooks, home)
    done = repository.run()
    assert done.returncode == 0, done.stdout
    assert "tierwall check" in done.stdout
    assert done.stdout.count("Passed") == 2
    # One process: one summary, of the three manifests.
    assert done.stdout.count(" in 3 objects of ") == 1, done.stdout

    # Only the policy is changed and staged; the pod that it selects counts all the same.
    git(tmp_path, "-c", "core.hooksPath=/dev/null", "commit", "-qm", "all")
    repository.write("manifests/policy.yaml", BROKEN)
    done = repository.run()
    assert done.returncode == 1
    assert "manifests/policy.yaml:4:" in done.stdout
    assert "TW101" in done.stdout
    assert "- exit code: 4" in done.stdout

    repository.write("manifests/policy.yaml", POLICY)
    repository.write("tests/db.yaml", TEST % "Deny")
    done = repository.run()
    assert done.returncode == 1
    assert "0 passed, 1 failed" in done.stdout
    repository.write("tests/db.yaml", TEST % "Allow")
    done = repository.run()
    assert done.returncode == 0, done.stdout
    assert "1 passed, 0 failed" in done.stdout


def test_other_files_do_not_start_the_hooks() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert [hook["id"] for hook in hooks] == ["tierwall-check", "tierwall-test", "tierwall-diff-prove"]
    for hook in hooks:
        assert hook["types_or"] == ["yaml", "json"]
        assert not hook["pass_filenames"]
