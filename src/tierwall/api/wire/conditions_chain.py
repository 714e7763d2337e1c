"""The shape of KEP-5681 as first proposed: `status.conditionsChain`, a flat list, the type on each condition.

`conditionsChain` is set only on a conditional answer, with `allowed` and `denied` false, so that an old reader sees
NoOpinion. `AuthorizationConditionsReview` carries the sets back unchanged, with the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

from tierwall.api.algebra.condition import Condition, Effect, FailureMode
from tierwall.api.algebra.condition_set import Conditional, conditional
from tierwall.api.algebra.decision import ALLOW, DENY, NO_OPINION, Decision
from tierwall.api.algebra.request import ConditionData
from tierwall.api.wire.review import WireError, concrete_status, read_concrete
from tierwall.core.verdict import Verdict

# An authorizer's name and what it said.
Entry: TypeAlias = tuple[str, Decision]

API_VERSION, KIND = "authorization.k8s.io/v1alpha1", "AuthorizationConditionsReview"


class WireCondition(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """`SubjectAccessReviewCondition`."""

    id: str
    effect: str
    condition: str = ""
    type: str = ""
    description: str = ""


class WireSet(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """`SubjectAccessReviewConditionSet`: allowed, denied and conditions exclude each other."""

    authorizer_name: str = ""
    allowed: bool = False
    denied: bool = False
    failure_mode: str = ""
    conditions: list[WireCondition] = []


class WireRequest(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """`request` of an AuthorizationConditionsReview: the sets in their first order, and the data."""

    condition_sets: list[WireSet] = []
    operation: str | None = None
    object: Any = None
    old_object: Any = None
    options: Any = None
    namespace_object: Any = None
    impersonated_request: Any = None


def write_set(name: str, decision: Decision, *, describe: bool = True) -> WireSet:
    """One entry of the chain; descriptions only for those who asked for something readable."""
    if not isinstance(decision, Conditional):
        return WireSet(name, decision.verdict is ALLOW, decision.verdict is DENY)
    found = decision.conditions
    return WireSet(
        name,
        failure_mode=str(found.failure_mode),
        conditions=[
            WireCondition(
                id=one.id,
                effect=str(one.effect),
                condition=one.text,
                type=one.type,
                description=one.description if describe else "",
            )
            for one in found.conditions
        ],
    )


def read_set(found: WireSet) -> Entry:
    """The other way; a set that breaks a rule comes out as its failure mode."""
    if found.allowed + found.denied + bool(found.conditions) > 1:
        raise WireError(f"`{found.authorizer_name}`: allowed, denied and conditions exclude each other")
    if not found.conditions:
        verdict = ALLOW if found.allowed else DENY if found.denied else NO_OPINION
        return found.authorizer_name, Decision(verdict)
    mode = read_failure_mode(found.failure_mode)
    try:
        conditions = [
            Condition(one.id, Effect(one.effect), one.condition, one.type, one.description) for one in found.conditions
        ]
    except ValueError as why:
        return found.authorizer_name, Decision(Verdict(mode), "failed closed: invalid conditions", str(why))
    return found.authorizer_name, conditional(found.authorizer_name, conditions, mode)


def read_failure_mode(text: str) -> FailureMode:
    """Left out, or a word of a later release: Deny."""
    return FailureMode.NO_OPINION if text == FailureMode.NO_OPINION else FailureMode.DENY


def status(entries: Iterable[Entry], error: str = "", *, describe: bool = True) -> dict[str, Any]:
    """The status of a conditional answer."""
    chain = [msgspec.to_builtins(write_set(name, decision, describe=describe)) for name, decision in entries]
    out: dict[str, Any] = {"allowed": False, "conditionsChain": chain}
    if error:
        out["evaluationError"] = error
    return out


def read_status(value: Mapping[str, Any]) -> Decision | tuple[Entry, ...]:
    """A concrete answer, or the entries of a conditional one."""
    chain = value.get("conditionsChain")
    if chain is None:
        return read_concrete(value)
    if value.get("allowed") or value.get("denied"):
        raise WireError("with `conditionsChain`, `allowed` and `denied` must be false")
    return read_chain(chain)


def read_chain(value: Any) -> tuple[Entry, ...]:
    """The entries of a list of sets; names must be unique."""
    try:
        sets = msgspec.convert(value, list[WireSet])
    except msgspec.ValidationError as why:
        raise WireError(f"conditions chain: {why}") from None
    entries = tuple(map(read_set, sets))
    names = [name for name, _ in entries]
    if len(set(names)) < len(names):
        raise WireError("two condition sets carry one authorizer name")
    return entries


def request(entries: Iterable[Entry], data: ConditionData) -> dict[str, Any]:
    """The review that asks an authorizer to evaluate what it returned."""
    body = WireRequest(
        [write_set(name, decision) for name, decision in entries],
        data.operation,
        data.object,
        data.old_object,
        data.options,
        data.namespace_object,
        data.impersonated_request,
    )
    return {"apiVersion": API_VERSION, "kind": KIND, "request": msgspec.to_builtins(body)}


def read_request(value: Mapping[str, Any]) -> tuple[tuple[Entry, ...], ConditionData]:
    """The entries and the data of a review."""
    try:
        body = msgspec.convert(value, WireRequest)
    except msgspec.ValidationError as why:
        raise WireError(f"`request`: {why}") from None
    if not body.condition_sets:
        raise WireError("`request.conditionSets` is required")
    return read_chain(value["conditionSets"]), ConditionData(
        operation=body.operation,
        object=body.object,
        old_object=body.old_object,
        options=body.options,
        namespace_object=body.namespace_object,
        impersonated_request=body.impersonated_request,
    )


def response(decision: Decision) -> dict[str, Any]:
    """The answer to a review."""
    return {"apiVersion": API_VERSION, "kind": KIND, "response": concrete_status(decision)}


def read_response(value: Mapping[str, Any]) -> Decision:
    """The concrete answer in a review's response."""
    found = value.get("response")
    if not isinstance(found, Mapping):
        raise WireError("`response` is required")
    return read_concrete(found)
