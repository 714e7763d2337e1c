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
from tierwall.api.algebra.decision import ALLOW, CONCRETE, DENY, NO_OPINION, VERDICTS, Decision
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

# Each beats those after it.
_EFFECTS = tuple(Effect)
_SAYS = dict(zip(_EFFECTS, ("denied the request", "withholds an opinion", "allowed the request"), strict=True))
# Looked up here once, because every evaluation uses them.
_TRUE, _FALSE, _NO_MATCH = Reason.EXPRESSION_TRUE, Reason.EXPRESSION_FALSE, StepVerdict.NO_MATCH

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
        steps: list[Step] = []
        for effect in _EFFECTS:
            errors: list[str] = []
            failed: Step | None = None
            for condition in self.of(effect):
                text = condition.text if len(condition.text) <= 200 else ""
                try:
                    holds = test(condition)
                except ConditionError as why:
                    errors.append(f"condition `{condition.id}` failed: {why}")
                    said = effect.if_failed(self.failure_mode)
                    steps.append(condition.step(self.authorizer, said, Reason.EXPRESSION_FAILED, str(why)))
                    failed = failed or steps[-1]
                    continue
                if holds:
                    steps.append(condition.step(self.authorizer, effect.if_true, _TRUE, text))
                    reason = f"{_name(condition)} {_SAYS[effect]}"
                    return Decision(VERDICTS[steps[-1].verdict], reason, "", tuple(steps), steps[-1])
                steps.append(condition.step(self.authorizer, _NO_MATCH, _FALSE, text))
            # Allows that fail say nothing, which is not a verdict.
            if failed is not None and failed.verdict in VERDICTS:
                reason = f"a {effect} condition failed"
                return Decision(VERDICTS[failed.verdict], reason, "; ".join(errors), tuple(steps), failed)
        return Decision(NO_OPINION, "no condition allowed the request", "", tuple(steps))


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


def _name(condition: Condition) -> str:
    description = f" ({condition.description})" if condition.description else ""
    return f"condition `{condition.id}`{description}"
