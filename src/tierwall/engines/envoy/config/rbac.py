"""One policy as trees of lookups: what it allows and denies, and what it asks an authorizer about.

A tree leads from the caller over the method and the name to the first rule that matches, in the order of the rules, so
that Envoy reports the rule that the model reports. What is compared exactly (callers, methods, names) is looked up by
hash; only what remains, HTTP matchers and expressions, is tried one rule after the other, and only the rules that are
about the caller, method and name.

Envoy writes the name of the policy and rule to the metadata of the request, from where denials and the decision log
take it. What an authorizer is asked about is in a tree of its own, which decides nothing: it writes which rule says so,
and the ext_authz filter behind it asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, assert_never

from envoy.config.rbac.v3 import rbac_pb2
from msgspec import Struct
from xds.type.matcher.v3 import matcher_pb2

from tierwall.core.diagnostics import Diagnostic
from tierwall.engines.envoy.config.cel_expression import ExpressionTranslator, Inexpressible
from tierwall.engines.envoy.config.external_auth import AuthorizationService, route_settings
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
from tierwall.engines.envoy.config.names import CALLER, METHOD, NAME, URI
from tierwall.tool.methods import (
    BASE_METHODS,
    BASE_PREFIXES,
    AllButCalls,
    AnythingClause,
    BaseProtocol,
    Clause,
    MethodCategory,
    MethodClause,
    SessionHttp,
    as_method_clause,
)
from tierwall.tool.request import BY_URI, CALL, Backend
from tierwall.tool.rules import AccessPolicy, AccessRule, AccessRules

INEXPRESSIBLE, NO_AUTHORIZER = "TW651", "TW652"


class MatcherTrees(Struct, frozen=True, eq=False):
    """What a policy decides, and what it asks about (None: nothing)."""

    decision: OnMatch
    asked: OnMatch | None = None


class CompiledPolicy(Struct, frozen=True, eq=False):
    """A policy for one backend: its trees, whom it asks, the tool arguments it reads, and what is wrong with it.

    MCP messages and plain HTTP have trees of their own; either knows only its own requests.
    """

    mcp: MatcherTrees
    plain: MatcherTrees
    authorizer: Any | None = None
    arguments: frozenset[tuple[str, ...]] = frozenset()
    diagnostics: tuple[Diagnostic, ...] = ()


def compile_policy(
    policy: AccessPolicy, backend: Backend, port: int, asks: AuthorizationService | str | None, largest_pattern: int
) -> CompiledPolicy:
    """A policy for requests from a listener's port to a backend."""
    making = _PolicyTranslator(policy, port, backend, largest_pattern)
    if isinstance(asks, str) and not policy.closed:
        making.problem(NO_AUTHORIZER, f"requests are denied that its authorizer would be asked about: {asks}")
    mcp, plain = _trees(making, asks, plain=False), _trees(making, asks, plain=True)
    may_ask = policy.asks.all and not policy.closed
    authorizer = packed(route_settings(asks)) if may_ask and isinstance(asks, AuthorizationService) else None
    return CompiledPolicy(mcp, plain, authorizer, frozenset(making.arguments), tuple(making.diagnostics))


def _trees(making: _PolicyTranslator, asks: AuthorizationService | str | None, plain: bool) -> MatcherTrees:
    policy = making.policy
    denied = action(denier_name(policy), rbac_pb2.RBAC.DENY)
    if policy.closed:
        return MatcherTrees(denied)
    granting = {rule: action(rule_name(policy, rule), rbac_pb2.RBAC.ALLOW) for rule in policy.allows.all}
    decision = TreeBuilder(making, granting.__getitem__, denied, plain).of(policy.allows)
    if not policy.asks.all:
        return MatcherTrees(decision)
    if isinstance(asks, AuthorizationService):
        asking = {rule: action(rule_name(policy, rule), rbac_pb2.RBAC.ALLOW) for rule in policy.asks.all}
        return MatcherTrees(decision, TreeBuilder(making, asking.__getitem__, None, plain, asks=True).of(policy.asks))
    return MatcherTrees(TreeBuilder(making, lambda rule: denied, decision, plain, asks=True).of(policy.asks))


