"""The sentence of a tool answer, and the notes that say why no rule of a policy grants a request."""

from __future__ import annotations

from tierwall.attach.closing import NO_SCOPE, closing_scope
from tierwall.core.answer import Reason
from tierwall.core.verdict import Verdict
from tierwall.core.words import join_names
from tierwall.tool.decide import PolicyEvaluation, ToolDecision
from tierwall.tool.methods import MethodClause
from tierwall.tool.protocol import CALL
from tierwall.tool.request import ToolRequest
from tierwall.tool.rules import AccessPolicy, AccessRule
from tierwall.tool.ways import GuardedWay

# A note gives at most this many reasons why a policy is invalid.
MAX_REASONS = 3


def sentence(way: GuardedWay, decision: ToolDecision) -> str:
    """Say whether the request passes, and what settled it."""
    who = describe_caller(decision.request.caller)
    may = "may not" if decision.verdict is Verdict.DENY else "may"
    return f"{who} {may} {describe_call(way, decision.request)}: {reason(decision)}"


def describe_call(way: GuardedWay, request: ToolRequest) -> str:
    """Say what the request is for, and where it goes: `call tool add at XBackend/shop/cart through Gateway/shop/gw`."""
    return f"{describe_purpose(request)} at {way.backend} through {way.gateway.reference}"


def reason(decision: ToolDecision) -> str:
    """Say what settled a request."""
    if decision.verdict is Verdict.DENY:
        return _denial(decision.evaluated[-1])
    if not decision.evaluated:
        return "no policy guards this way, so the default allows it"
    return _permission(decision)


def describe_caller(caller: str | None) -> str:
    """Name a caller in a sentence."""
    return caller or "a caller without an identity"


def describe_purpose(request: ToolRequest) -> str:
    """Say what the request is for: `call tool add`, `use tools/list`, `send GET /mcp`."""
    if request.method is None:
        return f"send {request.http_method} {request.path}"
    if request.method == CALL:
        of_server = f" of {request.target}" if request.target else ""
        return f"call tool {request.tool}{of_server}" if request.tool is not None else "call a tool without a name"
    return f"use {request.method}" + (f" of {request.named}" if request.named is not None else "")


_DENIALS = {
    Reason.NO_RULE_MATCHED: "no rule of {policy} grants it",
    Reason.AUTHORIZER_DENIED: "the authorizer of {rule} denies it",
    Reason.AUTHORIZER_UNREACHABLE: "the authorizer of {rule} cannot be reached",
    Reason.FAILS_CLOSED: "{policy} is invalid, so everything it guards is denied",
    Reason.NOT_READ_AS_MCP: "{policy} guards it, and the request is not read as MCP",
}


def _denial(evaluation: PolicyEvaluation) -> str:
    policy, rule = (
        f"{name} on the {evaluation.level}" for name in (evaluation.policy.reference, evaluation.decider.short)
    )
    return _DENIALS[evaluation.reason].format(policy=policy, rule=rule)


def _permission(decision: ToolDecision) -> str:
    names = [evaluation.decider.short for evaluation in decision.evaluated]
    levels = " and ".join(dict.fromkeys(evaluation.level for evaluation in decision.evaluated))
    return f"{join_names(names)} {'allows' if len(names) == 1 else 'allow'} it ({levels})"


def note(evaluation: PolicyEvaluation, request: ToolRequest) -> str | None:
    """Return the note on a policy that denies, or None."""
    match evaluation.reason:
        case Reason.FAILS_CLOSED:
            reasons = "; ".join(evaluation.policy.closed[:MAX_REASONS])
            if closing_scope(evaluation.policy.resource) is NO_SCOPE:
                return reasons
            return f"{reasons}; its targetRefs cannot be read, and may have named this target"
        case Reason.NOT_READ_AS_MCP:
            return request.unreadable
        case Reason.NO_RULE_MATCHED:
            return explain_no_match(evaluation.policy, request)
        case _:
            return None


def explain_no_match(policy: AccessPolicy, request: ToolRequest) -> str:
    """Say, rule by rule, why no rule of a policy matches a request."""
    if not policy.allows.all:
        return "it has no rules"
    rules = policy.allows.of(request.caller)
    if not rules:
        return f"no rule applies to {describe_caller(request.caller)}"
    return "; ".join(f"{rule}: {_explain_mismatch(rule, request)}" for rule in rules)


def _explain_mismatch(rule: AccessRule, request: ToolRequest) -> str:
    reason = rule.http.why_not(request)
    if reason:
        return reason
    if request.method is None:
        return f"it does not grant plain HTTP {request.http_method} {request.url_path}"
    for method in rule.methods:
        if method.name == request.judged:
            if method.names is not None and not method.names.matches(request):
                named = f"`{request.named}`" if request.named is not None else "a request without a name"
                return f"{named} is not among {method.names}"
            if method.condition is not None:
                return method.condition.why_not(request)
    # The methods of the clauses, without the names and conditions that may narrow them.
    granted = ", ".join(clause.name if isinstance(clause, MethodClause) else str(clause) for clause in rule.clauses)
    needed = request.method if request.judged == request.method else f"{request.judged}, which it needs,"
    return f"{needed} is not among {granted}" if granted else "it cannot match any method"
