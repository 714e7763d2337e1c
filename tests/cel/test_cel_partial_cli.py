"""`tierwall cel partial`, and the lines of `tierwall cel batch` with unknowns (docs/cel-partial.md)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tierwall.cel.batch import Batch
from tierwall.cli.cel import group


@pytest.fixture
def known(tmp_path: Path) -> str:
    file = tmp_path / "known.json"
    file.write_text('{"request": {"verb": "create", "name": "n", "at": {"$type": "duration", "$value": "1.5s"}}}')
    return str(file)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(group, ["partial", *arguments])


def test_the_residual_is_printed(known: str) -> None:
    result = run(
        "request.verb == 'create' && object.x == request.name", "--known", known, "--unknown", "object,oldObject"
    )
    assert (result.exit_code, result.stdout) == (0, 'object.x == "n"\n')


def test_a_value_is_printed_as_the_expression_that_gives_it(known: str) -> None:
    assert run("request.verb == 'create' || object.x", "--known", known, "--unknown", "object").stdout == "true\n"
    assert run("request.at", "--known", known).stdout == 'duration("1.5s")\n'


def test_what_always_fails_is_an_error_of_the_command(known: str) -> None:
    result = run("request.nope == object.x", "--known", known, "--unknown", "object")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "no such key: nope\n")


def test_everything_that_is_known_about_the_residual_is_in_the_json(known: str) -> None:
    result = run("request.nope && object.x == 1", "--known", known, "--unknown", "object", "-o", "json")
    assert json.loads(result.stdout) == {
        "residual": 'object.x == 1 && {}["nope"]',
        "unknowns": ["object"],
        "outcomes": ["false", "error"],
    }


def test_a_syntax_error_is_shown_with_its_place(known: str) -> None:
    result = run("request.verb ==", "--known", known, "--unknown", "object")
    assert result.exit_code == 1
    assert "1:16" in result.stderr


def test_a_path_inside_a_known_variable_may_be_unknown(known: str) -> None:
    result = run("request.name == request.verb", "--known", known, "--unknown", "request.name")
    assert result.stdout == 'request.name == "create"\n'


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (
            {
                "expr": "request.verb == 'create' && object.x == request.name",
                "vars": {"request": {"verb": "create", "name": "n"}},
                "unknown": ["object"],
            },
            {"residual": 'object.x == "n"'},
        ),
        ({"expr": "a || x", "vars": {"a": True}, "unknown": ["x"]}, {"value": True, "type": "bool"}),
        ({"expr": "a.b == x", "vars": {"a": {}}, "unknown": ["x"]}, {"error": "no such key: b"}),
        ({"expr": "a.b || x", "vars": {"a": {}}, "unknown": ["x"]}, {"residual": 'x || {}["b"]'}),
        ({"expr": "a.b == x", "vars": {"a.b": 1}, "unknown": ["x"]}, {"residual": "1 == x"}),
        ({"expr": "x in l", "vars": {"l": []}, "unknown": ["x"]}, {"residual": "x in dyn([])"}),
        ({"expr": "x == ", "vars": {}, "unknown": ["x"]}, {"parseError": "expected an expression, found end of input"}),
        ({"expr": "1 + 1", "vars": {}, "unknown": []}, {"value": 2, "type": "int"}),
        # A variable that is declared unknown is unknown even if the line has a value for it.
        ({"expr": "x == 1", "vars": {"x": 1}, "unknown": ["x"]}, {"residual": "x == 1"}),
    ],
)
def test_a_line_of_a_batch_with_unknowns(question: dict[str, object], answer: dict[str, object]) -> None:
    got = Batch().answer(question)
    assert {key: got.get(key) for key in answer} == answer
