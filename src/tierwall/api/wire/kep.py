"""The shape of KEP-5681's newest text: `status.conditionSetChain`, which nests, the type on each set.

A set with both plain and packed CEL is packed throughout, since a set has one type here. One that mixes other types
cannot be written and falls to its failure mode. NoOpinion entries are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tierwall.api.algebra.condition import CEL_TYPE, PACKED_CEL_TYPE, Condition, Effect
from tierwall.api.algebra.condition_fit import pack
from tierwall.api.algebra.condition_set import Conditional, conditional
from tierwall.api.algebra.decision import ALLOW, DENY, NO_OPINION, Decision
from tierwall.api.algebra.request import ConditionData
from tierwall.api.wire import conditions_chain
from tierwall.api.wire.review import WireError, concrete_status, read_concrete
from tierwall.core.verdict import Verdict

MAX_DEPTH = 16


class WireCondition(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A condition; its type stands on the set."""

    id: str
    effect: str
    condition: str = ""
    description: str = ""


class WireSet(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One entry: allowed, denied, conditions or a nested chain."""

    authorizer_name: str = ""
    allowed: bool = False
    denied: bool = False
    failure_mode: str = ""
    conditions_type: str = ""
    conditions: list[WireCondition] = []
    condition_set_chain: list[WireSet] = []


def write_set(name: str, decision: Decision, *, describe: bool = True) -> WireSet:
    """One entry of the chain."""
    if not isinstance(decision, Conditional):
        return WireSet(name, decision.verdict is ALLOW, decision.verdict is DENY)
    found = decision.conditions
    types = {one.type for one in found.conditions}
    conditions = found.conditions
    if types == {CEL_TYPE, PACKED_CEL_TYPE}:
        conditions = tuple(_packed(one) for one in conditions)
        types = {PACKED_CEL_TYPE}
    if len(types) > 1 or any(True for one in conditions for _ in one.problems()):
        return WireSet(name, denied=decision.failure is DENY)
    return WireSet(
        name,
        failure_mode=str(found.failure_mode),
        conditions_type=types.pop(),
        conditions=[
            WireCondition(
                id=one.id,
                effect=str(one.effect),
                condition=one.text,
                description=one.description if describe else "",
            )
            for one in conditions
        ],
    )


def _packed(condition: Condition) -> Condition:
    if condition.type == PACKED_CEL_TYPE:
        return condition
    return msgspec.structs.replace(condition, text=pack(condition.text), type=PACKED_CEL_TYPE)


def read_entries(value: Any) -> tuple[conditions_chain.Entry, ...]:
    """The entries of a chain, nested ones flattened under `outer.inner` names."""
    try:
        sets = msgspec.convert(value, list[WireSet])
    except (msgspec.ValidationError, RecursionError) as why:
        raise WireError(f"condition set chain: {why}") from None
    entries = tuple(_flat(sets, "", 0))
    names = [name for name, _ in entries]
    if len(set(names)) < len(names):
        raise WireError("two condition sets carry one authorizer name")
    return entries


def _flat(sets: list[WireSet], outer: str, depth: int) -> Iterable[conditions_chain.Entry]:
    if depth > MAX_DEPTH:
        raise WireError(f"condition sets are nested more than {MAX_DEPTH} deep")
    for found in sets:
        name = f"{outer}.{found.authorizer_name}" if outer else found.authorizer_name
        if found.allowed + found.denied + bool(found.conditions) + bool(found.condition_set_chain) > 1:
            raise WireError(f"`{name}`: allowed, denied, conditions and conditionSetChain exclude each other")
        if found.condition_set_chain:
            yield from _flat(found.condition_set_chain, name, depth + 1)
        elif not found.conditions:
            yield name, Decision(ALLOW if found.allowed else DENY if found.denied else NO_OPINION)
        else:
            yield name, _conditional(name, found)


def _conditional(name: str, found: WireSet) -> Decision:
    mode = conditions_chain.read_failure_mode(found.failure_mode)
    try:
        conditions = [
            Condition(one.id, Effect(one.effect), one.condition, found.conditions_type, one.description)
            for one in found.conditions
        ]
    except ValueError as why:
        return Decision(Verdict(mode), "failed closed: invalid conditions", str(why))
    return conditional(name, conditions, mode)


def status(entries: Iterable[conditions_chain.Entry], error: str = "", *, describe: bool = True) -> dict[str, Any]:
    """The status of a conditional answer."""
    chain = [
        msgspec.to_builtins(write_set(name, decision, describe=describe))
        for name, decision in entries
        if decision.verdict is not NO_OPINION
    ]
    out: dict[str, Any] = {"allowed": False, "conditionSetChain": chain}
    if error:
        out["evaluationError"] = error
    return out


def read_status(value: Mapping[str, Any]) -> Decision | tuple[conditions_chain.Entry, ...]:
    """A concrete answer, or the entries of a conditional one."""
    chain = value.get("conditionSetChain")
    if chain is None:
        return read_concrete(value)
    if value.get("allowed") or value.get("denied"):
        raise WireError("with `conditionSetChain`, `allowed` and `denied` must be false")
    return read_entries(chain)


def request(entries: Iterable[conditions_chain.Entry], data: ConditionData) -> dict[str, Any]:
    """The review that asks an authorizer to evaluate what it returned."""
    body = conditions_chain.request((), data)
    body["request"]["conditionSetChain"] = [msgspec.to_builtins(write_set(name, found)) for name, found in entries]
    return body


def read_request(value: Mapping[str, Any]) -> tuple[tuple[conditions_chain.Entry, ...], ConditionData]:
    """The entries and the data of a review."""
    entries = read_entries(value.get("conditionSetChain") or [])
    if not entries:
        raise WireError("`request.conditionSetChain` is required")
    data = ConditionData.of(value)
    return entries, data if data is not None else ConditionData()


def response(decision: Decision) -> dict[str, Any]:
    """The answer to a review; ours never comes to another conditional answer."""
    return {
        "apiVersion": conditions_chain.API_VERSION,
        "kind": conditions_chain.KIND,
        "response": concrete_status(decision),
    }
