"""The lint of names and sentences (`tests/plain_words.py`) finds what it is meant to find, and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.plain_words import CLAUSE, odd_sentences, problems, vague_names


@pytest.mark.parametrize(
    "code",
    [
        "for one in policies: pass",
        "errors = [found for found in loaded]",
        "found = search()",
        "def names(own): pass",
        "with open(path) as it: pass",
        "if (this := next(rules)): pass",
        "lambda one: one.name",
    ],
)
def test_a_vague_name_is_found(code: str) -> None:
    assert list(vague_names(ast.parse(code)))


def test_names_of_things_and_attributes_are_fine() -> None:
    assert not list(vague_names(ast.parse("for policy in policies: policy.found = policy.one")))


@pytest.mark.parametrize(
    "sentence",
    [
        "`tls.crt` is no certificate in PEM",
        "a value that is none",
        "one file a policy",
        "the default, unless --method says else",
        "a source that names nobody",
        "passed over, not ours to judge",
        "everything but for the first",
        "a string of octets",
    ],
)
def test_an_odd_sentence_is_found(sentence: str) -> None:
    assert list(odd_sentences(sentence))


@pytest.mark.parametrize(
    "sentence",
    [
        "there is no such file",
        "the policy is no longer in force",
        "one of a kind",
        "none of the rules matches",
        "`is no X` is quoted",
    ],
)
def test_a_plain_sentence_is_fine(sentence: str) -> None:
    assert not list(odd_sentences(sentence))


def test_a_docstring_without_a_main_clause_is_found() -> None:
    assert CLAUSE.match("What compilations keep for the next one")
    assert not CLAUSE.match("Compilation state that is carried over")
    assert not CLAUSE.match("Whether a policy is in force")


def test_docstrings_messages_and_comments_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.plain_words.ROOT", tmp_path)
    file = tmp_path / "module.py"
    file.write_text('"""What it is.\n\nIt is no module."""\nraise ValueError("is no map")  # it is no comment\n')
    assert [problem.split(": ")[0] for problem in problems(file)] == [f"module.py:{line}" for line in (1, 3, 4, 4)]
