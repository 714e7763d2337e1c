"""Compares the connections of two snapshots: which appear, disappear or depend on other domain names, and why.

Both models are divided into classes that line up: the endpoints of a class are alike before and after. An endpoint that
exists only before, or only after, takes its connections with it. Connections are compared group by group, never pod by
pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

from tierwall.core.reference import Reference
from tierwall.core.verdict import Verdict
from tierwall.network.detail import NOT_APPLICABLE
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.model import NetworkModel, network_model
from tierwall.network.model.policies import KINDS as POLICY_KINDS
from tierwall.network.model.rules import Direction, PortRange
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
from tierwall.network.reach.spaces import bits, mask_of, union
from tierwall.resources.snapshot import KindKey, Snapshot
from tierwall.resources.workloads import WORKLOADS

ADDED, REMOVED, CHANGED = "added", "removed", "changed"
# The objects that connections depend on; a definition decides what can be understood of a policy.
_RELEVANT = frozenset(
    (
        *POLICY_KINDS,
        *WORKLOADS,
        *(("", kind) for kind in ("Namespace", "Node", "Pod")),
        ("apiextensions.k8s.io", "CustomResourceDefinition"),
    )
)


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
    names: dict[EndpointClasses, EndpointNames] = {}
    for changed in joined_changes(differences(before, after)):
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


def differences(before: Snapshot, after: Snapshot) -> Iterator[ChangedConnections]:
    """Yield every change, destination by destination."""
    changed = changed_objects(before, after)
    if not changed:
        return
    old, new = _aligned(network_model(before), network_model(after))
    counterparts = _Counterparts(old, new)
    if all(kind in POLICY_KINDS for kind, _ in changed):
        yield from _changed_by_policies(old, new, counterparts, {reference for _, reference in changed})
        return
    sides = [reach_matrix(classes, explain=True, denied=True) for classes in (old, new)]
    yield from _one_sided(sides[0], old.everybody & ~mask_of(counterparts.after), REMOVED)
    yield from _one_sided(sides[1], new.everybody & ~mask_of(counterparts.before), ADDED)
    yield from _changed(sides[0], sides[1], counterparts, -1, -1)


def changed_objects(before: Snapshot, after: Snapshot) -> set[tuple[KindKey, Reference]]:
    """Return the objects that decide about connections and differ, by kind."""
    return {
        ((resource.group, resource.kind), resource.reference)
        for old, new in after.changes(before)
        if (resource := new if new is not None else old) is not None
        and (resource.group, resource.kind) in _RELEVANT
        and (old is None or new is None or not new.has_same_content(old))
    }


def _changed_by_policies(
    old: EndpointClasses, new: EndpointClasses, counterparts: _Counterparts, changed: set[Reference]
) -> Iterator[ChangedConnections]:
    """Yield the changes if only policies differ: those of endpoints that a changed policy selects.

    A connection is decided by the policies of its source's egress and of its destination's ingress.
    """
    senders, receivers = (
        mask_of(
            bit
            for bit, counterpart in counterparts.after.items()
            if any(
                _is_touched(classes, number, direction, changed) for classes, number in ((old, bit), (new, counterpart))
            )
        )
        for direction in (Direction.EGRESS, Direction.INGRESS)
    )
    for sources, destinations in ((-1, receivers), (senders, ~receivers)):
        if sources and destinations & old.everybody:
            sides = [
                reach_matrix(classes, explain=True, denied=True, sources=masks[0], destinations=masks[1])
                for classes, masks in (
                    (old, (sources, destinations)),
                    (new, tuple(counterparts.in_new(mask) for mask in (sources, destinations))),
                )
            ]
            yield from _changed(sides[0], sides[1], counterparts, sources, destinations)


def _is_touched(classes: EndpointClasses, bit: int, direction: Direction, changed: set[Reference]) -> bool:
    subject = classes.all[bit].representative
    if not subject.under_policy:
        return False
    stack = classes.model.stack(subject, direction)
    return any(policy.reference in changed for tier in stack for policy in tier.policies)


def _aligned(before: NetworkModel, after: NetworkModel) -> tuple[EndpointClasses, EndpointClasses]:
    """Return classes of two models that line up: two endpoints are alike if and only if their counterparts are."""
    old_attributes, new_attributes = RelevantAttributes(before), RelevantAttributes(after)
    names = old_attributes.named_ports | new_attributes.named_ports
    ports = old_attributes.port_ranges | new_attributes.port_ranges
    for pod in (*before.pods, *after.pods):
        for name in names.intersection(pod.named_ports):
            ports |= {PortRange(protocol, number, number) for protocol, number in pod.named_ports[name]}
    blocks = [*old_attributes.blocks, *new_attributes.blocks]
    plain = EndpointClasses(after, None, blocks, ports, new_attributes)
    if before.endpoints is after.endpoints and old_attributes.tells_apart_like(new_attributes):
        return plain.of_model(before), plain
    old = EndpointClasses(
        before, lambda endpoint: _bit(plain, _counterpart(after, endpoint)), blocks, ports, old_attributes
    )
    new = EndpointClasses(
        after, lambda endpoint: _bit(old, _counterpart(before, endpoint)), blocks, ports, new_attributes
    )
    return old, new


def _counterpart(other: NetworkModel, endpoint: Endpoint) -> Endpoint | None:
    if endpoint.kind == "pod":
        return other.pod(endpoint.namespace, endpoint.name)
    return other.node(endpoint.name) if endpoint.kind == "node" else None


def _bit(classes: EndpointClasses, endpoint: Endpoint | None) -> int | None:
    return None if endpoint is None else classes.of(endpoint).bit


class _Counterparts:
    """Maps each class of one side to its counterpart on the other, by number; some classes are on one side only."""

    def __init__(self, old: EndpointClasses, new: EndpointClasses) -> None:
        outside = {new_class.spans: new_class.bit for new_class in new.all if new_class.spans}
        self.after: dict[int, int] = {}
        for old_class in old.all:
            spans = old_class.spans
            counterpart = outside.get(spans) if spans else _bit(new, _counterpart(new.model, old_class.representative))
            if counterpart is not None:
                self.after[old_class.bit] = counterpart
        self.before = {counterpart: bit for bit, counterpart in self.after.items()}
        self._translated: dict[int, int] = {}

    def in_old(self, mask: int) -> int:
        """Translate a set of classes of the new side into numbers of the old side, without classes that are new."""
        old_mask = self._translated.get(mask)
        if old_mask is None:
            old_mask = self._translated[mask] = mask_of(self.before[bit] for bit in bits(mask) if bit in self.before)
        return old_mask

    def in_new(self, mask: int) -> int:
        """Translate a set of classes of the old side into numbers of the new side."""
        return mask_of(counterpart for bit, counterpart in self.after.items() if mask >> bit & 1)


def _one_sided(side: ReachMatrix, endpoints: int, change: str) -> Iterator[ChangedConnections]:
    """Yield the connections of endpoints that exist on one side only."""
    if not endpoints:
        return
    flows = FlowDescriber(side.ports, True)
    for group in side.groups:
        splits = (group.destinations & endpoints, -1), (group.destinations & ~endpoints, endpoints)
        for destinations, possible_sources in splits:
            for all_sources, passages in group.sources:
                allowed = tuple(passage for passage in passages if passage.verdict is not Verdict.DENY)
                sources = all_sources & possible_sources
                if destinations and sources and allowed and not only_itself(side, destinations, sources):
                    yield ChangedConnections(side, sources, destinations, change, flows.of(allowed))


def _changed(
    old: ReachMatrix, new: ReachMatrix, counterparts: _Counterparts, among_sources: int, among_destinations: int
) -> Iterator[ChangedConnections]:
    """Yield the changes between endpoints that exist on both sides, from some sources to some destinations."""
    common = mask_of(counterparts.after) & among_sources
    nobody = DestinationGroup(0, (), 0)
    old_of = {bit: group for group in old.groups for bit in bits(group.destinations)}
    new_of = {bit: group for group in new.groups for bit in bits(counterparts.in_old(group.destinations))}
    by_groups: dict[tuple[DestinationGroup, DestinationGroup], list[int]] = {}
    for bit in bits(mask_of(counterparts.after) & among_destinations):
        by_groups.setdefault((old_of.get(bit, nobody), new_of.get(bit, nobody)), []).append(bit)
    comparison = _PassageComparison(old)
    for (before, after), numbers in by_groups.items():
        destinations = mask_of(numbers)
        alike = comparison.changed_sources(before, after, common, counterparts)
        for (passage_changes, partial), sources in alike.items():
            if not only_itself(old, destinations, sources):
                for change in (ADDED, REMOVED, CHANGED):
                    flows = tuple(comparison.flow(changed) for changed in passage_changes if changed.change == change)
                    if flows:
                        yield ChangedConnections(old, sources, destinations, change, flows, partial)


class _PassageComparison:
    """Compares passages, and caches the result for each pair of them."""

    def __init__(self, old: ReachMatrix) -> None:
        self._flows = FlowDescriber(old.ports, True)
        # A matrix leaves out pairs of endpoints that are both not under policy: their connections are always allowed.
        self._free: ConnectionPassages = (ConnectionPassage(old.ports.everything, NOT_APPLICABLE, NOT_APPLICABLE),)
        self._known: dict[tuple[ConnectionPassages, ConnectionPassages], PassageChanges] = {}

    def changed_sources(
        self, before: DestinationGroup, after: DestinationGroup, common: int, counterparts: _Counterparts
    ) -> dict[tuple[PassageChanges, bool], int]:
        """Return the sources whose connections to a group of destinations change.

        They are sorted by the change, and by whether something passes both before and after.
        """
        sources: dict[tuple[PassageChanges, bool], int] = {}
        then = self._whole([(mask & common, passages) for mask, passages in before.sources], common)
        now = self._whole([(counterparts.in_old(mask) & common, passages) for mask, passages in after.sources], common)
        for mask, passages in then:
            for other, others in now:
                both = mask & other
                if both and passages != others and (changes := self._changes(passages, others)):
                    key = changes, _passes(passages) and _passes(others)
                    sources[key] = sources.get(key, 0) | both
        return sources

    def flow(self, changed: PassageChange) -> ChangedFlow:
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
