"""Notes about who would have decided a connection otherwise, and who still may (docs/network.md#what-else-is-said).

Two readers need more than the decision: the author of a NetworkPolicy that an admin rule overrides, and everybody whose
cluster has admin policies of equal priority, of which other implementations may ask another one first.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from tierwall.core.outcome import ALLOW, CONDITIONAL, DENY
from tierwall.core.stack import Stack, Tier
from tierwall.core.verdict import StepVerdict
from tierwall.core.words import join_names
from tierwall.network.decide import Connection, decide_direction
from tierwall.network.detail import ConnectionDecision, DirectionDecision
from tierwall.network.model.matching import PeerMatch, rule_matches
from tierwall.network.model.model import NetworkModel
from tierwall.network.model.rules import INGRESS, NetworkRule, TieredPolicy, TierName, tier_isolates

# The most policies of the same priority that are tried.
MAX_RIVALS = 20
_VERBS = {ALLOW: "allow", DENY: "deny"}
# Looking up an enum member takes longer than comparing with it, and every question does so many times.
_NO_MATCH, _NAMESPACE, _ADMIN, _YES = StepVerdict.NO_MATCH, TierName.NAMESPACE, TierName.ADMIN, PeerMatch.YES


def with_notes(model: NetworkModel, decision: ConnectionDecision) -> ConnectionDecision:
    """Return a decision with notes about policies that would have decided otherwise, or may."""
    egress, ingress = _noted(model, decision, decision.egress), _noted(model, decision, decision.ingress)
    if egress is decision.egress and ingress is decision.ingress:
        return decision
    return structs.replace(decision, egress=egress, ingress=ingress)


def _noted(model: NetworkModel, decision: ConnectionDecision, direction: DirectionDecision) -> DirectionDecision:
    winner = _winner(direction)
    if winner is None:
        return direction
    ends = decision.source, decision.destination
    subject, other = reversed(ends) if direction.direction is INGRESS else ends
    connection = subject, other, decision.destination, decision.protocol, decision.port, model.node_addresses
    stack = model.stack(subject, direction.direction)
    notes = tuple(_overridden(stack, direction, connection))
    if winner.policy in model.tied_policies:
        notes += tuple(_tied(stack, direction, connection, winner))
    return structs.replace(direction, notes=notes) if notes else direction


def _winner(direction: DirectionDecision) -> NetworkRule | None:
    """Return the first rule that matched in a tier in which the first match decides."""
    for part, verdict, _ in direction.consulted:
        if verdict is not _NO_MATCH and type(part) is NetworkRule and part.tier is not _NAMESPACE:
            return part
    return None


def _overridden(stack: Stack[TieredPolicy], decision: DirectionDecision, connection: Connection) -> Iterator[str]:
    """Name the NetworkPolicies that would have decided otherwise if no admin rule had decided."""
    if decision.tier != _ADMIN or decision.verdict not in _VERBS:
        return
    for tier in stack:
        # Looking for a rule that allows costs less than a decision, and mostly there is nothing to say.
        if tier_isolates(tier) and _allows(tier, decision, connection) is not (decision.verdict is ALLOW):
            below = decide_direction((tier,), decision.direction, connection)
            names = join_names([decider.short for decider in below.decided_by])
            yield f"{names} would {_VERBS[below.verdict]} this, but an admin policy comes first"


def _allows(tier: Tier[TieredPolicy], decision: DirectionDecision, connection: Connection) -> bool:
    for policy in tier.policies:
        for rule in policy.rules(decision.direction) or ():
            if rule_matches(rule, *connection) is _YES:
                return True
    return False


def _tied(
    stack: Stack[TieredPolicy], decision: DirectionDecision, connection: Connection, winner: NetworkRule
) -> Iterator[str]:
    """Name policies of the winner's priority that would lead to another verdict if they were asked first."""
    for number, tier in enumerate(stack):
        first = next((policy for policy in tier.policies if policy.resource is winner.resource), None)
        if tier.name != winner.tier or first is None:
            continue
        rivals = [
            policy
            for policy in tier.policies
            if policy.priority == first.priority and policy is not first and policy.has_priority
        ]
        for rival in rivals[:MAX_RIVALS]:
            policies = (rival, *(policy for policy in tier.policies if policy.priority >= first.priority))
            other = (*stack[:number], Tier(tier.name, policies, tier.combining), *stack[number + 1 :])
            instead = decide_direction(other, decision.direction, connection)
            if instead.verdict is not decision.verdict:
                rule = next(part for part, verdict, _ in instead.consulted if part is not None)
                verb = _VERBS.get(instead.verdict, "judge")
                way = " otherwise" if instead.verdict is CONDITIONAL else ""
                yield (
                    f"{rule.decider.short} has the same priority as {winner.policy}: "
                    f"another implementation may {verb} this{way}"
                )
