"""`make install` runs nothing that a lock does not name with a hash (docs/security.md#what-is-installed).

That includes the build backend. The tests run the project's own Makefile on a small project whose backend leaves a
trace when it runs.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests import ROOT

UV = shutil.which("uv") or str(ROOT / ".venv" / "bin" / "uv")
PROJECT = """\
[build-system]
requires = ["backend==1"]
build-backend = "backend"
[project]
name = "lab"
version = "1"
"""
BACKEND = """\
import os, pathlib, zipfile
def build_wheel(folder, settings=None, metadata=None):
    pathlib.Path(os.environ["TRACE"]).touch()
    name = "lab" if pathlib.Path("Makefile").exists() else "sourceonly"
    with zipfile.ZipFile(pathlib.Path(folder) / f"{name}-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}-1.dist-info/METADATA", f"Metadata-Version: 2.1\\nName: {name}\\nVersion: 1\\n")
        wheel.writestr(f"{name}-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{name}-1.dist-info/RECORD", "")
    return f"{name}-1-py3-none-any.whl"
build_editable = build_wheel
"""
WRONG = "0" * 64


def write_wheel(folder: Path) -> str:
    """Write a wheel of the backend and return its hash."""
    file = folder / "backend-1-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as wheel:
        wheel.writestr("backend.py", BACKEND)
        wheel.writestr("backend-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: backend\nVersion: 1\n")
        wheel.writestr("backend-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("backend-1.dist-info/RECORD", "")
    return hashlib.sha256(file.read_bytes()).hexdigest()


def write_source(folder: Path) -> str:
    """Write a source distribution of a package that must be built and return its hash."""
    file = folder / "sourceonly-1.tar.gz"
    texts = {
        "pyproject.toml": PROJECT.replace("lab", "sourceonly"),
        "PKG-INFO": "Metadata-Version: 2.1\nName: sourceonly\nVersion: 1\n",
    }
    with tarfile.open(file, "w:gz") as archive:
        for name, text in texts.items():
            entry = tarfile.TarInfo(f"sourceonly-1/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return hashlib.sha256(file.read_bytes()).hexdigest()


def install(folder: Path, build: str, run: str = "") -> subprocess.CompletedProcess[str]:
    """Run `make install` of the project's Makefile on the small project, offline, with these locks."""
    (folder / "requirements").mkdir()
    (folder / "requirements" / "run.txt").write_text(run)
    (folder / "requirements" / "build.txt").write_text(build)
    (folder / "pyproject.toml").write_text(PROJECT)
    shutil.copy(ROOT / "Makefile", folder)
    environment = os.environ | {
        "UV_OFFLINE": "1",
        "UV_FIND_LINKS": str(folder),
        "UV_CACHE_DIR": str(folder / "cache"),
        "TRACE": str(folder / "backend-ran"),
    }
    environment.pop("MAKEFLAGS", None)
    subprocess.run([UV, "venv", "-q", "--python", sys.executable, str(folder / ".venv")], env=environment, check=True)
    command = ["make", "-C", str(folder), "install", f"UV={UV}"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(autouse=True)
def _tools() -> None:
    if not Path(UV).exists() or shutil.which("make") is None:
        pytest.fail("expected uv (make dev) and make")


def test_the_backend_of_the_lock_builds_the_project(tmp_path: Path) -> None:
    done = install(tmp_path, f"backend==1 --hash=sha256:{write_wheel(tmp_path)}\n")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "backend-ran").exists()
    assert list(tmp_path.glob(".venv/lib/*/site-packages/lab-1.dist-info"))


@pytest.mark.parametrize("requirement", [f"backend==1 --hash=sha256:{WRONG}\n", "backend==1\n", ""])
def test_a_backend_without_its_hash_never_runs(tmp_path: Path, requirement: str) -> None:
    write_wheel(tmp_path)
    done = install(tmp_path, requirement)
    assert done.returncode != 0
    assert not (tmp_path / "backend-ran").exists()
    assert not list(tmp_path.glob(".venv/lib/*/site-packages/lab-1.dist-info"))


def test_a_dependency_that_would_have_to_be_built_is_refused(tmp_path: Path) -> None:
    build = f"backend==1 --hash=sha256:{write_wheel(tmp_path)}\n"
    done = install(tmp_path, build, run=f"sourceonly==1 --hash=sha256:{write_source(tmp_path)}\n")
    assert done.returncode != 0
    assert "sourceonly" in done.stderr
    assert not (tmp_path / "backend-ran").exists()


def test_every_target_installs_from_a_lock() -> None:
    command = ["make", "-C", str(ROOT), "--always-make", "--dry-run", "install", "dev", "docs", f"UV={UV}"]
    environment = {key: text for key, text in os.environ.items() if key != "MAKEFLAGS"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    installs = [line for line in done.stdout.splitlines() if "pip install" in line]
    assert len(installs) >= 4
    project = "--no-deps --no-build-isolation --editable ."
    for line in installs:
        assert line.endswith(project) or ("--require-hashes" in line and "--no-build" in line), line
    assert sum(line.endswith(project) for line in installs) == 1


def test_the_installer_itself_comes_from_a_lock() -> None:
    recipe = (ROOT / "Makefile").read_text().split("\n$(BIN)/uv:")[1].split("\n\n")[0]
    assert "--require-hashes --only-binary :all: -r requirements/uv.txt" in recipe
