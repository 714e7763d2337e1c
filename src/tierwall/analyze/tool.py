"""Checks of AccessPolicies: reasons why they fail closed, rules that cannot work, tools that only one of the two levels
grants, and tool names that are ambiguous.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import assert_never

from tierwall.attach.acceptance import exceeded_limits, refusals
from tierwall.attach.listener import Listener, gateway_listeners
from tierwall.attach.place import GATEWAY, Place
from tierwall.attach.target import ACCESS_POLICIES, attachments
from tierwall.cel.syntax import ast
from tierwall.cel.syntax.ast import path_of
from tierwall.core.diagnostics import Diagnostic, near_miss
from tierwall.core.source import rule_place
from tierwall.core.stack import Tier
from tierwall.core.verdict import Verdict
from tierwall.core.words import join_names
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.grants import declared_tools, offered_tools
from tierwall.tool.methods import (
    AllButCalls,
    AnythingClause,
    BaseProtocol,
    Clause,
    MethodCategory,
    MethodClause,
    ScopedTool,
    SessionRequest,
)
from tierwall.tool.model import BACKENDS, PolicyLevel, ToolModel, is_on_gateways, model
from tierwall.tool.possible import possible
from tierwall.tool.protocol import CALL
from tierwall.tool.request import tool_request
from tierwall.tool.rules import (
    TRUST_DOMAIN,
    AccessPolicy,
    AccessRule,
    AnyCaller,
    CallerIdentity,
    NoCaller,
    RuleSource,
    named_caller,
)
from tierwall.tool.ways import BackendWay, routed_ways

NEVER_SOURCE, NO_ACCOUNT, NO_BASE = "TW403", "TW404", "TW405"
OVER_LIMIT, NOT_PORTABLE, NEVER_RULE, NO_IDENTITY = "TW409", "TW410", "TW411", "TW412"
_ARGUMENTS = ("request", "mcp", "arguments")


def policy_findings(snapshot: Snapshot, only: Resource | None = None) -> Iterator[Diagnostic]:
    """Yield the findings about each AccessPolicy on its own; with `only`, about that one. So do the other checks."""
    policies = model(snapshot)
    for resource in policies.resources if only is None else (only,):
        yield from refusals(resource)
        for excess in exceeded_limits(snapshot, resource):
            message = f"{resource.reference} is rejected on all its targets: {excess}"
            seniors = tuple(str(holder.reference) for holder in excess.holders)
            yield resource.diagnostic(OVER_LIMIT, message, ("spec", "targetRefs"), related_objects=seniors)
        policy = policies.policy(resource)
        for rule in dict.fromkeys((*policy.allows.all, *policy.asks.all)):
            yield from _source(snapshot, policy, rule)
            yield from _never_matches(snapshot, policy, rule)
            yield from _not_portable(policy, rule)
        yield from _cannot_initialize(policy)


def _source(snapshot: Snapshot, policy: AccessPolicy, rule: AccessRule) -> Iterator[Diagnostic]:
    path = (*rule.path, "source")
    match rule.source:
        case AnyCaller():
            return
        case NoCaller(reason=reason):
            message = f"the source of {rule} matches no caller: {reason}"
            yield policy.resource.diagnostic(
                NEVER_SOURCE, message, path, hint="give the member that `type` names, and no other"
            )
        case CallerIdentity(spiffe=spiffe):
            yield from _missing_account(snapshot, policy, rule, spiffe)
            listeners = guarded_listeners(snapshot, policy)
            if listeners and all(listener.protocol == "HTTP" for listener in listeners):
                message = f"{rule} asks for an identity, and {policy.reference} guards only listeners without TLS"
                hint = "use an HTTPS listener, where callers prove their identity by a client certificate"
                yield policy.resource.diagnostic(NO_IDENTITY, message, path, hint=hint)
        case _:
            assert_never(rule.source)


def _missing_account(snapshot: Snapshot, policy: AccessPolicy, rule: AccessRule, spiffe: str) -> Iterator[Diagnostic]:
    """Find a ServiceAccount that is missing from the manifests although they have others of its namespace."""
    parts = spiffe.removeprefix(f"spiffe://{TRUST_DOMAIN}/ns/").split("/")
    if len(parts) != 3 or parts[1] != "sa" or not spiffe.startswith(f"spiffe://{TRUST_DOMAIN}/ns/"):
        return
    namespace, name = parts[0], parts[2]
    if not name:
        message = f"the source of {rule} matches no caller: its ServiceAccount has no name"
        yield policy.resource.diagnostic(NEVER_SOURCE, message, (*rule.path, "source"))
        return
    known = [account.name for account in snapshot.in_namespace("", "ServiceAccount", namespace)]
    if known and name not in (*known, "default"):  # every namespace has `default`
        message = f"{rule} names ServiceAccount `{namespace}/{name}`, which is not among the objects"
        yield policy.resource.diagnostic(NO_ACCOUNT, message, (*rule.path, "source"), hint=near_miss(name, known))


def guarded_listeners(snapshot: Snapshot, policy: AccessPolicy) -> list[Listener]:
    """Return the listeners that a policy on Gateways guards."""
    guarded: list[Listener] = []
    for target in attachments(snapshot, ACCESS_POLICIES, admitted=False).of(policy.resource):
        if target.resource is not None and target.place.key == GATEWAY:
            gateway, section = target.resource, target.place.section
            guarded += (
                listener
                for listener in gateway_listeners(snapshot, gateway)
                if not section or (listener.name == section and listener.owner is gateway)
            )
    return guarded


def _never_matches(snapshot: Snapshot, policy: AccessPolicy, rule: AccessRule) -> Iterator[Diagnostic]:
    if not rule.clauses:
        message = f"{rule} can never match: its expression is about tools/call, which its `mcp` leaves out"
        yield policy.resource.diagnostic(
            NEVER_RULE, message, (*rule.path, "authorization", "mcp"), hint="add the method tools/call"
        )
    listeners = guarded_listeners(snapshot, policy)
    if rule.http.ports and listeners and not any(listener.port in rule.http.ports for listener in listeners):
        ports = ", ".join(map(str, sorted({listener.port for listener in listeners})))
        message = f"{rule} can never match: no listener that it guards has one of its ports"
        yield policy.resource.diagnostic(
            NEVER_RULE, message, (*rule.path, "authorization", "ports"), hint=f"use a port of these listeners: {ports}"
        )


def _not_portable(policy: AccessPolicy, rule: AccessRule) -> Iterator[Diagnostic]:
    for method in rule.methods:
        if method.condition is not None and _uses_arguments(method.condition.program.tree):
            message = f"{rule} reads `request.mcp.arguments`, which other implementations do not have"
            path = (*rule.path, "authorization", "cel", "expression")
            yield policy.resource.diagnostic(NOT_PORTABLE, message, path)


def _uses_arguments(tree: ast.Expr) -> bool:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Select | ast.Has) and path_of(ast.Select(node.operand, node.field)) == _ARGUMENTS:
            return True
        waiting += ast.children(node)
    return False


def _cannot_initialize(policy: AccessPolicy) -> Iterator[Diagnostic]:
    """Find callers that may call tools but cannot open a session; each source once."""
    seen: set[RuleSource] = set()
    for rule in policy.allows.all:
        source = rule.source
        if source in seen or isinstance(source, NoCaller) or not any(map(_grants_calls, rule.clauses)):
            continue
        seen.add(source)
        if not _can_initialize(policy.allows.of(named_caller(source))):
            message = f"{rule} lets {source} call tools, but no rule of {policy.reference} lets it initialize"
            hint = "set mcpBaseProtocolMethodsOption: MATCH_BASE_PROTOCOL_METHODS in a rule for the same source"
            yield policy.resource.diagnostic(NO_BASE, message, rule.path, hint=hint)


def _grants_calls(clause: Clause) -> bool:
    match clause:
        case AnythingClause():
            return True
        case MethodClause(name=name):
            return name == CALL
        case MethodCategory(name=name):
            return CALL.startswith(f"{name}/")
        case BaseProtocol() | SessionRequest() | AllButCalls():
            return False
        case _:
            assert_never(clause)


def _can_initialize(rules: Iterable[AccessRule]) -> bool:
    """Whether some rule lets `initialize` through."""
    return any(_grants_initialize(clause) for rule in rules for clause in rule.clauses)


def _grants_initialize(clause: Clause) -> bool:
    match clause:
        case AnythingClause() | BaseProtocol() | AllButCalls():
            return True
        case MethodClause() | MethodCategory() | SessionRequest():  # a rule cannot list `initialize` as a method
            return False
        case _:
            assert_never(clause)


ONE_LEVEL, AMBIGUOUS, NO_SCOPE = "TW406", "TW407", "TW408"
MAX_SHOWN = 5
OTHER_LEVEL = {PolicyLevel.GATEWAY: PolicyLevel.BACKEND, PolicyLevel.BACKEND: PolicyLevel.GATEWAY}


class LevelStacks:
    """The ways from Gateways to backends, the policies on each, and what each level decides for a caller and a tool."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.model: ToolModel = model(snapshot)
        self._stacks = {way: self.model.stack(way.gateway, way.listener, way.resource) for way in routed_ways(snapshot)}
        self._ways: dict[tuple[str, AccessPolicy], list[BackendWay]] = {}
        self._denied: dict[tuple[BackendWay, PolicyLevel, str | None, str], bool] = {}
        for way, stack in self._stacks.items():
            for tier in stack:
                for policy in tier.policies:
                    self._ways.setdefault((tier.name, policy), []).append(way)

    def ways(self, level: PolicyLevel, policy: AccessPolicy) -> list[BackendWay]:
        """Return the ways that a policy guards at a level."""
        return self._ways.get((level, policy), [])

    def tier(self, way: BackendWay, level: PolicyLevel) -> Tier[AccessPolicy]:
        """Return the policies of one level of a way."""
        return next(tier for tier in self._stacks[way] if tier.name == level)

    def denied(self, way: BackendWay, level: PolicyLevel, callers: Iterable[str | None], tool: str) -> bool:
        """Whether one level of a way denies a tool to every one of these callers."""
        return all(self._denies(way, level, caller, tool) for caller in callers)

    def _denies(self, way: BackendWay, level: PolicyLevel, caller: str | None, tool: str) -> bool:
        key = way, level, caller, tool
        if key not in self._denied:
            request = tool_request(way.backend, caller, CALL, tool, port=way.listener.port)
            self._denied[key] = possible((self.tier(way, level),), request).verdict is Verdict.DENY
        return self._denied[key]

    def callers(self, way: BackendWay, level: PolicyLevel, rule: AccessRule) -> set[str | None]:
        """Return the callers of a rule at a level: its own, or all callers that the other level names."""
        match rule.source:
            case CallerIdentity(spiffe=spiffe):
                return {spiffe}
            case AnyCaller():
                others = self.tier(way, OTHER_LEVEL[level]).policies
                return {None, *(caller for policy in others for caller in policy.allows.callers())}
            case NoCaller():
                return set()
            case _:
                assert_never(rule.source)


