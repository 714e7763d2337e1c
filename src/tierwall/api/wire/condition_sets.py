"""Condition sets as KEP-5681 writes them, in its two spellings.

As first proposed: `status.conditionsChain` and `request.conditionSets`, the type on each condition. In its newest text:
`conditionSetChain` in both places, the type on each set, so that a set with both plain and packed CEL is packed
throughout, and one that mixes other types cannot be written and falls to its failure mode. Sets may nest in that text;
both spellings are read alike.

The sets stand only in a conditional answer, with `allowed` and `denied` false, so that an old reader sees NoOpinion.
An `AuthorizationConditionsReview` carries them back unchanged, with the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from tierwall.api.algebra.chain import ChainEntry
from tierwall.api.algebra.condition import (
    CEL_TYPE,
    PACKED_CEL_TYPE,
    Condition,
    ConditionalDecision,
    Effect,
    FailureMode,
    conditional,
)
from tierwall.api.algebra.condition_fit import pack_condition
from tierwall.api.algebra.condition_words import one_line
from tierwall.api.algebra.decision import ALLOW, DENY, NO_OPINION, Decision
from tierwall.api.algebra.request import UNKNOWN, ConditionData
from tierwall.api.wire.review import WireError, concrete_status, read_concrete

API_VERSION, KIND = "authorization.k8s.io/v1alpha1", "AuthorizationConditionsReview"
MAX_DEPTH = 16


class Spelling(msgspec.Struct, frozen=True):
    """The key of the sets in a status and in a request, and whether the type is on a set or on each condition."""

    in_status: str
    in_request: str
    type_on_set: bool


CONDITIONS_CHAIN = Spelling("conditionsChain", "conditionSets", type_on_set=False)
CONDITION_SET_CHAIN = Spelling("conditionSetChain", "conditionSetChain", type_on_set=True)


class WireCondition(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """`SubjectAccessReviewCondition`."""

    id: str
    effect: str
    condition: str = ""
    type: str = ""
    description: str = ""


class WireSet(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """`SubjectAccessReviewConditionSet`: allowed, denied, conditions and nested sets exclude each other."""

    authorizer_name: str = ""
    allowed: bool = False
    denied: bool = False
    failure_mode: str = ""
    conditions_type: str = ""
    conditions: list[WireCondition] = []
    condition_set_chain: list[WireSet] = []


def write_set(spelling: Spelling, name: str, decision: Decision, *, describe: bool = True) -> WireSet:
    """Write the opinion of one authorizer, with descriptions if `describe`."""
    if not isinstance(decision, ConditionalDecision):
        return WireSet(name, decision.verdict is ALLOW, decision.verdict is DENY)
    conditions = decision.conditions.conditions
    set_type = ""
    if spelling.type_on_set:
        types = {condition.type for condition in conditions}
        if types == {CEL_TYPE, PACKED_CEL_TYPE}:
            conditions = tuple(map(pack_condition, conditions))
            types = {PACKED_CEL_TYPE}
        if len(types) > 1 or any(True for condition in conditions for _ in condition.problems()):
            return WireSet(name, denied=decision.failure is DENY)
        (set_type,) = types
    return WireSet(
        name,
        failure_mode=str(decision.conditions.failure_mode),
        conditions_type=set_type,
        conditions=[
            WireCondition(
                id=condition.id,
                effect=str(condition.effect),
                condition=condition.text,
                type="" if set_type else condition.type,
                description=condition.description if describe else "",
            )
            for condition in conditions
        ],
    )


def write_sets(spelling: Spelling, entries: Iterable[ChainEntry], *, describe: bool = True) -> list[dict[str, Any]]:
    """Write the opinions of several authorizers in order."""
    return [msgspec.to_builtins(write_set(spelling, *entry, describe=describe)) for entry in entries]


_decode_sets = msgspec.json.Decoder(list[WireSet]).decode


def read_sets(value: Any) -> tuple[ChainEntry, ...]:
    """Read a list of sets, as JSON if it is bytes; nested sets become `outer.inner`, and names must be unique."""
    try:
        sets = _decode_sets(value) if isinstance(value, bytes) else msgspec.convert(value, list[WireSet])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise WireError(f"condition sets: {error}") from None
    entries = tuple(_flatten(sets, "", 0))
    if len({entry.authorizer for entry in entries}) < len(entries):
        raise WireError("two condition sets have the same authorizer name")
    return entries


def _flatten(sets: list[WireSet], outer: str, depth: int) -> Iterator[ChainEntry]:
    if depth > MAX_DEPTH:
        raise WireError(f"condition sets are nested more than {MAX_DEPTH} deep")
    for wire_set in sets:
        if not wire_set.authorizer_name:
            raise WireError("every condition set needs an `authorizerName`")
        name = f"{outer}.{wire_set.authorizer_name}" if outer else wire_set.authorizer_name
        if wire_set.allowed + wire_set.denied + bool(wire_set.conditions) + bool(wire_set.condition_set_chain) > 1:
            raise WireError(f"`{name}`: allowed, denied, conditions and conditionSetChain exclude each other")
        if wire_set.condition_set_chain:
            yield from _flatten(wire_set.condition_set_chain, name, depth + 1)
        elif wire_set.conditions:
            yield ChainEntry(name, _conditional(name, wire_set))
        else:
            yield ChainEntry(name, Decision(ALLOW if wire_set.allowed else DENY if wire_set.denied else NO_OPINION))


def _conditional(name: str, wire_set: WireSet) -> Decision:
    """Read the conditions of one set; a set that breaks a rule becomes its failure mode."""
    # Deny if it is missing, or a word of a later release.
    mode = FailureMode.NO_OPINION if wire_set.failure_mode == FailureMode.NO_OPINION else FailureMode.DENY
    try:
        parsed = [
            Condition(
                condition.id,
                Effect(condition.effect),
                condition.condition,
                condition.type or wire_set.conditions_type,
                condition.description,
            )
            for condition in wire_set.conditions
        ]
    except ValueError as error:
        return Decision(mode.verdict, "failed closed: invalid conditions", str(error))
    return conditional(name, parsed, mode)


def write_status(
    spelling: Spelling, entries: Iterable[ChainEntry], error: str = "", *, describe: bool = True
) -> dict[str, Any]:
    """Return the status of a conditional decision."""
    out: dict[str, Any] = {"allowed": False, spelling.in_status: write_sets(spelling, entries, describe=describe)}
    if error:
        out["evaluationError"] = one_line(error)
    return out


def read_status(spelling: Spelling, value: Mapping[str, Any]) -> Decision | tuple[ChainEntry, ...]:
    """Read a concrete decision, or the entries of a conditional one."""
    sets = value.get(spelling.in_status)
    if sets is None:
        return read_concrete(value)
    if value.get("allowed") or value.get("denied"):
        raise WireError(f"expected `allowed` and `denied` to be false beside `{spelling.in_status}`")
    return read_sets(sets)


def write_request(spelling: Spelling, entries: Iterable[ChainEntry], data: ConditionData) -> dict[str, Any]:
    """Return the review that asks an authorizer to evaluate the conditions it returned."""
    known = {key: value for key, value in data.variables().items() if key in UNKNOWN and value is not None}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "request": {spelling.in_request: write_sets(spelling, entries), **known},
    }


def write_response(decision: Decision) -> dict[str, Any]:
    """Return the answer to a review, which is always concrete."""
    return {"apiVersion": API_VERSION, "kind": KIND, "response": concrete_status(decision)}


def read_response(value: Mapping[str, Any]) -> Decision:
    """Read the concrete decision in the response of a review."""
    answer = value.get("response")
    if not isinstance(answer, Mapping):
        raise WireError("`response` is required")
    return read_concrete(answer)
