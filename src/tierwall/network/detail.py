"""What only answers and events of the network plane have.

An answer: both directions, and what they come to (docs/reference/decision-document.md#keys-of-one-plane); words and
steps are made from it in `question`. An engine: packets and connections that it saw, and how often each rule was hit.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from tierwall.core.answer import DEFAULT, Decider, Reason, unique_deciders
from tierwall.core.outcome import CONDITIONAL, DENY, Outcome
from tierwall.core.verdict import StepVerdict, Verdict
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.rules import Direction, NetworkRule, RuleAction, TieredPolicy

# Looking up a member of an enum takes longer than comparing with it, and every decision does so many times.
_ALLOW, _DENY, _CONDITIONAL = Verdict.ALLOW, Verdict.DENY, Verdict.CONDITIONAL

# How a direction is settled whose end is not under policy.
NOT_APPLICABLE = Outcome(StepVerdict.NOT_APPLICABLE, None)
# Who settled something: a rule, a policy as a whole where it isolates, or None for the default.
DecidingPart: TypeAlias = NetworkRule | TieredPolicy | None


class ReportedDecider(Struct, frozen=True):
    """Who settled a direction by the word of an engine, which knows policies by name only."""

    decider: Decider


class ObservedPacket(Struct, frozen=True):
    """A packet that an engine let pass, or that a rule of its table dropped."""

    source: str
    destination: str
    # Who dropped it; nobody if it arrived.
    dropped_by: tuple[Decider, ...] = ()


# Something that was looked at on the way, and what came of it.
ConsultedPart: TypeAlias = tuple[DecidingPart, StepVerdict, Reason]


class DirectionDecision(Struct, frozen=True, eq=False):
    """One direction: how it was settled and what was looked at on the way."""

    direction: Direction
    outcome: Outcome
    looked: tuple[ConsultedPart, ...] = ()

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


class EndpointGroup(Struct, frozen=True):
    """Sources and destinations that fare alike."""

    sources: tuple[str, ...]
    destinations: tuple[str, ...]
    verdict: Verdict
    decided_by: tuple[Decider, ...]


class ShadowDecision(Struct, frozen=True, eq=False):
    """What the policies in shadow mode that a connection meets would change about it."""

    policies: tuple[str, ...]
    detail: NetworkDetail
    sentence: str


class NetworkDetail(Struct, frozen=True, eq=False):
    """A whole connection: both directions, and what they come to."""

    source: Endpoint
    destination: Endpoint
    protocol: str
    port: int
    egress: DirectionDecision
    ingress: DirectionDecision
    shadow: ShadowDecision | None = None
    # What an engine saw; nothing where only the library was asked.
    packets: tuple[ObservedPacket, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Allow only if both directions let the connection pass."""
        return whole_verdict(self.egress.outcome.verdict, self.ingress.outcome.verdict)

    @property
    def decided_by(self) -> tuple[Decider, ...]:
        """Who settled it: egress first, each once."""
        return unique_deciders((*self.egress.decided_by, *self.ingress.decided_by))

    @property
    def domains(self) -> tuple[str, ...]:
        """The domain names that the verdict hangs on."""
        return tuple(sorted({*self.egress.outcome.conditions, *self.ingress.outcome.conditions}))

    @property
    def ends(self) -> tuple[EndpointGroup, ...]:
        """Who may reach whom, by sets of ends that fare alike."""
        return (EndpointGroup((str(self.source),), (str(self.destination),), self.verdict, self.decided_by),)


def whole_verdict(egress: StepVerdict, ingress: StepVerdict) -> Verdict:
    """The verdict of the whole connection: it passes only if both directions let it."""
    if egress is DENY or ingress is DENY:
        return _DENY
    return _CONDITIONAL if egress is CONDITIONAL or ingress is CONDITIONAL else _ALLOW


def decided_by(outcome: Outcome) -> tuple[Decider, ...]:
    """The entries of `decidedBy` for one direction; one that is not under policy adds nothing."""
    if outcome.verdict is NOT_APPLICABLE.verdict:
        return ()
    return tuple(DEFAULT if settler is None else settler.decider for settler in outcome.by) or (DEFAULT,)


class ObservedEndpoint(Struct, frozen=True):
    """One end of a connection as a packet shows it, and whose address it is; `port` is 0 where there is none."""

    ip: str
    port: int = 0
    namespace: str = ""
    pod: str = ""
    node: str = ""


class ObservedConnection(Struct, frozen=True):
    """The connection of an event: which direction was judged, and its ends. `Event.detail` on the network plane."""

    direction: Direction
    protocol: str
    source: ObservedEndpoint
    destination: ObservedEndpoint


class RuleHits(Struct, frozen=True, kw_only=True):
    """A rule and how many packets hit it; isolation is hit for all isolating policies together."""

    decided_by: tuple[Decider, ...]
    direction: Direction
    action: RuleAction
    shadow: bool
    packets: int
    bytes: int