def level_findings(snapshot: Snapshot, only: Resource | None = None) -> Iterator[Diagnostic]:
    """Find tools that a rule grants and the other level always denies."""
    stacks = LevelStacks(snapshot)
    for resource in stacks.model.resources if only is None else (only,):
        policy = stacks.model.policy(resource)
        level = PolicyLevel.GATEWAY if is_on_gateways(resource) else PolicyLevel.BACKEND
        ways = stacks.ways(level, policy)
        if not ways or policy.closed:
            continue
        for rule in policy.allows.all:
            if isinstance(rule.source, NoCaller):
                continue
            denied = [tool for tool in _tools(rule) if _denied_elsewhere(stacks, ways, level, rule, tool)]
            if denied:
                yield _one_level_finding(policy, rule, denied, ways, level)


def _tools(rule: AccessRule) -> list[ScopedTool | str]:
    """Return the tools that a rule names, scoped ones with their backend."""
    tools: set[ScopedTool | str] = set()
    for method in rule.methods:
        if method.name == CALL and method.names is not None:
            tools |= method.names.bare | method.names.scoped
    return sorted(tools, key=str)


def _denied_elsewhere(
    stacks: LevelStacks, ways: list[BackendWay], level: PolicyLevel, rule: AccessRule, tool: ScopedTool | str
) -> bool:
    """Whether the other level denies the tool on every way where the rule grants it."""
    name = tool
    if isinstance(tool, ScopedTool):
        ways = [way for way in ways if (way.backend.namespace, way.backend.name) == tool[:2]]
        name = tool.tool
    other = OTHER_LEVEL[level]
    return bool(ways) and all(stacks.denied(way, other, stacks.callers(way, level, rule), str(name)) for way in ways)


