"""Puts questions to a real engine: each is asked, or skipped with a reason (docs/policy-tests.md#output).

An engine says how it turns a question into a case, which cases it cannot be asked, and how to ask the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from tierwall.core.diagnostics import InputError
from tierwall.core.protocols import EngineReply

Case = TypeVar("Case")


class EngineProbe(Protocol[Case]):
    """Asks an engine about one snapshot. A `Case` is a question in the engine's own form."""

    def read(self, question: Any) -> Case:
        """Turn a question of the engine's plane into a case; InputError names everything wrong with it."""

    def prepare(self, cases: Sequence[Case]) -> None:
        """Prepare for all cases; called once, before `obstacle` and `ask`. Most engines do nothing."""
        return

    def obstacle(self, case: Case) -> str:
        """Return why the engine cannot be asked a case, or an empty string."""

    def ask(self, cases: Sequence[Case]) -> Iterable[EngineReply]:
        """Return one reply for each case without an obstacle; InputError if the engine cannot be asked at all."""


def replies(probe: EngineProbe[Case], questions: Sequence[Any]) -> Iterator[EngineReply]:
    """Yield one reply for each question, in order; the engine is not started if it cannot be asked any of them."""
    out: dict[int, EngineReply] = {}
    cases: dict[int, Case] = {}
    for number, question in enumerate(questions):
        try:
            cases[number] = probe.read(question)
        except InputError as error:
            out[number] = EngineReply(error=error.summary)
    probe.prepare(list(cases.values()))
    for number, case in list(cases.items()):
        if reason := probe.obstacle(case):
            out[number] = EngineReply(skipped=f"not testable here: {reason}")
            del cases[number]
    if cases:
        try:
            answered = list(probe.ask(list(cases.values())))
        except InputError as error:
            answered = [EngineReply(error=error.summary)] * len(cases)
        out |= zip(cases, answered, strict=True)
    yield from (out[number] for number in range(len(questions)))
