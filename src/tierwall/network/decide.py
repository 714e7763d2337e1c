"""Deciding one connection: per direction Admin, then NetworkPolicy, then Baseline, then the default (KEP-2091).

The walk is the loop of `core.stack`, asked about one case; `model.stack` has the tiers and how they combine. Both
directions are always judged, each on its own. An end that is not under policy is not judged, nor is a pod that talks
to itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from tierwall.core.answer import DEFAULT, Decider, Reason, deciders
from tierwall.core.outcome import CONDITIONAL, DENY, Claim, Outcome
from tierwall.core.stack import Combining, Tier, fall
from tierwall.core.verdict import StepVerdict, Verdict
from tierwall.network.model.ends import End
from tierwall.network.model.matching import Match, covered, domains, rule_matches
from tierwall.network.model.model import Model
from tierwall.network.model.rules import Direction, Policy, Rule, claimed

# Looking up a member of an enum takes longer than comparing with it, and every decision does so many times.
_YES, _MAYBE, _FIRST_MATCH, _EGRESS, _INGRESS = (
    Match.YES,
    Match.MAYBE,
    Combining.FIRST_MATCH,
    Direction.EGRESS,
    Direction.INGRESS,
)
_ALLOW, _DENY, _CONDITIONAL = Verdict.ALLOW, Verdict.DENY, Verdict.CONDITIONAL
_NO_MATCH, _RULE_MATCHED, _NO_RULE_MATCHED = StepVerdict.NO_MATCH, Reason.RULE_MATCHED, Reason.NO_RULE_MATCHED

NOT_APPLICABLE = Outcome(StepVerdict.NOT_APPLICABLE, None)
# Who settled something: a rule, a policy as a whole where it isolates, or None for the default.
Settler: TypeAlias = Rule | Policy | None


class Reported(Struct, frozen=True):
    """Who settled a direction by the word of an engine, which knows policies by name only."""

    decider: Decider


class Packet(Struct, frozen=True):
    """A packet that an engine let pass, or that a rule of its table dropped."""

    source: str
    destination: str
    # Who dropped it; nobody if it arrived.
    dropped_by: tuple[Decider, ...] = ()


# Something that was looked at on the way, and what came of it.
Looked: TypeAlias = tuple[Settler, StepVerdict, Reason]


class Judgement(Struct, frozen=True, eq=False):
    """One direction: how it was settled and what was looked at on the way."""

    direction: Direction
    outcome: Outcome
    looked: tuple[Looked, ...] = ()

    @property
    def verdict(self) -> StepVerdict:
        """The verdict of this direction; `NotApplicable` where that end is not under policy."""
        return self.outcome.verdict

    @property
    def tier(self) -> str | None:
        """The tier that settled it."""
        return self.outcome.tier

    @property
    def decided_by(self) -> tuple[Decider, ...]:
        """Who settled it; nobody where that end is not under policy."""
        return decided_by(self.outcome)


class Ends(Struct, frozen=True):
    """Sources and destinations that fare alike."""

    sources: tuple[str, ...]
    destinations: tuple[str, ...]
    verdict: Verdict
    decided_by: tuple[Decider, ...]


class Shadow(Struct, frozen=True, eq=False):
    """What the policies in shadow mode that a connection meets would change about it."""

    policies: tuple[str, ...]
    detail: NetworkDetail
    sentence: str


class NetworkDetail(Struct, frozen=True, eq=False):
    """A whole connection: both directions, and what they come to."""

    source: End
    destination: End
    protocol: str
    port: int
    egress: Judgement
    ingress: Judgement
    shadow: Shadow | None = None
    # What an engine saw; nothing where only the library was asked.
    packets: tuple[Packet, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Allow only if both directions let the connection pass."""
        return both(self.egress.outcome.verdict, self.ingress.outcome.verdict)

    def other_end(self, direction: Direction) -> End:
        """The end that is the peer in one direction."""
        return self.destination if direction is _EGRESS else self.source

    @property
    def decided_by(self) -> tuple[Decider, ...]:
        """Who settled it: egress first, each once."""
        return deciders((*self.egress.decided_by, *self.ingress.decided_by))

    @property
    def domains(self) -> tuple[str, ...]:
        """The domain names that the verdict hangs on."""
        return tuple(sorted({*self.egress.outcome.conditions, *self.ingress.outcome.conditions}))

    @property
    def ends(self) -> tuple[Ends, ...]:
        """Who may reach whom, by sets of ends that fare alike."""
        return (Ends((str(self.source),), (str(self.destination),), self.verdict, self.decided_by),)


