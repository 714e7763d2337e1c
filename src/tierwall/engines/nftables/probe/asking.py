"""Network questions put to the kernel with real packets: `tierwall test --engine nft`.

docs/enforce-network.md#testing-with-packets.

The packets decide the verdict. The trace (which rules were considered) comes from the library, since packets do not
show it. A direction that the kernel logged as dropped is shown as the kernel judged it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import structs

from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.core.outcome import DENY, Outcome
from tierwall.core.protocols import EngineReply
from tierwall.core.question import Question
from tierwall.core.verdict import Verdict
from tierwall.engines.nftables.kernel.apply import replace
from tierwall.engines.nftables.kernel.conntrack import forget_all
from tierwall.engines.nftables.kernel.netlink import NetlinkError
from tierwall.engines.nftables.kernel.nflog import LogReader
from tierwall.engines.nftables.kernel.programs import find
from tierwall.engines.nftables.probe.packets import Probe, ProbeResult, sctp_problem, send_probes
from tierwall.engines.nftables.probe.placement import Placement
from tierwall.engines.nftables.probe.topology import Topology
from tierwall.engines.nftables.table.compile import compile_model
from tierwall.engines.nftables.table.names import Label
from tierwall.engines.nftables.table.options import GROUP, TableOptions
from tierwall.engines.nftables.table.table import Table
from tierwall.engines.probe import EngineProbe, replies
from tierwall.network.decide import decide
from tierwall.network.detail import (
    ConnectionDecision,
    DirectionDecision,
    NetworkDetail,
    ObservedPacket,
    ReportedDecider,
)
from tierwall.network.ends import OUTSIDE
from tierwall.network.model.model import network_model
from tierwall.network.model.rules import Direction
from tierwall.network.question import NetworkQuestion, answer, ask
from tierwall.resources.snapshot import Snapshot
from tierwall.values.addresses import Address, format_address


class PacketProbe:
    """Asks the kernel with packets, in network namespaces of its own; nothing else is touched."""

    def __init__(self) -> None:
        self._places: list[tuple[Address, ...]] | None = None
        self._topology: Topology | None = None
        self._log: LogReader | None = None

    def close(self) -> None:
        """Release the namespaces; they also end with the process."""
        if self._log is not None:
            self._log.close()
        if self._topology is not None:
            self._topology.close()
        self._log = self._topology = self._places = None

    def ask(self, snapshot: Snapshot, questions: Sequence[Question]) -> Iterator[EngineReply]:
        """Yield one reply per question; InputError if packets cannot be sent here at all."""
        self._begin()
        yield from replies(PacketCases(self, snapshot), questions)

    def _begin(self) -> None:
        """Check that packets can be sent at all, so that this error is not repeated for every question."""
        for program in ("nft", "ip"):
            find(program)
        if self._topology is None:
            self._prepare([])

    def send(self, places: list[tuple[Address, ...]], table: Table, probes: list[Probe]) -> list[ProbeResult]:
        """Load a table into the router between these places, and return the result of each probe."""
        topology, log = self._prepare(places)
        with topology.router.entered():
            replace(table)
            try:
                forget_all()
            except NetlinkError as error:
                message = f"the kernel cannot list connections (CONFIG_NF_CT_NETLINK): {str(error.strerror).lower()}"
                raise InputError([Diagnostic("TW603", message)]) from None
        return send_probes(topology, probes, log, attempts=2)

    def _prepare(self, places: list[tuple[Address, ...]]) -> tuple[Topology, LogReader]:
        if self._topology is None or self._log is None or places != self._places:
            self.close()
            self._topology = Topology(places)
            with self._topology.router.entered():
                self._log = LogReader(GROUP, at_once=True)
            self._places = places
        return self._topology, self._log


class PacketCases(EngineProbe[NetworkDetail]):
    """Questions about one snapshot, asked with packets; a case is the library's decision."""

    def __init__(self, probe: PacketProbe, snapshot: Snapshot) -> None:
        self._probe = probe
        self._snapshot = snapshot

    def read(self, question: NetworkQuestion) -> NetworkDetail:
        """Return the library's decision; InputError names everything wrong with the question."""
        detail: NetworkDetail = ask(self._snapshot, question).detail
        return detail

    def prepare(self, cases: Sequence[NetworkDetail]) -> None:
        """Give every endpoint a place that sends and receives packets."""
        asked = (decision for case in cases if not _cannot_be_sent(case) for decision in case.decisions)
        pairs = ((decision.source, decision.destination) for decision in asked)
        self._placement = Placement(network_model(self._snapshot), pairs)

    def obstacle(self, case: NetworkDetail) -> str:
        """Return the reason why packets cannot answer a case; empty if they can."""
        if case.protocol == "SCTP" and (problem := sctp_problem()):
            return problem
        if reason := _cannot_be_sent(case):
            return reason
        reasons = (self._obstacle(decision) for decision in case.decisions)
        return next((reason for reason in reasons if reason), "")

    def _obstacle(self, asked: ConnectionDecision) -> str:
        source, destination = asked.source, asked.destination
        if asked.verdict is Verdict.CONDITIONAL:
            return "the addresses of a domain name are known only when DNS answers"
        if source is not destination and not _sharing_is_harmless(self._placement, asked):
            return f"{source} or {destination} shares an address, and packets cannot tell who it is"
        if not self._placement.pairs(source, destination):
            return f"{source} and {destination} have no address family in common"
        return ""

    def ask(self, cases: Sequence[NetworkDetail]) -> Iterator[EngineReply]:
        """Send all packets, and judge each case by the results of its own."""
        placement = self._placement
        compiled = compile_model(placement.model, TableOptions(rate=0), placement.wire)
        probes = [
            [
                [Probe(*pair, asked.protocol, asked.port) for pair in placement.pairs(asked.source, asked.destination)]
                for asked in case.decisions
            ]
            for case in cases
        ]
        every_probe = [sent for case_probes in probes for pair_probes in case_probes for sent in pair_probes]
        results = iter(self._probe.send(placement.places(), compiled.table, every_probe))
        labels = compiled.compiler.builder.logged
        for case, case_probes in zip(cases, probes, strict=True):
            replies = [
                _judge(decision, [(sent, next(results)) for sent in pair_probes], labels)
                for decision, pair_probes in zip(case.decisions, case_probes, strict=True)
            ]
            yield _reply(case, replies)


