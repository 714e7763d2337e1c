"""Puts the decisions about a question into one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tierwall.core.outcome import CONDITIONAL, DENY, Outcome
from tierwall.core.verdict import Verdict
from tierwall.core.words import MAX_NAMED, join_names
from tierwall.network.detail import (
    NOT_APPLICABLE,
    ConnectionDecision,
    DirectionDecision,
    EndpointGroup,
    NetworkDetail,
    decided_by,
)
from tierwall.network.ends import OUTSIDE
from tierwall.network.model.matching import domain_names
from tierwall.network.model.rules import EGRESS, NetworkRule, RuleAction, TieredPolicy

_DENY, _CONDITIONAL = Verdict.DENY, Verdict.CONDITIONAL
# A sentence says this much about ends that are decided differently; the document says everything.
MAX_GROUPS = 4
# Ranges of addresses that are easier to read as words.
_WHOLE = {
    "0.0.0.0-255.255.255.255": "IPv4 addresses",
    "::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff": "IPv6 addresses",
}


def sentence(detail: NetworkDetail) -> str:
    """Say whether the connections are allowed, and what decided. If they differ, say for which ends it is what."""
    number = f"`{detail.port}`" if isinstance(detail.port, str) else detail.port
    port = f"on {detail.protocol} port {number}"
    if detail.target_ports and detail.target_ports != (detail.port,):
        port += f" (port {join_names([str(number) for number in detail.target_ports])} of its pods)"
    if len(detail.ends) == 1:
        decision = detail.ends[0].decision
        if decision.source is decision.destination and not decision.source.ended:
            return f"{detail.source} can reach itself {port}: no policy applies to that"
        reason = _reason(decision)
        start = f"{detail.source} {_can(decision.verdict)} reach {detail.destination} {port}"
        return f"{start} {reason}" if decision.verdict is _CONDITIONAL else f"{start}: {reason}"
    lead = f"{detail.source} {_can(detail.verdict)} reach {detail.destination} {port}"
    if detail.verdict is _CONDITIONAL:
        lead += " only in part"
    parts = list(_parts(detail.ends[:MAX_GROUPS]))
    if len(detail.ends) > len(parts):
        parts.append(f"{len(detail.ends) - len(parts)} more groups of ends differ")
    return f"{lead}: {'; '.join(parts)}"


def _parts(groups: Sequence[EndpointGroup]) -> Iterator[str]:
    """Say for each group how it is decided; an end that is the same in all of them is left out."""
    same_source = len({group.sources for group in groups}) == 1
    same_destination = len({group.destinations for group in groups}) == 1
    for group in groups:
        source = "it" if same_source else named_ends(group.sources)
        connection = f"{source} {_can(group.verdict)}"
        if not same_destination or same_source:
            connection += f" reach {named_ends(group.destinations)}"
        reason = _reason(group.decision)
        yield f"{connection} {reason}" if group.verdict is _CONDITIONAL else f"{connection} ({reason})"


def named_ends(names: Sequence[str], limit: int = MAX_NAMED) -> str:
    """Name pods and ranges of addresses: all addresses of a family in words, and those of both as `outside`."""
    if names == tuple(_WHOLE):
        return OUTSIDE
    return join_names([_WHOLE.get(name, name) for name in names], limit)


def _can(verdict: Verdict) -> str:
    return "cannot" if verdict is _DENY else "can"


def _reason(decision: ConnectionDecision) -> str:
    """Say why a connection is decided as it is, or on what it depends."""
    directions = (decision.egress, decision.ingress)
    if decision.source.ended or decision.destination.ended:
        ended = dict.fromkeys(end for end in (decision.source, decision.destination) if end.ended)
        return " and ".join(f"{end} has ended ({end.ended})" for end in ended)
    verdict = decision.verdict
    if verdict is _DENY:
        return _denials([direction for direction in directions if direction.outcome.verdict is DENY])
    if verdict is _CONDITIONAL:
        outcomes = (direction.outcome for direction in directions)
        return " and ".join(_condition(outcome) for outcome in outcomes if outcome.verdict is CONDITIONAL)
    if not decision.egress.outcome.by and not decision.ingress.outcome.by:
        return "no policy decides this, so the default allows it"
    return " and ".join(reason for direction in directions if (reason := _permission(direction)))


def shadow_sentence(policies: Sequence[str], detail: NetworkDetail) -> str:
    """Say how the connection would be decided if the policies in shadow mode were in force."""
    single = len(policies) == 1
    lead = f"{join_names(policies)} {'is' if single else 'are'} in shadow mode"
    return f"{lead}; with {'it' if single else 'them'} in force {sentence(detail)}"


def _denials(decisions: Sequence[DirectionDecision]) -> str:
    """Say what denies each of these directions."""
    isolations = [_isolation(decision) for decision in decisions]
    if len(isolations) > 1 and all(isolations):
        return f"{', '.join(isolations)}, and no rule allows it"
    reasons = (
        f"{isolation} and no rule allows it"
        if isolation
        else f"{_rules(decision.outcome)} denies its {decision.direction}"
        for decision, isolation in zip(decisions, isolations, strict=True)
    )
    return (", and " if any(isolations) else " and ").join(reasons)


def _isolation(decision: DirectionDecision) -> str:
    """Name the policies that isolate an end; empty if a rule denies the direction."""
    isolating = [part for part in decision.outcome.by if isinstance(part, TieredPolicy)]
    if not isolating:
        return ""
    verb = "isolates" if len(isolating) == 1 else "isolate"
    end = "source" if decision.direction is EGRESS else "destination"
    return f"{join_names([str(policy.reference) for policy in isolating])} {verb} the {end} for {decision.direction}"


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
