"""Test standard output, standard error and exit code of `tierwall yaml`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tierwall.cli.documents import yaml as yaml_command


def test_documents_are_printed_one_per_line() -> None:
    result = CliRunner().invoke(yaml_command, ["-"], input="a: 1e3\nb: é\n---\n# nothing\n---\n- 0.5\n- 1e21\n- on\n")
    assert result.exit_code == 0
    assert result.stdout == '{"a":1000,"b":"é"}\n[0.5,1e+21,true]\n'
    assert result.stderr == ""


def test_a_repeated_key_is_a_warning() -> None:
    result = CliRunner().invoke(yaml_command, ["-"], input="a: 1\na: 2\n")
    assert result.exit_code == 0
    assert result.stdout == '{"a":2}\n'
    assert result.stderr.startswith("stdin:2:1: warning: key `a` is repeated")


def test_an_error_names_file_line_and_column(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("a: 1\n---\nb: [1,\n")
    result = CliRunner().invoke(yaml_command, [str(file)])
    assert result.exit_code == 1
    assert result.stdout == '{"a":1}\n'
    assert result.stderr.startswith(f"{file}:3:")


def test_a_missing_file_is_an_error() -> None:
    result = CliRunner().invoke(yaml_command, ["no-such-file.yaml"])
    assert result.exit_code == 1
    assert "no-such-file.yaml:1:1: there is no such file" in result.stderr


def test_numbers_of_json_stay_as_they_are_written() -> None:
    result = CliRunner().invoke(yaml_command, ["-"], input='{"a": 1.0, "b": 1, "c": -0.0, "d": 1e2}')
    assert result.stdout == '{"a":1.0,"b":1,"c":-0.0,"d":100.0}\n'


@pytest.mark.parametrize("depth", [900, 5000, 9998])
def test_deep_documents_are_printed_without_recursion(depth: int) -> None:
    text = "[" * depth + "{a: [1, true, null, é]}" + "]" * depth
    result = CliRunner().invoke(yaml_command, ["-"], input=text)
    assert result.exit_code == 0
    assert result.stdout == "[" * depth + '{"a":[1,true,null,"é"]}' + "]" * depth + "\n"


def test_the_lines_are_json(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text('a: "\\0\\x7f\\N\\L"\nb: "\\U0001F600"\n', encoding="utf-8")
    result = CliRunner().invoke(yaml_command, [str(file)])
    assert json.loads(result.stdout) == {"a": "\0\x7f\x85\u2028", "b": "😀"}