def decide(model: Model, source: End, destination: End, protocol: str, port: int) -> NetworkDetail:
    """May `source` open a connection to `destination`?"""
    if source is destination:
        return NetworkDetail(source, destination, protocol, port, *_NOT_JUDGED)
    where = destination, protocol, port, model.node_addresses
    egress, ingress = _NOT_JUDGED
    if source.under_policy:
        egress = _judge(model, _EGRESS, (source, destination, *where))
    if destination.under_policy:
        ingress = _judge(model, _INGRESS, (destination, source, *where))
    return NetworkDetail(source, destination, protocol, port, egress, ingress)


def both(egress: StepVerdict, ingress: StepVerdict) -> Verdict:
    """The verdict of the whole connection: it passes only if both directions let it."""
    if egress is DENY or ingress is DENY:
        return _DENY
    return _CONDITIONAL if egress is CONDITIONAL or ingress is CONDITIONAL else _ALLOW


def decided_by(outcome: Outcome) -> tuple[Decider, ...]:
    """The entries of `decidedBy` for one direction; one that is not under policy adds nothing."""
    if outcome is NOT_APPLICABLE:
        return ()
    return tuple(DEFAULT if settler is None else settler.decider for settler in outcome.by) or (DEFAULT,)


_NOT_JUDGED = Judgement(Direction.EGRESS, NOT_APPLICABLE), Judgement(Direction.INGRESS, NOT_APPLICABLE)


def _judge(model: Model, direction: Direction, connection: Any) -> Judgement:
    walk = _Walk(direction, connection)
    ((outcome, _),) = fall(model.stack(connection[0], direction), 1, walk.ask, True, walk.watch)
    return Judgement(direction, outcome, tuple(walk.looked))


class _Walk:
    """One connection's way through the tiers of one direction, noting what it looks at."""

    __slots__ = ("asked", "connection", "direction", "looked", "tier")

    def __init__(self, direction: Direction, connection: Any) -> None:
        self.direction = direction
        self.connection = connection
        self.looked: list[Looked] = []
        self.tier: Tier[Policy] | None = None
        # The domain names that uncertain rules of this tier have asked about.
        self.asked: set[str] = set()

    def ask(self, tier: Tier[Policy], policy: Policy) -> Sequence[Claim]:
        """The claims of one policy, up to the one that takes the case if the first match does."""
        claims: list[Claim] = []
        looked, connection = self.looked, self.connection
        first = tier.combining is _FIRST_MATCH
        before = len(looked)
        for rule in policy.rules(self.direction) or ():
            match = rule_matches(rule, *connection)
            if match is _YES:
                verdict = claimed(rule.action)
                looked.append((rule, verdict, Reason.FAILS_CLOSED if rule.closed else _RULE_MATCHED))
                claims.append(Claim(rule, verdict, 1))
                if first:
                    return claims
            elif match is _MAYBE and self._is_news(tier, names := domains(rule)):
                verdict = claimed(rule.action)
                looked.append((rule, verdict, Reason.DOMAIN_MAY_MATCH))
                claims.append(Claim(rule, verdict, 0, 1, names))
            elif rule.closed:
                looked.append((rule, StepVerdict.NO_MATCH, Reason.FAILS_CLOSED))
        if first and len(looked) == before:
            looked.append((policy, _NO_MATCH, _NO_RULE_MATCHED))
        return claims

    def _is_news(self, tier: Tier[Policy], names: tuple[str, ...]) -> bool:
        """Whether an uncertain rule asks about a domain that no rule of its tier has asked about."""
        if tier is not self.tier:
            self.tier, self.asked = tier, set()
        if all(covered(name, self.asked) for name in names):
            return False
        self.asked.update(names)
        return True

    def watch(self, tier: Tier[Policy], claim: Claim, surely: int, maybe: int) -> None:
        """Note isolation and the default, which are no rule's claims."""
        if claim.by is None:
            self.looked.append((None, claim.verdict, Reason.NO_POLICY))
        elif claim.by is tier.policies:
            self.looked += [(policy, claim.verdict, Reason.ISOLATED) for policy in tier.policies]
