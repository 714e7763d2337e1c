"""Test standard output, standard error and exit code of `tierwall yaml`."""

from __future__ import annotations

import json
import subprocess
import sys
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


@pytest.mark.parametrize("text", ["a: [1]>\na: []\n", 'v: "ab""ab"\n', "v: [a, b]0x1F\n"])
def test_nothing_may_follow_the_value_on_its_line(text: str) -> None:
    # A new process has not read enough to turn to libyaml.
    command = [sys.executable, "-m", "tierwall", "yaml", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("stdin:1:")
    assert "Traceback" not in done.stderr


def test_a_template_is_refused_as_kubernetes_refuses_it(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("metadata:\n  name: {{ .Values.name }}\n")
    result = CliRunner().invoke(yaml_command, [str(file)])
    assert result.exit_code == 1
    assert result.stderr == f"{file}:2:10: expected a scalar as key, found a list or a map\n"


def test_a_template_that_is_yaml_is_printed(tmp_path: Path) -> None:
    (tmp_path / "Chart.yaml").write_text("name: shop\n")
    (tmp_path / "templates").mkdir()
    file = tmp_path / "templates" / "policy.yaml"
    file.write_text('name: "{{ .Values.name }}"\n')
    result = CliRunner().invoke(yaml_command, [str(file)])
    assert result.exit_code == 0
    assert result.stdout == '{"name":"{{ .Values.name }}"}\n'


def test_two_objects_in_one_document_are_read_as_kubernetes_reads_them() -> None:
    result = CliRunner().invoke(yaml_command, ["-"], input="kind: A\na: 1\nkind: B\n")
    assert result.exit_code == 0
    assert result.stdout == '{"kind":"B","a":1}\n'
    assert result.stderr.startswith("stdin:3:1: warning: key `kind` is repeated")


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
