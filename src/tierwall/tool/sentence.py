"""The sentence of a tool answer, and the notes that say why no rule of a policy grants a request."""

from __future__ import annotations

from tierwall.core.answer import Reason
from tierwall.core.verdict import Verdict
from tierwall.core.words import join_names
from tierwall.tool.decide import PolicyEvaluation, ToolDecision
from tierwall.tool.methods import MethodClause
from tierwall.tool.request import CALL, ToolRequest
from tierwall.tool.rules import AccessPolicy, AccessRule
from tierwall.tool.ways import GuardedWay

# A note gives at most this many reasons why a policy is invalid.
MOST_REASONS = 3


def sentence(way: GuardedWay, walk: ToolDecision) -> str:
    """Say whether the request passes, and what settled it."""
    who = caller_words(walk.request.caller)
    what = f"{purpose(walk.request)} at {way.backend} through {way.gateway.reference}"
    if walk.verdict is Verdict.DENY:
        return f"{who} may not {what}: {_denial(walk.evaluated[-1])}"
    if not walk.evaluated:
        return f"{who} may {what}: no policy guards this way, so the default allows it"
    return f"{who} may {what}: {_permission(walk)}"


def caller_words(caller: str | None) -> str:
    """Name a caller in a sentence."""
    return caller or "a caller without an identity"


def purpose(request: ToolRequest) -> str:
    """Say what the request is for: `call tool add`, `use tools/list`, `send GET /mcp`."""
    if request.method is None:
        return f"send {request.http_method} {request.path}"
    if request.method == CALL:
        return f"call tool {request.tool}" if request.tool is not None else "call a tool without a name"
    return f"use {request.method}" + (f" of {request.named}" if request.named is not None else "")


_DENIALS = {
    Reason.NO_RULE_MATCHED: "no rule of {policy} grants it",
    Reason.AUTHORIZER_DENIED: "the authorizer of {rule} denies it",
    Reason.AUTHORIZER_UNREACHABLE: "the authorizer of {rule} cannot be reached",
    Reason.FAILS_CLOSED: "{policy} is invalid, which closes what it guards",
    Reason.NOT_READ_AS_MCP: "{policy} guards it, and the request is not read as MCP",
}


def _denial(entry: PolicyEvaluation) -> str:
    policy, rule = (f"{name} on the {entry.level}" for name in (entry.policy.reference, entry.decider.short))
    return _DENIALS[entry.reason].format(policy=policy, rule=rule)


def _permission(walk: ToolDecision) -> str:
    names = [entry.decider.short for entry in walk.evaluated]
    levels = " and ".join(dict.fromkeys(entry.level for entry in walk.evaluated))
    return f"{join_names(names)} {'allows' if len(names) == 1 else 'allow'} it ({levels})"


def note(entry: PolicyEvaluation, request: ToolRequest) -> str | None:
    """Return the note on a policy that denies, or None."""
    match entry.reason:
        case Reason.FAILS_CLOSED:
            return "; ".join(entry.policy.closed[:MOST_REASONS])
        case Reason.NOT_READ_AS_MCP:
            return request.unread
        case Reason.NO_RULE_MATCHED:
            return why_none(entry.policy, request)
        case _:
            return None


def why_none(policy: AccessPolicy, request: ToolRequest) -> str:
    """Say, rule by rule, why no rule of a policy matches a request."""
    if not policy.allows.all:
        return "it has no rules"
    rules = policy.allows.of(request.caller)
    if not rules:
        return f"no rule is about {caller_words(request.caller)}"
    return "; ".join(f"{rule}: {_why_not(rule, request)}" for rule in rules)


def _why_not(rule: AccessRule, request: ToolRequest) -> str:
    reason = rule.http.why_not(request)
    if reason:
        return reason
    if request.method is None:
        return f"plain HTTP {request.http_method} {request.url_path} is not among what it grants"
    for method in rule.methods:
        if method.name == request.method:
            if method.names is not None and not method.names.matches(request):
                named = f"`{request.named}`" if request.named is not None else "a request without a name"
                return f"{named} is not among {method.names}"
            if method.condition is not None:
                return method.condition.why_not(request)
    # The methods of the clauses, without the names and conditions that may narrow them.
    granted = ", ".join(clause.name if isinstance(clause, MethodClause) else str(clause) for clause in rule.clauses)
    return f"{request.method} is not among {granted or 'anything, because no method can match'}"
