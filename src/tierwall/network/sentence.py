"""Puts a decision about a connection into one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from tierwall.core.outcome import CONDITIONAL, DENY, Outcome
from tierwall.core.verdict import Verdict
from tierwall.core.words import join_names
from tierwall.network.detail import NOT_APPLICABLE, DirectionDecision, NetworkDetail, decided_by
from tierwall.network.model.matching import domain_names
from tierwall.network.model.rules import EGRESS, NetworkRule, RuleAction, TieredPolicy

_DENY, _CONDITIONAL = Verdict.DENY, Verdict.CONDITIONAL


def sentence(detail: NetworkDetail) -> str:
    """Say whether the connection is allowed, and what decided."""
    connection = f"{detail.destination} on {detail.protocol} port {detail.port}"
    decisions = (detail.egress, detail.ingress)
    if detail.source is detail.destination:
        return f"{detail.source} can reach itself on {detail.protocol} port {detail.port}: no policy applies to that"
    verdict = detail.verdict
    if verdict is _DENY:
        reasons = [_denial(decision) for decision in decisions if decision.outcome.verdict is DENY]
        return f"{detail.source} cannot reach {connection}: {' and '.join(reasons)}"
    if verdict is _CONDITIONAL:
        conditions = [_condition(decision.outcome) for decision in decisions if decision.outcome.verdict is CONDITIONAL]
        return f"{detail.source} can reach {connection} {' and '.join(conditions)}"
    if not detail.egress.outcome.by and not detail.ingress.outcome.by:
        return f"{detail.source} can reach {connection}: no policy decides this, so the default allows it"
    reasons = [reason for decision in decisions if (reason := _permission(decision))]
    return f"{detail.source} can reach {connection}: {' and '.join(reasons)}"


def shadow_sentence(policies: Sequence[str], detail: NetworkDetail) -> str:
    """Say how the connection would be decided if the policies in shadow mode were in force."""
    single = len(policies) == 1
    lead = f"{join_names(policies)} {'is' if single else 'are'} in shadow mode"
    return f"{lead}; with {'it' if single else 'them'} in force {sentence(detail)}"


def _denial(decision: DirectionDecision) -> str:
    isolating = [part for part in decision.outcome.by if isinstance(part, TieredPolicy)]
    if isolating:
        verb = "isolates" if len(isolating) == 1 else "isolate"
        whose = "its source" if decision.direction is EGRESS else "the destination"
        policies = join_names([str(policy.reference) for policy in isolating])
        return f"{policies} {verb} {whose} for {decision.direction} and no rule allows it"
    return f"{_rules(decision.outcome)} denies its {decision.direction}"


def _permission(decision: DirectionDecision) -> str:
    outcome = decision.outcome
    if outcome.verdict is NOT_APPLICABLE.verdict:
        return ""
    if not outcome.by:
        return f"no policy decides its {decision.direction}"
    return f"{_rules(outcome)} {'allows' if len(outcome.by) == 1 else 'allow'} its {decision.direction}"


def _condition(outcome: Outcome) -> str:
    names = outcome.conditions
    actions = {part.action for part in outcome.by if isinstance(part, NetworkRule) and domain_names(part)}
    lead = "depending on whether its address belongs to"
    if actions == {RuleAction.ALLOW}:
        lead = "only if its address belongs to"
    elif actions == {RuleAction.DENY}:
        lead = "unless its address belongs to"
    which = "one of the domains " if len(names) > 1 else "the domain "
    return f"{lead} {which}{join_names([f'`{name}`' for name in names])} ({_rules(outcome)})"


def _rules(outcome: Outcome) -> str:
    return join_names([decider.short for decider in decided_by(outcome)])
