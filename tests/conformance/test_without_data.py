"""A clone with nothing beside it passes its tests, and says in one line what it could not run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.needs import unavailable


def run(tmp_path: Path, *tests: str) -> tuple[int, list[str]]:
    """Exit code and output of tests in an environment like that of CI, without data, Go or a cache."""
    environment = {
        **os.environ,
        "CI": "true",
        "TIERWALL_SHARED": str(tmp_path / "nothing"),
        "XDG_CACHE_HOME": str(tmp_path),
        "PATH": str(tmp_path),
    }
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


def test_absent_data_is_said_in_one_line_each_and_fails_nothing(tmp_path: Path) -> None:
    code, lines = run(tmp_path, "tests/cel/test_cel_conformance.py", "tests/cel/test_cel_spec.py")
    assert code == 0, lines
    said = [line for line in lines if "were not run" in line]
    assert [line.partition(": they need ")[2] for line in said] == [
        f"other projects' cases, which are not at {tmp_path}/nothing/conformance: set TIERWALL_SHARED",
        "the CEL specification's tests: Go is absent",
    ]
    assert not [line for line in lines if line.startswith("SKIPPED")]


def test_an_absent_engine_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no kernel"):
        unavailable("no kernel")
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="no kernel"):
        unavailable("no kernel")
