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
from tierwall.engines.envoy.config.cel_expression import Expression, Inexpressible
from tierwall.engines.envoy.config.external_auth import Authorizer, route_settings
from tierwall.engines.envoy.config.matchers import (
    OnMatch,
    Predicate,
    all_of,
    first_of,
    header,
    holds,
    http_predicate,
    lookup,
    packed,
    session_predicate,
    typed,
)
from tierwall.engines.envoy.config.names import CALLER, METHOD, NAME, URI
from tierwall.tool.methods import (
    BASE_METHODS,
    BASE_PREFIXES,
    AllButCalls,
    Anything,
    BaseProtocol,
    Category,
    Clause,
    Method,
    SessionHttp,
    as_method,
)
from tierwall.tool.request import BY_URI, CALL, Backend
from tierwall.tool.rules import Policy, Rule, Rules

INEXPRESSIBLE, NO_AUTHORIZER = "TW651", "TW652"


class Trees(Struct, frozen=True, eq=False):
    """What a policy decides, and what it asks about (None: nothing)."""

    decision: OnMatch
    asked: OnMatch | None = None


class Guard(Struct, frozen=True, eq=False):
    """A policy for one backend: its trees, whom it asks, the tool arguments it reads, and what is wrong with it.

    MCP messages and plain HTTP have trees of their own; either knows only its own requests.
    """

    mcp: Trees
    plain: Trees
    authorizer: Any | None = None
    arguments: frozenset[tuple[str, ...]] = frozenset()
    diagnostics: tuple[Diagnostic, ...] = ()


def guard(policy: Policy, backend: Backend, port: int, asks: Authorizer | str | None, largest_pattern: int) -> Guard:
    """A policy for requests from a listener's port to a backend."""
    making = _Making(policy, port, backend, largest_pattern)
    if isinstance(asks, str) and not policy.closed:
        making.problem(NO_AUTHORIZER, f"requests are denied that its authorizer would be asked about: {asks}")
    mcp = _trees(policy, backend, asks, making, plain=False)
    plain = _trees(policy, backend, asks, making, plain=True)
    may_ask = policy.asks.all and not policy.closed
    authorizer = packed(route_settings(asks)) if may_ask and isinstance(asks, Authorizer) else None
    return Guard(mcp, plain, authorizer, frozenset(making.arguments), tuple(making.diagnostics))


def _trees(policy: Policy, backend: Backend, asks: Authorizer | str | None, making: _Making, plain: bool) -> Trees:
    denied = action(denier_name(policy), rbac_pb2.RBAC.DENY)
    if policy.closed:
        return Trees(denied)
    granted = {rule: action(rule_name(policy, rule), rbac_pb2.RBAC.ALLOW) for rule in policy.allows.all}
    decision = Tree(backend, granted.__getitem__, denied, making.needed, plain).of(policy.allows)
    if not policy.asks.all:
        return Trees(decision)
    if isinstance(asks, Authorizer):
        asked = {rule: action(rule_name(policy, rule), rbac_pb2.RBAC.ALLOW) for rule in policy.asks.all}
        return Trees(decision, Tree(backend, asked.__getitem__, None, making.asked, plain).of(policy.asks))
    return Trees(Tree(backend, lambda rule: denied, decision, making.asked, plain).of(policy.asks))


