"""A chain of authorizers, asked in order; itself an authorizer, so chains nest (KEP-5681, "…authorization chain").

NoOpinion passes the request on, also with an error. A conditional Deny (no Allow condition) is remembered and the next
is asked; a conditional Allow stops the walk, and the rest of the chain is remembered: it is asked in the second phase,
and only if everything before came to NoOpinion. The eager walk, which upstream took instead, asks on to the first
concrete Allow or Deny; it comes to the same final answer. A nested chain decides as if its members stood in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

import msgspec

from tierwall.api.attributes import Attributes, ConditionsMode
from tierwall.api.authorizer import Authorizer, guarded, unsupported
from tierwall.api.condition_set import Conditional, ConditionSet
from tierwall.api.data import ConditionData
from tierwall.api.decision import ALLOW, CONCRETE, DENY, NO_OPINION, Decision, deny
from tierwall.core.trace import Step
from tierwall.core.verdict import Verdict


class Answer(msgspec.Struct, frozen=True):
    """What one authorizer said, with the authorizer that can evaluate it."""

    authorizer: Authorizer
    decision: Decision

    def evaluate(self, data: ConditionData) -> Decision:
        """The concrete answer; one the conditions cannot give becomes the failing one."""
        decision = self.decision
        if isinstance(decision, ChainDecision):
            return decision.evaluate(data)
        if not isinstance(decision, Conditional):
            return decision
        result = guarded(self.authorizer.evaluate(decision.conditions, data), decision.conditions, decision.possible)
        if decision.error and result.verdict is NO_OPINION:
            return Decision(NO_OPINION, result.reason, _joined(decision.error, result.error), result.steps)
        return result


class Rest(msgspec.Struct, frozen=True):
    """The authorizers not asked yet, and what to ask them."""

    authorizers: tuple[Authorizer, ...]
    attributes: Attributes


class ChainDecision(Decision, frozen=True, kw_only=True):
    """The answer of a chain: the answers that were not NoOpinion, in order, who was asked, and who is left to ask."""

    answers: tuple[Answer, ...] = ()
    asked: tuple[str, ...] = ()
    decided_by: str = ""
    rest: Rest | None = None

    verdicts: ClassVar[frozenset[Verdict]] = CONCRETE | {Verdict.CONDITIONAL}

    @property
    def can_become_allowed(self) -> bool:
        """Nobody need be asked for this: only a way to Allow leaves a rest."""
        if not self.is_conditional:
            return self.verdict is ALLOW
        return any(answer.decision.can_become_allowed for answer in self.answers)

    @property
    def possible(self) -> frozenset[Verdict]:
        """The concrete answers that can come of this one; asks the rest."""
        if not self.is_conditional:
            return frozenset((self.verdict,))
        found: set[Verdict] = {NO_OPINION}
        for _, decision in self.entries():
            found |= decision.possible
            if not decision.is_conditional:
                found.discard(NO_OPINION)
        return frozenset(found)

    def entries(self) -> tuple[tuple[str, Decision], ...]:
        """Every answer in order up to the first concrete Allow or Deny, nested chains flattened; asks the rest."""
        found: list[tuple[str, Decision]] = []
        for name, decision in self._leaves():
            if decision.verdict is not NO_OPINION:
                found.append((name, decision))
            if decision.verdict in (ALLOW, DENY):
                break
        return tuple(found)

    def condition_sets(self) -> tuple[ConditionSet, ...]:
        """The condition sets among the entries."""
        return tuple(decision.conditions for _, decision in self.entries() if isinstance(decision, Conditional))

    def evaluate(self, data: ConditionData) -> ChainDecision:
        """The concrete answer for `data`."""
        if not self.is_conditional:
            return self
        asked, errors, steps = list(self.asked), [self.error], list(self.steps)
        for answer, is_new in self._in_turn():
            result = answer.evaluate(data)
            known = answer.decision.asked if isinstance(answer.decision, ChainDecision) else ()
            if is_new:
                asked.extend(known or (answer.authorizer.name,))
                steps.extend(answer.decision.steps)
            if isinstance(result, ChainDecision):
                asked.extend(result.asked[len(known) :])
                steps.extend(result.steps[len(answer.decision.steps) :])
            elif result is not answer.decision:
                steps.extend(result.steps)
            if result.verdict is not NO_OPINION:
                return _settled(answer.authorizer, result, asked, steps)
            errors.append(result.error)
        return _unsettled(asked, errors, steps)

    def _in_turn(self) -> Iterator[tuple[Answer, bool]]:
        for answer in self.answers:
            yield answer, False
        if self.rest is not None:
            for authorizer in self.rest.authorizers:
                yield Answer(authorizer, _ask(authorizer, self.rest.attributes)), True

    def _leaves(self) -> Iterator[tuple[str, Decision]]:
        for answer, _ in self._in_turn():
            if isinstance(answer.decision, ChainDecision):
                yield from answer.decision._leaves()
                if not answer.decision.is_conditional:
                    yield answer.decision.decided_by, answer.decision
            else:
                yield answer.authorizer.name, answer.decision


class Chain:
    """Authorizers in order. Names must be unique, nested chains included."""

    def __init__(self, authorizers: Iterable[Authorizer], name: str = "chain", *, eager: bool = False) -> None:
        self.name = name
        self.authorizers = tuple(authorizers)
        self._eager = eager
        names = [one.name for one in self.members()]
        if repeated := sorted({one for one in names if names.count(one) > 1}):
            raise ValueError(f"authorizer `{repeated[0]}` is in the chain twice")

    def members(self) -> Iterator[Authorizer]:
        """The authorizers that are no chains, in the order they are asked."""
        for one in self.authorizers:
            if isinstance(one, Chain):
                yield from one.members()
            else:
                yield one

    def authorize(self, attributes: Attributes) -> ChainDecision:
        """The first phase."""
        asked: list[str] = []
        errors: list[str] = []
        steps: list[Step] = []
        answers: list[Answer] = []
        can_become_allowed = False
        for index, authorizer in enumerate(self.authorizers):
            decision = _ask(authorizer, attributes)
            asked.extend(decision.asked if isinstance(decision, ChainDecision) else (authorizer.name,))
            steps.extend(decision.steps)
            if decision.verdict is NO_OPINION:
                errors.append(decision.error)
                continue
            if not decision.is_conditional:
                if not answers or (decision.verdict is DENY and not can_become_allowed):
                    return _settled(authorizer, decision, asked, steps)
                answers.append(Answer(authorizer, decision))
                return _conditional(answers, asked, errors, steps)
            answers.append(Answer(authorizer, decision))
            can_become_allowed = can_become_allowed or decision.can_become_allowed
            if can_become_allowed and not self._eager:
                return _conditional(answers, asked, errors, steps, Rest(self.authorizers[index + 1 :], attributes))
        if answers:
            return _conditional(answers, asked, errors, steps)
        return _unsettled(asked, errors, steps)

    def evaluate(self, conditions: ConditionSet, data: ConditionData) -> Decision:
        """The concrete answer to one member's conditions."""
        return self.recall([(conditions.authorizer, Conditional(conditions=conditions))]).evaluate(data)

    def recall(self, entries: Sequence[tuple[str, Decision]]) -> ChainDecision:
        """A conditional answer of this chain that has come back from outside, by the names of its authorizers.

        Each authorizer is handed only its own conditions; those under a name that is not in the chain fail. Conditions
        without a name (one wire shape drops it) go to the first authorizer that writes conditions of their types.
        """
        answers = tuple(Answer(self._author(name, decision), decision) for name, decision in entries)
        return ChainDecision(verdict=Verdict.CONDITIONAL, answers=answers)

    @property
    def condition_types(self) -> frozenset[str]:
        """The types of all members' conditions."""
        return frozenset(one for member in self.members() for one in member.condition_types)

    def _author(self, name: str, decision: Decision) -> Authorizer:
        for one in self.members():
            if name == one.name:
                return one
            if not name and isinstance(decision, Conditional):
                types = {condition.type for condition in decision.conditions.conditions}
                if types <= one.condition_types:
                    return one
        return _Stranger(name)


