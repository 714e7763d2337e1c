"""An authorizer's answer: exactly one of Allow, Deny, NoOpinion, Conditional (KEP-5681, "Core interface changes").

`Decision` is the concrete one; `condition.Conditional` carries one authorizer's conditions and
`chain.ChainDecision` the opinions of several. The empty decision is Deny. What could still come of a decision
(`possible`) says how it falls if it cannot be evaluated (`failure`): to Deny if Deny is possible, else to NoOpinion.
A decision is a value: reading a property of it never asks an authorizer.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from tierwall.core.answer import Reason, Step
from tierwall.core.verdict import StepVerdict, Verdict

ALLOW, DENY, NO_OPINION = Verdict.ALLOW, Verdict.DENY, Verdict.NO_OPINION
CONCRETE = frozenset((ALLOW, DENY, NO_OPINION))
# The concrete verdicts by the word that a step has for them.
VERDICTS = {StepVerdict.ALLOW: ALLOW, StepVerdict.DENY: DENY, StepVerdict.NO_OPINION: NO_OPINION}


class Decision(msgspec.Struct, frozen=True):
    """A concrete answer with its reason, the error that led to it if any, and what was looked at.

    `settled_by` is the step that settled it: the policy and rule, or the condition. It is None where an answer rests on
    no single step, such as NoOpinion where nothing matched.
    """

    verdict: Verdict = Verdict.DENY
    reason: str = ""
    error: str = ""
    steps: tuple[Step, ...] = ()
    settled_by: Step | None = None

    # The verdicts a value of this class may hold: an answer outside of them cannot be made.
    verdicts: ClassVar[frozenset[Verdict]] = CONCRETE

    def __post_init__(self) -> None:
        if self.verdict not in self.verdicts:
            raise ValueError(f"a {type(self).__name__} cannot be `{self.verdict}`")

    @property
    def is_conditional(self) -> bool:
        """Whether data is needed for a concrete answer."""
        return self.verdict is Verdict.CONDITIONAL

    @property
    def can_pass_on(self) -> bool:
        """NoOpinion, or Conditional with a way to NoOpinion: the next authorizer of a chain may be asked."""
        return self.verdict is NO_OPINION or self.verdict is Verdict.CONDITIONAL

    @property
    def possible(self) -> frozenset[Verdict]:
        """The concrete answers that can come of this one."""
        return frozenset((self.verdict,))

    @property
    def can_become_allowed(self) -> bool:
        """Allow, or Conditional with a way to Allow."""
        return ALLOW in self.possible

    @property
    def failure(self) -> Verdict:
        """The answer if this one cannot be evaluated."""
        return DENY if DENY in self.possible else NO_OPINION

    def folded(self) -> Decision:
        """The answer for a caller that knows no conditions."""
        if not self.is_conditional:
            return self
        return Decision(self.failure, "conditional, but the caller does not know conditions", self.error, self.steps)


def settled_by_step(step: Step, reason: str = "", error: str = "") -> Decision:
    """The answer of an authorizer that looked at one thing, which settled it."""
    return Decision(VERDICTS[step.verdict], reason, error, (step,), step)


def fail_closed(
    authorizer: str, verdict: Verdict, error: str, steps: tuple[Step, ...] = (), reason: str = "failed closed"
) -> Decision:
    """The answer of an authorizer that cannot be trusted to have said what it would say."""
    closed = Step(tier=authorizer, verdict=StepVerdict(verdict), reason=Reason.FAILS_CLOSED, note=error)
    return Decision(verdict, reason, error, (*steps, closed), closed)


def no_opinion(step: Step, reason: str) -> Decision:
    """NoOpinion of an authorizer that has nothing to say about the request."""
    return Decision(NO_OPINION, reason, steps=(step,))