class _PolicyTranslator:
    """What rules need besides caller, method and name, with what turned out to be inexpressible."""

    def __init__(self, policy: AccessPolicy, port: int, backend: Backend, largest_pattern: int) -> None:
        self.policy = policy
        self.backend = backend
        self._port = port
        self._largest_pattern = largest_pattern
        self.arguments: set[tuple[str, ...]] = set()
        self.diagnostics: list[Diagnostic] = []

    def problem(self, code: str, message: str, rule: AccessRule | None = None) -> None:
        """Note something about the policy, once."""
        diagnostic = self.policy.resource.diagnostic(code, message, rule.path if rule is not None else ())
        if diagnostic not in self.diagnostics:
            self.diagnostics.append(diagnostic)

    def also(self, rule: AccessRule, clause: Clause, plain: bool, asks: bool) -> Predicate | bool | None:
        """What else must hold: a predicate, None for nothing, False for a rule that cannot match.

        A rule that Envoy cannot express never matches. One that asks an authorizer is taken to hold: it asks.
        """
        predicates: list[Predicate] = []
        for make in (self._http, self._condition):
            try:
                predicate = make(rule, clause)
            except Inexpressible as error:
                words = "its authorizer is asked in any case" if asks else "it never matches"
                self.problem(INEXPRESSIBLE, f"Envoy cannot evaluate {rule}, so {words}: {error}", rule)
                predicate = None if asks else False
            if predicate is False:
                return False
            if predicate is not None:
                predicates.append(predicate)
        if plain and _reach(clause).is_of_sessions:
            predicates.append(session_predicate(self.backend.path))
        return all_of(predicates) if predicates else None

    def _http(self, rule: AccessRule, clause: Clause) -> Predicate | bool | None:
        return http_predicate(rule.http, self._port, self._largest_pattern)

    def _condition(self, rule: AccessRule, clause: Clause) -> Predicate | bool | None:
        method = as_method_clause(clause)
        if method is None or method.condition is None:
            return None
        expression = ExpressionTranslator()
        parsed = expression.parsed(method.condition.program.tree)
        self.arguments |= expression.arguments
        return cel_predicate(parsed)


class ClauseScope(NamedTuple):
    """What a clause is about: JSON-RPC methods by name or prefix, or all others than those; and plain HTTP."""

    methods: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()
    is_of_others: bool = False
    is_of_plain: bool = False
    # Of plain HTTP, the stream and the end of a session only.
    is_of_sessions: bool = False

    def has(self, method: str) -> bool:
        """Whether it has a method, which is known by its name, its prefix, or not at all (``)."""
        return (method in self.methods or method.startswith(self.prefixes)) is not self.is_of_others


def _reach(clause: Clause) -> ClauseScope:
    match clause:
        case AnythingClause():
            return ClauseScope(is_of_others=True, is_of_plain=True)
        case SessionHttp():
            return ClauseScope(is_of_plain=True, is_of_sessions=True)
        case BaseProtocol():
            return ClauseScope(BASE_METHODS, BASE_PREFIXES, is_of_plain=True, is_of_sessions=True)
        case AllButCalls():
            return ClauseScope(frozenset((CALL,)), is_of_others=True)
        case MethodCategory(name=name):
            return ClauseScope(prefixes=(f"{name}/",))
        case MethodClause(name=name):
            return ClauseScope(frozenset((name,)))
        case _:
            assert_never(clause)


def denier_name(policy: AccessPolicy) -> str:
    """What Envoy calls a policy that denies: no rule of it does, but the whole policy."""
    return str(policy.reference)


def rule_name(policy: AccessPolicy, rule: AccessRule) -> str:
    """What Envoy calls a rule: policy, place and, where it has one, its own name; `names.told` reads it."""
    place = f"{policy.reference} {rule.label}"
    return f"{place} {rule.name}" if rule.name else place


def action(name: str, what: Any) -> OnMatch:
    """The end of a way through a tree: who decides, and what."""
    return matcher_pb2.Matcher.OnMatch(action=extension_config("action", rbac_pb2.Action(name=name, action=what)))


def dependencies(policy: AccessPolicy) -> Iterator[str]:
    """What besides the policy its filters depend on: `backend` (scoped names), `path` (base set), `port`."""
    for rule in (*policy.allows.all, *policy.asks.all):
        if rule.http.ports:
            yield "port"
        if any(method.names is not None and method.names.scoped for method in rule.methods):
            yield "backend"
        if any(_reach(clause).is_of_sessions for clause in rule.clauses):
            yield "path"