class _Making:
    """What rules need besides caller, method and name, with what turned out to be inexpressible."""

    def __init__(self, policy: Policy, port: int, backend: Backend, largest_pattern: int) -> None:
        self._policy = policy
        self._port = port
        self._backend = backend
        self._largest_pattern = largest_pattern
        self._known: dict[tuple[int, bool, int], Predicate | bool | None] = {}
        self.arguments: set[tuple[str, ...]] = set()
        self.diagnostics: list[Diagnostic] = []

    def needed(self, rule: Rule, clause: Clause, plain: bool) -> Predicate | bool | None:
        """What must hold; a rule that Envoy cannot express never matches."""
        return self._parts(rule, clause, plain, closed=False)

    def asked(self, rule: Rule, clause: Clause, plain: bool) -> Predicate | bool | None:
        """What must hold for the authorizer to be asked; what Envoy cannot express is taken to hold."""
        return self._parts(rule, clause, plain, closed=None)

    def problem(self, code: str, message: str, rule: Rule | None = None) -> None:
        """Note something about the policy, once."""
        resource = self._policy.resource
        position = resource.position(rule.path) if rule is not None else resource.position()
        found = Diagnostic(code, message, position, reference=resource.reference)
        if all((one.message, one.at) != (message, position) for one in self.diagnostics):
            self.diagnostics.append(found)

    def _parts(self, rule: Rule, clause: Clause, plain: bool, closed: bool | None) -> Predicate | bool | None:
        found: list[Predicate] = []
        for make in (self._http, self._condition):
            try:
                one = make(rule, clause)
            except Inexpressible as error:
                words = "it never matches" if closed is False else "its authorizer is asked in any case"
                self.problem(INEXPRESSIBLE, f"Envoy cannot evaluate {rule}, so {words}: {error}", rule)
                one = closed
            if one is False:
                return False
            if one is not None:
                found.append(one)
        if plain and _is_of_sessions(clause):
            found.append(session_predicate(self._backend.path))
        return all_of(found) if found else None

    def _http(self, rule: Rule, clause: Clause) -> Predicate | bool | None:
        return http_predicate(rule.http, self._port, self._largest_pattern)

    def _condition(self, rule: Rule, clause: Clause) -> Predicate | bool | None:
        method = as_method(clause)
        if method is None or method.condition is None:
            return None
        expression = Expression()
        parsed = expression.parsed(method.condition.program.tree)
        self.arguments |= expression.arguments
        return holds(parsed)


def _is_of_sessions(clause: Clause) -> bool:
    """Whether a clause is about the stream and the end of a session, of all plain HTTP."""
    match clause:
        case BaseProtocol() | SessionHttp():
            return True
        case Anything() | AllButCalls() | Category() | Method():
            return False
        case _:
            assert_never(clause)


def denier_name(policy: Policy) -> str:
    """What Envoy calls a policy that denies: no rule of it does, but the whole policy."""
    return str(policy.reference)


def rule_name(policy: Policy, rule: Rule) -> str:
    """What Envoy calls a rule: policy, place and, where it has one, its own name; `names.told` reads it."""
    place = f"{policy.reference} {rule.label}"
    return f"{place} {rule.name}" if rule.name else place


def action(name: str, what: Any) -> OnMatch:
    """The end of a way through a tree: who decides, and what."""
    return matcher_pb2.Matcher.OnMatch(action=typed("action", rbac_pb2.Action(name=name, action=what)))


def depends_on(policy: Policy) -> Iterator[str]:
    """What besides the policy its filters depend on: `backend` (scoped names), `path` (base set), `port`."""
    for rule in (*policy.allows.all, *policy.asks.all):
        if rule.http.ports:
            yield "port"
        for clause in rule.clauses:
            method = as_method(clause)
            if method is not None and method.names is not None and method.names.scoped:
                yield "backend"
            if _is_of_sessions(clause):
                yield "path"


class Entry(NamedTuple):
    """One way to match: a rule, the names it is about (None: every one), and what else must hold (None: nothing)."""

    rule: Rule
    names: frozenset[str] | None
    also: Predicate | None


Leaf = Callable[[Rule], OnMatch]
Also = Callable[[Rule, Clause, bool], Predicate | bool | None]


