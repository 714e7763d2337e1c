"""A decision about a connection in one plain sentence."""

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
    """Whether the connection passes, and what settled it."""
    connection = f"{detail.destination} on {detail.protocol} port {detail.port}"
    judgements = (detail.egress, detail.ingress)
    if detail.source is detail.destination:
        return f"{detail.source} can reach itself on {detail.protocol} port {detail.port}: no policy is about that"
    verdict = detail.verdict
    if verdict is _DENY:
        reasons = [_denial(judgement) for judgement in judgements if judgement.outcome.verdict is DENY]
        return f"{detail.source} cannot reach {connection}: {' and '.join(reasons)}"
    if verdict is _CONDITIONAL:
        conditions = [
            _condition(judgement.outcome) for judgement in judgements if judgement.outcome.verdict is CONDITIONAL
        ]
        return f"{detail.source} can reach {connection} {' and '.join(conditions)}"
    if not detail.egress.outcome.by and not detail.ingress.outcome.by:
        return f"{detail.source} can reach {connection}: no policy decides this, so the default allows it"
    reasons = [reason for judgement in judgements if (reason := _permission(judgement))]
    return f"{detail.source} can reach {connection}: {' and '.join(reasons)}"


def shadow_sentence(policies: Sequence[str], detail: NetworkDetail) -> str:
    """What would hold with the policies in shadow mode in force."""
    single = len(policies) == 1
    lead = f"{join_names(policies)} {'is' if single else 'are'} in shadow mode"
    return f"{lead}; with {'it' if single else 'them'} in force {sentence(detail)}"


def _denial(judgement: DirectionDecision) -> str:
    isolating = [settler for settler in judgement.outcome.by if isinstance(settler, TieredPolicy)]
    if isolating:
        verb = "isolates" if len(isolating) == 1 else "isolate"
        whose = "its source" if judgement.direction is EGRESS else "the destination"
        policies = join_names([str(policy.reference) for policy in isolating])
        return f"{policies} {verb} {whose} for {judgement.direction} and no rule allows it"
    return f"{_rules(judgement.outcome)} denies its {judgement.direction}"


def _permission(judgement: DirectionDecision) -> str:
    outcome = judgement.outcome
    if outcome.verdict is NOT_APPLICABLE.verdict:
        return ""
    if not outcome.by:
        return f"no policy decides its {judgement.direction}"
    return f"{_rules(outcome)} {'allows' if len(outcome.by) == 1 else 'allow'} its {judgement.direction}"


def _condition(outcome: Outcome) -> str:
    names = outcome.conditions
    actions = {settler.action for settler in outcome.by if isinstance(settler, NetworkRule) and domain_names(settler)}
    lead = "depending on whether its address belongs to"
    if actions == {RuleAction.ALLOW}:
        lead = "only if its address belongs to"
    elif actions == {RuleAction.DENY}:
        lead = "unless its address belongs to"
    which = "one of the domains " if len(names) > 1 else "the domain "
    return f"{lead} {which}{join_names([f'`{name}`' for name in names])} ({_rules(outcome)})"


def _rules(outcome: Outcome) -> str:
    return join_names([decider.short for decider in decided_by(outcome)])
