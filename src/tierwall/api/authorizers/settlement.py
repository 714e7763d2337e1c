"""Combine the outcomes of policies into the decision of one CEL authorizer (KEP-5681, "Authorizer requirements").

Every policy is true, false, an error, or a residual over data that is still missing. The first line that applies gives
the decision (docs/semantics.md#what-one-cel-authorizer-answers); T true, E error, R residual:

    Deny T                                              Deny
    Deny E, failure mode Deny                           Deny, with the error
    Deny R, and Deny E or a NoOpinion T or E            Conditional on the Denies alone
    Deny R, and an Allow T or R                         Conditional: Denies, NoOpinions R, Allows
    Deny R                                              Conditional on the Denies alone
    Deny E, failure mode NoOpinion                      NoOpinion, with the error
    NoOpinion T or E                                    NoOpinion
    no Allow T or R                                     NoOpinion
    Allow T, no NoOpinion R                             Allow
    else                                                Conditional: NoOpinions R, Allows

One true Allow stands for all Allows. A residual Allow that cannot become true is not returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from tierwall.api.algebra.condition import CEL_TYPE, EFFECTS, Condition, Effect, FailureMode, conditional
from tierwall.api.algebra.condition_fit import join_to_limit, residual_conditions
from tierwall.api.algebra.decision import ALLOW, DENY, NO_OPINION, Decision
from tierwall.api.authorizers.expression import FailedExpression, ResidualExpression
from tierwall.core.answer import Reason, Step
from tierwall.core.verdict import StepVerdict, Verdict

NOTHING_ALLOWS = "no policy allows it"


class EffectOutcomes(msgspec.Struct):
    """The conditions of one effect that are not false, one for each policy."""

    true: list[Condition] = []
    failed: list[tuple[Condition, str]] = []
    residual: list[tuple[Condition, ResidualExpression]] = []

    @property
    def error(self) -> str:
        """The first few errors."""
        return "; ".join(f"{_name(condition)}: {why}" for condition, why in self.failed[:5])


class Settlement:
    """Collects the outcomes of policies and decides."""

    def __init__(self, authorizer: str, failure_mode: FailureMode) -> None:
        self._authorizer = authorizer
        self._failure_mode = failure_mode
        self._by_effect = {effect: EffectOutcomes() for effect in EFFECTS}

    def add(self, condition: Condition, outcome: bool | FailedExpression | ResidualExpression) -> None:
        """Add the outcome of one policy."""
        outcomes = self._by_effect[condition.effect]
        if outcome is True:
            outcomes.true.append(condition)
        elif isinstance(outcome, FailedExpression):
            outcomes.failed.append((condition, outcome.message))
        elif isinstance(outcome, ResidualExpression) and (outcome.can_be_true or condition.effect is not Effect.ALLOW):
            outcomes.residual.append((condition, outcome))

    def decision(self) -> Decision:
        """Return the decision."""
        denies, withholds, allows = (self._by_effect[effect] for effect in EFFECTS)
        fails_open = bool(denies.failed) and self._failure_mode is FailureMode.NO_OPINION
        withheld = bool(withholds.true or withholds.failed)
        can_allow = bool(allows.true or allows.residual)
        error = denies.error or ("" if withholds.true else withholds.error)
        if denies.true:
            return self._settled_by_true(DENY, "denied", denies.true[0])
        if denies.failed and not fails_open:
            return self._settled_by_failure(DENY, "a Deny policy failed", denies)
        if denies.residual:
            if fails_open or withheld or not can_allow:
                return self._conditional(_residuals(denies), error)
            return self._conditional((*_residuals(denies), *_residuals(withholds), *_grants(allows)), error)
        if fails_open:
            return self._settled_by_failure(NO_OPINION, "a Deny policy failed", denies)
        if withholds.true:
            return self._settled_by_true(NO_OPINION, "withheld", withholds.true[0])
        if withholds.failed:
            return self._settled_by_failure(NO_OPINION, "a NoOpinion policy failed", withholds)
        if not can_allow:
            return Decision(NO_OPINION, NOTHING_ALLOWS, steps=tuple(self._steps()))
        if allows.true and not withholds.residual:
            return self._settled_by_true(ALLOW, "allowed", allows.true[0])
        return self._conditional((*_residuals(withholds), *_grants(allows)), error)

    def _settled_by_true(self, verdict: Verdict, word: str, condition: Condition) -> Decision:
        return Decision(verdict, _reason(word, condition), "", tuple(self._steps()), self._true(condition))

    def _settled_by_failure(self, verdict: Verdict, reason: str, outcomes: EffectOutcomes) -> Decision:
        return Decision(verdict, reason, outcomes.error, tuple(self._steps()), self._failed(*outcomes.failed[0]))

    def _conditional(self, conditions: Iterable[Condition], error: str) -> Decision:
        steps = tuple(self._steps())
        return conditional(self._authorizer, join_to_limit(conditions), self._failure_mode, error=error, steps=steps)

    def _steps(self) -> Iterator[Step]:
        for outcomes in self._by_effect.values():
            for condition in outcomes.true:
                yield self._true(condition)
            for condition, why in outcomes.failed:
                yield self._failed(condition, why)
            for condition, _ in outcomes.residual:
                note = f"{condition.effect} if its condition holds"
                yield condition.step(self._authorizer, StepVerdict.CONDITIONAL, Reason.NEEDS_OBJECT, note)

    def _true(self, condition: Condition) -> Step:
        return condition.step(self._authorizer, condition.effect.if_true, Reason.EXPRESSION_TRUE)

    def _failed(self, condition: Condition, why: str) -> Step:
        verdict = condition.effect.if_failed(self._failure_mode)
        return condition.step(self._authorizer, verdict, Reason.EXPRESSION_FAILED, why)


def _residuals(outcomes: EffectOutcomes) -> list[Condition]:
    return [part for condition, residual in outcomes.residual for part in residual_conditions(condition, residual.tree)]


def _grants(allows: EffectOutcomes) -> list[Condition]:
    """Return one true Allow, or all residual Allows."""
    if not allows.true:
        return _residuals(allows)
    return [msgspec.structs.replace(allows.true[0], text="true", type=CEL_TYPE)]


def _name(condition: Condition) -> str:
    return str(condition.source.policy) if condition.source is not None else f"condition `{condition.id}`"


def _reason(word: str, condition: Condition) -> str:
    return f"{word} by {_name(condition)}" + (f": {condition.description}" if condition.description else "")
