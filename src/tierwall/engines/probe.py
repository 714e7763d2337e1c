"""Putting questions to a real engine: each is read, skipped with a reason, or asked, and the replies come in order.

docs/policy-tests.md#output. What differs between engines is theirs: what they make of a question, why one cannot be
asked, and how the others are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from tierwall.core.diagnostics import InputError
from tierwall.core.protocols import EngineReply

Case = TypeVar("Case")


class EngineProbe(Protocol[Case]):
    """How an engine is asked about one snapshot; a `Case` is what it makes of a question."""

    def read(self, question: Any) -> Case:
        """A question of the engine's plane; InputError names everything wrong with it."""

    def prepare(self, cases: Sequence[Case]) -> None:
        """Called once with all cases, before `obstacle` and `ask`; most engines have nothing to do."""
        return

    def obstacle(self, case: Case) -> str:
        """Why a case cannot be put to the engine, or nothing."""

    def ask(self, cases: Sequence[Case]) -> Iterable[EngineReply]:
        """One reply for each case without an obstacle; InputError if the engine cannot be asked."""


def replies(asking: EngineProbe[Case], questions: Sequence[Any]) -> Iterator[EngineReply]:
    """One reply for each question, in order; the engine is not started if none can be asked."""
    out: dict[int, EngineReply] = {}
    cases: dict[int, Case] = {}
    for number, question in enumerate(questions):
        try:
            cases[number] = asking.read(question)
        except InputError as error:
            out[number] = EngineReply(error=error.summary)
    asking.prepare(list(cases.values()))
    for number, case in list(cases.items()):
        if reason := asking.obstacle(case):
            out[number] = EngineReply(skipped=f"not testable here: {reason}")
            del cases[number]
    if cases:
        try:
            answered = list(asking.ask(list(cases.values())))
        except InputError as error:
            answered = [EngineReply(error=error.summary)] * len(cases)
        out |= zip(cases, answered, strict=True)
    yield from (out[number] for number in range(len(questions)))
