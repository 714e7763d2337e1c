"""A model of an API server that understands conditions: its authorization filter, then admission.

KEP-5681, "AuthorizationConditionsEnforcer", "Compound Authorization" and "deletecollection support". The filter lets a
request pass if it is allowed, or if it can become allowed and conditions can be enforced on it. Admission then
evaluates the conditions on the final object, and lets only Allow pass. An update that turns into a create, and a
connect request, need two decisions, and both must come to Allow.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from tierwall.api.algebra.chain import Chain, ChainDecision, ask_the_rest
from tierwall.api.algebra.decision import ALLOW, Decision
from tierwall.api.algebra.request import OPERATIONS, Attributes, ConditionData
from tierwall.api.decide import enforce_conditions


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of a request: the decision, its phase, and the data that decided it, if any."""

    decision: Decision
    phase: str
    data: ConditionData | None = None

    @property
    def is_allowed(self) -> bool:
        """Whether the request passes."""
        return self.decision.verdict is ALLOW


def proceeds(attributes: Attributes, decision: ChainDecision) -> bool:
    """Whether the filter lets a request pass: it is allowed, or admission will enforce its conditions."""
    if not decision.is_conditional:
        return decision.verdict is ALLOW
    return attributes.supports_conditions and decision.can_become_allowed


def judge(chain: Chain, attributes: Attributes, *data: ConditionData) -> Outcome:
    """Send a request through the filter and admission, object by object; the first refusal ends it."""
    decision = chain.authorize(attributes)
    if not proceeds(attributes, decision):
        return Outcome(_refused(decision), "authorization")
    for given in data:
        final = enforce_conditions(decision, given)
        if final.verdict is not ALLOW:
            return Outcome(final, "admission", given)
    return Outcome(Decision(ALLOW, decision.reason), "admission" if data else "authorization")


def _refused(decision: ChainDecision) -> Decision:
    if not decision.is_conditional:
        return decision
    return Decision(ask_the_rest(decision).failure, "conditional, and cannot become allowed here", decision.error)


def judge_write(
    chain: Chain,
    attributes: Attributes,
    *,
    object: Any = None,
    old_object: Any = None,
    options: Any = None,
    namespace_object: Any = None,
) -> Outcome:
    """Decide a create, update, patch or delete. An update or patch without a stored object is also a create.

    Admission sees a patch as an UPDATE, and a write that becomes a create as a CREATE. Then both the conditions of the
    update and those of the create must come to Allow.
    """
    becomes_create = attributes.verb in ("update", "patch") and old_object is None
    data = ConditionData(
        operation="CREATE" if becomes_create else OPERATIONS[attributes.verb],
        object=object,
        old_object=old_object,
        options=options,
        namespace_object=namespace_object,
        requester=attributes,
    )
    outcome = judge(chain, attributes, data)
    if becomes_create and outcome.is_allowed:
        return judge(chain, msgspec.structs.replace(attributes, verb="create"), data)
    return outcome


def judge_delete_collection(
    chain: Chain, attributes: Attributes, stored: Iterable[Any], options: Any = None
) -> Outcome:
    """Decide a deletecollection: every object is a separate DELETE; the first refusal ends it."""
    data = (
        ConditionData(operation="DELETE", old_object=deleted, options=options, requester=attributes)
        for deleted in stored
    )
    return judge(chain, attributes, *data)


def judge_connect(chain: Chain, attributes: Attributes, connect_options: Any) -> Outcome:
    """Decide a connect request: its own verb and `create`, each with operation CONNECT and the connect options."""
    data = ConditionData(operation="CONNECT", object=connect_options, requester=attributes)
    outcome = judge(chain, attributes, data)
    if outcome.is_allowed and attributes.verb != "create":
        return judge(chain, msgspec.structs.replace(attributes, verb="create"), data)
    return outcome
