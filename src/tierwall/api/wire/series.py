"""The shape of the API server's own commit series: `status.conditionalDecision`, a tree of tagged decisions.

`ConditionsMap` holds three lists of conditions, `Union` named decisions in order. There is no failure mode here:
upstream, a Deny that fails always denies. A set with the failure mode NoOpinion says so in the type of its conditions,
so that only the authorizer that wrote them can evaluate them. A map that stands alone has no authorizer's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
from tierwall.api.algebra.condition_words import one_line
from tierwall.api.algebra.decision import ALLOW, CONCRETE, DENY, NO_OPINION, Decision
from tierwall.api.algebra.request import Attributes, ConditionData
from tierwall.api.wire.condition_sets import API_VERSION, KIND
from tierwall.api.wire.review import WireError, read_concrete
from tierwall.core.verdict import Verdict

MAX_DEPTH = 16
# The uid of every review that is sent; each has its own answer, so they can share one.
UID = "conditions"
_LISTS = (("deny", Effect.DENY), ("noOpinion", Effect.NO_OPINION), ("allow", Effect.ALLOW))
# Types under the failure mode NoOpinion.
_SOFT = {CEL_TYPE: "tierwall.io/authorization-cel-soft", PACKED_CEL_TYPE: "tierwall.io/authorization-cel-packed-soft"}
_HARD = {soft: hard for hard, soft in _SOFT.items()}
_KEYS = {DENY: "deny", NO_OPINION: "noOpinion", ALLOW: "allow"}


class SeriesCondition(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A condition; the list that holds it tells its effect."""

    id: str
    condition: str = ""
    type: str = ""
    description: str = ""


def write_decision(decision: Decision, *, describe: bool = True) -> dict[str, Any]:
    """Write a leaf of the tree."""
    if not isinstance(decision, ConditionalDecision):
        detail = {"reason": one_line(decision.reason), "evaluationError": one_line(decision.error)}
        fields = {key: value for key, value in detail.items() if value}
        return {"type": str(decision.verdict), _KEYS[decision.verdict]: fields}
    condition_set = decision.conditions
    is_soft = condition_set.failure_mode is FailureMode.NO_OPINION and bool(condition_set.of(Effect.DENY))
    lists: dict[str, Any] = {}
    for key, effect in _LISTS:
        if conditions := condition_set.of(effect):
            lists[f"{key}Conditions"] = [
                msgspec.to_builtins(
                    SeriesCondition(
                        id=condition.id,
                        condition=condition.text,
                        type=_SOFT.get(condition.type, condition.type) if is_soft else condition.type,
                        description=condition.description if describe else "",
                    )
                )
                for condition in conditions
            ]
    return {"type": "ConditionsMap", "conditionsMap": lists}


def write_tree(entries: Iterable[ChainEntry], *, describe: bool = True, is_named: bool = False) -> dict[str, Any]:
    """Write a conditional decision: one map, or a union of several entries, or of one whose name matters."""
    leaves = [(name, write_decision(decision, describe=describe)) for name, decision in entries]
    if len(leaves) == 1 and not is_named:
        return leaves[0][1]
    return {"type": "Union", "union": [{"authorizerName": name, "decision": leaf} for name, leaf in leaves]}


def write_status(
    entries: tuple[ChainEntry, ...],
    handled: frozenset[str],
    failure: Verdict,
    error: str = "",
    *,
    describe: bool = True,
    is_named: bool = False,
) -> dict[str, Any]:
    """Return the status of a conditional decision; `failure` is the verdict if the caller cannot handle the tree."""
    out: dict[str, Any] = {"allowed": False}
    if error:
        out["evaluationError"] = one_line(error)
    tree = write_tree(entries, describe=describe, is_named=is_named)
    if tree["type"] not in handled:
        out["reason"] = f"conditional, but the caller does not handle `{tree['type']}`"
        return out | ({"denied": True} if failure is DENY else {})
    return out | {"conditionalDecision": tree}


def read_tree(value: Any, name: str, depth: int = 0) -> tuple[ChainEntry, ...]:
    """Read the leaves of a tree in order; below the top, members of a union are named `outer.inner`.

    A map that stands alone has no name of its own.
    """
    if depth > MAX_DEPTH:
        raise WireError(f"decisions are nested more than {MAX_DEPTH} deep")
    if not isinstance(value, Mapping):
        raise WireError("expected a decision")
    match value.get("type"):
        case "Union":
            return _read_union(value.get("union"), name, depth)
        case "ConditionsMap":
            return (ChainEntry(name, _read_map(value.get("conditionsMap"), name)),)
        case str(word) if word in CONCRETE:
            detail = value.get(_KEYS[Verdict(word)]) or {}
            if not isinstance(detail, Mapping):
                raise WireError(f"expected `reason` and `evaluationError` in `{word}`")
            concrete = read_concrete({**detail, "allowed": False, "denied": False})
            return (ChainEntry(name, Decision(Verdict(word), concrete.reason, concrete.error)),)
        case word:
            raise WireError(f"unknown decision type `{word}`")


