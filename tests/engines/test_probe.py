"""The harness that puts questions to engines: every question gets its own reply, whatever happens to the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.core.protocols import EngineReply
from tierwall.engines.probe import EngineProbe, replies


class Echo(EngineProbe[str]):
    """Repeats each word. `bad` is not a question, and words with an `x` cannot be asked."""

    def __init__(self, is_there: bool = True) -> None:
        self.is_there = is_there
        self.prepared: list[str] = []
        self.asked: list[str] | None = None

    def read(self, question: str) -> str:
        if question == "bad":
            raise InputError([Diagnostic("TW703", "not a word")])
        return question

    def prepare(self, cases: Sequence[str]) -> None:
        self.prepared = list(cases)

    def obstacle(self, case: str) -> str:
        assert case in self.prepared
        return "it has an x" if "x" in case else ""

    def ask(self, cases: Sequence[str]) -> Iterator[EngineReply]:
        self.asked = list(cases)
        if not self.is_there:
            raise InputError([Diagnostic("TW632", "nobody is there")])
        yield from (EngineReply(error=case) for case in cases)


@given(st.lists(st.sampled_from(["a", "b", "bad", "x", "ax"])))
def test_every_question_gets_its_own_reply_in_order(questions: list[str]) -> None:
    echo = Echo()
    expected = {"bad": EngineReply(error="not a word")} | dict.fromkeys(
        ("x", "ax"), EngineReply(skipped="not testable here: it has an x")
    )
    assert list(replies(echo, questions)) == [
        expected.get(question, EngineReply(error=question)) for question in questions
    ]
    assert echo.prepared == [question for question in questions if question != "bad"]


@pytest.mark.parametrize("questions", [[], ["bad"], ["x", "bad"]])
def test_an_engine_is_not_started_for_nothing(questions: list[str]) -> None:
    echo = Echo()
    assert len(list(replies(echo, questions))) == len(questions)
    assert echo.asked is None


def test_an_engine_that_cannot_be_asked_fails_only_what_it_was_asked() -> None:
    answers = list(replies(Echo(is_there=False), ["a", "x", "bad", "b"]))
    assert answers == [
        EngineReply(error="nobody is there"),
        EngineReply(skipped="not testable here: it has an x"),
        EngineReply(error="not a word"),
        EngineReply(error="nobody is there"),
    ]
