"""Which Envoy will do, told before anything is begun."""

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


def test_the_installed_one_will_do() -> None:
    assert find_envoy().version >= OLDEST


def test_one_that_is_too_old_is_refused(tmp_path: Path) -> None:
    path = script(tmp_path, "echo 'envoy  version: abc/1.36.2/Clean/RELEASE/BoringSSL'")
    assert problem(path) == f"expected Envoy 1.40.0 or later, found 1.36.2 (`{path}`)"


def test_a_development_version_of_a_newer_one_will_do(tmp_path: Path) -> None:
    path = script(tmp_path, "echo 'envoy  version: abc/1.41.0-dev/Clean/RELEASE/BoringSSL'")
    assert find_envoy(path).version == (1, 41, 0)


def test_one_that_is_not_there_or_no_envoy_is_told(tmp_path: Path) -> None:
    assert problem(str(tmp_path / "none")) == f"Envoy `{tmp_path}/none` does not exist"
    assert "found `hello`" in problem(script(tmp_path, "echo hello"))
    (tmp_path / "envoy").chmod(0o644)
    assert problem(str(tmp_path / "envoy")).endswith("cannot be run")
