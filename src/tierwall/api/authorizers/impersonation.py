"""The stages of impersonation (KEP-5681, "Constrained Impersonation through Conditional Authorization").

1. May this user act as that one? The request to be made, `impersonatedRequest`, and its object are unknown.
2. The request to be made is known (`narrowed`): what is left are conditions on its object.
3. The request is made as the other user. Conditions that were left travel in the user's extra, and count as the first
   authorizer of the chain, one that can only deny. There the request itself is the impersonated one.

Whoever may set extra can only take away from a request by this. What cannot be read denies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from tierwall.api.algebra.authorizer import Authorizer
from tierwall.api.algebra.chain import Chain, ChainDecision, ChainEntry, CompleteDecision, ask_the_rest
from tierwall.api.algebra.condition import (
    CEL_TYPES,
    Condition,
    ConditionalDecision,
    ConditionError,
    ConditionSet,
    Effect,
    FailureMode,
)
from tierwall.api.algebra.decision import ALLOW, DENY, Decision, fail_closed
from tierwall.api.algebra.request import UNKNOWN, Attributes, ConditionData
from tierwall.api.authorizers.expression import (
    AUTHORIZER,
    ENVIRONMENT,
    FailedExpression,
    ResidualExpression,
    condition_text,
    evaluate_conditions,
    failure_text,
    outcome_of,
    parse,
)
from tierwall.api.authorizers.settlement import Settlement
from tierwall.api.wire import condition_sets, series
from tierwall.api.wire.review import WireError
from tierwall.cel.partial_evaluation import SpecialisedExpression, specialise
from tierwall.cel.syntax.printer import to_text

EXTRA = "k8s.io/impersonation-conditions"
NAME = "impersonation.tierwall.io"
_IMPERSONATED = "impersonatedRequest"
_STILL_UNKNOWN = tuple(name for name in UNKNOWN if name != _IMPERSONATED)
# Longer conditions are not even parsed.
MAX_CHARACTERS = 1 << 16
_CHAIN_KEYS = ("conditionSetChain", "conditionsChain", "conditionSets")


# the second stage


class NarrowedAuthorizer:
    """An authorizer whose conditions were evaluated as far as the impersonated request allows."""

    def __init__(self, authorizer: Authorizer, decision: Decision) -> None:
        self._authorizer, self._decision = authorizer, decision
        self.name, self.condition_types = authorizer.name, authorizer.condition_types

    def authorize(self, attributes: Attributes) -> Decision:
        """Return what is left."""
        return self._decision

    def evaluate(self, conditions: ConditionSet, data: ConditionData) -> Decision:
        """Have the authorizer evaluate what is left."""
        return self._authorizer.evaluate(conditions, data)


def narrowed(decision: ChainDecision, attributes: Attributes, request: Any) -> CompleteDecision:
    """Return what is left of a conditional decision when the impersonated request is known."""
    complete = ask_the_rest(decision)
    members = [
        NarrowedAuthorizer(author, _narrowed_opinion(opinion, request))
        for author, opinion in (*complete.opinions, *complete.later)
    ]
    return ask_the_rest(Chain(members, eager=True).authorize(attributes))


def _narrowed_opinion(opinion: Decision, request: Any) -> Decision:
    if not isinstance(opinion, ConditionalDecision):
        return opinion
    conditions = opinion.conditions
    if any(condition.type not in CEL_TYPES for condition in conditions.conditions):
        return opinion
    settlement = Settlement(conditions.authorizer, conditions.failure_mode)
    for condition in conditions.conditions:
        try:
            specialised = _specialised(condition_text(condition))
        except Exception as error:
            settlement.add(condition, FailedExpression(failure_text(error)))
        else:
            settlement.add(condition, _outcome(specialised, request))
    return settlement.decision()


@lru_cache(maxsize=256)
def _specialised(text: str) -> SpecialisedExpression:
    unknown = (*_STILL_UNKNOWN, AUTHORIZER, "request")
    return specialise(parse(text), unknown, boolean=True, environment=ENVIRONMENT)


def _outcome(specialised: SpecialisedExpression, request: Any) -> bool | FailedExpression | ResidualExpression:
    try:
        return outcome_of(specialised({_IMPERSONATED: request}))
    except Exception as error:
        return FailedExpression(failure_text(error))


# the third stage


class ImpersonationAuthorizer:
    """Denies what the conditions of an impersonation do not allow, and has no opinion otherwise."""

    name = NAME
    condition_types = CEL_TYPES

    def __init__(self, texts: tuple[str, ...] = ()) -> None:
        self._texts = texts

    def authorize(self, attributes: Attributes) -> Decision:
        """Decide the first phase: the request is the impersonated one."""
        try:
            denial = _denial(self._texts)
            outcome = _outcome(_specialised(denial), attributes.request())
        except (WireError, ConditionError, ValueError) as error:
            return fail_closed(NAME, DENY, f"the conditions in `{EXTRA}` cannot be read: {error}")
        except Exception as error:
            return fail_closed(NAME, DENY, f"the conditions in `{EXTRA}` cannot be used: {failure_text(error)}")
        settlement = Settlement(NAME, FailureMode.DENY)
        about = "the conditions under which the user is impersonated do not hold"
        settlement.add(Condition("impersonation", Effect.DENY, denial, description=about), outcome)
        return settlement.decision()

    def evaluate(self, conditions: ConditionSet, data: ConditionData) -> Decision:
        """Decide the second phase."""
        return evaluate_conditions(conditions, data.variables())


@lru_cache(maxsize=256)
def _denial(texts: tuple[str, ...]) -> str:
    """Return the condition under which a request is denied: some value in the extra does not allow it."""
    if sum(map(len, texts)) > MAX_CHARACTERS:
        raise ValueError(f"they are longer than {MAX_CHARACTERS:,} characters")
    return " || ".join(f"!({_allowed(_entries(text))})" for text in texts) or "false"


def _entries(text: str) -> tuple[ChainEntry, ...]:
    """Read condition sets in any shape that an authorizer returns them in."""
    try:
        value = msgspec.json.decode(text.encode("utf-8", "surrogatepass"))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise WireError("expected the JSON of condition sets") from None
    if isinstance(value, dict):
        sets = next((value[key] for key in _CHAIN_KEYS if key in value), None)
        if sets is None and "type" in value and "effect" not in value:
            return series.read_tree(value, NAME)
        value = sets if sets is not None else [value]
    if isinstance(value, list) and value and all(isinstance(item, dict) and "effect" in item for item in value):
        value = [{"conditions": value}]
    if not isinstance(value, list) or not value:
        raise WireError("expected a list of condition sets")
    named = [
        {"authorizerName": f"set-{number}", **item} if isinstance(item, dict) else item
        for number, item in enumerate(value)
    ]
    return condition_sets.read_sets(named)


def _allowed(entries: Sequence[ChainEntry]) -> str:
    """Write the expression that is true if the sets, in order, come to Allow.

    An error in it makes it fail or be false: both deny. Sets that can only deny let everything else pass.
    """
    can_allow = any(decision.can_become_allowed for _, decision in entries)
    allowed = "false" if can_allow else "true"
    for _, decision in reversed(entries):
        if not isinstance(decision, ConditionalDecision):
            allowed = "true" if decision.verdict is ALLOW else "false" if decision.verdict is DENY else allowed
            continue
        conditions = decision.conditions
        denies, withholds, allows = (_any(conditions.of(effect)) for effect in Effect)
        allowed = f"!({denies}) && (!({withholds}) && ({allows}) || ({allowed}))"
    return allowed


def _any(conditions: Iterable[Condition]) -> str:
    # Written anew, so that no text can reach beyond its brackets.
    return " || ".join(f"({to_text(parse(condition_text(condition)))})" for condition in conditions) or "false"


class ImpersonationChain(Chain):
    """A chain that also obeys the conditions under which a user is impersonated."""

    def authorize(self, attributes: Attributes) -> ChainDecision:
        """Decide the first phase."""
        texts = dict(attributes.extra).get(EXTRA) if attributes.extra else None
        if texts is None:
            return super().authorize(attributes)
        return Chain((ImpersonationAuthorizer(texts), *self.authorizers)).authorize(attributes)

    def recall(self, entries: Sequence[tuple[str, Decision]]) -> ChainDecision:
        """Rebuild a conditional decision of this chain that a caller sent back."""
        if not any(name == NAME for name, _ in entries):
            return super().recall(entries)
        return Chain((ImpersonationAuthorizer(), *self.authorizers)).recall(entries)
