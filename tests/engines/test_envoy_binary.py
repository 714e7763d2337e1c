"""Unusable Envoy binaries are reported before anything starts; what a usable one writes is told once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.labs.waiting import PATIENCE_S
from tierwall.core.diagnostics import InputError
from tierwall.engines.envoy.control.process import OLDEST, EnvoyBinary, EnvoyProcess, find_envoy


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


def test_an_outage_of_the_control_plane_is_told_once(tmp_path: Path) -> None:
    """Envoy says each second how long it is ago; these lines would also use up the number that is shown."""
    said: list[str] = []
    ended = asyncio.Event()

    def report(line: str) -> None:
        said.append(line)
        if line == "envoy: the end":
            ended.set()

    lines = [f"gRPC config stream to tierwall closed since {age}s ago: 14, refused" for age in (31, 32, 33)]
    path = Path(script(tmp_path, "\n".join(f"echo '{line}' >&2" for line in [*lines, "the end"]) + "\nexec sleep 60"))

    async def main() -> None:
        envoy = EnvoyProcess(EnvoyBinary(path, OLDEST), tmp_path / "xds.sock", "node", report, lambda lines: None)
        await envoy.start()
        try:
            await asyncio.wait_for(ended.wait(), PATIENCE_S)
        finally:
            await envoy.stop()

    asyncio.run(main())
    assert said == [f"envoy: {lines[0]}", "envoy: the end"]
