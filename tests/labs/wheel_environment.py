"""Fresh environments with the built wheel and some extras, without an index.

The locked build backend builds the wheel. What the wheel requires is linked from the environment of the tests, which
has the locked versions.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import ROOT

UV = shutil.which("uv") or str(ROOT / ".venv" / "bin" / "uv")


def _run(*command: object) -> None:
    subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, timeout=120, check=True)


def build_wheel(folder: Path) -> Path:
    """Build the wheel as `pip wheel` would, without isolation: the backend is locked and installed."""
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


class WheelEnvironment:
    """A virtual environment with the wheel, what it requires, and what its extras require; nothing else."""

    def __init__(self, folder: Path, wheel: Path, *extras: str) -> None:
        self.folder = folder
        _run(sys.executable, "-m", "venv", "--without-pip", folder)
        _run(UV, "pip", "install", "--offline", "--no-deps", "--python", folder / "bin" / "python", wheel)
        (packages,) = folder.glob("lib/python*/site-packages")
        for name in sorted(requirements(Distribution.at(next(packages.glob("tierwall-*.dist-info"))), extras)):
            _link(distribution(name), packages)

    def run(self, *arguments: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
        """Run `tierwall` with these arguments, without the programs and settings of the tests' environment."""
        kept = {key: os.environ[key] for key in ("HOME", "LANG", "TMPDIR") if key in os.environ}
        return subprocess.run(
            [str(self.folder / "bin" / "tierwall"), *map(str, arguments)],
            cwd=cwd,
            env={**kept, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
        )


def requirements(package: Distribution, extras: tuple[str, ...] = ()) -> set[str]:
    """Return the names of all packages that a package requires, with some of its extras."""
    names: set[str] = set()
    waiting = list(_required(package, extras))
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name not in names:
            names.add(name)
            waiting += _required(distribution(name), tuple(requirement.extras))
    return names


def _required(package: Distribution, extras: tuple[str, ...]) -> Iterator[Requirement]:
    for text in package.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def _link(package: Distribution, packages: Path) -> None:
    """Link the modules of a package; programs, which lie outside, are left out."""
    for file in package.files or ():
        if ".." not in file.parts and "__pycache__" not in file.parts:
            link = packages / file
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(Path(str(package.locate_file(file))).resolve())
