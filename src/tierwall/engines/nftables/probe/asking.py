"""Network questions put to the kernel with real packets: `tierwall test --engine nft`.

docs/enforce-network.md#testing-with-packets.

The verdict is what became of the packets. What only the library can say (which rules were looked at) is its own; a
direction that the kernel logged as dropped is shown as the kernel judged it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import structs

from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.core.outcome import DENY, Outcome
from tierwall.core.protocols import Reply
from tierwall.core.question import Question
from tierwall.core.verdict import Verdict
from tierwall.engines.nftables.kernel.apply import replace
from tierwall.engines.nftables.kernel.conntrack import forget_all
from tierwall.engines.nftables.kernel.netlink import NetlinkError
from tierwall.engines.nftables.kernel.nflog import Log
from tierwall.engines.nftables.kernel.programs import find
from tierwall.engines.nftables.probe.packets import Fate, Probe, sctp_problem
from tierwall.engines.nftables.probe.packets import probe as tried
from tierwall.engines.nftables.probe.placement import Placement
from tierwall.engines.nftables.probe.topology import Topology
from tierwall.engines.nftables.table.compile import compile_model
from tierwall.engines.nftables.table.names import Label
from tierwall.engines.nftables.table.options import GROUP, Options
from tierwall.engines.nftables.table.table import Table
from tierwall.engines.nftables.table.table import address as show
from tierwall.network.decide import decide
from tierwall.network.detail import Judgement, NetworkDetail, Packet, Reported
from tierwall.network.model.model import model
from tierwall.network.model.rules import Direction
from tierwall.network.question import NetworkQuestion, answer, ask
from tierwall.resources.snapshot import Snapshot
from tierwall.values.addresses import Address


class Asker:
    """Asks the kernel with packets, in network namespaces of its own; nothing else is touched."""

    def __init__(self) -> None:
        self._places: list[tuple[Address, ...]] | None = None
        self._topology: Topology | None = None
        self._log: Log | None = None

    def close(self) -> None:
        """Let the namespaces go; they also go with the process."""
        if self._log is not None:
            self._log.close()
        if self._topology is not None:
            self._topology.close()
        self._log = self._topology = self._places = None

    def ask(self, snapshot: Snapshot, questions: Sequence[Question]) -> Iterator[Reply]:
        """One reply for each question; InputError if packets cannot be sent here at all."""
        self._begin()
        asked: dict[int, NetworkDetail] = {}
        replies: dict[int, Reply] = {}
        for number, question in enumerate(questions):
            assert isinstance(question, NetworkQuestion)
            try:
                asked[number] = ask(snapshot, question).detail
            except InputError as error:
                replies[number] = Reply(error=error.told)
        placement = Placement(model(snapshot), ((detail.source, detail.destination) for detail in asked.values()))
        probes: dict[int, list[Probe]] = {}
        for number, decision in asked.items():
            reason = _not_testable(placement, decision)
            if reason:
                replies[number] = Reply(skipped=f"not testable here: {reason}")
            else:
                probes[number] = [
                    Probe(*pair, decision.protocol, decision.port)
                    for pair in placement.pairs(decision.source, decision.destination)
                ]
        if probes:
            compiled = compile_model(placement.model, Options(rate=0), placement.wire)
            sent = [probe for some in probes.values() for probe in some]
            try:
                fates = iter(self.probed(placement.places(), compiled.table, sent))
            except InputError as error:
                replies |= {number: Reply(error=error.told) for number in probes}
                probes.clear()
            for number, some in probes.items():
                found = [(probe, next(fates)) for probe in some]
                replies[number] = _judged(asked[number], found, compiled.compiler.parts.logged)
        yield from (replies[number] for number in range(len(questions)))

    def _begin(self) -> None:
        """Find out whether packets can be sent at all, before any question is told what went wrong."""
        for program in ("nft", "ip"):
            find(program)
        if self._topology is None:
            self._prepare([])

    def probed(self, places: list[tuple[Address, ...]], table: Table, probes: list[Probe]) -> list[Fate]:
        """Load a table in the router of these places and see what becomes of each probe."""
        topology, log = self._prepare(places)
        with topology.router.entered():
            replace(table)
            try:
                forget_all()
            except NetlinkError as error:
                words = f"the kernel cannot list connections (CONFIG_NF_CT_NETLINK): {str(error.strerror).lower()}"
                raise InputError([Diagnostic("TW603", words)]) from None
        return tried(topology, probes, log)

    def _prepare(self, places: list[tuple[Address, ...]]) -> tuple[Topology, Log]:
        if self._topology is None or self._log is None or places != self._places:
            self.close()
            self._topology = Topology(places)
            with self._topology.router.entered():
                self._log = Log(GROUP, at_once=True)
            self._places = places
        return self._topology, self._log


def _not_testable(placement: Placement, decision: NetworkDetail) -> str:
    if decision.protocol == "SCTP" and (problem := sctp_problem()):
        return problem
    if decision.verdict is Verdict.CONDITIONAL:
        return "which addresses a domain name has is known only when DNS answers"
    if decision.source is not decision.destination and not _tells_apart(placement, decision):
        return f"{decision.source} or {decision.destination} shares an address, and packets cannot tell who it is"
    if not placement.pairs(decision.source, decision.destination):
        return f"{decision.source} and {decision.destination} have no address family in common"
    return ""


def _tells_apart(placement: Placement, decision: NetworkDetail) -> bool:
    """Whether who shares an address with an end makes no difference to the answer."""
    source, destination = placement.seen(decision.source), placement.seen(decision.destination)
    if source is None or destination is None:
        return False
    seen = decide(placement.model, source, destination, decision.protocol, decision.port)
    return (seen.egress.verdict, seen.ingress.verdict) == (decision.egress.verdict, decision.ingress.verdict)


def _judged(decision: NetworkDetail, found: list[tuple[Probe, Fate]], labels: Mapping[str, Label]) -> Reply:
    """What the packets say; the trace is the library's."""
    fates = [fate for _, fate in found]
    errors = [fate.error for fate in fates if fate.error]
    seen = {fate.arrived for fate in fates if fate.arrived or fate.dropped}
    if not errors and any(not fate.arrived and not fate.dropped for fate in fates):
        errors = ["a packet neither arrived nor was dropped by the table"]
    if len(seen) > 1:
        errors = ["the addresses of an end were judged differently"]
    if errors:
        return Reply(error=errors[0])
    judged = {judgement.direction: judgement for judgement in (decision.egress, decision.ingress)}
    packets = []
    for sent, fate in found:
        # What the table was compiled with is whole; what the kernel says of it may be shortened.
        label = labels[fate.dropped.prefix] if fate.dropped is not None else None
        packets.append(Packet(show(sent.source), show(sent.destination), label.decided_by if label else ()))
        if label is not None and judged[label.direction].verdict is not DENY:
            by = tuple(map(Reported, label.decided_by))
            looked = judged[label.direction].looked
            judged[label.direction] = Judgement(label.direction, Outcome(DENY, None, by), looked)
    detail = structs.replace(
        decision, egress=judged[Direction.EGRESS], ingress=judged[Direction.INGRESS], packets=tuple(packets)
    )
    verdict = Verdict.ALLOW if seen == {True} else Verdict.DENY
    return Reply(structs.replace(answer(detail), verdict=verdict))