def read_tree_text(text: bytes) -> tuple[ChainEntry, ...]:
    """Read a tree from JSON."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise WireError(f"decision: {error}") from None
    return read_tree(value, "")


def _read_union(members: Any, name: str, depth: int) -> tuple[ChainEntry, ...]:
    if not isinstance(members, list) or not members:
        raise WireError("a union needs members")
    entries: list[ChainEntry] = []
    seen: set[str] = set()
    for member in members:
        inner = member.get("authorizerName") if isinstance(member, Mapping) else None
        if not isinstance(inner, str) or not inner or inner in seen:
            raise WireError("every member of a union needs an authorizer name of its own")
        seen.add(inner)
        entries.extend(read_tree(member.get("decision"), inner if depth == 0 else f"{name}.{inner}", depth + 1))
    return tuple(entries)


def _read_map(value: Any, name: str) -> Decision:
    if not isinstance(value, Mapping):
        raise WireError("`conditionsMap` is required")
    conditions: list[Condition] = []
    mode = FailureMode.DENY
    for key, effect in _LISTS:
        try:
            wire_conditions = msgspec.convert(value.get(f"{key}Conditions") or [], list[SeriesCondition])
        except msgspec.ValidationError as error:
            raise WireError(f"`conditionsMap.{key}Conditions`: {error}") from None
        for condition in wire_conditions:
            if condition.type in _HARD:
                mode = FailureMode.NO_OPINION
            kind = _HARD.get(condition.type, condition.type)
            conditions.append(Condition(condition.id, effect, condition.condition, kind, condition.description))
    if any(True for condition in conditions for _ in condition.problems()) and not any(
        condition.effect is Effect.DENY for condition in conditions
    ):
        # Upstream, a set fails to NoOpinion where no Deny is possible.
        mode = FailureMode.NO_OPINION
    return conditional(name, conditions, mode)


def read_status(value: Mapping[str, Any]) -> Decision | tuple[ChainEntry, ...]:
    """Read a concrete decision, or the entries of a conditional one; a map that stands alone has no name."""
    tree = value.get("conditionalDecision")
    if tree is None:
        return read_concrete(value)
    if value.get("allowed") or value.get("denied"):
        raise WireError("expected `allowed` and `denied` to be false beside `conditionalDecision`")
    entries = read_tree(tree, "")
    # A map that breaks a rule may have become a Deny, which no failure policy of the caller may soften.
    if not any(decision.is_conditional or decision.verdict is DENY for _, decision in entries):
        raise WireError("a conditional decision needs a conditions map")
    return entries


def write_request(entries: tuple[ChainEntry, ...], data: ConditionData) -> dict[str, Any]:
    """Return the review that asks an authorizer to evaluate what it returned."""
    admission = {
        "uid": UID,
        "operation": data.operation,
        "object": data.object,
        "oldObject": data.old_object,
        "options": data.options,
        **(_requested(data.requester, data.name) if data.requester is not None else {}),
    }
    body = {"decision": write_tree(entries, is_named=bool(entries[0].authorizer)), "admissionRequest": admission}
    return {"apiVersion": API_VERSION, "kind": KIND, "request": body}


def _requested(requester: Attributes, name: str) -> dict[str, Any]:
    """Return who asks for what, as an admission request names it."""
    resource = {"group": requester.group, "version": requester.version, "resource": requester.resource}
    fields = {"subResource": requester.subresource, "name": requester.name or name, "namespace": requester.namespace}
    present = {key: value for key, value in fields.items() if value}
    return {"resource": resource, "userInfo": requester.user_info(), **present}


def read_admission_request(admission: Any) -> tuple[ConditionData, str]:
    """Read the data and the uid of a review."""
    if not isinstance(admission, Mapping):
        raise WireError("`request.admissionRequest` is required")
    uid, operation = admission.get("uid"), admission.get("operation")
    if not isinstance(uid, str) or not uid:
        raise WireError("`request.admissionRequest.uid` is required")
    if operation is not None and not isinstance(operation, str):
        raise WireError("expected a string as `request.admissionRequest.operation`")
    data = ConditionData(
        operation=operation,
        object=admission.get("object"),
        old_object=admission.get("oldObject"),
        options=admission.get("options"),
    )
    return data, uid


def write_response(decision: Decision, uid: str) -> dict[str, Any]:
    """Return the answer to a review."""
    return {"apiVersion": API_VERSION, "kind": KIND, "response": {"uid": uid, "decision": write_decision(decision)}}


def read_response(value: Mapping[str, Any]) -> Decision:
    """Read the concrete decision in an answer; WireError if it answers another review or is conditional."""
    answer = value.get("response")
    if answer is None:
        return Decision(NO_OPINION, "no response")
    if not isinstance(answer, Mapping) or answer.get("uid") != UID:
        raise WireError("the response does not echo the request's uid")
    entries = read_tree(answer.get("decision"), "")
    if len(entries) != 1 or entries[0].decision.is_conditional:
        raise WireError("the response is not concrete")
    return entries[0].decision
