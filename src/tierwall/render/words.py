"""The words for what a step says. Verdicts and reasons are data everywhere else (core/answer.py)."""

from __future__ import annotations

from tierwall.core.answer import Reason
from tierwall.core.verdict import StepVerdict

_VERDICTS = {
    StepVerdict.ALLOW: "allowed",
    StepVerdict.DENY: "denied",
    StepVerdict.CONDITIONAL: "conditional",
    StepVerdict.NO_OPINION: "no opinion",
    StepVerdict.PASS: "passed",
    StepVerdict.NO_MATCH: "no match",
    StepVerdict.NOT_APPLICABLE: "not under policy",
}
# Reasons that say more than the verdict alone.
_REASONS = {
    Reason.FAILS_CLOSED: "fails closed",
    Reason.NOT_SELECTED: "not asked",
    Reason.AUTHORIZER_ALLOWED: "allowed by its authorizer",
    Reason.AUTHORIZER_DENIED: "denied by its authorizer",
    Reason.OBJECT_REFUSED: "refused",
    Reason.SETS_FIELD: "in force",
    Reason.JOINS_UNION: "in force, as part of a union",
    Reason.LESS_SPECIFIC: "beaten",
    Reason.LOSES_TIE: "beaten",
    Reason.LOCKED_BY_OVERRIDE: "locked out",
    Reason.LEAST_SPECIFIC_KEPT: "beaten",
    Reason.NO_ENTRY_SELECTED: "sets nothing",
}
# Reasons that are told beside the verdict.
_BESIDE = {
    Reason.AUTHORIZER_UNREACHABLE: "its authorizer cannot be reached",
    Reason.NOT_READ_AS_MCP: "the request is not read as MCP",
    Reason.EXPRESSION_FAILED: "its expression failed",
}
_MAY = {StepVerdict.ALLOW: "may allow", StepVerdict.DENY: "may deny", StepVerdict.PASS: "may pass"}


def phrase(verdict: StepVerdict, reason: Reason) -> str:
    """`denied`, `allowed by its authorizer`, `may allow`."""
    if reason is Reason.DOMAIN_MAY_MATCH:
        return _MAY[verdict]
    if reason in _BESIDE:
        return f"{_VERDICTS[verdict]}, {_BESIDE[reason]}"
    return _REASONS.get(reason) or _VERDICTS[verdict]
