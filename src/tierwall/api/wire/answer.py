"""A chain's decision in the shape its caller reads, and back (the four shapes behind one door)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

from tierwall.api.algebra.chain import ChainDecision, ask_the_rest
from tierwall.api.algebra.decision import Decision
from tierwall.api.algebra.request import ConditionData, ConditionsMode
from tierwall.api.wire import conditions_chain, kep, series
from tierwall.api.wire.review import KIND, AccessReview, Shape, WireError, concrete_status


def status(
    review: AccessReview, decision: ChainDecision, entries: tuple[conditions_chain.Entry, ...] | None = None
) -> dict[str, Any]:
    """The status of a SubjectAccessReview; a conditional answer is folded for a caller that reads no conditions.

    Asks the rest of the chain, unless somebody did. `entries` stand in place of the decision's, where they were sealed.
    """
    if not decision.is_conditional:
        return concrete_status(decision)
    complete = ask_the_rest(decision)
    describe = review.attributes.conditions_mode is not ConditionsMode.OPTIMIZED
    entries = complete.entries if entries is None else entries
    match review.shape:
        case Shape.PLAIN:
            return concrete_status(complete.folded())
        case Shape.CONDITIONS_CHAIN:
            return conditions_chain.status(entries, complete.error, describe=describe)
        case Shape.KEP:
            return kep.status(entries, complete.error, describe=describe)
        case Shape.SERIES:
            return series.status(entries, review.handled, complete.failure, complete.error, describe=describe)
        case _:
            assert_never(review.shape)


def reply(
    review: AccessReview, decision: ChainDecision, entries: tuple[conditions_chain.Entry, ...] | None = None
) -> dict[str, Any]:
    """The whole reply to a SubjectAccessReview."""
    return {"apiVersion": review.api_version, "kind": KIND, "status": status(review, decision, entries)}


class ConditionsReview:
    """An AuthorizationConditionsReview as it came in, in any shape."""

    def __init__(self, value: Mapping[str, Any]) -> None:
        api_version, kind = value.get("apiVersion"), value.get("kind")
        if kind != conditions_chain.KIND or api_version != conditions_chain.API_VERSION:
            wanted = f"a `{conditions_chain.KIND}` of `{conditions_chain.API_VERSION}`"
            raise WireError(f"expected {wanted}, found `{kind}` of `{api_version}`")
        request = value.get("request")
        if not isinstance(request, Mapping):
            raise WireError("`request` is required")
        self.uid = ""
        self.entries: tuple[conditions_chain.Entry, ...]
        self.data: ConditionData
        if "decision" in request:
            self.shape = Shape.SERIES
            self.entries, self.data, self.uid = series.read_request(request)
        elif "conditionSetChain" in request:
            self.shape = Shape.KEP
            self.entries, self.data = kep.read_request(request)
        else:
            self.shape = Shape.CONDITIONS_CHAIN
            self.entries, self.data = conditions_chain.read_request(request)

    def reply(self, decision: Decision) -> dict[str, Any]:
        """The answer in the shape of the question."""
        if self.shape is Shape.SERIES:
            return series.response(decision, self.uid)
        return conditions_chain.response(decision)
