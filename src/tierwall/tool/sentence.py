"""A decision in plain words: one sentence, and, where no rule of a policy grants a request, why each does not."""

from __future__ import annotations

from tierwall.core.verdict import Verdict
from tierwall.tool.decide import Decision, Level, Looked, Reason
from tierwall.tool.methods import Category, Method
from tierwall.tool.places import Way
from tierwall.tool.request import CALL, Request
from tierwall.tool.rules import Policy, Rule

# A sentence names this many policies and counts the rest; the document names them all.
MOST_NAMED = 3


def sentence(way: Way, decision: Decision) -> str:
    """Whether the request passes, and what settled it."""
    request = decision.request
    who = request.caller or "a caller without an identity"
    what = f"{purpose(request)} at {way.backend} through {way.gateway.reference}"
    if decision.verdict is Verdict.DENY:
        return f"{who} may not {what}: {_denial(decision.looked[-1])}"
    if not decision.looked:
        return f"{who} may {what}: no policy guards this way, so the default allows it"
    return f"{who} may {what}: {_permission(decision)}"


def purpose(request: Request) -> str:
    """What the request is for: `call tool add`, `use tools/list`, `send GET /mcp`."""
    if request.method is None:
        return f"send {request.http_method} {request.path}"
    if request.method == CALL:
        return f"call tool {request.tool}" if request.tool is not None else "call a tool without a name"
    return f"use {request.method}" + (f" of {request.named}" if request.named is not None else "")


def _denial(one: Looked) -> str:
    what = f"{one.policy.reference} on the {one.level}"
    return {
        Reason.NO_RULE: f"no rule of {what} grants it",
        Reason.REFUSED: f"the authorizer of {what} denies it",
        Reason.UNREACHABLE: f"the authorizer of {what} cannot be reached",
        Reason.INVALID: f"{what} is invalid, which closes what it guards",
        Reason.UNREAD: f"{what} guards it, and the request is not read as MCP",
    }[one.reason]


def _permission(decision: Decision) -> str:
    names = [
        f"{one.policy.reference} {one.rule.label}" if one.rule and one.rule.label != "spec" else one.policy.reference
        for one in decision.looked
    ]
    shown = names[:MOST_NAMED] + ([f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else [])
    listed = shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
    levels = " and ".join(dict.fromkeys(str(one.level) for one in decision.looked))
    verb = "allows" if len(names) == 1 else "allow"
    return f"{listed} {verb} it" + (f" ({levels})" if levels != Level.DEFAULT else "")


def why_none(policy: Policy, request: Request) -> str:
    """Why no rule of a policy fits a request, rule by rule."""
    if not policy.allows.all:
        return "it has no rules"
    own = policy.allows.of(request.caller)
    if not own:
        caller = request.caller or "a caller without an identity"
        return f"no rule is about {caller}"
    return "; ".join(f"{rule.label}: {_why_not(rule, request)}" for rule in own)


def _why_not(rule: Rule, request: Request) -> str:
    reason = rule.http.why_not(request)
    if reason:
        return reason
    if request.method is None:
        return f"plain HTTP {request.http_method} {request.url_path} is not among what it grants"
    for clause in rule.clauses:
        if isinstance(clause, Method) and clause.name == request.method:
            if clause.names is not None and not clause.names.matches(request):
                named = f"`{request.named}`" if request.named is not None else "a request without a name"
                return f"{named} is not among {clause.names}"
            if clause.condition is not None:
                return clause.condition.why_not(request)
    listed = ", ".join(
        clause.name
        if isinstance(clause, Method)
        else f"{clause.name}/*"
        if isinstance(clause, Category)
        else str(clause)
        for clause in rule.clauses
    )
    return f"{request.method} is not among {listed or 'anything, because no method can match'}"
