"""The parts of answers and events that only the network plane has.

An answer has the decisions of both directions and the combined verdict
(docs/reference/decision-document.md#keys-of-one-plane); `question` turns them into steps and a sentence. An engine
reports packets and connections that it observed, and how often each rule was hit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

from tierwall.core.answer import DEFAULT, Decider, Reason, unique_deciders
from tierwall.core.outcome import CONDITIONAL, DENY, Outcome
from tierwall.core.verdict import StepVerdict, Verdict
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.rules import Direction, NetworkRule, RuleAction, TieredPolicy

# INVARIANT: `gc=False` is safe because nothing that a decision refers to refers back to it.

# Looking up an enum member takes longer than comparing with it, and every decision does so many times.
_ALLOW, _DENY, _CONDITIONAL = Verdict.ALLOW, Verdict.DENY, Verdict.CONDITIONAL

# The outcome of a direction whose subject is not under policy.
NOT_APPLICABLE = Outcome(StepVerdict.NOT_APPLICABLE, None)
# What decides: a rule, a policy as a whole if it isolates, or None for the default.
DecidingPart: TypeAlias = NetworkRule | TieredPolicy | None


class ReportedDecider(Struct, frozen=True):
    """The decider that an engine reports for a direction; engines know policies only by name."""

    decider: Decider


class ObservedPacket(Struct, frozen=True):
    """A packet that arrived, or that a rule of the engine dropped."""

    source: str
    destination: str
    # The rules or policies that dropped the packet; empty if it arrived.
    dropped_by: tuple[Decider, ...] = ()


# A part that was consulted on the way, with its verdict and the reason.
ConsultedPart: TypeAlias = tuple[DecidingPart, StepVerdict, Reason]


class DirectionDecision(Struct, frozen=True, eq=False, gc=False):
    """The decision of one direction: its outcome, and the parts that were consulted on the way."""

    direction: Direction
    outcome: Outcome
    consulted: tuple[ConsultedPart, ...] = ()
    # What else is to be said about the decision: who would have decided otherwise, and who still may.
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> StepVerdict:
        """The verdict of this direction; `NotApplicable` if its subject is not under policy."""
        return self.outcome.verdict

    @property
    def tier(self) -> str | None:
        """The tier that decided."""
        return self.outcome.tier

    @property
    def decided_by(self) -> tuple[Decider, ...]:
        """The deciders; none if the subject is not under policy."""
        return decided_by(self.outcome)


class ConnectionDecision(Struct, frozen=True, eq=False, gc=False):
    """The decision about a connection between two endpoints: both directions and the combined verdict."""

    source: Endpoint
    destination: Endpoint
    protocol: str
    port: int
    egress: DirectionDecision
    ingress: DirectionDecision

    @property
    def verdict(self) -> Verdict:
        """The combined verdict: Allow only if both directions allow."""
        return whole_verdict(self.egress.outcome.verdict, self.ingress.outcome.verdict)

    @property
    def decided_by(self) -> tuple[Decider, ...]:
        """The deciders, egress first, each once."""
        return unique_deciders((*self.egress.decided_by, *self.ingress.decided_by))

    @property
    def domains(self) -> tuple[str, ...]:
        """The domain names that the verdict depends on."""
        return tuple(sorted({*self.egress.outcome.conditions, *self.ingress.outcome.conditions}))


class EndpointGroup(Struct, frozen=True, eq=False, gc=False):
    """Sources and destinations whose connections are decided alike, and the decisions of which they are examples."""

    sources: tuple[str, ...]
    destinations: tuple[str, ...]
    # One decision for each pair of sources and destinations that policies tell apart.
    decisions: tuple[ConnectionDecision, ...]

    @property
    def decision(self) -> ConnectionDecision:
        """A decision that stands for all of them."""
        return self.decisions[0]

    @property
    def verdict(self) -> Verdict:
        """The verdict of every connection of the group."""
        return self.decision.verdict

    @property
    def decided_by(self) -> tuple[Decider, ...]:
        """The deciders of every connection of the group."""
        return self.decision.decided_by


class ShadowDecision(Struct, frozen=True, eq=False, gc=False):
    """How policies in shadow mode would change the decision about a connection."""

    policies: tuple[str, ...]
    detail: NetworkDetail
    sentence: str


class NetworkDetail(Struct, frozen=True, eq=False, gc=False):
    """The decisions about all connections that a question asks about, and what they amount to.

    The ends of most questions are single endpoints, and there is one decision. A workload, a Service or `outside`
    stands for many (docs/network.md#ask-about-workloads-services-and-the-outside).
    """

    # The ends as the question names them.
    source: str
    destination: str
    protocol: str
    port: int | str
    ends: tuple[EndpointGroup, ...]
    # Whether an end stands for more than a single endpoint.
    several: bool = False
    # The ports of pods behind a Service's port.
    target_ports: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    shadow: ShadowDecision | None = None
    # The packets that an engine observed; empty unless an engine was asked.
    packets: tuple[ObservedPacket, ...] = ()

    @property
    def decisions(self) -> tuple[ConnectionDecision, ...]:
        """The decisions of all groups, in order."""
        if len(self.ends) == 1:
            return self.ends[0].decisions
        return tuple(decision for group in self.ends for decision in group.decisions)

    @property
    def egress(self) -> DirectionDecision:
        """The decision of the sources' egress."""
        return _joined([decision.egress for decision in self.decisions])

    @property
    def ingress(self) -> DirectionDecision:
        """The decision of the destinations' ingress."""
        return _joined([decision.ingress for decision in self.decisions])

    @property
    def verdict(self) -> Verdict:
        """The verdict of all connections; Conditional if they differ."""
        verdict = self.ends[0].verdict
        return verdict if all(group.verdict is verdict for group in self.ends[1:]) else _CONDITIONAL

    @property
    def decided_by(self) -> tuple[Decider, ...]:
        """The deciders of all connections, each once."""
        if len(self.ends) == 1:
            return self.ends[0].decided_by
        return unique_deciders(decider for group in self.ends for decider in group.decided_by)

    @property
    def domains(self) -> tuple[str, ...]:
        """The domain names that the verdict depends on."""
        return tuple(sorted({name for group in self.ends for name in group.decision.domains}))


def single_detail(decision: ConnectionDecision, packets: tuple[ObservedPacket, ...] = ()) -> NetworkDetail:
    """Return the detail of a question about one connection."""
    source, destination = str(decision.source), str(decision.destination)
    ends = (EndpointGroup((source,), (destination,), (decision,)),)
    return NetworkDetail(source, destination, decision.protocol, decision.port, ends, packets=packets)


def _joined(decisions: Sequence[DirectionDecision]) -> DirectionDecision:
    """Join the decisions of one direction. A subject that is not under policy counts as one that may."""
    first, *others = decisions
    if not others:
        return first
    outcomes = [decision.outcome for decision in decisions]
    verdicts = {outcome.verdict for outcome in outcomes}
    if len(verdicts) > 1:
        verdicts.discard(NOT_APPLICABLE.verdict)
    tiers = {outcome.tier for outcome in outcomes}
    applying = (outcome for outcome in outcomes if outcome.verdict is not NOT_APPLICABLE.verdict)
    outcome = Outcome(
        verdicts.pop() if len(verdicts) == 1 else CONDITIONAL,
        tiers.pop() if len(tiers) == 1 else None,
        tuple(dict.fromkeys(part for outcome in applying for part in outcome.by or (None,))),
        tuple(dict.fromkeys(name for outcome in outcomes for name in outcome.conditions)),
    )
    consulted = tuple(dict.fromkeys(part for decision in decisions for part in decision.consulted))
    return DirectionDecision(first.direction, outcome, consulted)


def whole_verdict(egress: StepVerdict, ingress: StepVerdict) -> Verdict:
    """Return the verdict of the whole connection: Allow only if both directions allow."""
    if egress is DENY or ingress is DENY:
        return _DENY
    return _CONDITIONAL if egress is CONDITIONAL or ingress is CONDITIONAL else _ALLOW


def decided_by(outcome: Outcome) -> tuple[Decider, ...]:
    """Return the entries of `decidedBy` for one direction; none if its subject is not under policy."""
    if outcome.verdict is NOT_APPLICABLE.verdict:
        return ()
    return tuple(DEFAULT if part is None else part.decider for part in outcome.by) or (DEFAULT,)


class ObservedEndpoint(Struct, frozen=True):
    """An endpoint as a packet shows it, and the pod or node with its address; `port` is 0 if the packet has none."""

    ip: str
    port: int = 0
    namespace: str = ""
    pod: str = ""
    node: str = ""


class ObservedConnection(Struct, frozen=True):
    """The connection of an event, with the direction that was decided. `Event.detail` on the network plane."""

    direction: Direction
    protocol: str
    source: ObservedEndpoint
    destination: ObservedEndpoint


class RuleHits(Struct, frozen=True, kw_only=True):
    """How many packets hit a rule. Hits of isolation count for all isolating policies together."""

    decided_by: tuple[Decider, ...]
    direction: Direction
    action: RuleAction
    shadow: bool
    packets: int
    bytes: int