def _one_level_finding(
    policy: AccessPolicy, rule: AccessRule, denied: list[ScopedTool | str], ways: list[BackendWay], level: PolicyLevel
) -> Diagnostic:
    on_gateway = level is PolicyLevel.GATEWAY
    names = join_names([f"`{tool}`" for tool in denied], MAX_SHOWN)
    others = {str(way.backend) if on_gateway else str(way.gateway.reference) for way in ways}
    where = "no backend behind the Gateway" if on_gateway else "no Gateway in front of the backend"
    message = f"{rule} grants {names} to {rule.source}, but {where} does: {', '.join(sorted(others)[:MAX_SHOWN])}"
    return policy.resource.diagnostic(
        ONE_LEVEL,
        message,
        rule.path,
        hint="grant them at the other level too",
        places=_tool_places(rule, map(str, denied)),
        related_objects=tuple(sorted(others)),
    )


def _tool_places(rule: AccessRule, tools: Iterable[str]) -> tuple[str, ...]:
    """Return the places of tools in a rule, as `rules[0]:pay`."""
    return tuple(f"{rule_place(rule.path)}:{tool}" for tool in sorted(tools))


def name_findings(snapshot: Snapshot, only: Resource | None = None) -> Iterator[Diagnostic]:
    """Find tool names in policies on Gateways that several backends share, or whose backend does not exist."""
    policies = model(snapshot)
    backends = [backend for kind in BACKENDS for backend in snapshot.of_kind(*kind)]
    offered = {backend: offered_tools(policies, backend) for backend in backends}
    declared = {tool for backend in backends for tool in declared_tools(backend)}
    behind: dict[Place, dict[Resource, None]] = {}
    for way in routed_ways(snapshot):
        if way.resource in offered:
            behind.setdefault(Place.of(way.gateway), {})[way.resource] = None
    for resource in policies.resources if only is None else (only,):
        policy = policies.policy(resource)
        if policy.closed or not is_on_gateways(resource):
            continue
        reached = dict.fromkeys(
            backend
            for ref in resource.spec["targetRefs"]
            for backend in behind.get(Place(ref["group"], ref["kind"], resource.namespace, ref["name"]), {})
        )
        for rule in policy.allows.all:
            ambiguous: dict[str, list[Resource]] = {}
            for tool in _tools(rule):
                if isinstance(tool, ScopedTool):
                    continue
                offering = [backend for backend in reached if tool in offered[backend]]
                if len(offering) > 1:
                    ambiguous[tool] = offering
                if "/" in tool and tool not in declared:
                    yield _unknown_scope(snapshot, policy, rule, tool)
            if ambiguous:
                yield _ambiguous(policy, rule, ambiguous)


