"""One authorizer's conditions and how they come to a concrete answer.

KEP-5681, "Computing a concrete decision from a ConditionSet":

    some Deny true         Deny
    some Deny fails        the failure mode, with the error
    some NoOpinion true    NoOpinion
    some NoOpinion fails   NoOpinion, with the error
    some Allow true        Allow (Allows that fail are passed over)
    else                   NoOpinion

The order of conditions plays no part. A set that breaks a rule becomes its failure mode and is never conditional.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar, TypeAlias

import msgspec

from tierwall.api.algebra.condition import Condition, Effect, FailureMode
from tierwall.api.algebra.decision import ALLOW, CONCRETE, DENY, NO_OPINION, Decision
from tierwall.core.answer import Reason, Step
from tierwall.core.verdict import StepVerdict, Verdict

MAX_CONDITIONS = 128

# By whether some condition allows, and whether some denies.
_POSSIBLE = {
    (True, True): CONCRETE,
    (True, False): frozenset((NO_OPINION, ALLOW)),
    (False, True): frozenset((NO_OPINION, DENY)),
    (False, False): frozenset((NO_OPINION,)),
}

# Whether one condition is true for the data at hand; ConditionError if it fails.
Test: TypeAlias = Callable[[Condition], bool]


class ConditionError(Exception):
    """A condition that gave no bool: it failed, or nobody here can read it."""


class ConditionSet(msgspec.Struct, frozen=True):
    """The conditions of one authorizer, unique by id. Never merged with another's."""

    authorizer: str
    conditions: tuple[Condition, ...]
    failure_mode: FailureMode = FailureMode.DENY

    def of(self, effect: Effect) -> tuple[Condition, ...]:
        """The conditions with one effect."""
        return tuple(condition for condition in self.conditions if condition.effect is effect)

    def problems(self) -> tuple[str, ...]:
        """Every rule that the set or a condition of it breaks."""
        found = [problem for condition in self.conditions for problem in condition.problems()]
        if not self.conditions:
            found.append("a condition set needs at least one condition")
        if len(self.conditions) > MAX_CONDITIONS:
            found.append(f"{len(self.conditions)} conditions in one set, at most {MAX_CONDITIONS} are allowed")
        seen: set[str] = set()
        for condition in self.conditions:
            if condition.id in seen:
                found.append(f"condition id `{condition.id}` is used twice")
            seen.add(condition.id)
        return tuple(found)

    def evaluate(self, test: Test) -> Decision:
        """The concrete answer for the data that `test` knows."""
        evaluation = _Evaluation(self, test)
        true, error = evaluation.of(Effect.DENY)
        if true is not None:
            return evaluation.settled(DENY, f"{_name(true)} denied the request")
        if error:
            return evaluation.settled(self.failure_mode.verdict, "a Deny condition failed", error)
        true, error = evaluation.of(Effect.NO_OPINION)
        if true is not None:
            return evaluation.settled(NO_OPINION, f"{_name(true)} withholds an opinion")
        if error:
            return evaluation.settled(NO_OPINION, "a NoOpinion condition failed", error)
        true, _ = evaluation.of(Effect.ALLOW)
        if true is not None:
            return evaluation.settled(ALLOW, f"{_name(true)} allowed the request")
        return evaluation.unsettled("no condition allowed the request")


class Conditional(Decision, frozen=True, kw_only=True):
    """The answer of an authorizer that needs data. `error` is what already failed in the first phase."""

    conditions: ConditionSet
    verdict: Verdict = Verdict.CONDITIONAL

    verdicts: ClassVar[frozenset[Verdict]] = frozenset((Verdict.CONDITIONAL,))

    @property
    def can_become_allowed(self) -> bool:
        """Whether a condition has the effect Allow."""
        return any(condition.effect is Effect.ALLOW for condition in self.conditions.conditions)

    @property
    def possible(self) -> frozenset[Verdict]:
        """NoOpinion always; Allow and Deny only where a condition has that effect."""
        effects = {condition.effect for condition in self.conditions.conditions}
        return _POSSIBLE[Effect.ALLOW in effects, Effect.DENY in effects]


def conditional(
    authorizer: str,
    conditions: Iterable[Condition],
    failure_mode: FailureMode = FailureMode.DENY,
    *,
    error: str = "",
    steps: tuple[Step, ...] = (),
) -> Decision:
    """The answer with these conditions: the failure mode if they break a rule, NoOpinion if nothing else can come."""
    made = ConditionSet(authorizer, tuple(conditions), failure_mode)
    if problems := made.problems():
        verdict = failure_mode.verdict if made.conditions else NO_OPINION
        words = "; ".join(problems[:5])
        closed = Step(tier=authorizer, verdict=StepVerdict(verdict), reason=Reason.FAILS_CLOSED, note=words)
        return Decision(verdict, "failed closed: invalid conditions", words, (*steps, closed), closed)
    if all(condition.effect is Effect.NO_OPINION for condition in made.conditions):
        return Decision(NO_OPINION, "only NoOpinion conditions", error, steps)
    return Conditional(conditions=made, error=error, steps=steps)


class _Evaluation:
    """One evaluation of a set: tests conditions and keeps the steps."""

    def __init__(self, conditions: ConditionSet, test: Test) -> None:
        self._set = conditions
        self._test = test
        self._steps: list[Step] = []
        # That of the condition that is true, or else of the first that failed.
        self._settled_by: Step | None = None

    def of(self, effect: Effect) -> tuple[Condition | None, str]:
        """Test the conditions of one effect: the first that is true, or else the errors of those that failed."""
        errors: list[str] = []
        for condition in self._set.of(effect):
            try:
                holds = self._test(condition)
            except ConditionError as why:
                errors.append(f"condition `{condition.id}` failed: {why}")
                verdict = effect.if_failed(self._set.failure_mode)
                step = self._step(condition, verdict, Reason.EXPRESSION_FAILED, str(why))
                self._settled_by = self._settled_by or step
                continue
            text = condition.text if len(condition.text) <= 200 else ""
            if holds:
                self._settled_by = self._step(condition, effect.if_true, Reason.EXPRESSION_TRUE, text)
                return condition, ""
            self._step(condition, StepVerdict.NO_MATCH, Reason.EXPRESSION_FALSE, text)
        return None, "; ".join(errors)

    def settled(self, verdict: Verdict, reason: str, error: str = "") -> Decision:
        """The answer where a condition is true, or failed."""
        return Decision(verdict, reason, error, tuple(self._steps), self._settled_by)

    def unsettled(self, reason: str) -> Decision:
        """NoOpinion where no condition is true."""
        return Decision(NO_OPINION, reason, "", tuple(self._steps))

    def _step(self, condition: Condition, verdict: StepVerdict, reason: Reason, note: str) -> Step:
        step = condition.step(self._set.authorizer, verdict, reason, note)
        self._steps.append(step)
        return step


def _name(condition: Condition) -> str:
    description = f" ({condition.description})" if condition.description else ""
    return f"condition `{condition.id}`{description}"
