"""Debian packages by a lock: exact versions with hashes, unpacked and not installed (docs/install-in-a-cluster.md).

Nothing of the machine changes and nobody needs to be root: `apt-get download` fetches, `dpkg-deb` unpacks. What a
package would do when it is installed does not happen, so only packages that need nothing of it can be in a lock.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_LINE = re.compile(r"(\S+) (\S+) sha256:([0-9a-f]{64})")


class PackageError(Exception):
    """A package cannot be had as the lock names it."""


class LockedPackage(NamedTuple):
    """A line of the lock."""

    name: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.name} {self.version} sha256:{self.sha256}"


class PackageLock(NamedTuple):
    """The packages of an architecture, by name. The comment at the beginning stays when it is renewed."""

    comment: str
    architecture: str
    packages: tuple[LockedPackage, ...]

    @classmethod
    def read(cls, file: Path) -> PackageLock:
        """Read a lock; PackageError names the line that is wrong."""
        lines = file.read_text().splitlines()
        comment = [line for line in lines if line.startswith("#")]
        first, *rest = [line for line in lines if line and not line.startswith("#")] or [""]
        if not first.startswith("architecture "):
            raise PackageError(f"{file}: expected `architecture NAME`, found `{first}`")
        packages = []
        for line in rest:
            match = _LINE.fullmatch(line)
            if match is None:
                raise PackageError(f"{file}: expected `NAME VERSION sha256:DIGEST`, found `{line}`")
            packages.append(LockedPackage(*match.groups()))
        return cls("\n".join(comment), first.removeprefix("architecture "), tuple(packages))

    def text(self) -> str:
        """Return the lock as it is written."""
        return "\n".join([self.comment, f"architecture {self.architecture}", *map(str, self.packages), ""])


def renewed(lock: PackageLock) -> PackageLock:
    """Return a lock with the versions that this machine's apt would install now."""
    packages = []
    for package in lock.packages:
        name = f"{package.name}:{lock.architecture}"
        words = _output(["apt-get", "download", "--print-uris", name]).split()
        if len(words) != 4 or not words[3].startswith("SHA256:"):
            raise PackageError(f"apt-get has no package `{name}` with a SHA-256 digest")
        # NAME_VERSION_ARCHITECTURE.deb, in which a colon of the version is escaped.
        version = words[1].split("_")[1].replace("%3a", ":")
        packages.append(LockedPackage(package.name, version, words[3].removeprefix("SHA256:")))
    return lock._replace(packages=tuple(packages))


def fetch(lock: PackageLock, cache: Path) -> tuple[Path, ...]:
    """Return the files of the packages, in the order of the lock; what is in the cache is not fetched again."""
    cache.mkdir(parents=True, exist_ok=True)
    return tuple(_fetch(package, lock.architecture, cache) for package in lock.packages)


def _fetch(package: LockedPackage, architecture: str, cache: Path) -> Path:
    kept = cache / f"{package.sha256}.deb"
    if kept.exists() and _digest(kept) == package.sha256:
        return kept
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        wanted = f"{package.name}:{architecture}={package.version}"
        try:
            _output(["apt-get", "download", wanted], folder)
        except PackageError as error:
            hint = f"renew the lock, or put the file from snapshot.debian.org at {kept}"
            raise PackageError(f"{wanted} cannot be fetched ({hint}): {error}") from None
        (file,) = Path(folder).glob("*.deb")
        if (digest := _digest(file)) != package.sha256:
            raise PackageError(f"{wanted} has the digest {digest}, but the lock says {package.sha256}")
        file.replace(kept)
    return kept


def unpack(files: Sequence[Path], root: Path) -> None:
    """Unpack packages into one folder, in which /lib and the like lead to /usr, as in Debian."""
    for name in ("bin", "lib", "lib64", "sbin"):
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(f"usr/{name}")
    status = root / "var" / "lib" / "dpkg" / "status.d"
    status.mkdir(parents=True)
    for file in files:
        _unpack(file, root)
        # By these files scanners know which packages an image is made of.
        control = _output(["dpkg-deb", "-f", str(file)])
        (name,) = re.findall(r"^Package: (\S+)$", control, re.MULTILINE)
        (status / name).write_text(control)


def _unpack(file: Path, root: Path) -> None:
    # `dpkg-deb -x` would replace the links by folders.
    into = ["tar", "-x", "--keep-directory-symlink", "--no-same-owner", "-C", str(root)]
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(file)], stdout=subprocess.PIPE) as reader:
        done = subprocess.run(into, stdin=reader.stdout, capture_output=True, text=True)
    if reader.returncode != 0 or done.returncode != 0:
        raise PackageError(f"{file} cannot be unpacked: {done.stderr.strip()}")


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _output(command: list[str], folder: str | None = None) -> str:
    if shutil.which(command[0]) is None:
        raise PackageError(f"`{command[0]}` is missing: Debian packages need a machine with Debian, or one like it")
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise PackageError(done.stderr.strip())
    return done.stdout
