"""An authorizer's answer: exactly one of Allow, Deny, NoOpinion, Conditional (KEP-5681, "Core interface changes").

`Decision` is the concrete one; `condition_set.Conditional` carries one authorizer's conditions and
`chain.ChainDecision` the answers of several. The empty decision is Deny. What could still come of a decision
(`possible`) says how it falls if it cannot be evaluated (`failure`): to Deny if Deny is possible, else to NoOpinion.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from tierwall.core.trace import Step
from tierwall.core.verdict import Verdict

ALLOW, DENY, NO_OPINION = Verdict.ALLOW, Verdict.DENY, Verdict.NO_OPINION
CONCRETE = frozenset((ALLOW, DENY, NO_OPINION))


class Decision(msgspec.Struct, frozen=True):
    """A concrete answer with its reason, the error that led to it if any, and what was looked at."""

    verdict: Verdict = Verdict.DENY
    reason: str = ""
    error: str = ""
    steps: tuple[Step, ...] = ()

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


def allow(reason: str = "", error: str = "", steps: tuple[Step, ...] = ()) -> Decision:
    """Allow."""
    return Decision(ALLOW, reason, error, steps)


def deny(reason: str = "", error: str = "", steps: tuple[Step, ...] = ()) -> Decision:
    """Deny."""
    return Decision(DENY, reason, error, steps)


def no_opinion(reason: str = "", error: str = "", steps: tuple[Step, ...] = ()) -> Decision:
    """NoOpinion."""
    return Decision(NO_OPINION, reason, error, steps)
