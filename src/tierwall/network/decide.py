"""Decides one connection: in each direction Admin, then NetworkPolicy, then Baseline, then the default (KEP-2091).

The loop over the tiers is the one of `core.stack`, here with a single case; `model.stack` has the tiers and how they
combine. Both directions are always decided, independently of each other. A direction does not apply if its subject is
not under policy, or if a pod connects to itself. A pod that has ended reaches nothing and is reached by nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from tierwall.core.answer import Reason
from tierwall.core.outcome import DENY, Outcome, RuleEffect
from tierwall.core.stack import CombiningRule, Stack, Tier, evaluate
from tierwall.core.verdict import StepVerdict
from tierwall.network.detail import NOT_APPLICABLE, ConnectionDecision, ConsultedPart, DirectionDecision
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.matching import NodeAddresses, PeerMatch, domain_names, is_covered_domain, rule_matches
from tierwall.network.model.model import NetworkModel
from tierwall.network.model.rules import EGRESS, INGRESS, Direction, TieredPolicy, action_verdict

# Looking up an enum member takes longer than comparing with it, and every decision does so many times.
_YES, _MAYBE, _FIRST_MATCH = PeerMatch.YES, PeerMatch.MAYBE, CombiningRule.FIRST_MATCH
_NO_MATCH, _RULE_MATCHED, _NO_RULE_MATCHED = StepVerdict.NO_MATCH, Reason.RULE_MATCHED, Reason.NO_RULE_MATCHED

_NOT_DECIDED = DirectionDecision(EGRESS, NOT_APPLICABLE), DirectionDecision(INGRESS, NOT_APPLICABLE)
_ENDED = tuple(
    DirectionDecision(direction, Outcome(DENY, None), ((None, DENY, Reason.POD_ENDED),))
    for direction in (EGRESS, INGRESS)
)
# A connection as one direction sees it, in the order of the parameters of `rule_matches`: the subject, the other
# endpoint, the destination, protocol, port, and the addresses of nodes.
Connection: TypeAlias = tuple[Endpoint, Endpoint, Endpoint, str, int, NodeAddresses]


def decide(
    model: NetworkModel, source: Endpoint, destination: Endpoint, protocol: str, port: int
) -> ConnectionDecision:
    """Decide whether `source` may open a connection to `destination`."""
    egress, ingress = _NOT_DECIDED
    if source.ended or destination.ended:
        egress = _ENDED[0] if source.ended or source.under_policy else egress
        ingress = _ENDED[1] if destination.ended or destination.under_policy else ingress
    elif source is not destination:
        rest = destination, protocol, port, model.node_addresses
        if source.under_policy:
            egress = decide_direction(model.stack(source, EGRESS), EGRESS, (source, destination, *rest))
        if destination.under_policy:
            ingress = decide_direction(model.stack(destination, INGRESS), INGRESS, (destination, source, *rest))
    return ConnectionDecision(source, destination, protocol, port, egress, ingress)


def decide_direction(stack: Stack[TieredPolicy], direction: Direction, connection: Connection) -> DirectionDecision:
    """Decide one direction of a connection by the tiers that apply to its subject."""
    walk = _DirectionWalk(direction, connection)
    ((outcome, _),) = evaluate(stack, 1, walk.ask, True, walk.watch)
    return DirectionDecision(direction, outcome, tuple(walk.consulted))


class _DirectionWalk:
    """The walk of one connection through the tiers of one direction; records the parts that it consults."""

    __slots__ = ("connection", "consulted", "direction", "tier", "tier_domains")

    def __init__(self, direction: Direction, connection: Connection) -> None:
        self.direction = direction
        self.connection = connection
        self.consulted: list[ConsultedPart] = []
        self.tier: Tier[TieredPolicy] | None = None
        # The domain names of the uncertain rules of this tier so far.
        self.tier_domains: set[str] = set()

    def ask(self, tier: Tier[TieredPolicy], policy: TieredPolicy) -> Sequence[RuleEffect]:
        """Return the effects of one policy, up to the first certain match in a tier where the first match decides."""
        effects: list[RuleEffect] = []
        consulted, connection = self.consulted, self.connection
        first = tier.combining is _FIRST_MATCH
        before = len(consulted)
        for rule in policy.rules(self.direction) or ():
            match = rule_matches(rule, *connection)
            if match is _YES:
                verdict = action_verdict(rule.action)
                consulted.append((rule, verdict, Reason.FAILS_CLOSED if rule.closed else _RULE_MATCHED))
                effects.append(RuleEffect(rule, verdict, 1))
                if first:
                    return effects
            elif match is _MAYBE and self._has_new_domain(tier, names := domain_names(rule)):
                verdict = action_verdict(rule.action)
                consulted.append((rule, verdict, Reason.DOMAIN_MAY_MATCH))
                effects.append(RuleEffect(rule, verdict, 0, 1, names))
            elif rule.closed:
                consulted.append((rule, StepVerdict.NO_MATCH, Reason.FAILS_CLOSED))
        if first and len(consulted) == before:
            consulted.append((policy, _NO_MATCH, _NO_RULE_MATCHED))
        return effects

    def _has_new_domain(self, tier: Tier[TieredPolicy], names: tuple[str, ...]) -> bool:
        """Whether an uncertain rule has a domain that no earlier rule of its tier covers."""
        if tier is not self.tier:
            self.tier, self.tier_domains = tier, set()
        if all(is_covered_domain(name, self.tier_domains) for name in names):
            return False
        self.tier_domains.update(names)
        return True

    def watch(self, tier: Tier[TieredPolicy], effect: RuleEffect, surely: int, maybe: int) -> None:
        """Record isolation and the default, which do not come from a rule."""
        if effect.by is None:
            self.consulted.append((None, effect.verdict, Reason.NO_POLICY))
        elif effect.by is tier.policies:
            self.consulted += [(policy, effect.verdict, Reason.ISOLATED) for policy in tier.policies]
