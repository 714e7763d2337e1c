from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tierwall.cli.cel import group


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(group, list(arguments), input=stdin)


def batch(*questions: object) -> list[dict[str, object]]:
    result = run("batch", "-", stdin="\n".join(map(json.dumps, questions)) + "\n")
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_eval_prints_the_value_as_json(tmp_path: Path) -> None:
    variables = tmp_path / "vars.json"
    variables.write_text('{"a": {"b": [1, 2]}, "u": {"$type": "uint", "$value": 3}}')
    result = run("eval", "a.b.map(x, x * 2)", "--vars", str(variables))
    assert (result.exit_code, result.stdout) == (0, "[2, 4]\n")
    assert run("eval", "u + 1u", "--vars", str(variables)).stdout == '{"$type": "uint", "$value": 4}\n'


def test_eval_reads_variables_from_yaml_and_from_standard_input(tmp_path: Path) -> None:
    variables = tmp_path / "vars.yaml"
    variables.write_text("a: {b: yes}\n")
    assert run("eval", "a.b", "--vars", str(variables)).stdout == "true\n"
    assert run("eval", "a.b", "--vars", "-", stdin='{"a": {"b": "é"}}').stdout == '"é"\n'
    assert run("eval", "a.b", "--vars", "-", stdin="a:\n  b: é\n").stdout == '"é"\n'
    assert run("eval", "type(a) == double", "--vars", "-", stdin='\n{"a": 1.0}').stdout == "true\n"
    assert run("eval", "1", "--vars", "-", stdin="").stdout == "1\n"


def test_only_one_document_holds_the_variables(tmp_path: Path) -> None:
    variables = tmp_path / "vars.yaml"
    variables.write_text("a: 1\n---\na: 2\n")
    result = run("eval", "a", "--vars", str(variables))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "vars.yaml: expected one document, found 2" in result.stderr


def test_eval_tells_the_cost_on_request() -> None:
    result = run("eval", "[1, 2].all(x, x > 0)", "--cost")
    assert (result.stdout, result.stderr) == ("true\n", "cost: 11\n")


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("1 +", "1:4: expected an expression"),
        ("{}.a", "no such key: a"),
        ("lists.range(10000000)", "cost limit exceeded"),
    ],
)
def test_eval_that_fails_says_why_on_stderr_and_exits_with_1(expression: str, message: str) -> None:
    result = run("eval", expression)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert message in result.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1]", "expected an object"),
        ("{", "expected JSON"),
        ('{"a": 9223372036854775808}', "expected an int of 64 bits"),
    ],
)
def test_a_file_that_is_not_an_object_of_variables_is_refused(tmp_path: Path, content: str, message: str) -> None:
    variables = tmp_path / "vars.json"
    variables.write_text(content)
    result = run("eval", "1", "--vars", str(variables))
    assert result.exit_code == 1
    assert message in result.stderr
    assert run("eval", "1", "--vars", str(tmp_path / "absent.json")).exit_code == 1


def test_check_prints_the_type_or_every_problem() -> None:
    assert run("check", "names.map(n, n.size())", "--var", "names:list(string)").stdout == "list(int)\n"
    result = run("check", "a + 1", "--var", "a:string")
    assert result.exit_code == 4
    assert " ^" in result.stderr
    assert run("check", "a", "--var", "a:list(").exit_code == 2
    assert run("check", "a", "--var", "a").exit_code == 2


def test_an_older_release_lacks_newer_functions() -> None:
    assert run("check", "isSemver('1.0.0')", "--release", "1.33").exit_code == 0
    assert run("check", "isSemver('1.0.0')", "--release", "1.32").exit_code == 4
    assert run("check", "1", "--release", "two").exit_code == 2


def test_batch_answers_the_examples_of_its_page() -> None:
    known = {"request": {"verb": "create", "name": "n"}}
    partial = "request.verb == 'create' && object.x == request.name"
    answers = batch(
        {"expr": "a + 1", "vars": {"a": 2}},
        {"expr": "a.b", "vars": {"a": {}}},
        {"expr": "x ? 1 : "},
        {"expr": "1 + 'a'", "check": True, "decls": {"a": "int"}},
        {"expr": "a", "check": True, "decls": {"a": "int"}},
        {"expr": partial, "vars": known, "unknown": ["object"]},
        {"expr": "request.verb == 'delete' && object.x == 1", "vars": known, "unknown": ["object"]},
    )
    assert answers[0] == {"value": 3, "type": "int"}
    assert answers[1] == {"error": "no such key: b"}
    assert (answers[2]["line"], answers[2]["column"]) == (1, 9)
    assert "parseError" in answers[2]
    assert "checkError" in answers[3]
    assert answers[4] == {"type": "int"}
    assert answers[5] == {"residual": 'object.x == "n"'}
    assert answers[6] == {"value": False, "type": "bool"}


def test_batch_takes_dotted_variables_and_the_longest_name_wins() -> None:
    variables = {"a.b": {"c": 1}, "a": {"b": {"c": 2}}, "x.y.z": 3}
    assert [answer["value"] for answer in batch(*({"expr": e, "vars": variables} for e in ("a.b.c", "x.y.z")))] == [
        1,
        3,
    ]


def test_a_line_that_is_not_a_question_is_answered_with_an_error() -> None:
    lines = [
        '{"expr": "1"}',
        "not json",
        "[]",
        '{"expr": 1}',
        '{"expr": "1", "vars": []}',
        "[" * 100_000,
        '{"expr": "2"}',
    ]
    result = run("batch", "-", stdin="\n".join(lines))
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == 1
    assert "5 lines" in result.stderr
    assert [("error" in answer) for answer in answers] == [False, True, True, True, True, True, False]
    assert str(answers[1]["error"]).startswith("line 2: expected JSON")
