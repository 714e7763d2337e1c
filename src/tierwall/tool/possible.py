"""Decide a request of which only a part is known: yes, no, or under conditions.

Known are the caller, method, tool, way and path; host, headers, arguments, time and the answers of authorizers are
unknown. The tool may be unknown too (`OTHER`): any tool whose name no rule lists. Expressions are evaluated partially,
and their residuals are the conditions.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TypeAlias, assert_never

from msgspec import Struct, structs

from tierwall.attach.acceptance import ENVIRONMENT
from tierwall.cel.errors import Failure
from tierwall.cel.partial_evaluation import PartialError, SpecialisedExpression, specialise
from tierwall.cel.syntax.demands import demands_of
from tierwall.core.answer import Decider, unique_deciders
from tierwall.core.outcome import RuleEffect
from tierwall.core.stack import Stack, Tier, evaluate
from tierwall.core.verdict import StepVerdict, Verdict
from tierwall.tool.decide import DENIAL, NO_EFFECT
from tierwall.tool.http_match import EVERY_REQUEST, HttpMatch
from tierwall.tool.methods import NOT_NARROWED, CelCondition, MethodClause
from tierwall.tool.protocol import TASK_METHODS
from tierwall.tool.request import ToolRequest
from tierwall.tool.rules import EVERY_RULE, AccessPolicy, AccessRule

OTHER = "*"
TOOL_NAME = ("request", "mcp", "tool_name")
_UNKNOWN = ("request.headers", "request.host", "request.time", "request.mcp.arguments")

# The conditions under which a rule matches, all of them; an empty tuple is always, None is never.
Terms: TypeAlias = tuple[str, ...] | None


class PolicyPart(Struct, frozen=True, eq=False):
    """The part of one policy: the rules that may grant the request, and the conditions (any of them)."""

    policy: AccessPolicy
    rules: tuple[AccessRule, ...]
    conditions: tuple[str, ...] = ()


class Possibility(Struct, frozen=True, eq=False):
    """Allow, Conditional (on the conditions of all parts), or Deny (its one part is the policy that denies)."""

    verdict: Verdict
    parts: tuple[PolicyPart, ...] = ()

    @property
    def conditions(self) -> tuple[str, ...]:
        """All conditions, without repetition."""
        return tuple(dict.fromkeys(condition for part in self.parts for condition in part.conditions))

    @property
    def decided_by(self) -> tuple[Decider, ...]:
        """The rules that may grant the request, or the policy that denies it."""
        return unique_deciders(
            Decider(part.policy.reference, rule.label, rule.name)
            for part in self.parts
            for rule in part.rules or (EVERY_RULE,)
        )


def possible(stack: Stack[AccessPolicy], request: ToolRequest) -> Possibility:
    """Decide whether requests like this one may pass: always, never, or under conditions."""
    parts: list[PolicyPart] = []

    def ask(tier: Tier[AccessPolicy], policy: AccessPolicy) -> tuple[RuleEffect, ...]:
        part = _part(policy, request)
        parts.append(PolicyPart(policy, ()) if part is None else part)
        return DENIAL if part is None else NO_EFFECT

    ((outcome, _),) = evaluate(stack, 1, ask, False)
    if outcome.verdict is StepVerdict.DENY:
        return Possibility(Verdict.DENY, (parts[-1],))
    conditional = any(part.conditions for part in parts)
    return Possibility(Verdict.CONDITIONAL if conditional else Verdict.ALLOW, tuple(parts))


class NameGrant(Struct, frozen=True, eq=False):
    """The names with which a policy may let a method pass: all, or some; others depend on expressions."""

    everything: bool = False
    names: frozenset[str] = frozenset()
    # Conditions, each with the names that it is about; None for all.
    conditions: tuple[tuple[frozenset[str] | None, CelCondition], ...] = ()

    def may_hold(self, request: ToolRequest, name: str) -> bool:
        """Whether some condition about a name may hold for a request of this kind with that name."""
        return any(
            (names is None or name in names) and _condition_terms(condition, request, name) is not None
            for names, condition in self.conditions
        )


def name_grants(stack: Stack[AccessPolicy], request: ToolRequest) -> tuple[NameGrant, ...]:
    """Return what each policy grants of a method whose name is not in the request, to decide many names at once.

    A name may pass if every policy grants it: it is listed, or a condition may hold. `possible` says the same of each.
    """
    return tuple(_name_grant(policy, request) for tier in stack for policy in tier.policies)


def _name_grant(policy: AccessPolicy, request: ToolRequest) -> NameGrant:
    names: set[str] = set()
    conditions: list[tuple[frozenset[str] | None, CelCondition]] = []
    for rule in policy.allows.of(request.caller) if not policy.closed else ():
        if rule.http is not EVERY_REQUEST and _http_terms(rule.http, request) is None:
            continue
        for clause in rule.clauses:
            if isinstance(clause, NOT_NARROWED):
                if clause.matches(request):
                    return NameGrant(everything=True)
            elif clause.name == request.judged:
                listed = None if clause.names is None else clause.names.at(request.backend)
                if clause.condition is not None:
                    conditions.append((listed, clause.condition))
                elif listed is None:
                    return NameGrant(everything=True)
                else:
                    names |= listed
    return NameGrant(False, frozenset(names), tuple(conditions))


def _part(policy: AccessPolicy, request: ToolRequest) -> PolicyPart | None:
    """Return the part of a policy in letting requests like this one pass; None if it denies them all."""
    if policy.closed:
        return None
    granting = _matching_rules(policy.allows.of(request.caller), request)
    if granting is None:
        return None
    rules, conditions = granting
    for implied in request.implied:
        uses = [uses for use in implied if (uses := _matching_rules(policy.allows.of(request.caller), use)) is not None]
        if not uses:
            return None
        if all(further for _, further in uses):
            conditions = (*conditions, " or ".join(further[0] for _, further in uses))
    asking = _matching_rules(policy.asks.of(request.caller), request) if policy.asks.all else None
    if asking is None:
        return PolicyPart(policy, rules, conditions)
    approval = f"the authorizer of {policy.reference} allows it"
    if asking[1]:
        approval = f"{approval} or not ({asking[1][0]})"
    return PolicyPart(policy, asking[0] if policy.only_asks else rules, (*conditions, approval))


def _matching_rules(
    rules: Iterable[AccessRule], request: ToolRequest
) -> tuple[tuple[AccessRule, ...], tuple[str, ...]] | None:
    """Return the first rule that always matches, or all that may match and their condition; None if no rule can."""
    candidates: list[tuple[AccessRule, Terms]] = []
    for rule in rules:
        for terms in _rule_terms(rule, request):
            if terms == ():
                return (rule,), ()
            candidates.append((rule, terms))
    if not candidates:
        return None
    alternatives = list(dict.fromkeys(" and ".join(terms or ()) for _, terms in candidates))
    return tuple(dict.fromkeys(rule for rule, _ in candidates)), (" or ".join(alternatives),)


def _rule_terms(rule: AccessRule, request: ToolRequest) -> Iterable[tuple[str, ...]]:
    http = _http_terms(rule.http, request) if rule.http is not EVERY_REQUEST else ()
    if http is None:
        return
    for clause in rule.clauses:
        if isinstance(clause, MethodClause):
            terms = _method_terms(clause, request)
            if terms is not None:
                yield http + terms
        elif isinstance(clause, NOT_NARROWED):
            if clause.matches(request):
                yield http
        else:
            assert_never(clause)


def _http_terms(http: HttpMatch, request: ToolRequest) -> Terms:
    if not http.hosts and not http.headers:
        return () if http.matches(request) else None
    known = structs.replace(http, hosts=frozenset(), headers=())
    if not known.matches(request):
        return None
    hosts = (f"the host is {' or '.join(sorted(http.hosts))}",) if http.hosts else ()
    return (*hosts, *(f"header {header}" for header in http.headers))


def _method_terms(method: MethodClause, request: ToolRequest) -> Terms:
    if request.judged in TASK_METHODS:
        return () if method.matches(request) else None
    if method.name != request.judged or (method.names is not None and not method.names.matches(request)):
        return None
    return () if method.condition is None else _condition_terms(method.condition, request, request.tool)


def _condition_terms(condition: CelCondition, request: ToolRequest, tool: str | None) -> Terms:
    other = tool == OTHER
    if other and TOOL_NAME in {demand.path for demand in demands_of(condition.program.tree)}:
        return None
    variables = {"method": request.http_method, "path": request.path, "url_path": request.url_path}
    mcp = {} if other else {"tool_name": tool}
    try:
        residual = _specialised(condition, other)({"request": {**variables, "mcp": mcp}})
    except (Failure, PartialError):
        return (condition.text,)
    if not residual.can_be_true:
        return None
    return () if residual.decided else (residual.text,)


@lru_cache(maxsize=4096)
def _specialised(condition: CelCondition, other: bool) -> SpecialisedExpression:
    unknown = (*_UNKNOWN, ".".join(TOOL_NAME)) if other else _UNKNOWN
    return specialise(condition.program.tree, unknown, boolean=True, environment=ENVIRONMENT)
