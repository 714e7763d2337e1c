"""Every lock names exact versions with hashes, and agrees with the files that it was compiled from."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from supply.inventory import GO_TOOLS, LOCKS
from supply.locks import LockError, read_go_modules, read_lock
from tests import ROOT

REQUIREMENTS = ROOT / "requirements"


def test_every_lock_has_a_purpose() -> None:
    assert sorted(LOCKS.values()) == sorted(path.name for path in REQUIREMENTS.glob("*.txt"))


@pytest.mark.parametrize("lock", LOCKS.values())
def test_every_package_of_a_lock_has_hashes(lock: str) -> None:
    pins = read_lock(REQUIREMENTS / lock)
    text = (REQUIREMENTS / lock).read_text()
    assert len(pins) == text.count("==") - text.count(" == ") > 0
    assert sum(len(pin.hashes) for pin in pins) == text.count("--hash=sha256:")


@pytest.mark.parametrize("source", sorted(REQUIREMENTS.glob("*.in")), ids=lambda path: path.name)
def test_a_lock_has_what_it_was_compiled_from(source: Path) -> None:
    pins = {pin.name: pin.version for pin in read_lock(source.with_suffix(".txt"))}
    for line in source.read_text().splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)])


def test_the_build_backend_is_the_locked_one() -> None:
    pins = {pin.name: pin.version for pin in read_lock(REQUIREMENTS / "build.txt")}
    backend = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert backend == [f"hatchling=={pins['hatchling']}"]


def test_locks_do_not_fight_over_a_version_in_one_environment() -> None:
    chosen: dict[tuple[str, str], str] = {}
    for lock in ("run.txt", "build.txt", "dev.txt"):
        for pin in read_lock(REQUIREMENTS / lock):
            assert chosen.setdefault((pin.name, pin.marker), pin.version) == pin.version


def test_go_tools_have_hashes_and_their_build_may_not_add_any() -> None:
    modules = {module.name: module for module in read_go_modules(ROOT / GO_TOOLS)}
    assert len(modules["k8s.io/kubernetes"].hash) == 64
    # Replaced: go.mod requires v0.0.0.
    assert modules["k8s.io/kubectl"].version == modules["k8s.io/api"].version
    etcd = {module.name: module for module in read_go_modules(ROOT / GO_TOOLS / "etcd")}
    assert len(etcd["go.etcd.io/etcd/server/v3"].hash) == 64
    assert "GOFLAGS=-mod=readonly" in (ROOT / GO_TOOLS / "build").read_text()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("thing==1\n", "SHA-256"),
        ("thing==1 \\\n    --hash=md5:00\n", "SHA-256"),
        ("thing>=1 \\\n    --hash=sha256:00\n", "expected `name==version`"),
        ("thing @ https://example.com/thing.whl\n", "expected `name==version`"),
        ("--index-url https://example.com\n", "expected `name==version`"),
    ],
)
def test_a_package_without_version_or_hash_is_found(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "run.txt").write_text(text)
    with pytest.raises(LockError, match=problem):
        read_lock(tmp_path / "run.txt")


def test_a_module_without_a_hash_is_found(tmp_path: Path) -> None:
    (tmp_path / "go.mod").write_text("module lab\n\nrequire example.com/thing v1.0.0\n")
    (tmp_path / "go.sum").write_text("")
    with pytest.raises(LockError, match="thing"):
        read_go_modules(tmp_path)
