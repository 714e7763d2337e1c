"""An API server that knows conditions: the filter before a request, and admission after it.

KEP-5681, "AuthorizationConditionsEnforcer", "Compound Authorization" and "deletecollection support". The filter lets a
request through if it is allowed, or can become allowed and conditions can be enforced on it; admission then evaluates
the conditions on the final object, and lets through only Allow. An update that turns out to create, and a connect
request, are asked about twice, and both answers must come to Allow.
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
    """What came of a request: the answer, in which phase it fell, and the data it fell on if there was any."""

    decision: Decision
    phase: str
    data: ConditionData | None = None

    @property
    def is_allowed(self) -> bool:
        """The request goes through."""
        return self.decision.verdict is ALLOW


def proceeds(attributes: Attributes, decision: ChainDecision) -> bool:
    """Whether the filter lets a request on: allowed, or conditional where admission will enforce it."""
    if not decision.is_conditional:
        return decision.verdict is ALLOW
    return attributes.supports_conditions and decision.can_become_allowed


def judge(chain: Chain, attributes: Attributes, *data: ConditionData) -> Outcome:
    """A request through the filter and admission; every object in turn, the first that is refused ends it."""
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
    """A create, update, patch or delete. An update or patch without a stored object is a create as well.

    A patch is an UPDATE to admission. What becomes a create is a CREATE to admission, and both the conditions of the
    update and those of the create have to hold.
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
    """A deletecollection: every object is a DELETE of its own; the first that is refused ends it."""
    data = (
        ConditionData(operation="DELETE", old_object=deleted, options=options, requester=attributes)
        for deleted in stored
    )
    return judge(chain, attributes, *data)


def judge_connect(chain: Chain, attributes: Attributes, connect_options: Any) -> Outcome:
    """A connect request: the verb it came with, and `create`, each on operation CONNECT and the connect options."""
    data = ConditionData(operation="CONNECT", object=connect_options, requester=attributes)
    outcome = judge(chain, attributes, data)
    if outcome.is_allowed and attributes.verb != "create":
        return judge(chain, msgspec.structs.replace(attributes, verb="create"), data)
    return outcome
