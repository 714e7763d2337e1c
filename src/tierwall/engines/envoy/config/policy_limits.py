"""Limits of a policy in Envoy, checked before anything is compiled, so that `check` knows them as well.

A condition of a rule is needed for every caller, method and name that the rule covers together with others. A few long
expressions and many names could otherwise fill the memory of Envoy and of the control plane.
"""

from __future__ import annotations

from collections.abc import Iterable

from tierwall.engines.envoy.config.cel_expression import OverLimit, translated
from tierwall.engines.envoy.config.clause_scope import ClauseScope, clause_scope
from tierwall.tool.http_match import EVERY_REQUEST, HttpMatch
from tierwall.tool.methods import Clause, as_method_clause
from tierwall.tool.protocol import BY_URI, COMPLETION, GET_PROMPT, TASK_METHODS
from tierwall.tool.rules import AccessPolicy, AccessRule

MAX_POLICY_BYTES = 4 << 20
# An upper bound of the bytes of an HTTP matcher, besides its strings.
_MATCHER_BYTES = 512


class RuleOverLimit(OverLimit):
    """A rule, or the policy as a whole (None), is over a limit of Envoy."""

    def __init__(self, rule: AccessRule | None, message: str) -> None:
        super().__init__(message)
        self.rule = rule


def check_limits(policy: AccessPolicy) -> None:
    """Raise RuleOverLimit if Envoy could refuse the policy for its size or depth."""
    rules = (*policy.allows.all, *policy.asks.all)
    if not any(map(_has_conditions, rules)):
        return
    sizes = {rule: _condition_bytes(rule) for rule in rules}
    size = 0
    for level in (policy.allows, policy.asks):
        for caller in (*level.callers(), None):
            size += _bytes(level.of(caller), sizes)
            if size > MAX_POLICY_BYTES:
                limit = MAX_POLICY_BYTES >> 20
                raise RuleOverLimit(None, f"their conditions, for every name and caller, take more than {limit} MiB")


def _has_conditions(rule: AccessRule) -> bool:
    # Most rules have none, and every policy comes through here.
    return rule.http is not EVERY_REQUEST or any(method.condition is not None for method in rule.methods)


def _condition_bytes(rule: AccessRule) -> int:
    """Return an upper bound of the size of a rule's conditions; raise RuleOverLimit if an expression is too large."""
    size = 0 if rule.http is EVERY_REQUEST else _http_bytes(rule.http)
    for method in rule.methods:
        if method.condition is not None:
            expression = translated(method.condition)
            if expression.over_limit:
                raise RuleOverLimit(rule, expression.over_limit)
            size += expression.size
    return size


def _http_bytes(match: HttpMatch) -> int:
    texts = [*match.methods, *match.hosts, *(path.value for path in match.paths)]
    texts += [text for header in match.headers for text in (header.name, header.value.value)]
    return sum(_MATCHER_BYTES + 8 * len(text) for text in texts)


def _bytes(rules: Iterable[AccessRule], sizes: dict[AccessRule, int]) -> int:
    """Return an upper bound of the size of the conditions in the tree of one caller."""
    clauses = [(rule, clause, clause_scope(clause)) for rule in rules for clause in rule.clauses]
    methods = {method for _, _, scope in clauses for method in (*scope.methods, *scope.prefixes)} | {""}
    # Tasks need no expression and no name.
    tasks = ((rule, scope.has(task)) for task in TASK_METHODS & methods for rule, _, scope in clauses)
    size = sum(_http_bytes(rule.http) for rule, is_covering in tasks if is_covering)
    size += _completion_bytes(clauses) if COMPLETION in methods else 0
    for method in methods - TASK_METHODS:
        covering = [
            (rule, clause.names if (clause := as_method_clause(each)) is not None else None)
            for rule, each, scope in clauses
            if scope.has(method)
        ]
        names = {name for _, listed in covering if listed is not None for name in (*listed.bare, *listed.scoped)}
        for rule, listed in covering:
            copies = len(names) + 1 if listed is None else len(listed.bare) + len(listed.scoped)
            size += copies * sizes[rule]
    return size


def _completion_bytes(clauses: Iterable[tuple[AccessRule, Clause, ClauseScope]]) -> int:
    """Return an upper bound for completions: each needs the conditions of two rules, for every name."""
    clauses = tuple(clauses)
    completing = [_http_bytes(rule.http) for rule, _, scope in clauses if scope.has(COMPLETION)]
    size = 0
    for use in (GET_PROMPT, *BY_URI):
        using = [
            (_http_bytes(rule.http), as_method_clause(clause)) for rule, clause, scope in clauses if scope.has(use)
        ]
        listed = (clause.names for _, clause in using if clause is not None and clause.names is not None)
        copies = 1 + sum(len(names.bare) + len(names.scoped) for names in listed)
        size += copies * (len(using) * sum(completing) + len(completing) * sum(each for each, _ in using))
    return size
