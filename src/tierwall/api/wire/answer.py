"""Read and write the reviews of both phases in each of the four wire shapes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, assert_never

import msgspec

from tierwall.api.algebra.chain import ChainDecision, ChainEntry, ask_the_rest
from tierwall.api.algebra.decision import Decision
from tierwall.api.algebra.request import ConditionData, ConditionsMode
from tierwall.api.wire import condition_sets, series
from tierwall.api.wire.condition_sets import API_VERSION, CONDITION_SET_CHAIN, CONDITIONS_CHAIN, read_sets
from tierwall.api.wire.review import KIND, AccessReview, WireError, WireShape, concrete_status, read_concrete

# The shapes that carry condition sets.
SPELLINGS = {WireShape.CONDITIONS_CHAIN: CONDITIONS_CHAIN, WireShape.KEP: CONDITION_SET_CHAIN}
_MISSING = msgspec.Raw()
_NO_SETS = (b"", b"null", b"[]")


def status(
    review: AccessReview, decision: ChainDecision, entries: tuple[ChainEntry, ...] | None = None
) -> dict[str, Any]:
    """Return the status of a SubjectAccessReview; a decision is folded for a caller that does not read conditions.

    Asks the rest of the chain if necessary. `entries` replace those of the decision, where they were sealed.
    """
    if not decision.is_conditional:
        return concrete_status(decision)
    complete = ask_the_rest(decision)
    describe = review.attributes.conditions_mode is not ConditionsMode.OPTIMIZED
    entries = complete.entries if entries is None else entries
    match review.shape:
        case WireShape.PLAIN:
            return concrete_status(complete.folded())
        case WireShape.CONDITIONS_CHAIN | WireShape.KEP:
            return condition_sets.write_status(SPELLINGS[review.shape], entries, complete.error, describe=describe)
        case WireShape.SERIES:
            return series.write_status(
                entries,
                review.handled,
                complete.failure,
                complete.error,
                describe=describe,
                is_named=complete.has_outer_entries,
            )
        case _:
            assert_never(review.shape)


def read_status(shape: WireShape, value: Mapping[str, Any]) -> Decision | tuple[ChainEntry, ...]:
    """Read the answer of a webhook to a SubjectAccessReview: a concrete decision, or the entries of its chain.

    In one shape, an entry that stands alone has no name.
    """
    match shape:
        case WireShape.PLAIN:
            return read_concrete(value)
        case WireShape.CONDITIONS_CHAIN | WireShape.KEP:
            return condition_sets.read_status(SPELLINGS[shape], value)
        case WireShape.SERIES:
            return series.read_status(value)
        case _:
            assert_never(shape)


def reply(
    review: AccessReview, decision: ChainDecision, entries: tuple[ChainEntry, ...] | None = None
) -> dict[str, Any]:
    """Return the whole reply to a SubjectAccessReview."""
    return {"apiVersion": review.api_version, "kind": KIND, "status": status(review, decision, entries)}


class ReceivedRequest(msgspec.Struct, frozen=True, rename="camel"):
    """`request` of an AuthorizationConditionsReview, in all shapes together. The chain is left as it came."""

    decision: msgspec.Raw = _MISSING
    condition_set_chain: msgspec.Raw = _MISSING
    condition_sets: msgspec.Raw = _MISSING
    admission_request: Any = None
    operation: str | None = None
    object: Any = None
    old_object: Any = None
    options: Any = None
    namespace_object: Any = None
    impersonated_request: Any = None

    def data(self) -> ConditionData:
        """Return the data, where they stand beside the chain."""
        return ConditionData(
            operation=self.operation,
            object=self.object,
            old_object=self.old_object,
            options=self.options,
            namespace_object=self.namespace_object,
            impersonated_request=self.impersonated_request,
        )


class ReceivedConditionsReview(msgspec.Struct, frozen=True, rename="camel"):
    """An AuthorizationConditionsReview as decoded."""

    api_version: str = ""
    kind: str = ""
    request: ReceivedRequest | None = None


class ConditionsReview:
    """An AuthorizationConditionsReview in any shape. Its chain, `text`, is read on use."""

    def __init__(self, received: ReceivedConditionsReview) -> None:
        if received.kind != condition_sets.KIND or received.api_version != API_VERSION:
            wanted = f"a `{condition_sets.KIND}` of `{API_VERSION}`"
            raise WireError(f"expected {wanted}, found `{received.kind}` of `{received.api_version}`")
        request = received.request
        if request is None:
            raise WireError("`request` is required")
        self.uid, self.admission_request = "", request.admission_request
        self.data: ConditionData
        if text := bytes(request.decision):
            self.shape = WireShape.SERIES
            self.data, self.uid = series.read_admission_request(request.admission_request)
        else:
            if text := bytes(request.condition_set_chain):
                self.shape = WireShape.KEP
            else:
                self.shape, text = WireShape.CONDITIONS_CHAIN, bytes(request.condition_sets)
            if text in _NO_SETS:
                raise WireError(f"`request.{SPELLINGS[self.shape].in_request}` is required")
            self.data = request.data()
        self.text = text

    @cached_property
    def entries(self) -> tuple[ChainEntry, ...]:
        """The entries of the chain that came back; WireError says what is wrong with it."""
        return series.read_tree_text(self.text) if self.shape is WireShape.SERIES else read_sets(self.text)

    @property
    def can_be_narrowed(self) -> bool:
        """Whether this is the stage of impersonation in which the object is not known, and the shape has words for it.

        The newest text of the KEP lets an evaluation return further conditions; the other shapes know no such answer.
        """
        data = self.data
        return (
            self.shape is WireShape.KEP
            and data.impersonated_request is not None
            and data.operation is None
            and all(value is None for value in (data.object, data.old_object, data.options))
        )

    def narrowed_reply(self, entries: tuple[ChainEntry, ...]) -> dict[str, Any]:
        """Return the reply with the conditions that are left."""
        status = condition_sets.write_status(SPELLINGS[self.shape], entries)
        return {"apiVersion": API_VERSION, "kind": condition_sets.KIND, "response": status}

    def reply(self, decision: Decision) -> dict[str, Any]:
        """Return the reply in the shape of the request."""
        if self.shape is WireShape.SERIES:
            return series.write_response(decision, self.uid)
        return condition_sets.write_response(decision)


def conditions_request(shape: WireShape, entries: tuple[ChainEntry, ...], data: ConditionData) -> dict[str, Any]:
    """Return the AuthorizationConditionsReview that asks a webhook to evaluate what it returned."""
    if shape is WireShape.SERIES:
        return series.write_request(entries, data)
    return condition_sets.write_request(SPELLINGS[shape], entries, data)


def read_conditions_reply(shape: WireShape, value: Mapping[str, Any]) -> Decision:
    """Read the concrete decision in the reply to an AuthorizationConditionsReview."""
    return series.read_response(value) if shape is WireShape.SERIES else condition_sets.read_response(value)
