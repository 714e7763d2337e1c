"""What changes between two snapshots: connections that appear, vanish, or hang on other domain names, and why.

Both models are cut into classes that line up: ends of one class are alike before and after. An end that is there
only before or only after takes its connections with it. Pairs are compared group by group, never pod by pod.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from tierwall.core.verdict import Verdict
from tierwall.network.detail import NOT_APPLICABLE
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.model import NetworkModel, network_model
from tierwall.network.model.rules import PortRange
from tierwall.network.reach.classes import EndpointClasses, RelevantAttributes
from tierwall.network.reach.listing import ConnectionEntry, ConnectionFlow, FlowDescriber, only_itself
from tierwall.network.reach.matrix import (
    ConnectionPassage,
    ConnectionPassages,
    DestinationGroup,
    ReachMatrix,
    reach_matrix,
)
from tierwall.network.reach.naming import EndpointNames
from tierwall.network.reach.spaces import bits, mask_of
from tierwall.resources.snapshot import Snapshot

ADDED, REMOVED, CHANGED = "added", "removed", "changed"


class PassageChange(NamedTuple):
    """Ports whose fate differs, with how it was settled before and after."""

    change: str
    ports: int
    before: ConnectionPassage
    after: ConnectionPassage


PassageChanges: TypeAlias = tuple[PassageChange, ...]


class ChangedFlow(ConnectionFlow, frozen=True):
    """A flow of a comparison: settled now as a flow is, and before as `was` is."""

    was: ConnectionFlow | None = None

    def because(self) -> str:
        """Who settles it now, and who settled it before."""
        now, before = super().because(), self.before()
        return f"{now} (before, {before})" if before else now

    def before(self) -> str:
        """Who settled it before, with what verdict."""
        return f"{self.was.verdict}: {self.was.because()}" if self.was is not None else ""


class ChangedConnections(NamedTuple):
    """Sources and destinations, as classes of one side, between which the same flows appear, vanish or change."""

    side: ReachMatrix
    sources: int
    destinations: int
    change: str
    flows: tuple[ConnectionFlow, ...]


def compare_connections(before: Snapshot, after: Snapshot) -> Iterator[ConnectionEntry]:
    """Every change in words; nothing if the two snapshots let the same connections pass."""
    names: dict[ReachMatrix, EndpointNames] = {}
    for one in differences(before, after):
        if one.side not in names:
            names[one.side] = EndpointNames(one.side.classes)
        describe = names[one.side].describe
        yield ConnectionEntry(describe(one.sources), describe(one.destinations), one.flows, one.change)


def differences(before: Snapshot, after: Snapshot) -> Iterator[ChangedConnections]:
    """Every change, destination by destination."""
    old, new = _aligned(network_model(before), network_model(after))
    sides = [reach_matrix(classes, why=True, denied=True) for classes in (old, new)]
    twins = _Counterparts(old, new)
    yield from _gone(sides[0], old.everybody & ~mask_of(twins.after), REMOVED)
    yield from _gone(sides[1], new.everybody & ~mask_of(twins.before), ADDED)
    yield from _shifted(sides[0], sides[1], twins)


def _aligned(before: NetworkModel, after: NetworkModel) -> tuple[EndpointClasses, EndpointClasses]:
    """Classes of two models, such that two ends are alike in one exactly if their twins are alike in the other."""
    looks = RelevantAttributes(before), RelevantAttributes(after)
    names = looks[0].named_ports | looks[1].named_ports
    ports = looks[0].port_ranges | looks[1].port_ranges
    for pod in (*before.pods, *after.pods):
        for name in names.intersection(pod.named_ports):
            ports |= {PortRange(protocol, number, number) for protocol, number in pod.named_ports[name]}
    blocks = [*looks[0].blocks, *looks[1].blocks]
    plain = EndpointClasses(after, None, blocks, ports)
    old = EndpointClasses(before, lambda end: _bit(plain, _twin(after, end)), blocks, ports)
    return old, EndpointClasses(after, lambda end: _bit(old, _twin(before, end)), blocks, ports)


def _twin(other: NetworkModel, end: Endpoint) -> Endpoint | None:
    if end.kind == "pod":
        return other.pod(end.namespace, end.name)
    return other.node(end.name) if end.kind == "node" else None


def _bit(classes: EndpointClasses, end: Endpoint | None) -> int | None:
    return None if end is None else classes.of(end).bit


class _Counterparts:
    """Which class of one side is which class of the other, by number; a class that is on one side only has no twin."""

    def __init__(self, old: EndpointClasses, new: EndpointClasses) -> None:
        outside = {one.spans: one.bit for one in new.all if one.spans}
        self.after: dict[int, int] = {}
        for one in old.all:
            twin = outside.get(one.spans) if one.spans else _bit(new, _twin(new.model, one.one))
            if twin is not None:
                self.after[one.bit] = twin
        self.before = {twin: bit for bit, twin in self.after.items()}
        self._translated: dict[int, int] = {}

    def in_old(self, mask: int) -> int:
        """A set of classes of the new side as the old side numbers them; those without a twin are left out."""
        found = self._translated.get(mask)
        if found is None:
            found = self._translated[mask] = mask_of(self.before[bit] for bit in bits(mask) if bit in self.before)
        return found


def _gone(side: ReachMatrix, ends: int, change: str) -> Iterator[ChangedConnections]:
    """The connections of ends that are there on one side only."""
    if not ends:
        return
    flows = FlowDescriber(side.ports, True)
    for group in side.groups:
        for destinations, among in ((group.destinations & ends, -1), (group.destinations & ~ends, ends)):
            for sources, passages in group.sources:
                passing = tuple(one for one in passages if one.verdict is not Verdict.DENY)
                those = sources & among
                if destinations and those and passing and not only_itself(side, destinations, those):
                    yield ChangedConnections(side, those, destinations, change, flows.of(passing))


def _shifted(old: ReachMatrix, new: ReachMatrix, twins: _Counterparts) -> Iterator[ChangedConnections]:
    """The changes between ends that are there on both sides."""
    common = mask_of(twins.after)
    nobody = DestinationGroup(0, (), 0)
    old_of = {bit: group for group in old.groups for bit in bits(group.destinations)}
    new_of = {bit: group for group in new.groups for bit in bits(twins.in_old(group.destinations))}
    met: dict[tuple[DestinationGroup, DestinationGroup], list[int]] = {}
    for bit in bits(common):
        met.setdefault((old_of.get(bit, nobody), new_of.get(bit, nobody)), []).append(bit)
    comparing = _PassageComparison(old)
    for (before, after), numbers in met.items():
        destinations = mask_of(numbers)
        shares = comparing.shares(before, after, common, twins)
        for shifts, sources in shares.items():
            if not only_itself(old, destinations, sources):
                for change in (ADDED, REMOVED, CHANGED):
                    flows = tuple(comparing.flow(one) for one in shifts if one.change == change)
                    if flows:
                        yield ChangedConnections(old, sources, destinations, change, flows)


class _PassageComparison:
    """How passages differ, each pair of them once."""

    def __init__(self, old: ReachMatrix) -> None:
        self._flows = FlowDescriber(old.ports, True)
        # Pairs of which neither end is under policy are in no matrix: nothing stops them.
        self._free: ConnectionPassages = (ConnectionPassage(old.ports.everything, NOT_APPLICABLE, NOT_APPLICABLE),)
        self._known: dict[tuple[ConnectionPassages, ConnectionPassages], PassageChanges] = {}

    def shares(
        self, before: DestinationGroup, after: DestinationGroup, common: int, twins: _Counterparts
    ) -> dict[PassageChanges, int]:
        """The sources whose connections to a group of destinations change, by what changes."""
        out: dict[PassageChanges, int] = {}
        then = self._whole([(mask & common, passages) for mask, passages in before.sources], common)
        now = self._whole([(twins.in_old(mask), passages) for mask, passages in after.sources], common)
        for mask, passages in then:
            for other, others in now:
                if (both := mask & other) and passages != others and (shifts := self._shifts(passages, others)):
                    out[shifts] = out.get(shifts, 0) | both
        return out

    def flow(self, shift: PassageChange) -> ChangedFlow:
        """A change in words."""
        (now,) = self._flows.of((shift.after._replace(ports=shift.ports),))
        (was,) = self._flows.of((shift.before._replace(ports=shift.ports),))
        # What vanishes is shown as the connection it was, what appears as the one it is.
        verdict = was.verdict if shift.change == REMOVED else now.verdict
        domains = was.domains if shift.change == REMOVED else now.domains
        return ChangedFlow(verdict, now.ports, now.ranges, domains, now.egress, now.ingress, was)

    def _whole(self, parts: list[tuple[int, ConnectionPassages]], common: int) -> list[tuple[int, ConnectionPassages]]:
        rest = common
        for mask, _ in parts:
            rest &= ~mask
        return [*parts, (rest, self._free)] if rest else parts

    def _shifts(self, before: ConnectionPassages, after: ConnectionPassages) -> PassageChanges:
        found = self._known.get((before, after))
        if found is None:
            pairs = ((then, now, then.ports & now.ports) for then in before for now in after)
            shifts = (PassageChange(_change(then, now), ports, then, now) for then, now, ports in pairs if ports)
            found = self._known[before, after] = tuple(one for one in shifts if one.change)
        return found


def _change(before: ConnectionPassage, after: ConnectionPassage) -> str:
    if before.verdict is after.verdict:
        domains = [{*one.egress.conditions, *one.ingress.conditions} for one in (before, after)]
        return CHANGED if before.verdict is Verdict.CONDITIONAL and domains[0] != domains[1] else ""
    if before.verdict is Verdict.DENY:
        return ADDED
    return REMOVED if after.verdict is Verdict.DENY else CHANGED
