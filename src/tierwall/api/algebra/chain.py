"""A chain of authorizers, asked in order (KEP-5681, "…authorization chain"). A chain is an authorizer, so chains nest.

NoOpinion passes the request on, even with an error. After a conditional Deny (no Allow condition) the next is asked.
A conditional Allow stops the walk: the remaining authorizers are asked in the second phase, and only if every earlier
opinion comes to NoOpinion. The eager walk, which upstream chose, asks on until the first concrete Allow or Deny and
comes to the same final answer. A nested chain decides as if its members stood in its place. The walk itself is
`core.stack.authorizer_chain`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import ClassVar, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from tierwall.api.algebra.authorizer import Authorizer, WithoutConditionSets, fail_if_impossible
from tierwall.api.algebra.condition import ConditionalDecision, ConditionSet
from tierwall.api.algebra.condition_words import condition_words
from tierwall.api.algebra.decision import ALLOW, CONCRETE, DENY, NO_OPINION, Decision, fail_closed
from tierwall.api.algebra.request import Attributes, ConditionData, ConditionsMode
from tierwall.core.answer import Step
from tierwall.core.stack import CombiningRule, Tier, authorizer_chain
from tierwall.core.verdict import Verdict

# Opinions, each with the authorizer that can evaluate it.
Opinions: TypeAlias = tuple[tuple[Authorizer, Decision], ...]


class ChainEntry(NamedTuple):
    """The opinion of one authorizer, by its name; the members of nested chains have entries of their own.

    Those of a chain elsewhere (`OuterAuthorizer`) are called `outer.inner`, so that equal inner names do not clash.
    """

    authorizer: str
    decision: Decision


class RemainingAuthorizers(msgspec.Struct, frozen=True):
    """The authorizers that have not been asked yet, and the request to ask them about."""

    authorizers: tuple[Authorizer, ...]
    attributes: Attributes


class ChainDecision(Decision, frozen=True, kw_only=True):
    """The decision of a chain: the opinions that count, in order, who was asked, and who remains to be asked."""

    opinions: Opinions = ()
    # The opinions of the rest, once asked; they count only if all `opinions` come to NoOpinion.
    later: Opinions = ()
    rest: RemainingAuthorizers | None = None
    asked: tuple[str, ...] = ()
    # The authorizer that settled it.
    decided_by: str = ""

    verdicts: ClassVar[frozenset[Verdict]] = CONCRETE | {Verdict.CONDITIONAL}

    @property
    def is_complete(self) -> bool:
        """Whether every authorizer that may count has been asked."""
        return self.rest is None and all(
            not isinstance(opinion, ChainDecision) or opinion.is_complete for _, opinion in self.opinions
        )

    @property
    def can_pass_on(self) -> bool:
        """Whether NoOpinion is possible: no concrete Allow or Deny follows the conditions."""
        if not self.is_conditional:
            return self.verdict is NO_OPINION
        return all(opinion.can_pass_on for _, opinion in (*self.opinions, *self.later))

    @property
    def can_become_allowed(self) -> bool:
        """Whether Allow is possible. Only a conditional Allow leaves a rest, so the rest does not matter."""
        if not self.is_conditional:
            return self.verdict is ALLOW
        return any(opinion.can_become_allowed for _, opinion in self.opinions)

    @property
    def possible(self) -> frozenset[Verdict]:
        """The verdicts that evaluation can give: any, while authorizers remain to be asked."""
        if not self.is_conditional:
            return frozenset((self.verdict,))
        if not self.is_complete:
            return CONCRETE
        possible = frozenset((NO_OPINION,))
        for _, opinion in (*self.opinions, *self.later):
            possible = possible - {NO_OPINION} | opinion.possible
            if not opinion.can_pass_on:
                break
        return possible

    def evaluate(self, data: ConditionData) -> ChainDecision:
        """Evaluate the conditions with `data`. Asks the rest one by one, as long as all before come to NoOpinion."""
        if not self.is_conditional:
            return self
        asked, errors, steps = list(self.asked), [self.error], list(self.steps)
        for authorizer, opinion, is_new in self._in_turn():
            if is_new:
                asked.extend(opinion.asked if isinstance(opinion, ChainDecision) else (authorizer.name,))
                steps.extend(opinion.steps)
            result = _evaluate_opinion(authorizer, opinion, data)
            if isinstance(result, ChainDecision) and isinstance(opinion, ChainDecision):
                # The steps of the nested chain's first phase are known already.
                asked.extend(result.asked[len(opinion.asked) :])
                steps.extend(result.steps[len(opinion.steps) :])
            elif result is not opinion:
                steps.extend(result.steps)
            if result.verdict is not NO_OPINION:
                return _settled_decision(authorizer, result, tuple(asked), tuple(steps))
            errors.append(result.error)
        words = condition_words(chain_entries((*self.opinions, *self.later))) if self.can_become_allowed else ""
        reason = f"conditions do not hold: {words}" if words else ""
        return _no_opinion(tuple(asked), _join_errors(errors), tuple(steps), reason=reason)

    def _in_turn(self) -> Iterator[tuple[Authorizer, Decision, bool]]:
        """Yield every opinion, and whether it is new. Asks the rest one by one, and so the members of nested chains."""
        yield from ((*given, False) for given in self.opinions)
        yield from ((*asked, True) for asked in self.later)
        if self.rest is None:
            return
        for remaining in self.rest.authorizers:
            for authorizer in remaining.members() if isinstance(remaining, Chain) else (remaining,):
                yield authorizer, _ask(self.rest.attributes, authorizer), True


class OuterAuthorizer(WithoutConditionSets, ABC):
    """An authorizer with a chain of its own elsewhere. Its opinions go back to it as a whole, under its name."""

    @abstractmethod
    def recall(self, entries: Sequence[tuple[str, Decision]]) -> ChainDecision:
        """Rebuild a conditional decision that a caller sent back, by the names that the other chain gave."""


class CompleteDecision(ChainDecision, frozen=True, kw_only=True):
    """The decision of a chain once every authorizer that may count has been asked.

    `entries` are the opinions in order, up to the first Allow or Deny, without NoOpinion.
    """

    entries: tuple[ChainEntry, ...]

    @property
    def is_complete(self) -> bool:
        """Always true."""
        return True

    @property
    def has_outer_entries(self) -> bool:
        """Whether an entry is of a chain elsewhere, which only its name tells."""
        return any(isinstance(authorizer, OuterAuthorizer) for authorizer, _ in (*self.opinions, *self.later))


def ask_the_rest(decision: ChainDecision) -> CompleteDecision:
    """Ask the authorizers that the first phase left out, each once, up to the first Allow or Deny.

    For callers that show a conditional answer, or must know every verdict it can come to. `asked` and the steps stay
    those of the first phase, because this is not asked in order to decide. Evaluation asks no authorizer again.
    """
    if isinstance(decision, CompleteDecision):
        return decision
    opinions = _ask_nested(decision.opinions)
    later: Opinions = ()
    rest = decision.rest
    if rest is not None and opinions[-1][1].can_pass_on:
        later = _ask_nested((authorizer, _ask(rest.attributes, authorizer)) for authorizer in rest.authorizers)
    return CompleteDecision(
        verdict=decision.verdict,
        reason=decision.reason,
        error=decision.error,
        steps=decision.steps,
        settled_by=decision.settled_by,
        opinions=opinions,
        later=later,
        asked=decision.asked,
        decided_by=decision.decided_by,
        entries=chain_entries((*opinions, *later)),
    )


def _ask_nested(opinions: Iterable[tuple[Authorizer, Decision]]) -> Opinions:
    """Ask the rest of nested chains too, up to an opinion that does not pass the request on."""
    completed: list[tuple[Authorizer, Decision]] = []
    for authorizer, opinion in opinions:
        if isinstance(opinion, ChainDecision) and not opinion.is_complete:
            opinion = ask_the_rest(opinion)
        completed.append((authorizer, opinion))
        if not opinion.can_pass_on:
            break
    return tuple(completed)


def chain_entries(opinions: Iterable[tuple[Authorizer, Decision]]) -> tuple[ChainEntry, ...]:
    """Flatten opinions of nested chains, up to the first Allow or Deny and without NoOpinion."""
    entries: list[ChainEntry] = []
    for authorizer, opinion in opinions:
        if isinstance(opinion, ChainDecision):
            inner = chain_entries((*opinion.opinions, *opinion.later))
            is_outer = isinstance(authorizer, OuterAuthorizer)
            entries.extend(_nested(authorizer.name, inner) if is_outer else inner)
        elif opinion.verdict is not NO_OPINION:
            entries.append(ChainEntry(authorizer.name, opinion))
        if not opinion.can_pass_on:
            break
    return tuple(entries)


def _nested(outer: str, entries: Iterable[ChainEntry]) -> Iterator[ChainEntry]:
    """Name the entries of a chain elsewhere; one that stands alone may have no name there."""
    return (ChainEntry(f"{outer}.{name}" if name else outer, decision) for name, decision in entries)


class Chain:
    """Authorizers in order. Names must be unique, nested chains included."""

    def __init__(self, authorizers: Iterable[Authorizer], name: str = "chain", *, eager: bool = False) -> None:
        self.name = name
        self.tier = Tier(name, tuple(authorizers), CombiningRule.AUTHORIZER_CHAIN)
        self._eager = eager
        self._names = tuple(authorizer.name for authorizer in self.tier.policies)
        self._is_flat = not any(isinstance(authorizer, Chain) for authorizer in self.tier.policies)
        self._by_name = {member.name: member for member in self.members()}
        names = [member.name for member in self.members()]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"authorizer `{repeated[0]}` is in the chain twice")

    @property
    def authorizers(self) -> tuple[Authorizer, ...]:
        """The authorizers in order; some may be chains."""
        return self.tier.policies

    def members(self) -> Iterator[Authorizer]:
        """Yield the authorizers that are not chains, in the order in which they are asked."""
        for authorizer in self.authorizers:
            if isinstance(authorizer, Chain):
                yield from authorizer.members()
            else:
                yield authorizer

    def authorize(self, attributes: Attributes) -> ChainDecision:
        """Decide the first phase."""
        authorizers = self.tier.policies
        answers, opinions, is_final = authorizer_chain(authorizers, partial(_ask, attributes), eager=self._eager)
        asked = self._names[: len(answers)] if self._is_flat else _asked_names(authorizers, answers)
        steps = _steps(answers)
        if not opinions:
            return _no_opinion(asked, _errors(answers), steps, answers)
        authorizer, last = opinions[-1]
        if is_final:
            return _settled_decision(authorizer, last, asked, steps, opinions)
        rest = authorizers[len(answers) :] if last.verdict is Verdict.CONDITIONAL else ()
        return ChainDecision(
            verdict=Verdict.CONDITIONAL,
            error=_errors(answers),
            steps=steps,
            opinions=opinions,
            rest=RemainingAuthorizers(rest, attributes) if rest else None,
            asked=asked,
        )

    def evaluate(self, conditions: ConditionSet, data: ConditionData) -> Decision:
        """Evaluate one member's conditions."""
        return self.recall([(conditions.authorizer, ConditionalDecision(conditions=conditions))]).evaluate(data)

    def recall(self, entries: Sequence[tuple[str, Decision]]) -> ChainDecision:
        """Rebuild a conditional decision of this chain that a caller sent back, by the names of its authorizers.

        Each authorizer gets only its own opinions, and a chain elsewhere all of its own together. An opinion under an
        unknown name denies the whole. Conditions without a name (one wire shape drops it) go to the first authorizer
        that writes conditions of their types.
        """
        opinions: list[tuple[Authorizer, Decision]] = []
        for (author, name), group in groupby(entries, lambda entry: self._author(*entry)):
            given = list(group)
            if author is None:
                error = f"no authorizer `{name}` in the chain" if name else "an opinion without an authorizer's name"
                return ChainDecision(verdict=DENY, reason="failed closed", error=error)
            if isinstance(author, OuterAuthorizer) and any(decision.is_conditional for _, decision in given):
                inner = [(full.removeprefix(author.name).removeprefix("."), decision) for full, decision in given]
                opinions.append((author, author.recall(inner)))
            else:
                opinions.extend((author, decision) for _, decision in given)
        return ChainDecision(verdict=Verdict.CONDITIONAL, opinions=tuple(opinions))

    @property
    def condition_types(self) -> frozenset[str]:
        """The types of all members' conditions."""
        return frozenset(type for member in self.members() for type in member.condition_types)

    def _author(self, name: str, decision: Decision) -> tuple[Authorizer | None, str]:
        """Return the authorizer that gave an opinion, and its name; None and the given name if no one did."""
        if (author := self._by_name.get(name)) is not None:
            return author, name
        for gave in (_gave, _may_have_given):
            for member in self.members():
                if gave(member, name, decision):
                    return member, member.name
        return None, name


