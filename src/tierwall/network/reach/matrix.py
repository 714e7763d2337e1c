"""The whole matrix: for every group of destinations, which sources reach it on which ports, and why.

A connection is allowed if the source's egress and the destination's ingress both allow it. So the entry of a group is
the intersection of its ingress row and its egress column. Destinations with equal rows and columns form one group; the
work depends on the number of different rows and columns, not on the number of pairs.

A column is egress seen from the destination: the transposed rows of all sources. A row differs in few classes from one
of a few bases (nobody, everybody, a tenant …), so it is stored as a base and a list of differences. A column then
consists of the sources of all bases that contain the class, corrected by the rows that differ there. Every source is in
exactly one row, so a correction is a symmetric difference, and the order of corrections does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from msgspec import Struct

from tierwall.core.outcome import DENY, Outcome
from tierwall.core.verdict import Verdict
from tierwall.network.detail import whole_verdict
from tierwall.network.model.rules import Direction, PortRange
from tierwall.network.reach.classes import EndpointClasses
from tierwall.network.reach.membership import Membership
from tierwall.network.reach.rows import Row, Rows
from tierwall.network.reach.spaces import PortSpace, bits, mask_of, union

if TYPE_CHECKING:
    from tierwall.core.protocols import Progress


class Senders(NamedTuple):
    """The sources whose egress has this outcome on these ports."""

    ports: int
    outcome: Outcome
    sources: int


class Column(Struct, frozen=True, eq=False, gc=False):
    """The senders to a class.

    INVARIANT: equal columns of one matrix are the same object, so they can be compared by identity.
    """

    senders: tuple[Senders, ...]


# The most bases that are tried for a row, and a difference (in classes) that is small enough to stop at a base.
MAX_BASES, NEAR_ENOUGH = 48, 64
# With more different sets of sources than this, the passages of a group are found source by source.
MAX_SPLITS = 256


class _Layer:
    """The sets of all rows for one pair of ports and outcome: bases, each with the sources that use it."""

    def __init__(self, everybody: int) -> None:
        self.bases: list[list[int]] = [[0, 0], [everybody, 0]]

    def place(self, reach: int, sources: int) -> Iterable[int]:
        """Assign a row to its nearest base, and return the classes in which it differs."""
        best, least = 0, -1
        for number, (base, _) in enumerate(self.bases):
            distance = (base ^ reach).bit_count()
            if least < 0 or distance < least:
                best, least = number, distance
                if distance <= NEAR_ENOUGH:
                    break
        if least > NEAR_ENOUGH and len(self.bases) < MAX_BASES:
            self.bases.append([reach, sources])
            return ()
        chosen = self.bases[best]
        chosen[1] |= sources
        return bits(chosen[0] ^ reach)


class Columns:
    """The columns of a set of egress rows, for some classes of receivers."""

    def __init__(self, rows: Iterable[tuple[Row, int]], receivers: int, denied: bool) -> None:
        """Build columns from `rows`, each with its sources. Denied outcomes are kept only if asked for."""
        self._layers: dict[tuple[int, Outcome], _Layer] = {}
        # Corrections: the key of a layer and some sources. `_at` has the numbers of the corrections by class.
        self._corrections: list[tuple[tuple[int, Outcome], int]] = []
        self._at: dict[int, list[int]] = {}
        for row, sources in rows:
            for ports, parts in row.cells:
                for outcome, reach in parts:
                    if denied or outcome.verdict is not DENY:
                        key = ports, outcome
                        if key not in self._layers:
                            self._layers[key] = _Layer(receivers)
                        self._correct(key, sources, self._layers[key].place(reach & receivers, sources))
        # Sources with the base of all receivers send to each of them. Other bases become corrections of their classes.
        self._always: dict[tuple[int, Outcome], int] = {}
        for key, layer in self._layers.items():
            for reach, sources in layer.bases:
                if sources and reach == receivers:
                    self._always[key] = sources
                elif sources:
                    self._correct(key, sources, bits(reach))
        self._columns: dict[tuple[int, ...], Column] = {}
        self._by_senders: dict[tuple[Senders, ...], Column] = {}

    def column(self, bit: int) -> Column:
        """Return the senders to a class."""
        signature = tuple(self._at.get(bit, ()))
        column = self._columns.get(signature)
        if column is None:
            senders = self._compute(signature)
            column = self._columns[signature] = self._by_senders.setdefault(senders, Column(senders))
        return column

    def _correct(self, key: tuple[int, Outcome], sources: int, where: Iterable[int]) -> None:
        number = len(self._corrections)
        self._corrections.append((key, sources))
        for bit in where:
            self._at.setdefault(bit, []).append(number)

    def _compute(self, signature: tuple[int, ...]) -> tuple[Senders, ...]:
        senders = dict(self._always)
        for number in signature:
            key, sources = self._corrections[number]
            senders[key] = senders.get(key, 0) ^ sources
        return tuple(Senders(ports, outcome, sources) for (ports, outcome), sources in senders.items() if sources)


class ConnectionPassage(NamedTuple):
    """Ports on which a connection has the same outcomes, and the outcome of each direction."""

    ports: int
    egress: Outcome
    ingress: Outcome

    @property
    def verdict(self) -> Verdict:
        """The verdict of the whole connection."""
        return whole_verdict(self.egress.verdict, self.ingress.verdict)


# All passages from some sources to some destinations, in order; their ports do not overlap.
ConnectionPassages: TypeAlias = tuple[ConnectionPassage, ...]


class DestinationGroup(Struct, frozen=True, eq=False):
    """Destinations with the same sources: disjoint sets of sources, each with its passages.

    `possible` are all endpoints whose connections to these destinations policies can affect, even if not asked for.
    """

    destinations: int
    sources: tuple[tuple[int, ConnectionPassages], ...]
    possible: int


class ReachMatrix(Struct, frozen=True, eq=False):
    """The connections between groups of endpoints. Pairs that are both not under policy are left out."""

    classes: EndpointClasses
    membership: Membership
    ports: PortSpace
    groups: tuple[DestinationGroup, ...]


def reach_matrix(
    classes: EndpointClasses,
    *,
    explain: bool = False,
    denied: bool = False,
    sources: int = -1,
    destinations: int = -1,
    focus: int = -1,
    pairs: Mapping[int, int] | None = None,
    ports: Sequence[PortRange] | None = None,
    progress: Progress | None = None,
    rows: Rows | None = None,
) -> ReachMatrix:
    """Return the matrix of all classes, or of some sources, destinations and ports; with a focus, to and from it.

    With `explain`, passages also differ by the rules that decide them. With `denied`, denied passages are included.
    `pairs` has the only destinations that are asked about, each with its only sources. `rows` are those of the classes,
    if they are at hand.
    """
    rows = Rows(classes, explain) if rows is None else rows
    wanted = rows.ports.everything if ports is None else union(map(rows.ports.mask, ports))
    if pairs is not None:
        sources, destinations = union(set(pairs.values())), mask_of(pairs)
    senders, receivers = classes.everybody & sources, classes.everybody & destinations
    focus &= classes.everybody
    if not denied:
        senders, receivers = _involved(rows, senders, receivers, focus, wanted)
    total = senders.bit_count() + receivers.bit_count()
    by_row: dict[Row, list[int]] = {}
    for number, bit in enumerate(bits(senders), 1):
        by_row.setdefault(rows.row(classes.all[bit], Direction.EGRESS), []).append(bit)
        if progress is not None:
            progress("connections", number, total)
    columns = Columns(((row, mask_of(numbers)) for row, numbers in by_row.items()), receivers, denied)
    alike: dict[tuple[Row, Column, bool, int], list[int]] = {}
    for number, bit in enumerate(bits(receivers), 1 + senders.bit_count()):
        receiver = classes.all[bit]
        row, column = rows.row(receiver, Direction.INGRESS), columns.column(bit)
        among = senders if focus >> bit & 1 else senders & focus
        if pairs is not None:
            among &= pairs[bit]
        key = row, column, receiver.representative.under_policy, among
        alike.setdefault(key, []).append(bit)
        if progress is not None:
            progress("connections", number, total)
    by_entry: dict[tuple[int, tuple[tuple[int, ConnectionPassages], ...]], list[int]] = {}
    for (row, column, under_policy, among), numbers in alike.items():
        possible = classes.everybody if under_policy else classes.under_policy
        entry = _intersect(row, column, possible & among, wanted, denied)
        if entry:
            by_entry.setdefault((possible, entry), []).extend(numbers)
    in_order = sorted(by_entry.items(), key=lambda item: min(item[1]))
    groups = tuple(DestinationGroup(mask_of(numbers), entry, possible) for (possible, entry), numbers in in_order)
    return ReachMatrix(classes, rows.membership, rows.ports, groups)


def _involved(rows: Rows, senders: int, receivers: int, focus: int, ports: int) -> tuple[int, int]:
    """Leave out classes that no connection asked for can have, so that a question about few costs little.

    The rows of the fewer endpoints say which of the others can be on the other end.
    """
    ingress, egress = Direction.INGRESS, Direction.EGRESS
    if focus != rows.classes.everybody:
        to_focus = _others(rows, receivers & focus, ingress, ports)
        from_focus = _others(rows, senders & focus, egress, ports)
        return senders & (focus | to_focus), receivers & (focus | from_focus)
    if receivers.bit_count() < senders.bit_count():
        return senders & _others(rows, receivers, ingress, ports), receivers
    if senders.bit_count() < receivers.bit_count():
        return senders, receivers & _others(rows, senders, egress, ports)
    return senders, receivers


def _others(rows: Rows, endpoints: int, direction: Direction, ports: int) -> int:
    """Return the classes with which the policies of some endpoints allow connections in one direction."""
    whole = 0
    for row in {rows.row(rows.classes.all[bit], direction) for bit in bits(endpoints)}:
        for cell, parts in row.cells:
            if cell & ports:
                whole |= union(mask for outcome, mask in parts if outcome.verdict is not DENY)
    return whole


def _intersect(
    row: Row, column: Column, among: int, ports: int, denied: bool
) -> tuple[tuple[int, ConnectionPassages], ...]:
    """Intersect an ingress row and an egress column: return disjoint sets of sources with their passages."""
    by_sources: dict[int, list[ConnectionPassage]] = {}
    for cell, parts in row.cells:
        cell &= ports
        for ingress, mask in parts:
            if not cell or (ingress.verdict is DENY and not denied):
                continue
            for sent, egress, sources in column.senders:
                common, common_sources = sent & cell, mask & sources & among
                if common and common_sources:
                    by_sources.setdefault(common_sources, []).append(ConnectionPassage(common, egress, ingress))
    merged: dict[ConnectionPassages, int] = {}
    for mask, passages in _disjoint(by_sources):
        key = _joined(passages)
        merged[key] = merged.get(key, 0) | mask
    return tuple(
        sorted(((mask, passages) for passages, mask in merged.items()), key=lambda piece: piece[0] & -piece[0])
    )


def _disjoint(by_sources: dict[int, list[ConnectionPassage]]) -> Iterable[tuple[int, ConnectionPassages]]:
    """Return disjoint sets of sources, each with all passages of its members."""
    if len(by_sources) > MAX_SPLITS:
        # Splitting would compare every set with all others. These sets are small, because they are so many.
        by_bit: dict[int, list[ConnectionPassage]] = {}
        for sources, passages in by_sources.items():
            for bit in bits(sources):
                by_bit.setdefault(bit, []).extend(passages)
        return [(1 << bit, tuple(passages)) for bit, passages in by_bit.items()]
    pieces: list[tuple[int, ConnectionPassages]] = []
    for sources, passages in by_sources.items():
        pieces = _add(pieces, sources, tuple(passages))
    return pieces


def _add(
    pieces: list[tuple[int, ConnectionPassages]], sources: int, added: ConnectionPassages
) -> list[tuple[int, ConnectionPassages]]:
    """Add passages to some sources, splitting sets of which only a part has them."""
    result: list[tuple[int, ConnectionPassages]] = []
    for mask, passages in pieces:
        inside = mask & sources
        if inside:
            result.append((inside, passages + added))
            sources ^= inside
            mask ^= inside
        if mask:
            result.append((mask, passages))
    if sources:
        result.append((sources, added))
    return result


def _joined(passages: ConnectionPassages) -> ConnectionPassages:
    """Join passages with the same outcomes, and sort them by lowest port."""
    ports_by_outcomes: dict[tuple[Outcome, Outcome], int] = {}
    for ports, egress, ingress in passages:
        ports_by_outcomes[egress, ingress] = ports_by_outcomes.get((egress, ingress), 0) | ports
    joined = (ConnectionPassage(ports, *outcomes) for outcomes, ports in ports_by_outcomes.items())
    return tuple(sorted(joined, key=lambda passage: passage.ports & -passage.ports))
