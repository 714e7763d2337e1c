"""Decisions that need answers of other servers, without a thread for any of them.

A decision is made in the event loop. Where it needs an answer that is not there yet, it ends (`AnswerPending`), the
answer is awaited, and the decision is made anew with the answers so far. So what is decided here is answered at once,
and a request waits only for the servers that it asks itself (docs/semantics.md#authorizers-are-asked-in-order).

Answers are kept for one request. A change of policies meanwhile makes no difference to that: each attempt is made from
exactly one set of policies, and another set asks its own questions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, Protocol, TypeAlias, TypeVar

from tierwall.api.algebra.authorizer import AnswerPending
from tierwall.api.authorizers.webhook import WebhookError

T = TypeVar("T")
# The reply, or why it did not come.
ServerReplyOrError: TypeAlias = Mapping[str, Any] | WebhookError


class AskingQuestion(Protocol):
    """A question to another server, equal to any other with the same content to the same server."""

    def __hash__(self) -> int:
        """Return the same for equal questions."""

    def ask(self) -> Awaitable[ServerReplyOrError]:
        """Ask in the running event loop; never raises."""


_ANSWERS: ContextVar[dict[AskingQuestion, ServerReplyOrError] | None] = ContextVar("answers", default=None)


def may_wait() -> bool:
    """Whether a question may be waited for where it is asked; False inside `decide_with_answers`."""
    return _ANSWERS.get() is None


def answer_to(question: AskingQuestion) -> Mapping[str, Any]:
    """Return the answer to a question; WebhookError if it did not come, AnswerPending if nobody has asked yet."""
    answers = _ANSWERS.get()
    if answers is None or question not in answers:
        raise AnswerPending(question)
    answer = answers[question]
    if isinstance(answer, WebhookError):
        raise answer
    return answer


async def decide_with_answers(decide: Callable[[], T]) -> T:
    """Make a decision; as often as it needs another answer, wait for that and make it anew."""
    answers: dict[AskingQuestion, ServerReplyOrError] = {}
    while True:
        token = _ANSWERS.set(answers)
        try:
            return decide()
        except AnswerPending as pending:
            question: Any = pending.question
        finally:
            _ANSWERS.reset(token)
        answers[question] = await question.ask()
