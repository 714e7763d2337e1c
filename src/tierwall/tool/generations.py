"""Read the three generations of AccessPolicy into one form (docs/tool.md#three-generations-one-form).

Both `v0alpha0` groups: a caller that no rule names is denied everything. A caller that a rule names may use every
method except `tools/call`, open and end its session, and make the calls that the rule grants: the listed tools, or
those for which the expression is true. An ExternalAuth rule sends every request of its caller to the authorizer. If
other rules name the same caller, the stricter reading applies: the authorizer must allow the request, and another rule
must grant it (docs/semantics.md#a-caller-that-no-rule-names-is-denied,
docs/semantics.md#a-named-caller-may-use-all-but-calls).

`agentic.networking.x-k8s.io/v1alpha1`: an Allow policy allows the requests that a rule matches. An ExternalAuth policy
asks its authorizer about the requests that a rule matches, and lets the others pass. Without `rules`, either applies to
every request. An empty list is read the stricter way: nothing is allowed, and the authorizer is asked about everything
(docs/semantics.md#the-stricter-reading).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, TypeAlias, assert_never

from tierwall.resources.resource import Resource
from tierwall.tool.http_match import EVERY_REQUEST, HttpMatch, http_match
from tierwall.tool.methods import (
    ALL_BUT_CALLS,
    ANYTHING,
    BASE_PROTOCOL,
    CATEGORIES,
    SESSION_HTTP,
    AllButCalls,
    AnythingClause,
    BaseProtocol,
    CelCondition,
    Clause,
    MethodCategory,
    MethodClause,
    NameSet,
    SessionRequest,
    cel_condition,
)
from tierwall.tool.protocol import CALL
from tierwall.tool.rules import EVERY_RULE, NO_RULES, AccessPolicy, AccessRule, AccessRules, RuleSource, source_of

MATCH_BASE = "MATCH_BASE_PROTOCOL_METHODS"
# Reads the names that a rule lists for a method.
ReadNames: TypeAlias = Callable[[str, Iterable[str]], NameSet]


def read_policy(policy: Resource, spec: Mapping[str, Any], names: ReadNames) -> AccessPolicy:
    """Read an admitted policy of any generation; `spec` has its defaults, and no nulls."""
    return (_v1alpha1 if policy.version == "v1alpha1" else _v0alpha0)(policy, spec, names)


def _rule(
    index: int,
    rule: Mapping[str, Any],
    source: RuleSource,
    clauses: tuple[Clause, ...],
    http: HttpMatch = EVERY_REQUEST,
) -> AccessRule:
    return AccessRule(f"rules[{index}]", ("spec", "rules", index), rule.get("name"), source, http, clauses)


class V0alpha0AuthorizationType(StrEnum):
    """How a rule of v0alpha0 grants calls (`authorization.type`)."""

    INLINE_TOOLS = "InlineTools"
    CEL = "CEL"
    EXTERNAL_AUTH = "ExternalAuth"


def _v0alpha0(policy: Resource, spec: Mapping[str, Any], names: ReadNames) -> AccessPolicy:
    asks: list[AccessRule] = []
    authorizer: Mapping[str, Any] | None = None
    allows: list[AccessRule] = []
    for index, rule in enumerate(spec["rules"]):
        authorization = rule.get("authorization") or {"type": "InlineTools", "tools": rule.get("tools") or ()}
        call, rules = MethodClause(CALL), allows
        kind = V0alpha0AuthorizationType(authorization["type"])
        match kind:
            case V0alpha0AuthorizationType.EXTERNAL_AUTH:
                rules = asks
                authorizer = authorization["externalAuth"]  # admission allows one such rule in a policy
            case V0alpha0AuthorizationType.CEL:
                call = MethodClause(CALL, None, cel_condition(authorization["cel"]["expression"]))
            case V0alpha0AuthorizationType.INLINE_TOOLS:
                call = MethodClause(CALL, names(CALL, authorization["tools"]))
            case _:
                assert_never(kind)
        source = source_of(rule["source"], policy.namespace)
        rules.append(_rule(index, rule, source, (ALL_BUT_CALLS, SESSION_HTTP, call)))
    named = {rule.source for rule in allows}
    allows += [rule for rule in asks if rule.source not in named]
    return AccessPolicy(policy, AccessRules(allows), AccessRules(asks), (), policy.reference, authorizer)


class PolicyAction(StrEnum):
    """The action of a v1alpha1 policy on the requests that its rules match."""

    ALLOW = "Allow"
    EXTERNAL_AUTH = "ExternalAuth"


class V1alpha1AuthorizationType(StrEnum):
    """How a rule of v1alpha1 matches requests (`authorization.type`)."""

    INLINE = "Inline"
    CEL = "CEL"


def _v1alpha1(policy: Resource, spec: Mapping[str, Any], names: ReadNames) -> AccessPolicy:
    values = spec.get("rules")
    rules = None if values is None else AccessRules(_rules(policy, values, names))
    reference, everything = policy.reference, AccessRules((EVERY_RULE,))
    action = PolicyAction(spec["action"])
    match action:
        case PolicyAction.ALLOW:
            return AccessPolicy(policy, everything if rules is None else rules, NO_RULES, (), reference)
        case PolicyAction.EXTERNAL_AUTH:
            asks = rules if values and rules else everything
            return AccessPolicy(policy, everything, asks, (), reference, spec["externalAuth"], only_asks=True)
        case _:
            assert_never(action)


def _rules(policy: Resource, values: Iterable[Mapping[str, Any]], names: ReadNames) -> Iterator[AccessRule]:
    for index, rule in enumerate(values):
        source = source_of(rule.get("source"), policy.namespace)
        authorization = rule.get("authorization")
        if not authorization:
            yield _rule(index, rule, source, (ANYTHING,))
            continue
        http = http_match(authorization)
        clauses = tuple(_clauses(authorization, names))
        yield _rule(index, rule, source, clauses, EVERY_REQUEST if http == EVERY_REQUEST else http)


def _clauses(authorization: Mapping[str, Any], names: ReadNames) -> Iterator[Clause]:
    mcp = _mcp_clauses(authorization.get("mcp") or {}, names)
    kind = V1alpha1AuthorizationType(authorization["type"])
    match kind:
        case V1alpha1AuthorizationType.INLINE:
            yield from mcp
        case V1alpha1AuthorizationType.CEL:
            condition = cel_condition(authorization["cel"]["expression"])
            yield from (call for clause in mcp if (call := _narrow_to_calls(clause, condition)) is not None)
        case _:
            assert_never(kind)


def _narrow_to_calls(clause: Clause, condition: CelCondition) -> MethodClause | None:
    """Narrow a clause of `mcp` to the calls for which the expression is true; None if it has no calls."""
    match clause:
        case AnythingClause():
            return MethodClause(CALL, None, condition)
        case MethodCategory(name=name):
            return MethodClause(CALL, None, condition) if CALL.startswith(f"{name}/") else None
        case MethodClause(name=name, names=names):
            return MethodClause(CALL, names, condition) if name == CALL else None
        case BaseProtocol() | SessionRequest() | AllButCalls():
            return None
        case _:
            assert_never(clause)


def _mcp_clauses(mcp: Mapping[str, Any], names: ReadNames) -> Iterator[Clause]:
    methods, base = mcp.get("methods") or (), mcp.get("mcpBaseProtocolMethodsOption") == MATCH_BASE
    if not methods and not base:
        yield ANYTHING
    for method in methods:
        name, params = method["name"], method.get("params")
        if name in CATEGORIES:
            yield MethodCategory(name)
        else:
            yield MethodClause(name, names(name, params) if params else None)
    if base:
        yield BASE_PROTOCOL
