"""Test every line of the conformance data, in and beside the repository, with the library and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests import ROOT
from tierwall.cli.documents import yaml as yaml_command
from tierwall.resources.read import Limits, read_text
from tierwall.resources.yaml.decode import read_exactly
from tierwall.resources.yaml.errors import YamlError

KUBERNETES_DEPTH = Limits(depth=10_000)


def read_lines(folder: Path) -> list[dict[str, Any]]:
    texts = [file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.jsonl"))]
    return [json.loads(line) for text in texts for line in text.split("\n") if line]


@pytest.fixture(scope="module", params=["ours", "recorded from kubectl's reader"])
def lines(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    if request.param == "ours":
        return read_lines(ROOT / "tests" / "conformance" / "yaml")
    return read_lines(request.getfixturevalue("shared") / "conformance" / "yaml")


def expected(line: dict[str, Any]) -> list[Any] | None:
    if line.get("error"):
        return None
    return line["docs"] if "docs" in line else [line["json"]]


def comparable(value: Any) -> Any:
    """Turn integers outside int64 into floats, for a comparison that ignores the order of keys."""
    if isinstance(value, dict):
        return {key: comparable(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [comparable(child) for child in value]
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        return float(value)
    return value


def test_every_line_reads_as_kubernetes_reads_it(lines: list[dict[str, Any]]) -> None:
    wrong = []
    for line in lines:
        read = read_text(line["yaml"], limits=KUBERNETES_DEPTH)
        got = None if read.diagnostics else [document.value for document in read.documents]
        if repr(comparable(got)) != repr(comparable(expected(line))):
            wrong.append((line, got, read.diagnostics))
    assert len(lines) > 100
    assert wrong == []


def test_repeated_keys_are_found_exactly_where_the_strict_reader_finds_them(lines: list[dict[str, Any]]) -> None:
    wrong = []
    for line in lines:
        if line.get("error"):
            continue
        read = read_text(line["yaml"], limits=KUBERNETES_DEPTH)
        if any(document.repeated_keys for document in read.documents) != bool(line.get("duplicate")):
            wrong.append(line)
    assert wrong == []


def test_the_command_prints_every_line_as_the_data_has_it(lines: list[dict[str, Any]], tmp_path: Path) -> None:
    runner = CliRunner()
    file = tmp_path / "stream.yaml"
    for line in lines:
        file.write_bytes(line["yaml"].encode("utf-8", "surrogatepass"))
        result = runner.invoke(yaml_command, [str(file)])
        want = expected(line)
        if want is None:
            assert result.exit_code == 1, line
            assert result.stderr.startswith(f"{file}:"), line
        else:
            assert result.exit_code == 0, (line, result.stderr)
            got = [json.loads(line) for line in result.stdout.split("\n") if line]
            assert repr(comparable(got)) == repr(comparable(want)), line
            assert bool(result.stderr) == bool(line.get("duplicate")), line


def test_the_exact_reader_alone_agrees(lines: list[dict[str, Any]]) -> None:
    for line in lines:
        text = line["yaml"].removeprefix("\ufeff").replace("\r\n", "\n")
        if "---" in text or text.lstrip().startswith("{") or "docs" in line:
            continue
        try:
            got: Any = [read_exactly(text if text.endswith("\n") else text + "\n").value]
        except YamlError:
            got = None
        assert repr(comparable(got)) == repr(comparable(expected(line))), line
