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

from tierwall.api.condition import Condition, Effect, FailureMode
from tierwall.api.decision import ALLOW, DENY, NO_OPINION, Decision
from tierwall.core.trace import Step
from tierwall.core.verdict import Verdict

MAX_CONDITIONS = 128

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
        return tuple(one for one in self.conditions if one.effect is effect)

    def effects(self) -> dict[str, int]:
        """How many conditions there are of each effect; an effect without any is left out."""
        counts = {str(effect): len(self.of(effect)) for effect in (Effect.ALLOW, Effect.DENY, Effect.NO_OPINION)}
        return {effect: count for effect, count in counts.items() if count}

    def problems(self) -> tuple[str, ...]:
        """Every rule that the set or a condition of it breaks."""
        found = [problem for one in self.conditions for problem in one.problems()]
        if not self.conditions:
            found.append("a condition set needs at least one condition")
        if len(self.conditions) > MAX_CONDITIONS:
            found.append(f"{len(self.conditions)} conditions in one set, at most {MAX_CONDITIONS} are allowed")
        seen: set[str] = set()
        for one in self.conditions:
            if one.id in seen:
                found.append(f"condition id `{one.id}` is used twice")
            seen.add(one.id)
        return tuple(found)

    def evaluate(self, test: Test) -> Decision:
        """The concrete answer for the data that `test` knows."""
        run = _Run(self.authorizer, test)
        hit, failed = run.over(self.of(Effect.DENY))
        if hit is not None:
            return run.settled(DENY, f"{_name(hit)} denied the request")
        if failed:
            return run.settled(Verdict(self.failure_mode), "a Deny condition failed", failed)
        hit, failed = run.over(self.of(Effect.NO_OPINION))
        if hit is not None:
            return run.settled(NO_OPINION, f"{_name(hit)} withholds an opinion")
        if failed:
            return run.settled(NO_OPINION, "a NoOpinion condition failed", failed)
        hit, _ = run.over(self.of(Effect.ALLOW))
        if hit is not None:
            return run.settled(ALLOW, f"{_name(hit)} allowed the request")
        return run.settled(NO_OPINION, "no condition allowed the request")


class Conditional(Decision, frozen=True, kw_only=True):
    """The answer of an authorizer that needs data. `error` is what already failed in the first phase."""

    conditions: ConditionSet
    verdict: Verdict = Verdict.CONDITIONAL

    verdicts: ClassVar[frozenset[Verdict]] = frozenset((Verdict.CONDITIONAL,))

    @property
    def possible(self) -> frozenset[Verdict]:
        """NoOpinion always; Allow and Deny only where a condition has that effect."""
        effects = {one.effect for one in self.conditions.conditions}
        return frozenset(
            (
                NO_OPINION,
                *((ALLOW,) if Effect.ALLOW in effects else ()),
                *((DENY,) if Effect.DENY in effects else ()),
            )
        )


def conditional(
    authorizer: str,
    conditions: Iterable[Condition],
    failure_mode: FailureMode = FailureMode.DENY,
    *,
    error: str = "",
    steps: tuple[Step, ...] = (),
) -> Decision:
    """The answer with these conditions: the failure mode if they break a rule, NoOpinion if nothing else can come."""
    found = ConditionSet(authorizer, tuple(conditions), failure_mode)
    if problems := found.problems():
        verdict = Verdict(failure_mode) if found.conditions else NO_OPINION
        return Decision(verdict, "failed closed: invalid conditions", "; ".join(problems[:5]), steps)
    if all(one.effect is Effect.NO_OPINION for one in found.conditions):
        return Decision(NO_OPINION, "only NoOpinion conditions", error, steps)
    return Conditional(conditions=found, error=error, steps=steps)


class _Run:
    """One evaluation: tests conditions and keeps the trace."""

    def __init__(self, authorizer: str, test: Test) -> None:
        self._authorizer = authorizer
        self._test = test
        self._steps: list[Step] = []

    def over(self, conditions: tuple[Condition, ...]) -> tuple[Condition | None, str]:
        """The first condition that is true, or else the errors of those that failed."""
        errors: list[str] = []
        for one in conditions:
            try:
                holds = self._test(one)
            except ConditionError as why:
                errors.append(f"condition `{one.id}` failed: {why}")
                self._step(one, "Error", str(why))
                continue
            self._step(one, str(one.effect) if holds else "NoMatch", one.text if len(one.text) <= 200 else "")
            if holds:
                return one, ""
        return None, "; ".join(errors)

    def settled(self, verdict: Verdict, reason: str, error: str = "") -> Decision:
        return Decision(verdict, reason, error, tuple(self._steps))

    def _step(self, one: Condition, outcome: str, note: str) -> None:
        policy, origin = (one.source.policy, one.source.origin) if one.source is not None else (None, None)
        path = ("spec", "expression")
        self._steps.append(Step(self._authorizer, outcome, policy, f"condition {one.id}", note, origin, path))


def _name(condition: Condition) -> str:
    description = f" ({condition.description})" if condition.description else ""
    return f"condition `{condition.id}`{description}"
