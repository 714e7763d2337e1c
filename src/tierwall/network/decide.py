"""Deciding one connection: per direction Admin, then NetworkPolicy, then Baseline, then the default (KEP-2091).

The walk is the loop of `core.stack`, asked about one case; `model.stack` has the tiers and how they combine. Both
directions are always judged, each on its own. An end that is not under policy is not judged, nor is a pod that talks
to itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from tierwall.core.answer import Reason
from tierwall.core.outcome import RuleEffect
from tierwall.core.stack import CombiningRule, Tier, evaluate
from tierwall.core.verdict import StepVerdict
from tierwall.network.detail import NOT_APPLICABLE, ConsultedPart, DirectionDecision, NetworkDetail
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.matching import NodeAddresses, PeerMatch, domain_names, is_covered_domain, rule_matches
from tierwall.network.model.model import NetworkModel
from tierwall.network.model.rules import EGRESS, INGRESS, Direction, TieredPolicy, claimed_verdict

# Looking up a member of an enum takes longer than comparing with it, and every decision does so many times.
_YES, _MAYBE, _FIRST_MATCH = PeerMatch.YES, PeerMatch.MAYBE, CombiningRule.FIRST_MATCH
_NO_MATCH, _RULE_MATCHED, _NO_RULE_MATCHED = StepVerdict.NO_MATCH, Reason.RULE_MATCHED, Reason.NO_RULE_MATCHED

_NOT_JUDGED = DirectionDecision(EGRESS, NOT_APPLICABLE), DirectionDecision(INGRESS, NOT_APPLICABLE)
# A connection as one direction sees it, in the order that `rule_matches` takes it: the subject, the other end, the
# destination, protocol, port, and the addresses of nodes.
Connection: TypeAlias = tuple[Endpoint, Endpoint, Endpoint, str, int, NodeAddresses]


def decide(model: NetworkModel, source: Endpoint, destination: Endpoint, protocol: str, port: int) -> NetworkDetail:
    """May `source` open a connection to `destination`?"""
    if source is destination:
        return NetworkDetail(source, destination, protocol, port, *_NOT_JUDGED)
    where = destination, protocol, port, model.node_addresses
    egress, ingress = _NOT_JUDGED
    if source.under_policy:
        egress = _judge(model, EGRESS, (source, destination, *where))
    if destination.under_policy:
        ingress = _judge(model, INGRESS, (destination, source, *where))
    return NetworkDetail(source, destination, protocol, port, egress, ingress)


def _judge(model: NetworkModel, direction: Direction, connection: Connection) -> DirectionDecision:
    walk = _DirectionWalk(direction, connection)
    ((outcome, _),) = evaluate(model.stack(connection[0], direction), 1, walk.ask, True, walk.watch)
    return DirectionDecision(direction, outcome, tuple(walk.looked))


class _DirectionWalk:
    """One connection's way through the tiers of one direction, noting what it looks at."""

    __slots__ = ("asked", "connection", "direction", "looked", "tier")

    def __init__(self, direction: Direction, connection: Connection) -> None:
        self.direction = direction
        self.connection = connection
        self.looked: list[ConsultedPart] = []
        self.tier: Tier[TieredPolicy] | None = None
        # The domain names that uncertain rules of this tier have asked about.
        self.asked: set[str] = set()

    def ask(self, tier: Tier[TieredPolicy], policy: TieredPolicy) -> Sequence[RuleEffect]:
        """The claims of one policy, up to the one that takes the case if the first match does."""
        claims: list[RuleEffect] = []
        looked, connection = self.looked, self.connection
        first = tier.combining is _FIRST_MATCH
        before = len(looked)
        for rule in policy.rules(self.direction) or ():
            match = rule_matches(rule, *connection)
            if match is _YES:
                verdict = claimed_verdict(rule.action)
                looked.append((rule, verdict, Reason.FAILS_CLOSED if rule.closed else _RULE_MATCHED))
                claims.append(RuleEffect(rule, verdict, 1))
                if first:
                    return claims
            elif match is _MAYBE and self._is_news(tier, names := domain_names(rule)):
                verdict = claimed_verdict(rule.action)
                looked.append((rule, verdict, Reason.DOMAIN_MAY_MATCH))
                claims.append(RuleEffect(rule, verdict, 0, 1, names))
            elif rule.closed:
                looked.append((rule, StepVerdict.NO_MATCH, Reason.FAILS_CLOSED))
        if first and len(looked) == before:
            looked.append((policy, _NO_MATCH, _NO_RULE_MATCHED))
        return claims

    def _is_news(self, tier: Tier[TieredPolicy], names: tuple[str, ...]) -> bool:
        """Whether an uncertain rule asks about a domain that no rule of its tier has asked about."""
        if tier is not self.tier:
            self.tier, self.asked = tier, set()
        if all(is_covered_domain(name, self.asked) for name in names):
            return False
        self.asked.update(names)
        return True

    def watch(self, tier: Tier[TieredPolicy], claim: RuleEffect, surely: int, maybe: int) -> None:
        """Note isolation and the default, which no rule claims."""
        if claim.by is None:
            self.looked.append((None, claim.verdict, Reason.NO_POLICY))
        elif claim.by is tier.policies:
            self.looked += [(policy, claim.verdict, Reason.ISOLATED) for policy in tier.policies]
