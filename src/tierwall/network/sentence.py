"""A decision in plain words: one sentence, and the walk through the tiers on one line a direction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tierwall.core.verdict import Verdict
from tierwall.network.decide import Decision, Judgement, Looked
from tierwall.network.model.matching import domains
from tierwall.network.model.rules import Action, Direction, Rule, Tier
from tierwall.network.outcome import Outcome, settled

# A sentence names this many rules and counts the rest; the document names them all.
MOST_NAMED = 3


def sentence(decision: Decision) -> str:
    """Whether the connection passes, and what settled it."""
    connection = f"{decision.destination} on {decision.protocol} port {decision.port}"
    egress, ingress = decision.egress.outcome, decision.ingress.outcome
    if decision.source is decision.destination:
        return (
            f"{decision.source} can reach itself on {decision.protocol} port {decision.port}: no policy is about that"
        )
    if decision.verdict is Verdict.DENY:
        reasons = [_denial(one) for one in (decision.egress, decision.ingress) if one.outcome.verdict is Verdict.DENY]
        return f"{decision.source} cannot reach {connection}: {' and '.join(reasons)}"
    if decision.verdict is Verdict.CONDITIONAL:
        conditions = [_condition(one) for one in (egress, ingress) if one.verdict is Verdict.CONDITIONAL]
        return f"{decision.source} can reach {connection} {' and '.join(conditions)}"
    if not egress.by and not ingress.by:
        return f"{decision.source} can reach {connection}: no policy decides this, so the default allows it"
    reasons = [_permission(one) for one in (decision.egress, decision.ingress)]
    return f"{decision.source} can reach {connection}: {' and '.join(reason for reason in reasons if reason)}"


def walk(judgement: Judgement) -> str:
    """`admin: AdminNetworkPolicy/deny-all egress[0] passed → namespace: NetworkPolicy/shop/web allowed`."""
    if judgement.outcome.verdict is Verdict.NOT_APPLICABLE:
        return "not under policy"
    return " → ".join(_stations(judgement.looked))


def _stations(looked: Sequence[Looked]) -> Iterator[str]:
    silent = 0
    for decider, word in looked:
        if word == "no match":
            silent += 1
            continue
        if silent:
            yield _passed_over(silent)
            silent = 0
        if decider is None:
            yield f"default: {word}"
        else:
            entry = settled(decider)
            rule = "" if entry.rule == "spec" else f" {entry.rule}"
            yield f"{decider.tier.lower()}: {entry.policy}{rule} {word}"
    if silent:
        yield _passed_over(silent)


def _passed_over(number: int) -> str:
    return f"{number} {'policy' if number == 1 else 'policies'} without a rule for it"


def _denial(judgement: Judgement) -> str:
    outcome = judgement.outcome
    if outcome.tier is Tier.NAMESPACE:
        policies = names([str(settled(one).policy) for one in outcome.by])
        verb = "isolates" if len(outcome.by) == 1 else "isolate"
        whose = "its source" if judgement.direction is Direction.EGRESS else "the destination"
        return f"{policies} {verb} {whose} for {judgement.direction} and no rule allows it"
    return f"{_rules(outcome)} denies its {judgement.direction}"


def _permission(judgement: Judgement) -> str:
    outcome = judgement.outcome
    if outcome.verdict is Verdict.NOT_APPLICABLE:
        return ""
    if not outcome.by:
        return f"no policy decides its {judgement.direction}"
    return f"{_rules(outcome)} {'allows' if len(outcome.by) == 1 else 'allow'} its {judgement.direction}"


def _condition(outcome: Outcome) -> str:
    asked = outcome.domains
    actions = {one.action for one in outcome.by if isinstance(one, Rule) and domains(one)}
    lead = "depending on whether its address belongs to"
    if actions == {Action.ALLOW}:
        lead = "only if its address belongs to"
    elif actions == {Action.DENY}:
        lead = "unless its address belongs to"
    which = "one of the domains " if len(asked) > 1 else "the domain "
    return f"{lead} {which}{names([f'`{name}`' for name in asked])} ({_rules(outcome)})"


def _rules(outcome: Outcome) -> str:
    return names([str(settled(one)) for one in outcome.by])


def names(texts: Sequence[str]) -> str:
    """The first few, and how many more there are: `a, b, c and 2 more`."""
    shown = list(texts[:MOST_NAMED])
    if len(texts) > MOST_NAMED:
        shown.append(f"{len(texts) - MOST_NAMED} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
