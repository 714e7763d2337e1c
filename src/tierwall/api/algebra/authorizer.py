"""The interface of an authorizer, and authorizers that always give one answer (KEP-5681, "Core interface changes").

`authorize` is a deterministic function of the attributes and of the policies that the authorizer was built from.
`evaluate` sees the conditions it returned earlier and the data, but no policies, so one policy store decides every
request.
"""

from __future__ import annotations

from typing import Protocol

from tierwall.api.algebra.condition import ConditionSet
from tierwall.api.algebra.decision import DENY, NO_OPINION, Decision, fail_closed, no_opinion, settled_by_step
from tierwall.api.algebra.request import Attributes, ConditionData
from tierwall.core.answer import Reason, Step
from tierwall.core.verdict import StepVerdict, Verdict


class Authorizer(Protocol):
    """A member of a chain."""

    @property
    def name(self) -> str:
        """The name, unique in the chain."""

    @property
    def condition_types(self) -> frozenset[str]:
        """The types of conditions that it writes and can evaluate."""

    def authorize(self, attributes: Attributes) -> Decision:
        """Decide the first phase."""

    def evaluate(self, conditions: ConditionSet, data: ConditionData) -> Decision:
        """Decide the second phase of its own conditions; never conditional."""


class AnswerPending(BaseException):
    """An answer has to come from another server first; `question` is what to ask there. Then the decision is made anew.

    Decisions are made without waiting, so that no request waits for another. It is no Exception, because it must pass
    everything that makes a failure of an authorizer a denial.
    """

    def __init__(self, question: object) -> None:
        super().__init__("an authorizer waits for another server")
        self.question = question


class WithoutConditionSets:
    """An authorizer that never gets a condition set: it returns none, or evaluates its answers as a whole."""

    name: str
    condition_types: frozenset[str] = frozenset()

    def evaluate(self, conditions: ConditionSet, data: ConditionData) -> Decision:
        """Deny, because another authorizer wrote these conditions."""
        return fail_closed(self.name, DENY, f"authorizer `{self.name}` does not evaluate conditions")


class ConstantAuthorizer(WithoutConditionSets):
    """An authorizer with one answer for everything (`AlwaysAllow`; `AlwaysDeny`, which has no opinion)."""

    def __init__(self, name: str, decision: Decision) -> None:
        self.name = name
        self.decision = decision

    @classmethod
    def allowing(cls, name: str) -> ConstantAuthorizer:
        """Return an authorizer that allows everything."""
        step = Step(tier=name, verdict=StepVerdict.ALLOW, reason=Reason.AUTHORIZER_ALLOWED)
        return cls(name, settled_by_step(step, "always allowed"))

    @classmethod
    def without_opinion(cls, name: str, reason: str) -> ConstantAuthorizer:
        """Return an authorizer that has no opinion on anything."""
        step = Step(tier=name, verdict=StepVerdict.NO_OPINION, reason=Reason.AUTHORIZER_SILENT, note=reason)
        return cls(name, no_opinion(step, reason))

    @classmethod
    def unreachable(cls, name: str, failure_policy: Verdict, error: str) -> ConstantAuthorizer:
        """Return a stand-in for an authorizer that cannot be called: its failure policy decides."""
        verdict = StepVerdict(failure_policy)
        step = Step(tier=name, verdict=verdict, reason=Reason.AUTHORIZER_UNREACHABLE, note=error)
        return cls(name, settled_by_step(step, "failure policy", error))

    def authorize(self, attributes: Attributes) -> Decision:
        """Return the one answer."""
        return self.decision


def fail_if_impossible(result: Decision, conditions: ConditionSet, possible: frozenset[Verdict]) -> Decision:
    """Return `result`, or fail closed if these conditions cannot have this result.

    A broken evaluator must not turn a conditional Deny into an Allow.
    """
    if result.verdict in possible:
        return result
    verdict = DENY if DENY in possible else NO_OPINION
    why = f"authorizer `{conditions.authorizer}` evaluated its conditions to `{result.verdict}`, which they cannot give"
    return fail_closed(conditions.authorizer, verdict, why, result.steps)
