"""One policy as lookup trees: what it allows and denies, and what it asks an authorizer about.

A tree leads to the rule that decides. Envoy writes the name of the policy and rule to the metadata of the request, from
where denials and the decision log take it. What an authorizer is asked about is in a tree of its own, which decides
nothing: it writes which rule says so, and the ext_authz filter behind it asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_never

from envoy.config.rbac.v3 import rbac_pb2
from msgspec import Struct
from xds.type.matcher.v3 import matcher_pb2

from tierwall.core.diagnostics import Diagnostic
from tierwall.engines.envoy.cel_expression import Expression, Inexpressible
from tierwall.engines.envoy.external_auth import Authorizer, route_settings
from tierwall.engines.envoy.http_predicate import TooLarge, http_predicate, session_predicate
from tierwall.engines.envoy.matchers import OnMatch, Predicate, all_of, holds, packed, typed
from tierwall.engines.envoy.tree import Tree
from tierwall.tool.methods import AllButCalls, Anything, BaseProtocol, Category, Clause, Method, SessionHttp, as_method
from tierwall.tool.request import Backend
from tierwall.tool.rules import Policy, Rule

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
    is_asked = policy.asks.all and not policy.closed and isinstance(asks, Authorizer)
    authorizer = packed(route_settings(asks)) if is_asked and isinstance(asks, Authorizer) else None
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
            except (Inexpressible, TooLarge) as error:
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
