"""A folder of wheels for pip, made from the packages of the tests' environment: an index without a network."""

from __future__ import annotations

import zipfile
from email.parser import Parser
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.utils import canonicalize_name

_LEFT_OUT = {"INSTALLER", "REQUESTED", "RECORD", "direct_url.json", "uv_cache.json", "uv_build.json"}


def write_wheels(folder: Path, names: set[str]) -> None:
    """Write the wheel of each package."""
    folder.mkdir(exist_ok=True)
    for name in sorted(names):
        _write_wheel(folder, distribution(name))


def _write_wheel(folder: Path, package: Distribution) -> None:
    tag = Parser().parsestr(package.read_text("WHEEL") or "")["Tag"]
    name = canonicalize_name(package.metadata["Name"]).replace("-", "_")
    record = ""
    with zipfile.ZipFile(folder / f"{name}-{package.version}-{tag}.whl", "w") as wheel:
        for file in package.files or ():
            # Programs lie outside; pip makes them from the entry points.
            if ".." in file.parts or "__pycache__" in file.parts or file.name in _LEFT_OUT:
                continue
            wheel.write(str(package.locate_file(file)), str(file))
            record += f"{file},,\n"
        (information,) = {file.parts[0] for file in package.files or () if file.parts[0].endswith(".dist-info")}
        wheel.writestr(f"{information}/RECORD", f"{record}{information}/RECORD,,\n")
