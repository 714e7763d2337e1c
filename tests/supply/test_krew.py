"""The kubectl plugin for krew: a manifest that krew takes, and archives that run (docs/clusters.md#with-krew).

The rules of krew are those of `ValidatePlugin` and of its `validate-krew-manifest`.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import yaml

from supply.krew import PLATFORMS, ArchiveError, build, locked_install, pack, project_version, pythons
from supply.locks import read_lock
from tests import ROOT

URI = "https://example.com/releases"
HERE = "{}.{}".format(*sys.version_info[:2])
ARCH = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]


def install(folder: Path, python: str, platform: str) -> None:
    """Copy the packages of the lock from the environment of the tests, which has these versions."""
    for pin in read_lock(ROOT / "requirements" / "cluster.txt"):
        for file in distribution(pin.name).files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                target = folder / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(distribution(pin.name).locate_file(file)), target)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("krew")
    build(ROOT, folder, URI + "/", install, (HERE,))
    return folder


@pytest.fixture(scope="module")
def manifest(built: Path) -> dict[str, Any]:
    value: dict[str, Any] = yaml.safe_load((built / "tierwall.yaml").read_text())
    return value


@pytest.fixture(scope="module")
def installed(built: Path, manifest: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the archive of this machine as krew does: unpacked into a folder of its version, with a link to `bin`."""
    root = tmp_path_factory.mktemp("root")
    store = root / "store" / "tierwall" / manifest["spec"]["version"]
    store.mkdir(parents=True)
    with tarfile.open(built / f"tierwall_{manifest['spec']['version']}_linux_{ARCH}.tar.gz") as archive:
        archive.extractall(store, filter="data")
    (root / "bin").mkdir()
    (root / "bin" / "kubectl-tierwall").symlink_to(store / manifest["spec"]["platforms"][0]["bin"])
    (root / "bin" / "kubectl_complete-tierwall").symlink_to(store / "kubectl-tierwall")
    return root / "bin"


def run(program: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(program), *arguments],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_krew_takes_the_manifest(manifest: dict[str, Any]) -> None:
    assert manifest["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2"
    assert (manifest["kind"], manifest["metadata"]["name"]) == ("Plugin", "tierwall")
    spec = manifest["spec"]
    assert re.fullmatch(r"v\d+\.\d+\.\d+", spec["version"])
    assert spec["version"] == f"v{project_version(ROOT)}"
    assert 0 < len(spec["shortDescription"]) < 50
    assert "\n" not in spec["shortDescription"]
    lines = [*spec["description"].split("\n"), *spec["caveats"].split("\n")]
    assert max(map(len, lines)) <= 80
    assert [entry["selector"] for entry in spec["platforms"]] == [
        {"matchLabels": {"os": "linux", "arch": arch}} for arch in PLATFORMS
    ]


def test_digests_and_addresses_are_those_of_the_archives(built: Path, manifest: dict[str, Any]) -> None:
    for entry in manifest["spec"]["platforms"]:
        folder, _, name = entry["uri"].rpartition("/")
        assert folder == URI
        assert name.endswith(f"_{entry['selector']['matchLabels']['arch']}.tar.gz")
        assert entry["sha256"] == hashlib.sha256((built / name).read_bytes()).hexdigest()


def test_the_same_commit_gives_the_same_bytes(built: Path, tmp_path: Path) -> None:
    build(ROOT, tmp_path, URI, install, (HERE,))
    for file in built.iterdir():
        assert (tmp_path / file.name).read_bytes() == file.read_bytes(), file.name


def test_equal_contents_give_equal_bytes_in_any_order() -> None:
    assert pack({"a": b"1", "b": b"2"}) == pack({"b": b"2", "a": b"1"})


def test_the_plugin_answers(installed: Path) -> None:
    manifests = str(ROOT / "examples" / "shop" / "manifests")
    question = ("explain", "network", "--from", "shop/web-0", "--to", "shop/db-0", "--port", "5432", "-f", manifests)
    result = run(installed / "kubectl-tierwall", *question)
    assert (result.returncode, result.stderr) == (3, "")
    assert result.stdout.startswith("shop/web-0 cannot reach shop/db-0 on TCP port 5432")


def test_the_plugin_reads_a_cluster_unless_files_are_given(installed: Path) -> None:
    result = run(installed / "kubectl-tierwall", "list")
    assert result.returncode == 1
    assert "there is no kubeconfig" in result.stderr


def test_it_completes_under_the_name_that_kubectl_asks_for(installed: Path) -> None:
    result = run(installed / "kubectl_complete-tierwall", "expl")
    assert result.stdout.startswith("explain\t")
    assert result.stdout.endswith(":4\n")


def test_other_packages_of_this_python_do_not_count(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "tierwall.py").write_text("raise SystemExit('the wrong one')")
    result = run(installed / "kubectl-tierwall", "--version", PYTHONPATH=str(tmp_path))
    assert (result.returncode, result.stdout) == (0, f"tierwall, version {project_version(ROOT)}\n")


def other_pythons(installed: Path, tmp_path: Path, versions: str) -> Path:
    starter = tmp_path / "kubectl-tierwall"
    text = (installed / "kubectl-tierwall").read_text().replace(f'"{HERE}".split()', f'"{versions}".split()')
    starter.write_text(text)
    starter.chmod(0o755)
    (tmp_path / "lib").symlink_to((installed / "kubectl-tierwall").resolve().parent / "lib")
    return starter


def test_without_a_python_that_fits_it_says_which_it_needs(installed: Path, tmp_path: Path) -> None:
    result = run(other_pythons(installed, tmp_path, "2.9 3.0"), "--version")
    assert (result.returncode, result.stderr) == (1, "kubectl tierwall needs Python 2.9 or 3.0 on the PATH\n")


def test_another_python_on_the_path_is_found(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "python9.9").write_text('#!/bin/sh\necho "started with $@"\n')
    (tmp_path / "python9.9").chmod(0o755)
    starter = other_pythons(installed, tmp_path, "3.0 9.9")
    result = run(starter, "list", "-n", "shop", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert result.stdout == f"started with -I {starter} list -n shop\n"


def test_every_version_of_python_that_is_supported_has_its_modules() -> None:
    required = re.search(r'^requires-python = ">=(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert required
    assert pythons(ROOT)[0] == required[1]
    assert HERE in pythons(ROOT)


def test_a_package_that_is_not_the_same_for_all_versions_is_refused(tmp_path: Path) -> None:
    def differs(folder: Path, python: str, platform: str) -> None:
        (folder / "module.py").write_text(f"VERSION = '{python}'")

    with pytest.raises(ArchiveError, match=r"lib/module\.py` is not the same"):
        build(ROOT, tmp_path, URI, differs, ("3.11", "3.12"))


def test_packages_are_installed_by_their_hashes_and_never_built(tmp_path: Path) -> None:
    uv = tmp_path / "uv"
    uv.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/called\n')
    uv.chmod(0o755)
    locked_install(ROOT, str(uv))(tmp_path, "3.12", PLATFORMS["arm64"])
    words = (tmp_path / "called").read_text().split()
    assert {"--require-hashes", "--no-build", str(ROOT / "requirements" / "cluster.txt")} <= set(words)
    uv.write_text("#!/bin/sh\nexit 2\n")
    with pytest.raises(ArchiveError, match=r"Python 3\.12 on aarch64"):
        locked_install(ROOT, str(uv))(tmp_path, "3.12", PLATFORMS["arm64"])
