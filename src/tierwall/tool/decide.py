"""Decide one request: Gateway policies first, then Backend policies (AccessPolicy proposal, "Evaluation Flow").

docs/semantics.md#gateway-policies-come-first.

Within a level, policies are ordered by age and then `namespace/name`. Every policy must allow the request; the first
that does not ends the evaluation. Without any policy the request is allowed by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from msgspec import Struct

from tierwall.core.answer import Decider, Reason
from tierwall.core.outcome import RuleEffect
from tierwall.core.reference import Reference
from tierwall.core.stack import Stack, Tier, evaluate
from tierwall.core.verdict import StepVerdict, Verdict
from tierwall.tool.model import PolicyLevel
from tierwall.tool.request import ToolRequest
from tierwall.tool.rules import EVERY_RULE, AccessPolicy, AccessRule

# The answers of authorizers, by the policy that asks; an authorizer that is not listed is unreachable.
AuthorizerAnswers: TypeAlias = Mapping[Reference, Verdict]
NO_AUTHORIZERS: AuthorizerAnswers = {}
# Looking up an enum member costs as much as matching a rule.
_ALLOW, _DENY, _ALLOWED = StepVerdict.ALLOW, StepVerdict.DENY, Verdict.ALLOW
_RULE_MATCHED, _NO_RULE_MATCHED, _NOT_SELECTED = Reason.RULE_MATCHED, Reason.NO_RULE_MATCHED, Reason.NOT_SELECTED
# The effect of a policy on a request: a policy that allows it has none, so the next policy is evaluated.
NO_EFFECT: tuple[RuleEffect, ...] = ()
DENIAL = (RuleEffect(None, _DENY, 1),)


class PolicyEvaluation(Struct, frozen=True, eq=False):
    """The evaluation of one policy: its verdict, the reason, and the rule that settled it."""

    level: str
    policy: AccessPolicy
    verdict: StepVerdict
    reason: Reason
    rule: AccessRule | None = None

    @property
    def decider(self) -> Decider:
        """The policy and the rule as answers name them; a policy may deny as a whole."""
        rule = self.rule or EVERY_RULE
        return Decider(self.policy.reference, rule.label, rule.name)


class ToolDecision(Struct, frozen=True, eq=False):
    """The decision on a request: the verdict, and every policy that was evaluated, in order."""

    request: ToolRequest
    verdict: Verdict
    evaluated: tuple[PolicyEvaluation, ...] = ()

    @property
    def level(self) -> PolicyLevel:
        """The level of the policy that was evaluated last (docs/semantics.md#the-level-of-a-decision)."""
        return PolicyLevel(self.evaluated[-1].level) if self.evaluated else PolicyLevel.DEFAULT


def decide(
    stack: Stack[AccessPolicy], request: ToolRequest, external_auth: AuthorizerAnswers = NO_AUTHORIZERS
) -> ToolDecision:
    """Decide whether a request may pass."""
    evaluated: list[PolicyEvaluation] = []

    def ask(tier: Tier[AccessPolicy], policy: AccessPolicy) -> tuple[RuleEffect, ...]:
        evaluation = evaluate_policy(tier.name, policy, request, external_auth)
        evaluated.append(evaluation)
        return NO_EFFECT if evaluation.verdict is _ALLOW else DENIAL

    ((outcome, _),) = evaluate(stack, 1, ask, False)
    verdict = Verdict.DENY if outcome.verdict is _DENY else Verdict.ALLOW
    return ToolDecision(request, verdict, tuple(evaluated))


def evaluate_policy(
    level: str, policy: AccessPolicy, request: ToolRequest, external_auth: AuthorizerAnswers
) -> PolicyEvaluation:
    """Evaluate one policy for a request."""
    if request.unreadable:
        return PolicyEvaluation(level, policy, _DENY, Reason.NOT_READ_AS_MCP)
    if policy.closed:
        return PolicyEvaluation(level, policy, _DENY, Reason.FAILS_CLOSED)
    # What no rule grants is not put to the authorizer: its answer could not change the verdict.
    granting_rule = policy.allows.match(request)
    if granting_rule is None:
        return PolicyEvaluation(level, policy, _DENY, _NO_RULE_MATCHED)
    asking_rule = policy.asks.match_any(request) if policy.asks.all else None
    if asking_rule is not None:
        answer = external_auth.get(policy.reference)
        if answer is _ALLOWED:
            return PolicyEvaluation(level, policy, _ALLOW, Reason.AUTHORIZER_ALLOWED, asking_rule)
        reason = Reason.AUTHORIZER_UNREACHABLE if answer is None else Reason.AUTHORIZER_DENIED
        return PolicyEvaluation(level, policy, _DENY, reason, asking_rule)
    reason = _NOT_SELECTED if policy.only_asks else _RULE_MATCHED
    return PolicyEvaluation(level, policy, _ALLOW, reason, granting_rule)
