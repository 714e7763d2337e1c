"""Unusable Envoy binaries are reported before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tierwall.core.diagnostics import InputError
from tierwall.engines.envoy.control.process import OLDEST, find_envoy


def script(folder: Path, text: str) -> str:
    path = folder / "envoy"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def problem(path: str) -> str:
    with pytest.raises(InputError) as caught:
        find_envoy(path)
    [diagnostic] = caught.value.diagnostics
    assert diagnostic.code == "TW632"
    return diagnostic.message


def test_the_installed_envoy_is_usable() -> None:
    assert find_envoy().version >= OLDEST


def test_an_old_envoy_is_refused(tmp_path: Path) -> None:
    path = script(tmp_path, "echo 'envoy  version: abc/1.36.2/Clean/RELEASE/BoringSSL'")
    assert problem(path) == f"expected Envoy 1.40.0 or later, found 1.36.2 (`{path}`)"


def test_a_development_version_of_a_newer_envoy_is_usable(tmp_path: Path) -> None:
    path = script(tmp_path, "echo 'envoy  version: abc/1.41.0-dev/Clean/RELEASE/BoringSSL'")
    assert find_envoy(path).version == (1, 41, 0)


def test_a_missing_file_or_another_program_is_reported(tmp_path: Path) -> None:
    assert problem(str(tmp_path / "none")) == f"Envoy `{tmp_path}/none` does not exist"
    assert "found `hello`" in problem(script(tmp_path, "echo hello"))
    (tmp_path / "envoy").chmod(0o644)
    assert problem(str(tmp_path / "envoy")).endswith("cannot be run")
