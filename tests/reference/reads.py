"""A reference model of conditional reads: docs/semantics.md#conditional-reads, by looking at every object.

A read is allowed if each object that its selectors select is allowed by the conditions, evaluated one by one. What
selectors say is as in apimachinery (`labels.Requirement.Matches`, `fields.Selector`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from tierwall.api.authorizers.expression import ENVIRONMENT
from tierwall.cel.errors import Failure
from tierwall.cel.evaluate.program import Program, compile

Object = dict[str, Any]
Requirement = tuple[str, str, tuple[str, ...]]


class Condition(NamedTuple):
    """One condition of an authorizer."""

    effect: str
    text: str


# The conditions of each authorizer in order, or the word of one that has no conditions.
Chain = Sequence[Sequence[Condition] | str]


# Selectors ------------------------------------------------------------------------------------------------------------


def selects(labels: Iterable[Requirement], fields: Iterable[Requirement], thing: Object) -> bool:
    """Whether an object is selected."""
    return all(label_matches(each, thing) for each in labels) and all(field_matches(each, thing) for each in fields)


def label_matches(requirement: Requirement, thing: Object) -> bool:
    key, operator, values = requirement
    labels = thing["metadata"].get("labels", {})
    match operator:
        case "In":
            return key in labels and labels[key] in values
        case "NotIn":
            return key not in labels or labels[key] not in values
        case "Exists":
            return key in labels
    return key not in labels


def field_matches(requirement: Requirement, thing: Object) -> bool:
    path, operator, values = requirement
    value: Any = thing
    for name in path.split("."):
        value = value.get(name, {}) if isinstance(value, dict) else {}
    text = ("false" if path == "spec.hostNetwork" else "") if value == {} else str(value)
    text = text.lower() if isinstance(value, bool) else text
    return (text in values) == (operator == "In")


# Conditions -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=20_000)
def program(text: str) -> Program:
    return compile(text, ENVIRONMENT)


def outcome(text: str, data: Object) -> str:
    """Return T, F or E."""
    nothing = dict.fromkeys(("object", "oldObject", "options", "operation", "namespaceObject", "impersonatedRequest"))
    try:
        value = program(text).evaluate({**nothing, "request": {}, **data})
    except Failure:
        return "E"
    return {True: "T", False: "F"}[value] if isinstance(value, bool) else "E"


def verdict(chain: Chain, data: Object) -> str:
    """Ask the authorizers in order. A Deny that fails denies, whatever the failure mode."""
    for opinion in chain:
        if isinstance(opinion, str):
            return opinion
        outcomes = {(condition.effect, outcome(condition.text, data)) for condition in opinion}
        if outcomes & {("Deny", "T"), ("Deny", "E")}:
            return "Deny"
        if outcomes & {("NoOpinion", "T"), ("NoOpinion", "E")}:
            continue
        if ("Allow", "T") in outcomes:
            return "Allow"
    return "NoOpinion"


def is_allowed(chain: Chain, verb: str, thing: Object) -> bool:
    """Whether one object may be read, or deleted in a deletecollection."""
    if verb != "deletecollection":
        return verdict(chain, {"object": thing}) == "Allow"
    deletion = {"operation": "DELETE", "oldObject": thing}
    against = [
        condition.text
        for opinion in chain
        if not isinstance(opinion, str)
        for condition in opinion
        if condition.effect != "Allow"
    ]
    unopposed = all(outcome(text, deletion) == "F" for text in against)
    return verdict(chain, deletion) == "Allow" or (
        unopposed and verdict(chain, {**deletion, "object": thing}) == "Allow"
    )


def implied(
    chain: Chain, verb: str, labels: Sequence[Requirement], fields: Sequence[Requirement], world: Iterable[Object]
) -> bool:
    """Whether all objects of a world that are selected are allowed."""
    return all(is_allowed(chain, verb, thing) for thing in world if selects(labels, fields, thing))
