"""The decision of an authorizer: Allow, Deny, NoOpinion or Conditional (KEP-5681, "Core interface changes").

`Decision` is the concrete one; `condition.Conditional` carries the conditions of one authorizer and
`chain.ChainDecision` the opinions of several. The empty decision is Deny. A decision that cannot be evaluated becomes
Deny if Deny is among its possible verdicts, else NoOpinion. Decisions are values: reading a property never asks an
authorizer.
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
    """A concrete decision with its reason, its error if there is one, and its steps.

    `settled_by` is the step that settled it: the policy and rule, or the condition. It is None where no single step
    did, such as NoOpinion because nothing matched.
    """

    verdict: Verdict = Verdict.DENY
    reason: str = ""
    error: str = ""
    steps: tuple[Step, ...] = ()
    settled_by: Step | None = None
    # Whether conditions were folded, because nobody would enforce them: `reason` tells them.
    was_conditional: bool = False

    # The verdicts that a value of this class may hold; the constructor refuses others.
    verdicts: ClassVar[frozenset[Verdict]] = CONCRETE

    def __post_init__(self) -> None:
        if self.verdict not in self.verdicts:
            raise ValueError(f"a {type(self).__name__} cannot be `{self.verdict}`")

    @property
    def is_conditional(self) -> bool:
        """Whether the verdict depends on data."""
        return self.verdict is Verdict.CONDITIONAL

    @property
    def can_pass_on(self) -> bool:
        """Whether NoOpinion is possible, so that the next authorizer of a chain may be asked."""
        return self.verdict is NO_OPINION or self.verdict is Verdict.CONDITIONAL

    @property
    def possible(self) -> frozenset[Verdict]:
        """The verdicts that evaluation can give."""
        return frozenset((self.verdict,))

    @property
    def can_become_allowed(self) -> bool:
        """Whether Allow is possible."""
        return ALLOW in self.possible

    @property
    def failure(self) -> Verdict:
        """The verdict if this decision cannot be evaluated."""
        return DENY if DENY in self.possible else NO_OPINION

    def folded(self) -> Decision:
        """Return the decision for a caller that does not understand conditions."""
        if not self.is_conditional:
            return self
        return Decision(
            self.failure,
            "conditional, but the caller does not understand conditions",
            self.error,
            self.steps,
            was_conditional=True,
        )


def settled_by_step(step: Step, reason: str = "", error: str = "") -> Decision:
    """Return the decision of an authorizer that took one step."""
    return Decision(VERDICTS[step.verdict], reason, error, (step,), step)


def fail_closed(
    authorizer: str, verdict: Verdict, error: str, steps: tuple[Step, ...] = (), reason: str = "failed closed"
) -> Decision:
    """Return the decision of an authorizer whose answer cannot be trusted."""
    closed = Step(tier=authorizer, verdict=StepVerdict(verdict), reason=Reason.FAILS_CLOSED, note=error)
    return Decision(verdict, reason, error, (*steps, closed), closed)


def no_opinion(step: Step, reason: str) -> Decision:
    """Return NoOpinion, for a request that the authorizer has no rule about."""
    return Decision(NO_OPINION, reason, steps=(step,))
