"""Builds what krew installs: one archive per platform, and the manifest with digests (docs/clusters.md#with-krew).

An archive has Tierwall, the locked packages that reading a cluster needs, and a program that starts it. Compiled
modules are there for every version of Python that pyproject.toml names: their file names tell them apart, so all
versions share one folder. The same commit gives the same bytes, so anybody can check a published digest.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import subprocess
import tarfile
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from string import Template
from typing import Any

FOLDER = Path("deploy", "krew")
LOCK = Path("requirements", "cluster.txt")
# The platforms by krew's name of the architecture, and what their wheels are called.
PLATFORMS = {"amd64": "x86_64-manylinux_2_28", "arm64": "aarch64-manylinux_2_28"}
_VERSION = re.compile(r"Programming Language :: Python :: (3\.\d+)")
# These say how a wheel was installed, and differ for each version of Python.
_OF_WHEELS = ("RECORD", "WHEEL", "INSTALLER", "REQUESTED", "direct_url.json")

# Puts the packages of the lock for one version of Python and one platform into a folder.
Install = Callable[[Path, str, str], None]


class ArchiveError(Exception):
    """The archive cannot be built."""


def project_version(root: Path) -> str:
    """Return the version of Tierwall."""
    return str(_project(root)["version"])


def pythons(root: Path) -> tuple[str, ...]:
    """Return the versions of Python that pyproject.toml names, oldest first."""
    return tuple(match[1] for text in _project(root)["classifiers"] if (match := _VERSION.fullmatch(text)))


def locked_install(root: Path, uv: str, lock_file: Path = LOCK) -> Install:
    """Return what installs the packages of a lock, by their hashes, wheels only."""

    def install(folder: Path, python: str, platform: str) -> None:
        lock = [
            uv,
            "pip",
            "install",
            "--quiet",
            "--require-hashes",
            "--no-build",
            "--no-deps",
            "-r",
            str(root / lock_file),
        ]
        target = ["--target", str(folder), "--python-version", python, "--python-platform", platform]
        try:
            subprocess.run([*lock, *target, "--no-compile-bytecode"], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise ArchiveError(f"the packages for Python {python} on {platform} cannot be installed: {error}") from None

    return install


def build(root: Path, out: Path, uri: str, install: Install, versions: tuple[str, ...] | None = None) -> Path:
    """Build all archives and the manifest into a folder; `uri` is where the archives will be. Return the manifest."""
    versions = versions or pythons(root)
    version = project_version(root)
    out.mkdir(parents=True, exist_ok=True)
    values = {"version": version, "uri": uri.rstrip("/"), "pythons": " or ".join(versions)}
    for arch, platform in PLATFORMS.items():
        archive = out / f"tierwall_v{version}_linux_{arch}.tar.gz"
        archive.write_bytes(pack(_contents(root, platform, install, versions)))
        values[f"archive_{arch}"] = archive.name
        values[f"sha256_{arch}"] = hashlib.sha256(archive.read_bytes()).hexdigest()
    manifest = out / "tierwall.yaml"
    # The comment at its beginning is about the template.
    template = re.sub(r"\A(#.*\n)+", "", (root / FOLDER / "tierwall.yaml").read_text())
    manifest.write_text(Template(template).substitute(values))
    return manifest


def pack(contents: Mapping[str, bytes]) -> bytes:
    """Pack files so that equal contents give equal bytes: sorted, and without times and owners."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, data in sorted(contents.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755 if name == "kubectl-tierwall" else 0o644
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def _contents(root: Path, platform: str, install: Install, versions: tuple[str, ...]) -> dict[str, bytes]:
    """Return the files of an archive by their names."""
    starter = (root / FOLDER / "kubectl-tierwall").read_text().replace("@PYTHONS@", " ".join(versions))
    contents = {"LICENSE": (root / "LICENSE").read_bytes(), "kubectl-tierwall": starter.encode()}
    contents |= _files(root / "src", "tierwall/**/*")
    for version in versions:
        with tempfile.TemporaryDirectory() as folder:
            install(Path(folder), version, platform)
            for name, data in _files(Path(folder), "**/*").items():
                if contents.setdefault(name, data) != data:
                    raise ArchiveError(f"`{name}` is not the same for all versions of Python")
    return contents


def _files(folder: Path, pattern: str) -> dict[str, bytes]:
    return {
        f"lib/{path.relative_to(folder).as_posix()}": path.read_bytes()
        for path in folder.glob(pattern)
        if path.is_file() and _is_shipped(path.relative_to(folder))
    }


def _is_shipped(path: Path) -> bool:
    """Whether a file belongs into the archive: no programs of packages, no compiled Python, no records of wheels."""
    if path.parts[0] in ("bin", ".lock") or "__pycache__" in path.parts:
        return False
    return not (path.parent.suffix == ".dist-info" and path.name in _OF_WHEELS)


def _project(root: Path) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return table