def _gave(member: Authorizer, name: str, decision: Decision) -> bool:
    if name or not isinstance(decision, ConditionalDecision):
        return False
    types = {condition.type for condition in decision.conditions.conditions}
    return types <= member.condition_types and not isinstance(member, OuterAuthorizer)


def _may_have_given(member: Authorizer, name: str, decision: Decision) -> bool:
    return isinstance(member, OuterAuthorizer) and name.startswith(f"{member.name}.")


def _ask(attributes: Attributes, authorizer: Authorizer) -> Decision:
    """Ask one authorizer for its first phase. If it breaks, deny: its answer is unknown."""
    try:
        decision = authorizer.authorize(attributes)
    except Exception as error:
        return fail_closed(authorizer.name, DENY, f"authorizer `{authorizer.name}` failed: {error}")
    if attributes.conditions_mode is ConditionsMode.NONE:
        folded = decision.folded()
        if folded is not decision:
            return replace(folded, reason=f"{folded.reason}: {condition_words([(authorizer.name, decision)])}")
    return decision


def _evaluate_opinion(authorizer: Authorizer, opinion: Decision, data: ConditionData) -> Decision:
    """Evaluate one opinion; fail closed if its conditions cannot have the result."""
    if isinstance(opinion, ChainDecision):
        return opinion.evaluate(data)
    if not isinstance(opinion, ConditionalDecision):
        return opinion
    result = fail_if_impossible(authorizer.evaluate(opinion.conditions, data), opinion.conditions, opinion.possible)
    if opinion.error and result.verdict is NO_OPINION:
        error = _join_errors((opinion.error, result.error))
        return Decision(NO_OPINION, result.reason, error, result.steps, result.settled_by)
    return result


