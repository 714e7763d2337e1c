"""The tables that commands read: each entry can be imported, and help shows all of them."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tierwall.cli.main import root
from tierwall.engines.table import ENGINES, enforced_with, offered_by
from tierwall.render.formats import FORMATS, renderer


@pytest.mark.parametrize(
    ("command", "output"), [(command, output) for command in FORMATS for output in FORMATS[command]]
)
def test_every_format_has_a_renderer(command: str, output: str) -> None:
    assert callable(renderer(command, output))


@pytest.mark.parametrize("command", [command for command in FORMATS if "--" not in command and command != "explain"])
def test_a_command_offers_the_formats_of_the_table_and_lists_them_for_an_unknown_one(command: str) -> None:
    words = command.split()
    offered = FORMATS.get(f"{command} --hits", FORMATS[command])
    assert f"[{'|'.join(offered)}]" in "".join(CliRunner().invoke(root, [*words, "--help"]).stdout.split())
    refused = CliRunner().invoke(root, [*words, "-o", "nonsense"])
    assert refused.exit_code == 2
    assert all(f"'{output}'" in refused.stderr for output in offered)


def test_help_names_every_engine() -> None:
    shown = CliRunner().invoke(root, ["--help"]).stdout
    (compiling,) = (line for line in shown.splitlines() if line.split()[:1] == ["compile"])
    enforcing = shown[shown.index("  enforce ") : shown.index("  audit ")]
    assert all(name in compiling for name in offered_by("compile"))
    assert set(enforced_with()) == set(ENGINES) - {"model"}
    group_help = CliRunner().invoke(root, ["enforce", "--help"]).stdout
    assert all(name in enforcing and name in group_help for name in enforced_with())
    group_help = CliRunner().invoke(root, ["compile", "--help"]).stdout
    assert all(name in group_help for name in enforced_with())
