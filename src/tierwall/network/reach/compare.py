"""Compares the connections of two snapshots: which appear, disappear or depend on other domain names, and why.

Both models are divided into classes that line up: the endpoints of a class are alike before and after. An endpoint that
exists only before, or only after, takes its connections with it. Connections are compared group by group, never pod by
pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tierwall.core.reference import Reference
from tierwall.core.verdict import Verdict
from tierwall.network.detail import NOT_APPLICABLE
from tierwall.network.model.model import network_model
from tierwall.network.model.policies import KINDS as POLICY_KINDS
from tierwall.network.model.rules import Direction
from tierwall.network.reach.alignment import ClassTranslator, aligned, touched
from tierwall.network.reach.changed_objects import LOCAL_KINDS, changed_objects
from tierwall.network.reach.classes import EndpointClasses
from tierwall.network.reach.listing import ConnectionEntry, ConnectionFlow, FlowDescriber, only_itself
from tierwall.network.reach.matrix import (
    ConnectionPassage,
    ConnectionPassages,
    DestinationGroup,
    ReachMatrix,
    reach_matrix,
)
from tierwall.network.reach.membership import Membership
from tierwall.network.reach.naming import EndpointNames
from tierwall.network.reach.own_classes import own_rows, relevant_attributes
from tierwall.network.reach.rows import Row, Rows, decided_differently
from tierwall.network.reach.spaces import bits, mask_of, transposed, union
from tierwall.resources.snapshot import KindKey, Snapshot

if TYPE_CHECKING:
    from tierwall.network.reach.first_changes import ComparisonLimits

ADDED, REMOVED, CHANGED = "added", "removed", "changed"


class PassageChange(NamedTuple):
    """Ports that are decided differently, with the passages before and after."""

    change: str
    ports: int
    before: ConnectionPassage
    after: ConnectionPassage


PassageChanges: TypeAlias = tuple[PassageChange, ...]


class ChangedFlow(ConnectionFlow, frozen=True):
    """A flow of a comparison; `was` is the flow before the change."""

    was: ConnectionFlow | None = None

    def name_deciders(self) -> str:
        """Name the deciders now and before."""
        now, before = super().name_deciders(), self.before()
        return f"{now} (before, {before})" if before else now

    def before(self) -> str:
        """Name the deciders before, with their verdict."""
        return f"{self.was.verdict}: {self.was.name_deciders()}" if self.was is not None else ""


class ChangedConnections(NamedTuple):
    """Sources and destinations, as classes of one side, between which the same flows appear, disappear or change.

    `partial` says that something passes between them both before and after, so that they gain or lose ports only.
    """

    side: ReachMatrix
    sources: int
    destinations: int
    change: str
    flows: tuple[ConnectionFlow, ...]
    partial: bool = False


def compare_connections(before: Snapshot, after: Snapshot) -> Iterator[ConnectionEntry]:
    """Yield every change with names, changes of the same ports together; nothing if nothing changes."""
    return named_changes(joined_changes(differences(before, after)))


def named_changes(changes: Iterable[ChangedConnections]) -> Iterator[ConnectionEntry]:
    """Name the ends of changes."""
    names: dict[EndpointClasses, EndpointNames] = {}
    for changed in changes:
        classes = changed.side.classes
        if classes not in names:
            names[classes] = EndpointNames(classes)
        describe = names[classes].describe
        sources, destinations = describe(changed.sources), describe(changed.destinations)
        yield ConnectionEntry(sources, destinations, changed.flows, changed.change, changed.partial)


# What an entry of a comparison shows beside its ends and reasons: side, change, whether it is partial, ports.
_ShownChange: TypeAlias = tuple[EndpointClasses, str, bool, tuple[tuple[Verdict, str, tuple[str, ...]], ...]]


def joined_changes(changes: Iterable[ChangedConnections]) -> Iterator[ChangedConnections]:
    """Join changes of the same ports, whatever the reasons: destinations with the same sources, then the reverse.

    INVARIANT: of every joined change, each source and each destination are a pair of one of its parts.
    """
    by_sources: dict[tuple[_ShownChange, int], list[ChangedConnections]] = {}
    for changed in changes:
        shown = tuple((flow.verdict, flow.ports, flow.domains) for flow in changed.flows)
        kind = changed.side.classes, changed.change, changed.partial, shown
        by_sources.setdefault((kind, changed.sources), []).append(changed)
    by_destinations: dict[tuple[_ShownChange, int], list[ChangedConnections]] = {}
    for (kind, sources), parts in by_sources.items():
        destinations = union(part.destinations for part in parts)
        joined = parts[0]._replace(sources=sources, destinations=destinations, flows=_reasons(parts))
        by_destinations.setdefault((kind, destinations), []).append(joined)
    for parts in by_destinations.values():
        yield parts[0]._replace(sources=union(part.sources for part in parts), flows=_reasons(parts))


def _reasons(parts: Iterable[ChangedConnections]) -> tuple[ConnectionFlow, ...]:
    return tuple(dict.fromkeys(flow for part in parts for flow in part.flows))


def differences(
    before: Snapshot, after: Snapshot, bound: ComparisonLimits | None = None
) -> Iterator[ChangedConnections]:
    """Yield every change, destination by destination; with a bound, not all of very many.

    First the rows of the ends whose policies change are compared, then the verdicts of the connections that may change
    by this, and at last those that do change are explained.
    """
    changed = changed_objects(before, after)
    if not changed:
        return
    sides = _Sides.of(before, after)
    old, new, counterparts = sides[:3]
    yield from _one_sided(old, old.everybody & ~counterparts.common, REMOVED)
    yield from _one_sided(new, new.everybody & ~mask_of(counterparts.before), ADDED)
    rows = sides.rows(explain=False)
    senders, receivers = _touched_ends(sides, changed)
    candidates = _candidates(sides, rows, senders, receivers)
    explained: tuple[Rows, Rows] | None = None
    for part in (candidates,) if bound is None else bound.parts(candidates, old):
        comparison = _Comparison(sides, rows, part)
        if pairs := {bit: sources for bit in part if (sources := comparison.changed_sources(bit))}:
            explained = explained or sides.rows(explain=True)
            for found_change in _Comparison(sides, explained, pairs).changes():
                if bound is not None:
                    bound.found += 1
                yield found_change


def _touched_ends(sides: _Sides, changed: set[tuple[KindKey, Reference]]) -> tuple[int, int]:
    """Return the sources and the destinations that decide about connections, and may do so otherwise than before.

    A connection is decided by the policies of its source's egress and of its destination's ingress, and by what they
    see of both ends.
    """
    old, new, counterparts = sides[:3]
    common, kinds = counterparts.common, {kind for kind, _ in changed}
    if not kinds <= LOCAL_KINDS:
        return common, common
    before, after = touched(old, new) if kinds - set(POLICY_KINDS) else (0, 0)
    ends = common & (before | counterparts.in_old(after))
    policies = {reference for kind, reference in changed if kind in POLICY_KINDS}
    senders, receivers = (
        ends
        | common
        & (
            _subjects(sides.old_rows[0].membership, policies, direction)
            | counterparts.in_old(_subjects(sides.new_membership, policies, direction))
        )
        for direction in (Direction.EGRESS, Direction.INGRESS)
    )
    return senders, receivers


def _candidates(sides: _Sides, rows: tuple[Rows, Rows], senders: int, receivers: int) -> dict[int, int]:
    """Return the connections that may change: destinations on both sides, each with its sources.

    If both sides have the same classes, only connections that the policies of one end decide differently can change.
    """
    common = sides.counterparts.common
    if sides.have_same_classes:
        incoming = _decided_differently(sides, rows, receivers, Direction.INGRESS)
        outgoing = transposed(_decided_differently(sides, rows, senders, Direction.EGRESS))
        outgoing += [0] * (len(incoming) - len(outgoing))
        wanted = {bit: (incoming[bit] | outgoing[bit]) & common for bit in bits(common)}
    else:
        wanted = {bit: common if receivers >> bit & 1 else senders for bit in bits(common)}
    return {bit: sources for bit, sources in wanted.items() if sources}


def _decided_differently(sides: _Sides, rows: tuple[Rows, Rows], ends: int, direction: Direction) -> list[int]:
    """Return for each class the others about which its policies decide differently; only some ends are looked at."""
    different = [0] * len(sides.old.all)
    known: dict[tuple[Row, Row], int] = {}
    for bit in bits(ends):
        pair = rows[0].row(sides.old.all[bit], direction), rows[1].row(sides.new.all[bit], direction)
        if pair not in known:
            known[pair] = decided_differently(*pair) & sides.old.everybody
        different[bit] = known[pair]
    return different


def _subjects(membership: Membership, policies: set[Reference], direction: Direction) -> int:
    """Return the classes that some policies apply to in one direction."""
    return union(
        membership.subjects(policy.namespaces, policy.pods)
        for policy in membership.classes.model.policies
        if policy.reference in policies and policy.rules(direction) is not None
    )


def _one_sided(classes: EndpointClasses, endpoints: int, change: str) -> Iterator[ChangedConnections]:
    """Yield the connections of endpoints that exist on one side only."""
    if not endpoints:
        return
    side = reach_matrix(classes, explain=True, focus=endpoints)
    flows = FlowDescriber(side.ports, True)
    for group in side.groups:
        splits = (group.destinations & endpoints, -1), (group.destinations & ~endpoints, endpoints)
        for destinations, possible_sources in splits:
            for all_sources, passages in group.sources:
                sources = all_sources & possible_sources
                if destinations and sources and not only_itself(side, destinations, sources):
                    yield ChangedConnections(side, sources, destinations, change, flows.of(passages))


_NOBODY = DestinationGroup(0, (), 0)


class _Sides(NamedTuple):
    """Both sides of a comparison: the classes, which line up, and the rows of the old one, brief and explained."""

    old: EndpointClasses
    new: EndpointClasses
    counterparts: ClassTranslator
    old_rows: tuple[Rows, Rows]
    new_membership: Membership

    @classmethod
    def of(cls, before: Snapshot, after: Snapshot) -> _Sides:
        """Return both sides; if the new one tells nobody apart that the old one does not, the old one is at hand."""
        models = network_model(before), network_model(after)
        is_finer = relevant_attributes(before).covers(relevant_attributes(after))
        if models[0].endpoints is models[1].endpoints and is_finer:
            known = own_rows(before)
            old = known[0].classes
            new = old.of_model(models[1])
        else:
            old, new = aligned(*models)
            membership = Membership(old)
            known = Rows(old, False, membership), Rows(old, True, membership)
        return cls(old, new, ClassTranslator(old, new), known, Membership(new))

    @property
    def have_same_classes(self) -> bool:
        """Whether the classes of both sides are the same, and not only line up."""
        return self.old.all is self.new.all

    def rows(self, explain: bool) -> tuple[Rows, Rows]:
        """Return the rows of both sides."""
        before = self.old_rows[explain]
        if not self.have_same_classes:
            return before, Rows(self.new, explain, self.new_membership)
        return before, before.of_model(self.new_membership)


class _Comparison:
    """Compares some destinations, each with its sources, between sides whose classes line up.

    `pairs` and all results are in numbers of the old side. If the rows do not explain, only verdicts are compared.
    """

    def __init__(self, sides: _Sides, rows: tuple[Rows, Rows], pairs: Mapping[int, int]) -> None:
        counterparts = sides.counterparts
        self._pairs, self._counterparts = pairs, counterparts
        then = {counterparts.after[bit]: counterparts.in_new(sources) for bit, sources in pairs.items()}
        self._old, new_side = (
            reach_matrix(of_side.classes, denied=True, pairs=each, rows=of_side)
            for of_side, each in zip(rows, (pairs, then), strict=True)
        )
        self._old_of = {bit: group for group in self._old.groups for bit in bits(group.destinations)}
        self._new_of = {
            bit: group for group in new_side.groups for bit in bits(counterparts.in_old(group.destinations))
        }
        # A matrix leaves out pairs of endpoints that are both not under policy: their connections are always allowed.
        self._free: ConnectionPassages = (
            ConnectionPassage(self._old.ports.everything, NOT_APPLICABLE, NOT_APPLICABLE),
        )
        self._known: dict[tuple[ConnectionPassages, ConnectionPassages], PassageChanges] = {}
        self._sources: dict[tuple[DestinationGroup, DestinationGroup, int], dict[tuple[PassageChanges, bool], int]] = {}
        self._flows = FlowDescriber(self._old.ports, True)

    def changed_sources(self, destination: int) -> int:
        """Return the sources whose connections to a destination change."""
        return union(self._changed(*self._key(destination)).values())

    def changes(self) -> Iterator[ChangedConnections]:
        """Yield all changes, destinations that are alike together: first what opens for them, then what closes."""
        by_groups: dict[tuple[DestinationGroup, DestinationGroup, int], list[int]] = {}
        for bit in self._pairs:
            by_groups.setdefault(self._key(bit), []).append(bit)
        for key, numbers in by_groups.items():
            destinations = mask_of(numbers)
            for change in (ADDED, REMOVED, CHANGED):
                for (passage_changes, partial), sources in self._changed(*key).items():
                    flows = tuple(self._flow(changed) for changed in passage_changes if changed.change == change)
                    if flows and not only_itself(self._old, destinations, sources):
                        yield ChangedConnections(self._old, sources, destinations, change, flows, partial)

    def _key(self, bit: int) -> tuple[DestinationGroup, DestinationGroup, int]:
        return self._old_of.get(bit, _NOBODY), self._new_of.get(bit, _NOBODY), self._pairs[bit]

    def _changed(
        self, before: DestinationGroup, after: DestinationGroup, common: int
    ) -> dict[tuple[PassageChanges, bool], int]:
        """Return the sources whose connections to a group of destinations change.

        They are sorted by the change, and by whether something passes both before and after.
        """
        sources = self._sources.get((before, after, common))
        if sources is not None:
            return sources
        sources = self._sources[before, after, common] = {}
        in_old = self._counterparts.in_old
        then = self._whole([(mask & common, passages) for mask, passages in before.sources], common)
        now = self._whole([(in_old(mask) & common, passages) for mask, passages in after.sources], common)
        for mask, passages in then:
            for other, others in now:
                both = mask & other
                if both and passages != others and (changes := self._changes(passages, others)):
                    key = changes, _passes(passages) and _passes(others)
                    sources[key] = sources.get(key, 0) | both
        return sources

    def _flow(self, changed: PassageChange) -> ChangedFlow:
        """Describe a change as a flow."""
        (now,) = self._flows.of((changed.after._replace(ports=changed.ports),))
        (was,) = self._flows.of((changed.before._replace(ports=changed.ports),))
        # A connection that disappears is shown as it was before, one that appears as it is now.
        verdict = was.verdict if changed.change == REMOVED else now.verdict
        domains = was.domains if changed.change == REMOVED else now.domains
        return ChangedFlow(verdict, now.ports, now.ranges, domains, now.egress, now.ingress, was)

    def _whole(self, parts: list[tuple[int, ConnectionPassages]], common: int) -> list[tuple[int, ConnectionPassages]]:
        rest = common
        for mask, _ in parts:
            rest &= ~mask
        return [*parts, (rest, self._free)] if rest else parts

    def _changes(self, before: ConnectionPassages, after: ConnectionPassages) -> PassageChanges:
        changes = self._known.get((before, after))
        if changes is None:
            pairs = ((then, now, then.ports & now.ports) for then in before for now in after)
            compared = (PassageChange(_change(then, now), ports, then, now) for then, now, ports in pairs if ports)
            changes = self._known[before, after] = tuple(changed for changed in compared if changed.change)
        return changes


def _passes(passages: ConnectionPassages) -> bool:
    return any(passage.verdict is not Verdict.DENY for passage in passages)


def _change(before: ConnectionPassage, after: ConnectionPassage) -> str:
    if before.verdict is after.verdict:
        domains = [{*passage.egress.conditions, *passage.ingress.conditions} for passage in (before, after)]
        return CHANGED if before.verdict is Verdict.CONDITIONAL and domains[0] != domains[1] else ""
    if before.verdict is Verdict.DENY:
        return ADDED
    return REMOVED if after.verdict is Verdict.DENY else CHANGED