class Tree:
    """How to make the tree of one policy for one backend.

    A tree is for MCP messages or for plain HTTP: routes tell the two apart. `leaf` is what a rule leads to and
    `otherwise` what no rule leads to (None: no match at all). `also` is what must hold besides caller, method and name:
    a predicate, None for nothing, False for a rule that cannot match.
    """

    def __init__(self, backend: Backend, leaf: Leaf, otherwise: OnMatch | None, also: Also, plain: bool) -> None:
        self._plain = plain
        self._backend = backend
        self._leaf = leaf
        self._otherwise = otherwise
        self._also = also

    def of(self, rules: Rules) -> OnMatch | None:
        """The tree of some rules; None where nothing matches and there is no `otherwise`."""
        found = {caller: self._methods(rules.of(caller)) for caller in rules.callers()}
        return self._lookup(header(CALLER), found, self._methods(rules.of(None)))

    def _methods(self, rules: tuple[Rule, ...]) -> OnMatch | None:
        if self._plain:
            return self._names("", self._entries(rules, _is_plain))
        named: set[str] = set()
        prefixes: set[str] = set()
        for clause in (clause for rule in rules for clause in rule.clauses):
            match clause:
                case Method(name=name):
                    named.add(name)
                case Category(name=name):
                    prefixes.add(f"{name}/")
                case BaseProtocol():
                    named |= BASE_METHODS
                    prefixes.update(BASE_PREFIXES)
                case AllButCalls():
                    named.add(CALL)
                case Anything() | SessionHttp():
                    pass
                case _:
                    assert_never(clause)
        unlisted = self._names("", self._about(rules, ""))
        by_prefix = {lead: self._names("", self._about(rules, lead)) for lead in prefixes}
        unlisted = self._lookup(header(METHOD), by_prefix, unlisted, by_prefix=True)
        exactly = {name: self._names(name, self._about(rules, name)) for name in named}
        return self._lookup(header(METHOD), exactly, unlisted)

    def _about(self, rules: Iterable[Rule], method: str) -> Iterator[Entry]:
        return self._entries(rules, lambda clause: _has_method(clause, method))

    def _entries(self, rules: Iterable[Rule], fits: Callable[[Clause], bool]) -> Iterator[Entry]:
        for rule in rules:
            for clause in rule.clauses:
                if fits(clause):
                    also = self._also(rule, clause, self._plain)
                    if not isinstance(also, bool):
                        yield Entry(rule, self._scope(clause), also)

    def _scope(self, clause: Clause) -> frozenset[str] | None:
        """The names that a clause is about at this backend."""
        method = as_method(clause)
        if method is None or method.names is None:
            return None
        names, here = method.names, (self._backend.namespace, self._backend.name)
        if self._backend.kind != "XBackend":
            return names.bare
        return names.bare | {scoped.tool for scoped in names.scoped if (scoped.namespace, scoped.backend) == here}

    def _names(self, method: str, entries: Iterable[Entry]) -> OnMatch | None:
        entries = tuple(entries)
        names = {name for one in entries if one.names is not None for name in one.names}
        found = {name: self._choice(one for one in entries if one.names is None or name in one.names) for name in names}
        others = self._choice(one for one in entries if one.names is None)
        return self._lookup(header(URI if method in BY_URI else NAME), found, others)

    def _choice(self, entries: Iterable[Entry]) -> OnMatch | None:
        """The first entry whose predicate holds; entries after one without a predicate are never reached."""
        choices: list[tuple[Predicate, OnMatch | None]] = []
        for one in entries:
            if one.also is None:
                return self._first(choices, self._leaf(one.rule))
            choices.append((one.also, self._leaf(one.rule)))
        return self._first(choices, self._otherwise)

    def _lookup(
        self, text: object, found: dict[str, OnMatch | None], otherwise: OnMatch | None, by_prefix: bool = False
    ) -> OnMatch | None:
        # What leads where everything else leads needs no entry; for prefixes it does, a longer one may differ.
        kept = {key: then for key, then in found.items() if then is not None and (by_prefix or then != otherwise)}
        if not kept and (otherwise is None or all(then == otherwise for then in found.values())):
            return otherwise
        return lookup(text, kept, otherwise, by_prefix)

    @staticmethod
    def _first(choices: list[tuple[Predicate, OnMatch | None]], otherwise: OnMatch | None) -> OnMatch | None:
        kept = [(one, then) for one, then in choices if then is not None]
        return first_of(kept, otherwise) if kept else otherwise


def _is_plain(clause: Clause) -> bool:
    """Whether a clause is about plain HTTP."""
    match clause:
        case Anything() | BaseProtocol() | SessionHttp():
            return True
        case AllButCalls() | Category() | Method():
            return False
        case _:
            assert_never(clause)


def _has_method(clause: Clause, method: str) -> bool:
    """Whether a clause is about a JSON-RPC method; a method is known by its name, its prefix, or not at all (``)."""
    match clause:
        case Anything():
            return True
        case SessionHttp():
            return False
        case AllButCalls():
            return method != CALL
        case BaseProtocol():
            return method in BASE_METHODS or method.startswith(BASE_PREFIXES)
        case Category(name=name):
            return method.startswith(f"{name}/")
        case Method(name=name):
            return method == name
        case _:
            assert_never(clause)