def _cannot_be_sent(case: NetworkDetail) -> str:
    """Return the reason why an end has no place that sends or receives packets; empty if both have."""
    if OUTSIDE in (case.source, case.destination):
        return "packets cannot have every address outside the cluster"
    if any(decision.source.ended or decision.destination.ended for decision in case.decisions):
        return "a pod that has ended sends and receives no packets"
    return ""


def _sharing_is_harmless(placement: Placement, decision: ConnectionDecision) -> bool:
    """Whether the endpoints that share an address leave the answer the same."""
    source, destination = placement.merged(decision.source), placement.merged(decision.destination)
    if source is None or destination is None:
        return False
    seen = decide(placement.model, source, destination, decision.protocol, decision.port)
    return (seen.egress.verdict, seen.ingress.verdict) == (decision.egress.verdict, decision.ingress.verdict)


class JudgedConnection(NamedTuple):
    """One connection as packets show it: the verdict, the library's decision with what was dropped, or an error."""

    verdict: Verdict
    decision: ConnectionDecision
    packets: tuple[ObservedPacket, ...] = ()
    error: str = ""


def _reply(case: NetworkDetail, judged: Sequence[JudgedConnection]) -> EngineReply:
    """Return the verdict of the packets of all connections, with the library's trace."""
    for connection in judged:
        if connection.error:
            return EngineReply(error=connection.error)
    remaining = iter(judged)
    groups = []
    for group in case.ends:
        seen = [next(remaining) for _ in group.decisions]
        if len({connection.verdict for connection in seen}) > 1:
            return EngineReply(error="connections that the library decides alike were judged differently")
        groups.append((seen[0].verdict, structs.replace(group, decisions=tuple(each.decision for each in seen))))
    packets = tuple(packet for connection in judged for packet in connection.packets)
    detail = structs.replace(case, ends=tuple(group for _, group in groups), packets=packets)
    verdicts = {verdict for verdict, _ in groups}
    verdict = verdicts.pop() if len(verdicts) == 1 else Verdict.CONDITIONAL
    return EngineReply(structs.replace(answer(detail), verdict=verdict))


def _judge(
    decision: ConnectionDecision, sent_probes: list[tuple[Probe, ProbeResult]], labels: Mapping[str, Label]
) -> JudgedConnection:
    """Return what the packets of one connection show."""
    results = [result for _, result in sent_probes]
    errors = [result.error for result in results if result.error]
    seen = {result.arrived for result in results if result.arrived or result.dropped}
    if not errors and any(not result.arrived and not result.dropped for result in results):
        errors = ["a packet neither arrived nor was dropped by the table"]
    if len(seen) > 1:
        errors = ["the addresses of an endpoint were judged differently"]
    if errors:
        return JudgedConnection(Verdict.DENY, decision, error=errors[0])
    judged = {judgement.direction: judgement for judgement in (decision.egress, decision.ingress)}
    packets = []
    for sent, result in sent_probes:
        # The compiled label is complete; the one that the kernel logs may be shortened.
        label = labels[result.dropped.prefix] if result.dropped is not None else None
        packets.append(
            ObservedPacket(
                format_address(sent.source), format_address(sent.destination), label.decided_by if label else ()
            )
        )
        if label is not None and judged[label.direction].verdict is not DENY:
            by = tuple(map(ReportedDecider, label.decided_by))
            looked = judged[label.direction].consulted
            judged[label.direction] = DirectionDecision(label.direction, Outcome(DENY, None, by), looked)
    shown = structs.replace(decision, egress=judged[Direction.EGRESS], ingress=judged[Direction.INGRESS])
    return JudgedConnection(Verdict.ALLOW if seen == {True} else Verdict.DENY, shown, tuple(packets))
