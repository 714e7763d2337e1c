"""`tierwall check` finds in each input of the grid exactly the codes of its row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from tests.worlds.findings import GRID
from tierwall.cli.main import root
from tierwall.core.catalogue import CATALOGUE

# Codes below 510, which are about manifests, that `check` never reports.
NOT_BY_CHECK = {
    **dict.fromkeys(
        ("TW010", "TW011", "TW012", "TW013", "TW014"), "only a process that follows files keeps what they had"
    ),
    **dict.fromkeys(("TW040", "TW041", "TW042", "TW043", "TW044"), "only `--cluster` and `--context` read a cluster"),
    **dict.fromkeys(("TW030", "TW031"), "only `--baseline` reads a baseline"),
    "TW017": "only folders have links that lead out of them (tests/resources/test_folder_search.py)",
    "TW208": "admission says what is wrong; `explain` and `list` say that it fails closed",
    "TW215": "only millions of pairs of rules and ports are not compared (tests/network/test_network_checks.py)",
    **dict.fromkeys(("TW216", "TW217"), "only a change brings them (tests/network/test_network_change.py)"),
    "TW210": "only `list --exposure` asks about future pods",
    "TW710": "only `convert` converts policies",
}


def codes_found(folder: Path, name: str) -> str:
    """Return the codes of all findings, sorted."""
    given, file = GRID[name].given, folder / "given.yaml"
    if name == "TW001":
        file.symlink_to("nowhere")
    elif isinstance(given, bytes):
        file.write_bytes(given)
    else:
        file.write_text(yaml.safe_dump_all(given))
    result = CliRunner().invoke(root, ["check", str(file), "-o", "json"])
    assert result.exit_code in (0, 1, 4), result.output
    return " ".join(sorted(diagnostic["code"] for diagnostic in json.loads(result.stdout)["diagnostics"]))


@pytest.mark.parametrize("name", GRID)
def test_each_input_has_its_findings(tmp_path: Path, name: str) -> None:
    assert codes_found(tmp_path, name) == GRID[name].codes


def test_every_code_of_check_has_an_input_of_its_name() -> None:
    codes = {code for code in CATALOGUE if code < "TW510"}
    rows = {name for name in GRID if name.startswith("TW")}
    assert rows == codes - NOT_BY_CHECK.keys()
    assert all(name in GRID[name].codes.split() for name in rows)
