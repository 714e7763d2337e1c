"""One policy as one RBAC filter: a route's own settings for the filter of the policy's slot.

The filter allows what a rule allows and denies all else. It writes who decided, policy and rule, to the metadata of the
request, from where denials and the decision log take it. Where a policy asks an authorizer, its shadow rules write
which rule says so, and the ext_authz filter behind it asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from envoy.config.rbac.v3 import rbac_pb2
from envoy.extensions.filters.http.rbac.v3 import rbac_pb2 as rbac_filter_pb2
from msgspec import Struct
from xds.type.matcher.v3 import matcher_pb2

from tierwall.core.diagnostics import Diagnostic
from tierwall.engines.envoy.cel_expression import Expression, Inexpressible
from tierwall.engines.envoy.external_auth import Authorizer, route_settings
from tierwall.engines.envoy.http_predicate import TooLarge, http_predicate, session_predicate
from tierwall.engines.envoy.matchers import OnMatch, Predicate, all_of, holds, matcher, packed, typed
from tierwall.engines.envoy.names import Slot
from tierwall.engines.envoy.tree import Tree
from tierwall.tool.methods import BaseProtocol, Clause, Method, SessionHttp
from tierwall.tool.request import Backend
from tierwall.tool.rules import Policy, Rule

INEXPRESSIBLE, NO_AUTHORIZER = "TW651", "TW652"


class Guard(Struct, frozen=True, eq=False):
    """A policy in its slot: settings by filter name, the tool arguments that it reads, and what is wrong with it.

    Routes for MCP messages and routes for plain HTTP have settings of their own; either knows only its own requests.
    """

    mcp: dict[str, Any]
    plain: dict[str, Any]
    arguments: frozenset[tuple[str, ...]] = frozenset()
    diagnostics: tuple[Diagnostic, ...] = ()


def guard(
    policy: Policy, slot: Slot, backend: Backend, port: int, asks: Authorizer | str | None, largest_pattern: int
) -> Guard:
    """The filters of a policy for requests from a listener's port to a backend."""
    making = _Making(policy, port, backend, largest_pattern)
    if isinstance(asks, str) and not policy.closed:
        making.problem(NO_AUTHORIZER, f"requests are denied that its authorizer would be asked about: {asks}")
    mcp = _settings(policy, slot, backend, asks, making, plain=False)
    plain = _settings(policy, slot, backend, asks, making, plain=True)
    return Guard(mcp, plain, frozenset(making.arguments), tuple(making.diagnostics))


def _settings(
    policy: Policy, slot: Slot, backend: Backend, asks: Authorizer | str | None, making: _Making, plain: bool
) -> dict[str, Any]:
    denied = _action(policy.reference, rbac_pb2.RBAC.DENY)
    out: dict[str, Any] = {}
    settings = rbac_filter_pb2.RBAC(rules_stat_prefix=slot.prefix, shadow_rules_stat_prefix=slot.prefix)
    decision: OnMatch | None = denied
    if not policy.closed:
        granted = {rule: _action(_name(policy, rule), rbac_pb2.RBAC.ALLOW) for rule in policy.allows.all}
        decision = Tree(backend, granted.__getitem__, denied, making.needed, plain).of(policy.allows)
    if policy.asks.all and not policy.closed:
        if isinstance(asks, Authorizer):
            asked = {rule: _action(_name(policy, rule), rbac_pb2.RBAC.ALLOW) for rule in policy.asks.all}
            tree = Tree(backend, asked.__getitem__, None, making.asked, plain)
            settings.shadow_matcher.CopyFrom(matcher(tree.of(policy.asks)))
            out[slot.authorizer_filter] = packed(route_settings(asks))
        else:
            decision = Tree(backend, lambda rule: denied, decision, making.asked, plain).of(policy.asks)
    settings.matcher.CopyFrom(matcher(decision))
    out[slot.policy_filter] = packed(rbac_filter_pb2.RBACPerRoute(rbac=settings))
    return out


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
        found = Diagnostic(code, message, position, subject=resource.reference)
        if all((one.message, one.position) != (message, position) for one in self.diagnostics):
            self.diagnostics.append(found)

    def _parts(self, rule: Rule, clause: Clause, plain: bool, closed: bool | None) -> Predicate | bool | None:
        found: list[Predicate] = []
        for make in (self._http, self._condition):
            try:
                one = make(rule, clause)
            except (Inexpressible, TooLarge) as error:
                words = "it never matches" if closed is False else "its authorizer is asked in any case"
                self.problem(INEXPRESSIBLE, f"Envoy cannot evaluate {rule.label}, so {words}: {error}", rule)
                one = closed
            if one is False:
                return False
            if one is not None:
                found.append(one)
        if plain and isinstance(clause, BaseProtocol | SessionHttp):
            found.append(session_predicate(self._backend.path))
        return all_of(found) if found else None

    def _http(self, rule: Rule, clause: Clause) -> Predicate | bool | None:
        return http_predicate(rule.http, self._port, self._largest_pattern)

    def _condition(self, rule: Rule, clause: Clause) -> Predicate | bool | None:
        if not isinstance(clause, Method) or clause.condition is None:
            return None
        expression = Expression()
        parsed = expression.parsed(clause.condition.program.tree)
        self.arguments |= expression.arguments
        return holds(parsed)


def _name(policy: Policy, rule: Rule) -> str:
    return f"{policy.reference} {rule.label}"


def _action(name: str, action: Any) -> OnMatch:
    return matcher_pb2.Matcher.OnMatch(action=typed("action", rbac_pb2.Action(name=name, action=action)))


def depends_on(policy: Policy) -> Iterator[str]:
    """What besides the policy its filters depend on: `backend` (scoped names), `path` (base set), `port`."""
    rules = (*policy.allows.all, *policy.asks.all)
    clauses = [clause for rule in rules for clause in rule.clauses]
    if any(isinstance(one, Method) and one.names is not None and one.names.scoped for one in clauses):
        yield "backend"
    if any(isinstance(one, BaseProtocol | SessionHttp) for one in clauses):
        yield "path"
    if any(rule.http.ports for rule in rules):
        yield "port"
