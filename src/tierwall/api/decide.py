"""Decide one request: both phases, through a chain of authorizers (docs/semantics.md#the-final-decision).

Where conditions can be enforced, a conditional answer stays open until the data is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from tierwall.api.algebra.chain import Chain, ChainDecision, ChainEntry, CompleteDecision, ask_the_rest
from tierwall.api.algebra.decision import DENY, NO_OPINION, Decision
from tierwall.api.algebra.request import Attributes, ConditionData, ConditionsMode
from tierwall.api.reads.selectable import OF_KUBERNETES, SelectableFields
from tierwall.core.answer import Step

if TYPE_CHECKING:
    from tierwall.api.reads.decision import ReadJudgement


class TwoPhaseDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The decision on a request: that of the first phase, and the final one if it is known."""

    attributes: Attributes
    first: ChainDecision
    final: Decision | None
    # The opinion of every authorizer, where the first phase is conditional.
    entries: tuple[ChainEntry, ...] = ()
    # How a read under conditions was judged.
    read: ReadJudgement | None = None
    # What is left of the conditions when the impersonated request is known, and its object is not.
    impersonation: CompleteDecision | None = None

    @property
    def last(self) -> Decision:
        """The final decision, or that of the first phase until the final one is known."""
        return self.final if self.final is not None else self.first

    @property
    def called(self) -> tuple[str, ...]:
        """The authorizers that were asked in order to decide."""
        return self.final.asked if isinstance(self.final, ChainDecision) else self.first.asked

    @property
    def decided_by(self) -> tuple[str, ...]:
        """The authorizers that settled it: those with conditions, then the one that settled it in the end."""
        names = [authorizer.name for authorizer, _ in self.first.opinions] if self.first.is_conditional else []
        if self.read is not None:
            names = [entry.authorizer for entry in self.entries]
        if isinstance(self.final, ChainDecision):
            names.append(self.final.decided_by)
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def error(self) -> str:
        """The evaluation error to report, or an empty string."""
        return self.last.error if self.last.verdict in (DENY, NO_OPINION) else ""

    @property
    def steps(self) -> tuple[Step, ...]:
        """Every step that led to the decision."""
        return self.final.steps if isinstance(self.final, ChainDecision) else self.first.steps


def decide(
    chain: Chain,
    attributes: Attributes,
    data: ConditionData | None = None,
    fields: SelectableFields = OF_KUBERNETES,
) -> TwoPhaseDecision:
    """Decide the first phase, and the second if there is data or conditions cannot be enforced.

    `fields` are those that resources select by. Without data, a read under conditions is judged by its selectors. Asks
    each authorizer at most once, except about other selectors.
    """
    if data is None and attributes.is_about_a_collection:
        judged = judge_collection(chain, attributes, fields)
        if judged is not None:
            return judged
    first = chain.authorize(attributes)
    if not first.is_conditional:
        return TwoPhaseDecision(attributes=attributes, first=first, final=first)
    complete = ask_the_rest(first)
    final: Decision | None = None
    impersonation: CompleteDecision | None = None
    if data is not None:
        final = complete.evaluate(data)
        if data.impersonated_request is not None:
            # Few questions are about impersonation.
            from tierwall.api.authorizers.impersonation import narrowed

            impersonation = narrowed(complete, attributes, data.impersonated_request)
    elif not attributes.supports_conditions:
        final = Decision(complete.failure, "conditions cannot be enforced on this request", complete.error)
    return TwoPhaseDecision(
        attributes=attributes, first=complete, final=final, entries=complete.entries, impersonation=impersonation
    )


def judge_collection(chain: Chain, attributes: Attributes, fields: SelectableFields) -> TwoPhaseDecision | None:
    """Decide what selectors can settle, whatever the caller knows about conditions; None if they settle nothing."""
    first = chain.authorize(replace(attributes, conditions_mode=ConditionsMode.HUMAN_READABLE))
    if not first.is_conditional:
        return TwoPhaseDecision(attributes=attributes, first=first, final=first)
    # Few questions are about reads under conditions.
    from tierwall.api.reads.decision import judge_read

    read = judge_read(chain, ask_the_rest(first), attributes, fields)
    if read is None:
        return None
    entries, decision = read.complete.entries, read.decision
    return TwoPhaseDecision(attributes=attributes, first=decision, final=decision, entries=entries, read=read)


def enforce_conditions(decision: ChainDecision, data: ConditionData) -> Decision:
    """Evaluate a decision as admission does, which refuses anything but Allow.

    KEP-5681, "AuthorizationConditionsEnforcer". Both objects must have the same API version, because a condition cannot
    know which version it reads.
    """
    objects = (data.object, data.old_object)
    versions = [value.get("apiVersion") for value in objects if isinstance(value, dict)]
    if decision.is_conditional and len(versions) == 2 and all(versions) and versions[0] != versions[1]:
        return Decision(DENY, "failed closed", f"objects in versions `{versions[0]}` and `{versions[1]}`")
    return decision.evaluate(data)
