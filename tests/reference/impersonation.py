"""Impersonation in stages (KEP-5681, "Constrained Impersonation through Conditional Authorization").

1. `impersonate` is authorized like any verb; policies may read `impersonatedRequest`, which is still unknown.
2. The impersonation filter knows that request: conditions are evaluated with it as far as possible.
3. The residuals concern the object. They travel with the user in the extra key `k8s.io/impersonation-conditions`, and
   become the first authorizer of the chain, which can only deny.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tierwall.api.algebra.authorizer import ConstantAuthorizer
from tierwall.api.algebra.chain import Chain, ChainDecision, ask_the_rest
from tierwall.api.algebra.condition import (
    CEL_TYPE,
    CEL_TYPES,
    Condition,
    ConditionalDecision,
    ConditionError,
    ConditionSet,
    Effect,
    FailureMode,
    conditional,
)
from tierwall.api.algebra.condition_fit import pack_if_too_long
from tierwall.api.algebra.decision import ALLOW, DENY, NO_OPINION, Decision, fail_closed
from tierwall.api.algebra.request import UNKNOWN, Attributes, ConditionData
from tierwall.api.authorizers.expression import (
    AUTHORIZER,
    ENVIRONMENT,
    FailedExpression,
    condition_text,
    evaluate_conditions,
    outcome_of,
    parse,
)
from tierwall.api.authorizers.settlement import Settlement
from tierwall.api.wire.condition_sets import CONDITIONS_CHAIN, read_sets, write_set
from tierwall.cel.errors import Failure, ParseError
from tierwall.cel.partial_evaluation import PartialError, partial

EXTRA_KEY = "k8s.io/impersonation-conditions"
_LATER = tuple(name for name in (*UNKNOWN, AUTHORIZER, "request.name") if name != "impersonatedRequest")


def impersonate(chain: Chain, attributes: Attributes, impersonated_request: Mapping[str, Any]) -> ChainDecision:
    """Decide `impersonate` in stages 1 and 2, with the impersonated request known; it may still be conditional."""
    first = chain.authorize(attributes)
    if not first.is_conditional:
        return first
    known = dict(impersonated_request)
    entries = ask_the_rest(first).entries
    return Chain(_Stage(name, staged(decision, known)) for name, decision in entries).authorize(attributes)


def staged(decision: Decision, impersonated_request: Mapping[str, Any]) -> Decision:
    """Evaluate a decision with the impersonated request."""
    if not isinstance(decision, ConditionalDecision):
        return decision
    conditions = decision.conditions
    settlement = Settlement(conditions.authorizer, conditions.failure_mode)
    known = {"impersonatedRequest": impersonated_request}
    for condition in conditions.conditions:
        try:
            tree = parse(condition_text(condition))
            outcome = outcome_of(partial(tree, known, _LATER, boolean=True, environment=ENVIRONMENT))
        except (ConditionError, ParseError, Failure, PartialError) as why:
            outcome = FailedExpression(str(why))
        settlement.add(condition, outcome)
    return settlement.decision()


class _Stage(ConstantAuthorizer):
    """The decision of an authorizer after a stage, which has only CEL conditions."""

    condition_types = CEL_TYPES

    def evaluate(self, conditions: ConditionSet, data: ConditionData) -> Decision:
        return evaluate_conditions(conditions, data.variables())


def carried(decision: ChainDecision) -> tuple[str, ...]:
    """Return the values of the extra key for a conditional decision (stage 3, sending); none for Allow.

    Only the conditions of one authorizer can travel: ValueError for more, and for any other decision.
    """
    if decision.verdict is ALLOW:
        return ()
    entries = ask_the_rest(decision).entries
    if len(entries) != 1 or not isinstance(entries[0].decision, ConditionalDecision):
        raise ValueError("only the conditions of one authorizer can travel with a user")
    denials = ConditionalDecision(conditions=deny_only(entries[0].decision.conditions))
    wire = write_set(CONDITIONS_CHAIN, "impersonation", denials)
    return (msgspec.json.encode(wire).decode(),)


def deny_only(conditions: ConditionSet) -> ConditionSet:
    """Return conditions that deny exactly where these do not come to Allow."""
    return ConditionSet(conditions.authorizer, tuple(_denials(conditions)), FailureMode.DENY)


def _denials(conditions: ConditionSet) -> Iterator[Condition]:
    for condition in (*conditions.of(Effect.DENY), *conditions.of(Effect.NO_OPINION)):
        yield msgspec.structs.replace(condition, effect=Effect.DENY)
    grants = " || ".join(f"({condition_text(allow)})" for allow in conditions.of(Effect.ALLOW)) or "false"
    description = "the impersonation is not allowed"
    yield pack_if_too_long(Condition("not-allowed", Effect.DENY, f"!({grants})", CEL_TYPE, description))


class CarriedConditions:
    """The conditions that came with the user, as the first authorizer of the chain (stage 3, receiving).

    Only a front proxy with trusted headers may set the key; conditions that cannot be read deny.
    """

    condition_types = CEL_TYPES

    def __init__(self, name: str = "impersonation") -> None:
        self.name = name

    def authorize(self, attributes: Attributes) -> Decision:
        """Return a conditional Deny if the user came with conditions, else no opinion."""
        values = dict(attributes.extra).get(EXTRA_KEY)
        if values is None:
            return Decision(NO_OPINION, "not impersonated under conditions")
        try:
            (text,) = values
            ((_, decision),) = read_sets([msgspec.json.decode(text)])
        except (ValueError, msgspec.MsgspecError) as why:
            return fail_closed(self.name, DENY, f"`{EXTRA_KEY}` cannot be read: {why}")
        if not isinstance(decision, ConditionalDecision) or decision.can_become_allowed:
            return fail_closed(self.name, DENY, f"`{EXTRA_KEY}` must hold Deny conditions only")
        return conditional(self.name, decision.conditions.conditions, FailureMode.DENY)

    def evaluate(self, conditions: ConditionSet, data: ConditionData) -> Decision:
        """Decide the second phase."""
        return evaluate_conditions(conditions, data.variables())
