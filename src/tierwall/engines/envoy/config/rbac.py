"""Compiles one policy to matcher trees: what it allows and denies, and what it asks an authorizer about.

A tree leads from the caller through the method and the name to the first rule that matches, in rule order. So Envoy
reports the same rule as the model. Callers, methods and names are compared exactly and looked up by hash. The rest,
HTTP matchers and expressions, is tried rule by rule, and only for rules about the caller, method and name.

Envoy writes the name of the policy and rule to the metadata of the request, where denials and the decision log read it.
Requests to ask an authorizer about have a tree of their own. It decides nothing: it writes which rule wants to ask, and
the ext_authz filter behind it asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from envoy.config.rbac.v3 import rbac_pb2
from msgspec import Struct
from msgspec.structs import replace
from xds.type.matcher.v3 import matcher_pb2

from tierwall.attach.acceptance import refusals
from tierwall.core.diagnostics import Diagnostic
from tierwall.engines.envoy.config.cel_expression import Inexpressible, translated
from tierwall.engines.envoy.config.cel_message import parsed_expression
from tierwall.engines.envoy.config.clause_scope import clause_scope
from tierwall.engines.envoy.config.external_auth import AuthorizationService, route_settings
from tierwall.engines.envoy.config.findings import inexpressible, over_limit
from tierwall.engines.envoy.config.matchers import (
    OnMatch,
    Predicate,
    all_of,
    cel_predicate,
    extension_config,
    first_of,
    header,
    http_predicate,
    lookup,
    packed,
    session_predicate,
)
from tierwall.engines.envoy.config.names import (
    CALLER,
    METHOD,
    NAME,
    OF_PROMPT,
    OF_RESOURCE,
    TO_RESOURCES,
    URI,
    reported,
)
from tierwall.engines.envoy.config.policy_limits import RuleOverLimit, check_limits
from tierwall.engines.envoy.config.subscriptions import subscribed_predicate
from tierwall.resources.resource import Identity
from tierwall.tool.methods import CelCondition, Clause, as_method_clause
from tierwall.tool.protocol import BY_URI, COMPLETION, GET_PROMPT, SUBSCRIBE, TASK_METHODS
from tierwall.tool.request import Backend
from tierwall.tool.rules import AccessPolicy, AccessRule, AccessRules

NO_AUTHORIZER = "TW652"


class MatcherTrees(Struct, frozen=True, eq=False):
    """The decision of a policy, and the requests that it asks about (None if it never asks)."""

    decision: OnMatch
    asked: OnMatch | None = None


class CompiledPolicy(Struct, frozen=True, eq=False):
    """A policy compiled for one backend: trees, authorizer settings, the arguments and headers it reads, and problems.

    `reads_path` says whether it reads the path of MCP messages; that of plain HTTP is always there. MCP messages and
    plain HTTP have separate trees, because routes already tell the two apart.
    """

    policy: Identity
    mcp: MatcherTrees
    plain: MatcherTrees
    authorizer: Any | None = None
    arguments: frozenset[tuple[str, ...]] = frozenset()
    reads_path: bool = False
    diagnostics: tuple[Diagnostic, ...] = ()
    headers: frozenset[str] = frozenset()


def compile_policy(
    policy: AccessPolicy, backend: Backend, port: int, asks: AuthorizationService | str | None, max_program_size: int
) -> CompiledPolicy:
    """Compile a policy for requests from a listener's port to a backend.

    `asks` is the service to ask, or the reason why it cannot be asked.
    """
    if policy.closed:
        # Admission reports its own refusals.
        return closed_policy(policy, refusals(policy.resource))
    try:
        check_limits(policy)
    except RuleOverLimit as error:
        return closed_policy(policy, (over_limit(policy, error),))
    translator = _PolicyTranslator(policy, port, backend, max_program_size)
    if isinstance(asks, str):
        message = f"requests that it would ask its authorizer about are denied: {asks}"
        translator.note(policy.resource.diagnostic(NO_AUTHORIZER, message))
    mcp, plain = _trees(translator, asks, plain=False), _trees(translator, asks, plain=True)
    authorizer = None
    if isinstance(asks, AuthorizationService) and policy.asks.all:
        authorizer = packed(route_settings(asks))
    return CompiledPolicy(
        policy.resource.identity,
        mcp,
        plain,
        authorizer,
        frozenset(translator.arguments),
        any(rule.http.paths for rule in (*policy.allows.all, *policy.asks.all)),
        tuple(translator.diagnostics),
        frozenset(translator.headers),
    )


def closed_policy(policy: AccessPolicy, diagnostics: tuple[Diagnostic, ...]) -> CompiledPolicy:
    """Return a policy that denies everything, because it cannot be compiled or Envoy refuses what it compiles to."""
    denied = MatcherTrees(action(denier_name(policy), rbac_pb2.RBAC.DENY))
    return CompiledPolicy(policy.resource.identity, denied, denied, diagnostics=diagnostics)


def _trees(translator: _PolicyTranslator, asks: AuthorizationService | str | None, plain: bool) -> MatcherTrees:
    policy = translator.policy
    denied = action(denier_name(policy), rbac_pb2.RBAC.DENY)
    grants = {rule: action(rule_name(policy, rule), rbac_pb2.RBAC.ALLOW) for rule in policy.allows.all}
    decision = TreeBuilder(translator, grants.__getitem__, denied, plain).of(policy.allows)
    if not policy.asks.all:
        return MatcherTrees(decision)
    if isinstance(asks, AuthorizationService):
        questions = {rule: action(rule_name(policy, rule), rbac_pb2.RBAC.ALLOW) for rule in policy.asks.all}
        return MatcherTrees(
            decision, TreeBuilder(translator, questions.__getitem__, None, plain, asks=True).of(policy.asks)
        )
    return MatcherTrees(TreeBuilder(translator, lambda rule: denied, decision, plain, asks=True).of(policy.asks))


class _PolicyTranslator:
    """Translates the conditions of rules, and collects what they read and what Envoy cannot express."""

    def __init__(self, policy: AccessPolicy, port: int, backend: Backend, max_program_size: int) -> None:
        self.policy = policy
        self.backend = backend
        self._port = port
        self._max_program_size = max_program_size
        self.arguments: set[tuple[str, ...]] = set()
        self.headers: set[str] = set()
        self.diagnostics: list[Diagnostic] = []
        # Each expression is written once, however many callers, methods and names it is needed for.
        self._expressions: dict[CelCondition, Predicate] = {}

    def note(self, diagnostic: Diagnostic) -> None:
        """Add a diagnostic about the policy, once."""
        if diagnostic not in self.diagnostics:
            self.diagnostics.append(diagnostic)

    def condition(self, rule: AccessRule, clause: Clause, plain: bool, asks: bool) -> Predicate | bool | None:
        """Return the condition besides caller, method and name: a predicate, None for always, False for never.

        If Envoy cannot express a rule, the rule never matches. If the rule asks an authorizer, it always asks.
        """
        predicates: list[Predicate] = []
        for make in (self._http_match, self._expression):
            try:
                predicate = make(rule, clause)
            except Inexpressible as error:
                self.note(inexpressible(self.policy, rule, error, asks=asks))
                predicate = None if asks else False
            if predicate is False:
                return False
            if predicate is not None:
                predicates.append(predicate)
        if plain and clause_scope(clause).only_sessions:
            predicates.append(session_predicate(self.backend.path))
        return all_of(predicates) if predicates else None

    def _http_match(self, rule: AccessRule, clause: Clause) -> Predicate | bool | None:
        # There is only one host.
        self.headers |= {header.name for header in rule.http.headers} - {"host"}
        return http_predicate(rule.http, self._port, self._max_program_size)

    def _expression(self, rule: AccessRule, clause: Clause) -> Predicate | bool | None:
        method = as_method_clause(clause)
        if method is None or method.condition is None:
            return None
        condition = method.condition
        expression = translated(condition)
        tree = expression.check()
        self.arguments |= expression.arguments
        self.headers |= expression.headers
        if condition not in self._expressions:
            self._expressions[condition] = cel_predicate(parsed_expression(tree))
        return self._expressions[condition]


def denier_name(policy: AccessPolicy) -> str:
    """Return the name of a denial: the policy as a whole denies, not one of its rules."""
    return reported(str(policy.reference))


def rule_name(policy: AccessPolicy, rule: AccessRule) -> str:
    """Return the name of a rule for Envoy: the policy, its place and its own name, if any; `names.decider` reads it."""
    place = f"{policy.reference} {rule.label}"
    return reported(f"{place} {rule.name}" if rule.name else place)


def action(name: str, decision: Any) -> OnMatch:
    """Return the leaf of a tree: the name of who decides, and the decision."""
    return matcher_pb2.Matcher.OnMatch(action=extension_config("action", rbac_pb2.Action(name=name, action=decision)))


def dependencies(policy: AccessPolicy) -> Iterator[str]:
    """Yield what the compiled form depends on: `backend` (scoped names), `path` (base protocol), `port`."""
    for rule in (*policy.allows.all, *policy.asks.all):
        if rule.http.ports:
            yield "port"
        if any(method.names is not None and method.names.scoped for method in rule.methods):
            yield "backend"
        if any(clause_scope(clause).only_sessions for clause in rule.clauses):
            yield "path"


class RuleMatch(NamedTuple):
    """A way to match a rule: by some names (None for all), under a condition (None for none)."""

    rule: AccessRule
    names: frozenset[str] | None
    condition: Predicate | None


class TreeBuilder:
    """Builds a tree of one policy for one backend, for MCP messages or for plain HTTP.

    `leaf` gives the result of a rule, and `otherwise` is the result if no rule matches (None for no match at all).
    `asks` says that the rules ask an authorizer.
    """

    def __init__(
        self,
        translator: _PolicyTranslator,
        leaf: Callable[[AccessRule], OnMatch],
        otherwise: OnMatch | None,
        plain: bool,
        asks: bool = False,
    ) -> None:
        self._translator = translator
        self._backend = translator.backend
        self._leaf = leaf
        self._otherwise = otherwise
        self._plain = plain
        self._asks = asks

    def of(self, rules: AccessRules) -> OnMatch | None:
        """Return the tree of some rules; None if nothing can match and there is no `otherwise`."""
        by_caller = {caller: self._methods(rules.of(caller)) for caller in rules.callers()}
        return self._lookup(header(CALLER), by_caller, self._methods(rules.of(None)))

    def _methods(self, rules: tuple[AccessRule, ...]) -> OnMatch | None:
        clauses = [(rule, clause, clause_scope(clause)) for rule in rules for clause in rule.clauses]
        if self._plain:
            return self._names(
                "", self._rule_matches((rule, clause) for rule, clause, scope in clauses if scope.plain_http)
            )

        def about(method: str) -> Iterator[RuleMatch]:
            return self._rule_matches((rule, clause) for rule, clause, scope in clauses if scope.has(method))

        prefixes = {prefix for _, _, scope in clauses for prefix in scope.prefixes}
        by_prefix = {prefix: self._names("", about(prefix)) for prefix in prefixes}
        unlisted = self._lookup(header(METHOD), by_prefix, self._names("", about("")), by_prefix=True)
        methods = {method for _, _, scope in clauses for method in scope.methods}
        by_method = {method: self._names(method, about(method)) for method in methods - TASK_METHODS}
        if tasks := methods & TASK_METHODS:
            of_tasks = ((rule, clause) for rule, clause, scope in clauses if scope.has("tasks/get"))
            by_method |= dict.fromkeys(tasks, self._names("", self._task_matches(of_tasks)))
        if any(COMPLETION in scope.prefixes for _, _, scope in clauses):
            completing = tuple(about(COMPLETION))
            by_method[OF_PROMPT] = self._names("", self._implying(completing, about(GET_PROMPT)))
            uses = (use for method in sorted(BY_URI) for use in about(method))
            by_method[OF_RESOURCE] = self._names(OF_RESOURCE, self._implying(completing, uses))
        if any(scope.has(SUBSCRIBE) and not scope.all_except for _, _, scope in clauses):
            by_method[TO_RESOURCES] = self._several(about(SUBSCRIBE))
        return self._lookup(header(METHOD), by_method, unlisted)

    def _several(self, matches: Iterable[RuleMatch]) -> OnMatch | None:
        """Return the tree of a subscription to several resources: each must be granted, and the first is looked up.

        A rule that asks an authorizer asks whatever the resources are.
        """
        matches = tuple(matches)
        if self._asks:
            return self._names("", (match._replace(names=None) for match in matches))
        first = self._names(SUBSCRIBE, matches)
        if any(match.names is None and match.condition is None for match in matches):
            return first
        granted = subscribed_predicate([(match.names, match.condition) for match in matches])
        return first_of([(granted, first)], self._otherwise) if granted is not None else self._otherwise

    def _implying(self, completing: Iterable[RuleMatch], uses: Iterable[RuleMatch]) -> Iterator[RuleMatch]:
        """Yield the ways to match a completion together with the use of what it completes.

        A rule that asks an authorizer asks about either.
        """
        uses = tuple(uses)
        if self._asks:
            order = {rule: number for number, rule in enumerate(self._translator.policy.asks.all)}
            yield from sorted((*completing, *uses), key=lambda match: order[match.rule])
            return
        for match in completing:
            for use in uses:
                predicates = [condition for condition in (match.condition, use.condition) if condition is not None]
                yield RuleMatch(match.rule, use.names, all_of(predicates) if predicates else None)

    def _rule_matches(self, clauses: Iterable[tuple[AccessRule, Clause]]) -> Iterator[RuleMatch]:
        for rule, clause in clauses:
            condition = self._translator.condition(rule, clause, self._plain, self._asks)
            if not isinstance(condition, bool):
                yield RuleMatch(rule, self._scope(clause), condition)

    def _task_matches(self, clauses: Iterable[tuple[AccessRule, Clause]]) -> Iterator[RuleMatch]:
        """Yield the ways to use the tasks of calls: a task does not tell its tool, so one that can be called suffices.

        A clause whose expression Envoy cannot evaluate grants no calls, and so no tasks.
        """
        for rule, clause in clauses:
            names, condition = self._scope(clause), self._translator.condition(rule, clause, self._plain, self._asks)
            if isinstance(condition, bool) or (names is not None and not names):
                continue
            if (method := as_method_clause(clause)) is not None:
                clause = replace(method, condition=None)
                condition = self._translator.condition(rule, clause, self._plain, self._asks)
            if not isinstance(condition, bool):
                yield RuleMatch(rule, None, condition)

    def _scope(self, clause: Clause) -> frozenset[str] | None:
        """Return the names that a clause covers at this backend; None for all."""
        method = as_method_clause(clause)
        if method is None or method.names is None:
            return None
        return method.names.at(self._backend)

    def _names(self, method: str, matches: Iterable[RuleMatch]) -> OnMatch | None:
        matches = tuple(matches)
        names = {name for match in matches if match.names is not None for name in match.names}
        by_name = {
            name: self._choice(match for match in matches if match.names is None or name in match.names)
            for name in names
        }
        others = self._choice(match for match in matches if match.names is None)
        return self._lookup(header(URI if method in (*BY_URI, OF_RESOURCE) else NAME), by_name, others)

    def _choice(self, matches: Iterable[RuleMatch]) -> OnMatch | None:
        """Return the first entry whose predicate holds. An entry without a predicate hides those after it."""
        choices: list[tuple[Predicate, OnMatch]] = []
        for match in matches:
            if match.condition is None:
                return first_of(choices, self._leaf(match.rule))
            choices.append((match.condition, self._leaf(match.rule)))
        return first_of(choices, self._otherwise)

    def _lookup(
        self, text: object, known: dict[str, OnMatch | None], otherwise: OnMatch | None, by_prefix: bool = False
    ) -> OnMatch | None:
        # A key with the default result needs no entry. A prefix does, because a longer prefix may have another result.
        kept = {key: then for key, then in known.items() if then is not None and (by_prefix or then != otherwise)}
        if not kept and (otherwise is None or all(then == otherwise for then in known.values())):
            return otherwise
        return lookup(text, kept, otherwise, by_prefix)