def _asked_names(authorizers: Sequence[Authorizer], answers: Sequence[Decision]) -> tuple[str, ...]:
    """Return the names of the authorizers that were asked, in order, with the members of nested chains."""
    names: list[str] = []
    for authorizer, decision in zip(authorizers, answers, strict=False):
        if isinstance(decision, ChainDecision):
            names.extend(decision.asked)
        else:
            names.append(authorizer.name)
    return tuple(names)


def _steps(answers: Iterable[Decision]) -> tuple[Step, ...]:
    return tuple([step for decision in answers for step in decision.steps])


def _errors(answers: Iterable[Decision]) -> str:
    """Join the errors of the authorizers that have no opinion."""
    return _join_errors(decision.error for decision in answers if decision.verdict is NO_OPINION)


def _settled_decision(
    authorizer: Authorizer,
    result: Decision,
    asked: tuple[str, ...],
    steps: tuple[Step, ...],
    opinions: Opinions = (),
) -> ChainDecision:
    return ChainDecision(
        verdict=result.verdict,
        reason=result.reason,
        error=result.error,
        steps=steps,
        settled_by=result.settled_by,
        opinions=opinions,
        asked=asked,
        decided_by=result.decided_by if isinstance(result, ChainDecision) else authorizer.name,
    )


def _no_opinion(
    asked: tuple[str, ...],
    error: str,
    steps: tuple[Step, ...],
    answers: Sequence[Decision] = (),
    reason: str = "",
) -> ChainDecision:
    # A grant on conditions that were folded reads differently from no grant at all.
    folded = [answer.reason for answer in answers if answer.was_conditional]
    reason = reason or "; ".join(dict.fromkeys(folded)) or "no authorizer has an opinion"
    return ChainDecision(
        verdict=NO_OPINION, reason=reason, error=error, steps=steps, asked=asked, was_conditional=bool(folded)
    )


def _join_errors(errors: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(error for error in errors if error))