class RuleMatch(NamedTuple):
    """One way to match: a rule, the names it is about (None: every one), and what else must hold (None: nothing)."""

    rule: AccessRule
    names: frozenset[str] | None
    also: Predicate | None


class TreeBuilder:
    """How to make a tree of one policy for one backend.

    A tree is for MCP messages or for plain HTTP: routes tell the two apart. `leaf` is what a rule leads to and
    `otherwise` what no rule leads to (None: no match at all). `asks` says that rules lead to an authorizer.
    """

    def __init__(
        self,
        making: _PolicyTranslator,
        leaf: Callable[[AccessRule], OnMatch],
        otherwise: OnMatch | None,
        plain: bool,
        asks: bool = False,
    ) -> None:
        self._making = making
        self._backend = making.backend
        self._leaf = leaf
        self._otherwise = otherwise
        self._plain = plain
        self._asks = asks

    def of(self, rules: AccessRules) -> OnMatch | None:
        """The tree of some rules; None where nothing matches and there is no `otherwise`."""
        by_caller = {caller: self._methods(rules.of(caller)) for caller in rules.callers()}
        return self._lookup(header(CALLER), by_caller, self._methods(rules.of(None)))

    def _methods(self, rules: tuple[AccessRule, ...]) -> OnMatch | None:
        clauses = [(rule, clause, _reach(clause)) for rule in rules for clause in rule.clauses]
        if self._plain:
            return self._names(
                "", self._entries((rule, clause) for rule, clause, reach in clauses if reach.is_of_plain)
            )

        def about(method: str) -> Iterator[RuleMatch]:
            return self._entries((rule, clause) for rule, clause, reach in clauses if reach.has(method))

        prefixes = {prefix for _, _, reach in clauses for prefix in reach.prefixes}
        by_prefix = {prefix: self._names("", about(prefix)) for prefix in prefixes}
        unlisted = self._lookup(header(METHOD), by_prefix, self._names("", about("")), by_prefix=True)
        methods = {method for _, _, reach in clauses for method in reach.methods}
        by_method = {method: self._names(method, about(method)) for method in methods}
        return self._lookup(header(METHOD), by_method, unlisted)

    def _entries(self, clauses: Iterable[tuple[AccessRule, Clause]]) -> Iterator[RuleMatch]:
        for rule, clause in clauses:
            also = self._making.also(rule, clause, self._plain, self._asks)
            if not isinstance(also, bool):
                yield RuleMatch(rule, self._scope(clause), also)

    def _scope(self, clause: Clause) -> frozenset[str] | None:
        """The names that a clause is about at this backend."""
        method = as_method_clause(clause)
        if method is None or method.names is None:
            return None
        names, here = method.names, (self._backend.namespace, self._backend.name)
        if self._backend.kind != "XBackend":
            return names.bare
        return names.bare | {scoped.tool for scoped in names.scoped if (scoped.namespace, scoped.backend) == here}

    def _names(self, method: str, entries: Iterable[RuleMatch]) -> OnMatch | None:
        entries = tuple(entries)
        names = {name for entry in entries if entry.names is not None for name in entry.names}
        by_name = {
            name: self._choice(entry for entry in entries if entry.names is None or name in entry.names)
            for name in names
        }
        others = self._choice(entry for entry in entries if entry.names is None)
        return self._lookup(header(URI if method in BY_URI else NAME), by_name, others)

    def _choice(self, entries: Iterable[RuleMatch]) -> OnMatch | None:
        """The first entry whose predicate holds; entries after one without a predicate are never reached."""
        choices: list[tuple[Predicate, OnMatch]] = []
        for entry in entries:
            if entry.also is None:
                return first_of(choices, self._leaf(entry.rule))
            choices.append((entry.also, self._leaf(entry.rule)))
        return first_of(choices, self._otherwise)

    def _lookup(
        self, text: object, known: dict[str, OnMatch | None], otherwise: OnMatch | None, by_prefix: bool = False
    ) -> OnMatch | None:
        # What leads where everything else leads needs no entry; for prefixes it does, a longer one may differ.
        kept = {key: then for key, then in known.items() if then is not None and (by_prefix or then != otherwise)}
        if not kept and (otherwise is None or all(then == otherwise for then in known.values())):
            return otherwise
        return lookup(text, kept, otherwise, by_prefix)
