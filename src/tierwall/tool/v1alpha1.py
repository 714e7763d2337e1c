"""AccessPolicy of `agentic.networking.x-k8s.io/v1alpha1` in the one form (docs/tool.md#three-generations-one-form).

An Allow policy allows what a rule matches. An ExternalAuth policy asks its authorizer about what a rule matches and
lets the rest pass. Without `rules` either is about every request. An empty list is read the stricter way: nothing is
allowed, everything is asked about (docs/semantics.md#the-stricter-reading).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, assert_never

from tierwall.resources.resource import Resource
from tierwall.tool.condition import Condition, condition
from tierwall.tool.http_match import EVERY_REQUEST, http_match
from tierwall.tool.methods import (
    ANYTHING,
    BASE_PROTOCOL,
    CATEGORIES,
    AllButCalls,
    Anything,
    BaseProtocol,
    Category,
    Clause,
    Method,
    SessionHttp,
)
from tierwall.tool.request import CALL
from tierwall.tool.rules import EVERY_RULE, NO_RULES, Policy, Rule, Rules
from tierwall.tool.scope import Names
from tierwall.tool.sources import source_of

MATCH_BASE = "MATCH_BASE_PROTOCOL_METHODS"


class Action(StrEnum):
    """What a policy does with the requests that its rules match."""

    ALLOW = "Allow"
    EXTERNAL_AUTH = "ExternalAuth"


class Authorization(StrEnum):
    """How a rule says which requests it matches."""

    INLINE = "Inline"
    CEL = "CEL"


def read(policy: Resource, spec: Mapping[str, Any], names: Callable[[str, Iterable[str]], Names]) -> Policy:
    """An admitted policy; `spec` has its defaults, `names` reads names that a method may be used on."""
    listed = spec.get("rules")
    rules = None if listed is None else Rules(_rules(policy, listed, names))
    reference, everything = policy.reference, Rules((EVERY_RULE,))
    action = Action(spec["action"])
    match action:
        case Action.ALLOW:
            return Policy(policy, everything if rules is None else rules, NO_RULES, (), reference)
        case Action.EXTERNAL_AUTH:
            asks = rules if listed and rules else everything
            return Policy(policy, everything, asks, (), reference, spec["externalAuth"], only_asks=True)
        case _:
            assert_never(action)


def _rules(
    policy: Resource, listed: Iterable[Mapping[str, Any]], names: Callable[[str, Iterable[str]], Names]
) -> Iterator[Rule]:
    for index, rule in enumerate(listed):
        authorization = rule.get("authorization")
        http = http_match(authorization) if authorization else EVERY_REQUEST
        yield Rule(
            f"rules[{index}]",
            ("spec", "rules", index),
            rule["name"],
            source_of(rule.get("source"), policy.namespace),
            EVERY_REQUEST if http == EVERY_REQUEST else http,
            tuple(_clauses(authorization, names)) if authorization else (ANYTHING,),
        )


def _clauses(authorization: Mapping[str, Any], names: Callable[[str, Iterable[str]], Names]) -> Iterator[Clause]:
    mcp = _mcp(authorization.get("mcp") or {}, names)
    kind = Authorization(authorization["type"])
    match kind:
        case Authorization.INLINE:
            yield from mcp
        case Authorization.CEL:
            holds = condition(authorization["cel"]["expression"])
            yield from (call for clause in mcp if (call := _calls(clause, holds)) is not None)
        case _:
            assert_never(kind)


def _calls(clause: Clause, holds: Condition) -> Method | None:
    """What of a clause a CEL rule is about, which is about calls only: beside `mcp` both must match."""
    match clause:
        case Anything():
            return Method(CALL, None, holds)
        case Category(name=name):
            return Method(CALL, None, holds) if CALL.startswith(f"{name}/") else None
        case Method(name=name, names=names):
            return Method(CALL, names, holds) if name == CALL else None
        case BaseProtocol() | SessionHttp() | AllButCalls():
            return None
        case _:
            assert_never(clause)


def _mcp(mcp: Mapping[str, Any], names: Callable[[str, Iterable[str]], Names]) -> Iterator[Clause]:
    methods, base = mcp.get("methods") or (), mcp.get("mcpBaseProtocolMethodsOption") == MATCH_BASE
    if not methods and not base:
        yield ANYTHING
    for method in methods:
        name, params = method["name"], method.get("params")
        if name in CATEGORIES:
            yield Category(name)
        else:
            yield Method(name, names(name, params) if params else None)
    if base:
        yield BASE_PROTOCOL
