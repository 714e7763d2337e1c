"""Findings about single AccessPolicies: what closes them, and rules that cannot do what they were written for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import assert_never

from tierwall.attach.acceptance import excesses, refusals
from tierwall.attach.listener import Listener, gateway_listeners
from tierwall.attach.place import GATEWAY
from tierwall.attach.target import ACCESS_POLICIES, attachments
from tierwall.cel.syntax import ast
from tierwall.cel.syntax.ast import path_of
from tierwall.core.diagnostics import Diagnostic, near_miss
from tierwall.core.source import Path
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.methods import AllButCalls, Anything, BaseProtocol, Category, Clause, Method, SessionHttp
from tierwall.tool.model import model
from tierwall.tool.request import CALL
from tierwall.tool.rules import TRUST_DOMAIN, Everybody, Identity, Nobody, Policy, Rule, Source, named_caller

NEVER_SOURCE, NO_ACCOUNT, NO_BASE = "TW403", "TW404", "TW405"
OVER_LIMIT, NOT_PORTABLE, NEVER_RULE, NO_IDENTITY = "TW409", "TW410", "TW411", "TW412"
_ARGUMENTS = ("request", "mcp", "arguments")


def policies(snapshot: Snapshot) -> Iterator[Diagnostic]:
    """All findings about AccessPolicies one by one."""
    policies = model(snapshot)
    for resource in policies.resources:
        yield from refusals(resource)
        for excess in excesses(snapshot, resource):
            words = f"{resource.reference} is rejected on all its targets: {excess}"
            yield Diagnostic(OVER_LIMIT, words, resource.position(("spec", "targetRefs")), reference=resource.reference)
        policy = policies.policy(resource)
        for rule in dict.fromkeys((*policy.allows.all, *policy.asks.all)):
            yield from _source(snapshot, policy, rule)
            yield from _never(snapshot, policy, rule)
            yield from _portable(policy, rule)
        yield from _base(policy)


def finding(code: str, policy: Policy, path: Path, message: str, hint: str = "") -> Diagnostic:
    """A finding at a place of a policy."""
    return Diagnostic(code, message, policy.resource.position(path), hint=hint, reference=policy.resource.reference)


def _source(snapshot: Snapshot, policy: Policy, rule: Rule) -> Iterator[Diagnostic]:
    path = (*rule.path, "source")
    match rule.source:
        case Everybody():
            return
        case Nobody(why=why):
            words = f"the source of {rule} matches nobody: {why}"
            yield finding(NEVER_SOURCE, policy, path, words, "give the member that `type` names, and no other")
        case Identity(spiffe=spiffe):
            yield from _account(snapshot, policy, rule, spiffe)
            listeners = guarded_listeners(snapshot, policy)
            if listeners and all(listener.protocol == "HTTP" for listener in listeners):
                words = f"{rule} asks for an identity, and {policy.reference} guards only listeners without TLS"
                hint = "callers prove who they are by a client certificate, on HTTPS"
                yield finding(NO_IDENTITY, policy, path, words, hint)
        case _:
            assert_never(rule.source)


def _account(snapshot: Snapshot, policy: Policy, rule: Rule, spiffe: str) -> Iterator[Diagnostic]:
    """A ServiceAccount that its namespace, as far as the manifests show it, does not have."""
    parts = spiffe.removeprefix(f"spiffe://{TRUST_DOMAIN}/ns/").split("/")
    if len(parts) != 3 or parts[1] != "sa" or not spiffe.startswith(f"spiffe://{TRUST_DOMAIN}/ns/"):
        return
    namespace, name = parts[0], parts[2]
    if not name:
        words = f"the source of {rule} matches nobody: its ServiceAccount has no name"
        yield finding(NEVER_SOURCE, policy, (*rule.path, "source"), words)
        return
    known = [account.name for account in snapshot.in_namespace("", "ServiceAccount", namespace)]
    if known and name not in (*known, "default"):  # every namespace has `default`
        words = f"{rule} is about ServiceAccount `{namespace}/{name}`, which is not in the manifests"
        yield finding(NO_ACCOUNT, policy, (*rule.path, "source"), words, near_miss(name, known))


def guarded_listeners(snapshot: Snapshot, policy: Policy) -> list[Listener]:
    """The listeners that a policy on Gateways guards."""
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


def _never(snapshot: Snapshot, policy: Policy, rule: Rule) -> Iterator[Diagnostic]:
    if not rule.clauses:
        words = f"{rule} can never match: its expression is about tools/call, which its `mcp` leaves out"
        yield finding(NEVER_RULE, policy, (*rule.path, "authorization", "mcp"), words, "add the method tools/call")
    listeners = guarded_listeners(snapshot, policy)
    if rule.http.ports and listeners and not any(listener.port in rule.http.ports for listener in listeners):
        ports = ", ".join(map(str, sorted({listener.port for listener in listeners})))
        words = f"{rule} can never match: no listener of what it guards has one of its ports"
        yield finding(NEVER_RULE, policy, (*rule.path, "authorization", "ports"), words, f"the listeners have {ports}")


def _portable(policy: Policy, rule: Rule) -> Iterator[Diagnostic]:
    for method in rule.methods:
        if method.condition is not None and _uses_arguments(method.condition.program.tree):
            words = f"{rule} looks at `request.mcp.arguments`, which other implementations do not have"
            path = (*rule.path, "authorization", "cel", "expression")
            yield finding(NOT_PORTABLE, policy, path, words)


def _uses_arguments(tree: ast.Expr) -> bool:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Select | ast.Has) and path_of(ast.Select(node.operand, node.field)) == _ARGUMENTS:
            return True
        waiting += ast.children(node)
    return False


def _base(policy: Policy) -> Iterator[Diagnostic]:
    """Callers that may call tools but cannot open a session, each source once."""
    seen: set[Source] = set()
    for rule in policy.allows.all:
        source = rule.source
        if source in seen or isinstance(source, Nobody) or not any(map(_grants_calls, rule.clauses)):
            continue
        seen.add(source)
        if not _opens(policy.allows.of(named_caller(source))):
            words = f"{rule} lets {source} call tools, but no rule of {policy.reference} lets it initialize"
            hint = "set mcpBaseProtocolMethodsOption: MATCH_BASE_PROTOCOL_METHODS in a rule for the same source"
            yield finding(NO_BASE, policy, rule.path, words, hint)


def _grants_calls(clause: Clause) -> bool:
    match clause:
        case Anything():
            return True
        case Method(name=name):
            return name == CALL
        case Category(name=name):
            return CALL.startswith(f"{name}/")
        case BaseProtocol() | SessionHttp() | AllButCalls():
            return False
        case _:
            assert_never(clause)


def _opens(rules: Iterable[Rule]) -> bool:
    """Whether some rule lets `initialize` through."""
    return any(_grants_initialize(clause) for rule in rules for clause in rule.clauses)


def _grants_initialize(clause: Clause) -> bool:
    match clause:
        case Anything() | BaseProtocol() | AllButCalls():
            return True
        case Method() | Category() | SessionHttp():  # no rule can name it as its method
            return False
        case _:
            assert_never(clause)