class _Stranger:
    """Stands for an authorizer that is not in the chain: it has no opinion and can evaluate nothing."""

    condition_types: frozenset[str] = frozenset()

    def __init__(self, name: str) -> None:
        self.name = name

    def authorize(self, attributes: Attributes) -> Decision:
        return Decision(NO_OPINION)

    def evaluate(self, conditions: ConditionSet, data: ConditionData) -> Decision:
        return unsupported(self.name)


def _ask(authorizer: Authorizer, attributes: Attributes) -> Decision:
    """One authorizer's first phase. One that breaks is a Deny, since what it would have said is not known."""
    try:
        decision = authorizer.authorize(attributes)
    except Exception as why:
        return deny("failed closed", f"authorizer `{authorizer.name}` failed: {why}")
    if attributes.conditions_mode is ConditionsMode.NONE:
        return decision.folded()
    return decision


def _conditional(
    answers: list[Answer], asked: list[str], errors: list[str], steps: list[Step], rest: Rest | None = None
) -> ChainDecision:
    return ChainDecision(
        verdict=Verdict.CONDITIONAL,
        error=_joined(*errors),
        steps=tuple(steps),
        answers=tuple(answers),
        asked=tuple(asked),
        rest=rest if rest is not None and rest.authorizers else None,
    )


def _settled(authorizer: Authorizer, result: Decision, asked: list[str], steps: list[Step]) -> ChainDecision:
    return ChainDecision(
        verdict=result.verdict,
        reason=result.reason,
        error=result.error,
        steps=tuple(steps),
        asked=tuple(asked),
        decided_by=result.decided_by if isinstance(result, ChainDecision) else authorizer.name,
    )


def _unsettled(asked: list[str], errors: list[str], steps: list[Step]) -> ChainDecision:
    return ChainDecision(
        verdict=NO_OPINION,
        reason="no authorizer has an opinion",
        error=_joined(*errors),
        steps=tuple(steps),
        asked=tuple(asked),
    )


def _joined(*errors: str) -> str:
    return "; ".join(dict.fromkeys(one for one in errors if one))
