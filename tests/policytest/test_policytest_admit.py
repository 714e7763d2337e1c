"""The `admit` question: verdict, sentence, steps with their places, and malformed questions and expectations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tierwall import planes
from tierwall.cli.main import root
from tierwall.core.answer import Reason
from tierwall.core.diagnostics import InputError
from tierwall.core.expectation import mismatches
from tierwall.core.verdict import StepVerdict, Verdict
from tierwall.resources.admission.question import EXPECTATIONS, AdmitQuestion, ask
from tierwall.resources.snapshot import Snapshot

NOWHERE = Snapshot.of(())
GOOD: dict[str, Any] = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "good"}}
BAD: dict[str, Any] = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "BAD"}}


def test_an_accepted_object() -> None:
    answer = ask(NOWHERE, AdmitQuestion(object=GOOD))
    assert (answer.plane, answer.verdict, answer.decided_by, answer.steps) == ("admit", Verdict.ALLOW, (), ())
    assert answer.sentence == "an API server would accept Namespace/good"
    assert answer.to_dict() == {
        "plane": "admit",
        "verdict": "Allow",
        "sentence": answer.sentence,
        "decidedBy": [],
        "trace": [],
        "notConsidered": [],
    }


def test_a_refused_object() -> None:
    answer = ask(NOWHERE, AdmitQuestion(object=BAD))
    (step,) = answer.steps
    assert (answer.verdict, answer.decided_by) == (Verdict.DENY, ())
    assert (step.tier, step.verdict, step.reason) == ("admission", StepVerdict.DENY, Reason.OBJECT_REFUSED)
    assert step.note is not None
    assert step.note.startswith("metadata.name: Invalid value")
    assert answer.sentence == f"an API server would refuse Namespace/BAD: {step.note}"


@pytest.mark.parametrize(
    ("objects", "sentence"),
    [
        ([], "there is no object to accept or refuse"),
        ([GOOD, GOOD], "an API server would accept Namespace/good and Namespace/good"),
        ([GOOD] * 5, "an API server would accept Namespace/good, Namespace/good, Namespace/good and 2 more"),
        ([GOOD, BAD], "an API server would refuse Namespace/BAD: metadata.name: Invalid value"),
        ([3], "an API server would refuse an object without a kind: "),
        ([{**BAD, "metadata": {}}], "an API server would refuse a Namespace without a name: "),
    ],
)
def test_several_objects_are_judged_one_by_one(objects: list[Any], sentence: str) -> None:
    answer = ask(NOWHERE, AdmitQuestion(objects=objects))
    assert answer.sentence.startswith(sentence)
    assert (answer.verdict is Verdict.DENY) is ("refuse " in sentence)


def test_more_than_one_refusal_is_counted() -> None:
    answer = ask(NOWHERE, AdmitQuestion(objects=[BAD, BAD, BAD]))
    assert len(answer.steps) == 3
    assert answer.sentence.endswith("(and 2 more)")


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({}, "expected `object` or `file`, found neither"),
        ({"object": GOOD, "file": "x.yaml"}, "expected `object` or `file`, found `object` and `file`"),
        ({"file": "x.yaml"}, "only a policy test reads the `file` of an admit question"),
        ({"object": GOOD, "fil": "x.yaml"}, "unknown key `fil` in a question of the admit plane"),
    ],
)
def test_a_question_that_cannot_be_asked(question: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        planes.ask("admit", NOWHERE, question, {})
    assert [diagnostic.message for diagnostic in caught.value.diagnostics] == [message]


@pytest.mark.parametrize(
    ("expect", "lines"),
    [
        ({"verdict": "Deny", "message": "metadata.name", "decidedBy": []}, []),
        ({"verdict": "Allow"}, ["verdict: expected Allow, got Deny"]),
        ({"message": "spec"}, ["message: expected a message with `spec`, got `metadata.name: Invalid value"]),
    ],
)
def test_mismatches_of_a_refusal(expect: dict[str, Any], lines: list[str]) -> None:
    mismatched = mismatches(expect, ask(NOWHERE, AdmitQuestion(object=BAD)), EXPECTATIONS)
    assert [line[: len(start)] for line, start in zip(mismatched, lines, strict=True)] == lines


def test_a_message_must_be_a_string() -> None:
    with pytest.raises(InputError) as caught:
        mismatches({"message": ["x"]}, ask(NOWHERE, AdmitQuestion(object=BAD)), EXPECTATIONS)
    assert [diagnostic.code for diagnostic in caught.value.diagnostics] == ["TW701"]


def test_steps_say_where_the_refused_value_is_written(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: BAD\n")
    (tmp_path / "t.yaml").write_text(
        "apiVersion: tierwall.io/v1alpha1\n"
        "kind: PolicyTest\n"
        "metadata: {name: t}\n"
        "spec:\n"
        "  cases:\n"
        "  - {name: file, admit: {file: bad.yaml}, expect: {verdict: Deny}}\n"
        "  - name: inline\n"
        "    admit:\n"
        "      object: {apiVersion: v1, kind: Namespace, metadata: {name: BAD}}\n"
        "    expect: {verdict: Deny}\n"
    )
    done = CliRunner().invoke(root, ["test", str(tmp_path / "t.yaml"), "-o", "json"])
    assert done.exit_code == 0
    sources = [case["got"]["trace"][0]["source"] for case in json.loads(done.stdout)["cases"]]
    assert sources == [
        {"file": str(tmp_path / "bad.yaml"), "line": 4, "column": 9},
        {"file": str(tmp_path / "t.yaml"), "line": 9, "column": 66},
    ]
