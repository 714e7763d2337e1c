"""The example of the documentation runs, and prints what the documentation shows."""

from __future__ import annotations

import shlex

import pytest
from click.testing import CliRunner

from tests import ROOT
from tierwall.cli.main import root

PAGE = (ROOT / "docs" / "gateway.md").read_text()
CONSOLES = [part.partition("\n```")[0] for part in PAGE.split("```console\n$ ")[1:]]


@pytest.mark.parametrize("console", CONSOLES, ids=lambda text: text.split()[1])
def test_the_page_shows_what_the_command_prints(console: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    command, _, shown = console.partition("\n")
    result = CliRunner().invoke(root, shlex.split(command)[1:])
    assert result.exit_code == 0
    assert result.stdout.rstrip("\n") == shown


def test_the_policy_tests_of_the_example_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(root, ["test", "examples/gateway/tests"])
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "3 passed, 0 failed")
