"""Deciding one request: both phases through a chain (docs/semantics.md#the-final-decision).

Of a conditional answer to a request on which conditions can be enforced nothing final is said until data is given.
"""

from __future__ import annotations

import msgspec

from tierwall.api.algebra.chain import Chain, ChainDecision, ChainEntry, ask_the_rest
from tierwall.api.algebra.decision import DENY, NO_OPINION, Decision
from tierwall.api.algebra.request import Attributes, ConditionData
from tierwall.core.answer import Step


class TwoPhaseDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What a request comes to: in the first phase, and in the end if that can be said."""

    attributes: Attributes
    first: ChainDecision
    final: Decision | None
    # What every authorizer says, where the first phase is conditional.
    entries: tuple[ChainEntry, ...] = ()

    @property
    def last(self) -> Decision:
        """The final decision, or that of the first phase where nothing final can be said."""
        return self.final if self.final is not None else self.first

    @property
    def called(self) -> tuple[str, ...]:
        """Who was asked in order to decide."""
        return self.final.asked if isinstance(self.final, ChainDecision) else self.first.asked

    @property
    def decided_by(self) -> tuple[str, ...]:
        """Who settled it; for a conditional answer those whose opinions count, and who settled it in the end."""
        names = [authorizer.name for authorizer, _ in self.first.opinions] if self.first.is_conditional else []
        if isinstance(self.final, ChainDecision):
            names.append(self.final.decided_by)
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def error(self) -> str:
        """The evaluation error that has to be reported, if any."""
        return self.last.error if self.last.verdict in (DENY, NO_OPINION) else ""

    @property
    def steps(self) -> tuple[Step, ...]:
        """Everything that was looked at in order to decide."""
        return self.final.steps if isinstance(self.final, ChainDecision) else self.first.steps


def decide(chain: Chain, attributes: Attributes, data: ConditionData | None = None) -> TwoPhaseDecision:
    """The first phase, and the second if there is data or there cannot be any. Asks each authorizer at most once."""
    first = chain.authorize(attributes)
    if not first.is_conditional:
        return TwoPhaseDecision(attributes=attributes, first=first, final=first)
    complete = ask_the_rest(first)
    final: Decision | None = None
    if data is not None:
        final = complete.evaluate(data)
    elif not attributes.supports_conditions:
        final = Decision(complete.failure, "conditions cannot be enforced on this request", complete.error)
    return TwoPhaseDecision(attributes=attributes, first=complete, final=final, entries=complete.entries)


def enforce_conditions(decision: ChainDecision, data: ConditionData) -> Decision:
    """What admission makes of an answer: anything but Allow is refused (KEP-5681, "AuthorizationConditionsEnforcer").

    Both objects must be in one API version, since a condition cannot know which of two it looks at.
    """
    objects = (data.object, data.old_object)
    versions = [value.get("apiVersion") for value in objects if isinstance(value, dict)]
    if decision.is_conditional and len(versions) == 2 and all(versions) and versions[0] != versions[1]:
        return Decision(DENY, "failed closed", f"objects in versions `{versions[0]}` and `{versions[1]}`")
    return decision.evaluate(data)
