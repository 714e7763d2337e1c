"""Reads the locks: requirement files as `uv pip compile --generate-hashes` writes them, and go.mod with go.sum."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import NamedTuple

from packaging.utils import canonicalize_name

_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)(?:\s*;\s*(?P<marker>[^\\]+?))?\s*\\?$")
_HASH = re.compile(r"^\s+--hash=(?P<hash>[a-z0-9]+:[0-9a-f]+)\s*\\?$")
_VIA = re.compile(r"^\s+#(?: via)?\s*(?P<source>.*)$")
_MODULE = re.compile(r"^(?:require\s+)?\s*(?P<name>[^\s()]+\.[^\s()]+)\s+(?P<version>v\S+)(?:\s*//.*)?$")
_REPLACED = re.compile(r"^replace\s+(?P<name>\S+)(?:\s+v\S+)?\s+=>\s+(?P<by>\S+)\s+(?P<version>v\S+)$")


class LockError(Exception):
    """A lock has a line that cannot be read, or names a file without a hash."""


class Pin(NamedTuple):
    """A package in a lock of Python packages."""

    name: str
    version: str
    hashes: tuple[str, ...]
    # The condition on platform and Python under which it is installed.
    marker: str
    # The packages that need it; a requirement file or the project itself is left as the lock names it.
    needed_by: tuple[str, ...]


class GoModule(NamedTuple):
    """A module in go.mod, with its replacement applied, and the hash of go.sum in hexadecimal."""

    name: str
    version: str
    hash: str


def read_lock(path: Path) -> tuple[Pin, ...]:
    """Return the packages of a lock; LockError if a line is not understood or a package has no SHA-256."""
    pins: list[Pin] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if pin := _PIN.match(line):
            pins.append(Pin(canonicalize_name(pin["name"]), pin["version"], (), pin["marker"] or "", ()))
        elif pins and (digest := _HASH.match(line)):
            pins[-1] = pins[-1]._replace(hashes=(*pins[-1].hashes, digest["hash"]))
        elif pins and (via := _VIA.match(line)):
            if via["source"] and not via["source"].startswith("-c "):
                pins[-1] = pins[-1]._replace(needed_by=(*pins[-1].needed_by, via["source"]))
        elif line.strip() and not line.startswith("#"):
            raise LockError(f"{path}:{number}: expected `name==version`, a hash or a comment, found `{line.strip()}`")
    for pin_read in pins:
        if not pin_read.hashes or any(not digest.startswith("sha256:") for digest in pin_read.hashes):
            raise LockError(f"{path}: expected SHA-256 hashes of `{pin_read.name}`, found {pin_read.hashes or 'none'}")
    return tuple(pins)


def read_go_modules(folder: Path) -> tuple[GoModule, ...]:
    """Return the modules that go.mod in a folder requires, each with its hash of go.sum."""
    sums = {}
    for line in (folder / "go.sum").read_text().splitlines():
        name, version, digest = line.split()
        if digest.startswith("h1:"):
            sums[name, version] = base64.b64decode(digest.removeprefix("h1:")).hex()
    required, replaced = [], {}
    for line in (folder / "go.mod").read_text().splitlines():
        if replacement := _REPLACED.match(line):
            replaced[replacement["name"]] = (replacement["by"], replacement["version"])
        elif module := _MODULE.match(line):
            required.append((module["name"], module["version"]))
    chosen = sorted({replaced.get(name, (name, version)) for name, version in required})
    if missing := [name for name, version in chosen if (name, version) not in sums]:
        raise LockError(f"{folder / 'go.sum'}: expected hashes of {', '.join(missing)}, found none")
    return tuple(GoModule(name, version, sums[name, version]) for name, version in chosen)