def _ambiguous(policy: AccessPolicy, rule: AccessRule, offering: dict[str, list[Resource]]) -> Diagnostic:
    """Return one finding for all ambiguous tools of a rule; the example is the one that most backends offer."""
    tool = max(offering, key=lambda name: len(offering[name]))
    backends = offering[tool]
    listed = sorted(f"{backend.namespace}/{backend.name}" for backend in backends)
    message = f"{rule} names tool `{tool}`, which {len(backends)} backends offer: {', '.join(listed[:MAX_SHOWN])}"
    if len(offering) > 1:
        others = join_names([f"`{name}`" for name in offering if name != tool])
        message += f"; {others} {'is' if len(offering) == 2 else 'are'} ambiguous too"
    first = backends[0]
    is_near = first.namespace == policy.resource.namespace
    scope = first.name if is_near else f"{first.namespace}/{first.name}"
    return policy.resource.diagnostic(
        AMBIGUOUS,
        message,
        rule.path,
        hint=f"write `{scope}/{tool}` for the tool of that backend",
        places=_tool_places(rule, offering),
        related_objects=tuple(sorted({str(backend.reference) for group in offering.values() for backend in group})),
    )


def _unknown_scope(snapshot: Snapshot, policy: AccessPolicy, rule: AccessRule, tool: str) -> Diagnostic:
    scope = tool.rpartition("/")[0]
    namespace = policy.resource.namespace
    known: set[str] = set()
    for kind in BACKENDS:
        for backend in snapshot.of_kind(*kind):
            known.add(f"{backend.namespace}/{backend.name}")
            if backend.namespace == namespace:
                known.add(backend.name)
    message = (
        f"{rule} names `{tool}`, but there is no XBackend `{scope}`, so the whole string is read as the name of a tool"
    )
    hint = near_miss(scope, known)
    return policy.resource.diagnostic(NO_SCOPE, message, rule.path, hint=hint, places=_tool_places(rule, [tool]))
