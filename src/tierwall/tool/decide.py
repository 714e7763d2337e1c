"""Deciding one request: Gateway policies first, then Backend policies (AccessPolicy proposal, "Evaluation Flow").

docs/semantics.md#gateway-policies-come-first.

Inside a level the older policy comes first, then the smaller `namespace/name`. Every policy must allow; the first that
does not ends it. Without any policy the request is allowed by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from tierwall.core.verdict import Verdict
from tierwall.tool.model import Stack
from tierwall.tool.request import Request
from tierwall.tool.rules import Policy, Rule

# What authorizers say, by the reference of the policy that asks; one that is not listed cannot be reached.
Answers: TypeAlias = Mapping[str, Verdict]
NO_ANSWERS: Answers = {}


class Level(StrEnum):
    """Whose policy settled a request."""

    GATEWAY = "Gateway"
    BACKEND = "Backend"
    DEFAULT = "Default"


class Reason(StrEnum):
    """What a policy found, for the trace."""

    GRANTED = "allowed"
    NOT_SELECTED = "not asked"
    AUTHORIZED = "allowed by its authorizer"
    NO_RULE = "denied, no rule matches"
    REFUSED = "denied by its authorizer"
    UNREACHABLE = "denied, its authorizer cannot be reached"
    INVALID = "denied, the policy is invalid"
    UNREAD = "denied, the request is not read as MCP"


class Looked(Struct, frozen=True, eq=False):
    """One policy that was evaluated: what it said, why, and the rule that says so."""

    level: Level
    policy: Policy
    verdict: Verdict
    reason: Reason
    rule: Rule | None = None


class Decision(Struct, frozen=True, eq=False):
    """The verdict and every policy that was evaluated, in order; the last one settled it."""

    request: Request
    verdict: Verdict
    level: Level
    looked: tuple[Looked, ...] = ()


def decide(stack: Stack, request: Request, answers: Answers = NO_ANSWERS) -> Decision:
    """May this request pass?"""
    looked: list[Looked] = []
    for level, policies in ((Level.GATEWAY, stack.gateway), (Level.BACKEND, stack.backend)):
        for policy in policies:
            one = evaluate(level, policy, request, answers)
            looked.append(one)
            if one.verdict is Verdict.DENY:
                return Decision(request, Verdict.DENY, level, tuple(looked))
    return Decision(request, Verdict.ALLOW, looked[-1].level if looked else Level.DEFAULT, tuple(looked))


def evaluate(level: Level, policy: Policy, request: Request, answers: Answers) -> Looked:
    """What one policy says to a request."""
    if policy.closed:
        return Looked(level, policy, Verdict.DENY, Reason.INVALID)
    if request.unread:
        return Looked(level, policy, Verdict.DENY, Reason.UNREAD)
    asked = policy.asks.match(request) if policy.asks.all else None
    if asked is not None:
        answer = answers.get(policy.reference)
        if answer is not Verdict.ALLOW:
            reason = Reason.UNREACHABLE if answer is None else Reason.REFUSED
            return Looked(level, policy, Verdict.DENY, reason, asked)
    granted = policy.allows.match(request)
    if granted is None:
        return Looked(level, policy, Verdict.DENY, Reason.NO_RULE)
    if asked is not None:
        return Looked(level, policy, Verdict.ALLOW, Reason.AUTHORIZED, asked)
    reason = Reason.NOT_SELECTED if policy.asks.all and granted.label == "spec" else Reason.GRANTED
    return Looked(level, policy, Verdict.ALLOW, reason, granted)
