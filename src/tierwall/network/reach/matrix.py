"""The whole matrix: for every group of destinations, which sources reach it on which ports, and why.

A connection passes if the source's egress and the destination's ingress both let it, so a group's entry is its
ingress row met with its column of egress. Destinations with equal rows and columns are one group; the work grows
with the number of different rows and columns, not with pairs.

A column is egress seen from the destination: the rows of all sources, turned around. A row differs from one of a few
bases (nobody, everybody, a tenant …) in few classes, so it is kept as a base and a list of differences. A column is
then the sources of the bases that hold the class, corrected by the rows that differ there; every source is in one row,
so a correction is a symmetric difference and the order does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    """Sources that may (or may not) send on these ports with this outcome."""

    ports: int
    outcome: Outcome
    sources: int


class Column(Struct, frozen=True, eq=False, gc=False):
    """Who may send to a class.

    INVARIANT: equal columns of one matrix are one object, so that they are told apart without looking at their senders.
    """

    senders: tuple[Senders, ...]


# So many bases are tried for a row; a difference of so few classes is not worth looking for a better base.
MOST_BASES, NEAR = 48, 64


class _Layer:
    """All rows' sets for one (ports, outcome): bases with the sources on them, and per class the rows that differ."""

    def __init__(self, everybody: int) -> None:
        self.bases: list[list[int]] = [[0, 0], [everybody, 0]]

    def place(self, reach: int, sources: int) -> Iterable[int]:
        """Put a row on its nearest base; gives the classes in which it differs."""
        best, least = 0, -1
        for number, (base, _) in enumerate(self.bases):
            distance = (base ^ reach).bit_count()
            if least < 0 or distance < least:
                best, least = number, distance
                if distance <= NEAR:
                    break
        if least > NEAR and len(self.bases) < MOST_BASES:
            self.bases.append([reach, sources])
            return ()
        chosen = self.bases[best]
        chosen[1] |= sources
        return bits(chosen[0] ^ reach)


class Columns:
    """The columns of a set of egress rows."""

    def __init__(self, rows: Iterable[tuple[Row, int]], everybody: int, denied: bool) -> None:
        """`rows` with the sources that have each; denied outcomes are kept only if asked for."""
        self._layers: dict[tuple[int, Outcome], _Layer] = {}
        # Corrections: a layer's key and some sources. Per class, which of them hold there.
        self._corrections: list[tuple[tuple[int, Outcome], int]] = []
        self._at: dict[int, list[int]] = {}
        for row, sources in rows:
            for ports, parts in row.cells:
                for outcome, reach in parts:
                    if denied or outcome.verdict is not DENY:
                        key = ports, outcome
                        if key not in self._layers:
                            self._layers[key] = _Layer(everybody)
                        self._correct(key, sources, self._layers[key].place(reach, sources))
        # Who is on the base of everybody sends to every class; the other bases are corrections where they hold.
        self._always: dict[tuple[int, Outcome], int] = {}
        for key, layer in self._layers.items():
            for reach, sources in layer.bases:
                if reach == everybody:
                    self._always[key] = sources
                elif sources:
                    self._correct(key, sources, bits(reach))
        self._columns: dict[tuple[int, ...], Column] = {}
        self._own: dict[tuple[Senders, ...], Column] = {}

    def column(self, bit: int) -> Column:
        """Who may send to a class."""
        signature = tuple(self._at.get(bit, ()))
        found = self._columns.get(signature)
        if found is None:
            senders = self._compute(signature)
            found = self._columns[signature] = self._own.setdefault(senders, Column(senders))
        return found

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
    """Ports on which a connection fares alike, and how each direction was settled."""

    ports: int
    egress: Outcome
    ingress: Outcome

    @property
    def verdict(self) -> Verdict:
        """Of the whole connection."""
        return whole_verdict(self.egress.verdict, self.ingress.verdict)


# All the ways in which some sources reach some destinations, in order; ports do not overlap.
ConnectionPassages: TypeAlias = tuple[ConnectionPassage, ...]


class DestinationGroup(Struct, frozen=True, eq=False):
    """Destinations that are reached alike: disjoint sets of sources, each with its passages.

    `possible` are all ends of which policies have a say with these destinations, asked about or not.
    """

    destinations: int
    sources: tuple[tuple[int, ConnectionPassages], ...]
    possible: int


class ReachMatrix(Struct, frozen=True, eq=False):
    """Who reaches whom on what. Pairs of ends that are both not under policy are left out: no policy is about them."""

    classes: EndpointClasses
    membership: Membership
    ports: PortSpace
    groups: tuple[DestinationGroup, ...]


def reach_matrix(
    classes: EndpointClasses,
    *,
    why: bool = False,
    denied: bool = False,
    sources: int = -1,
    destinations: int = -1,
    ports: Sequence[PortRange] | None = None,
    progress: Progress | None = None,
) -> ReachMatrix:
    """The matrix of all classes, or of some sources, destinations and ports.

    With `why` passages are told apart by the rules that settle them; with `denied` those that do not pass are there
    too.
    """
    rows = Rows(classes, why)
    asked, asked_for = classes.everybody & sources, classes.everybody & destinations
    total = asked.bit_count() + asked_for.bit_count()
    by_row: dict[Row, list[int]] = {}
    for number, bit in enumerate(bits(asked), 1):
        by_row.setdefault(rows.row(classes.all[bit], Direction.EGRESS), []).append(bit)
        if progress is not None:
            progress("connections", number, total)
    columns = Columns(((row, mask_of(numbers)) for row, numbers in by_row.items()), classes.everybody, denied)
    wanted = rows.ports.everything if ports is None else union(map(rows.ports.mask, ports))
    met: dict[tuple[Row, Column, bool], list[int]] = {}
    for number, bit in enumerate(bits(asked_for), 1 + asked.bit_count()):
        one = classes.all[bit]
        key = rows.row(one, Direction.INGRESS), columns.column(bit), one.one.under_policy
        met.setdefault(key, []).append(bit)
        if progress is not None:
            progress("connections", number, total)
    found: dict[tuple[int, tuple[tuple[int, ConnectionPassages], ...]], list[int]] = {}
    for (row, column, under_policy), numbers in met.items():
        possible = classes.everybody if under_policy else classes.under_policy
        entry = _meet(row, column, possible & asked, wanted, denied)
        if entry:
            found.setdefault((possible, entry), []).extend(numbers)
    in_order = sorted(found.items(), key=lambda item: min(item[1]))
    groups = tuple(DestinationGroup(mask_of(numbers), entry, possible) for (possible, entry), numbers in in_order)
    return ReachMatrix(classes, rows.membership, rows.ports, groups)


def _meet(row: Row, column: Column, among: int, ports: int, denied: bool) -> tuple[tuple[int, ConnectionPassages], ...]:
    """An ingress row and an egress column: disjoint sets of sources with their passages."""
    pieces: list[tuple[int, ConnectionPassages]] = []
    for cell, parts in row.cells:
        cell &= ports
        for ingress, mask in parts:
            if not cell or (ingress.verdict is DENY and not denied):
                continue
            for sent, egress, sources in column.senders:
                common, those = sent & cell, mask & sources & among
                if common and those:
                    pieces = _add(pieces, those, ConnectionPassage(common, egress, ingress))
    merged: dict[ConnectionPassages, int] = {}
    for those, passages in pieces:
        key = _joined(passages)
        merged[key] = merged.get(key, 0) | those
    return tuple(sorted(((mask, passages) for passages, mask in merged.items()), key=lambda one: one[0] & -one[0]))


def _add(
    pieces: list[tuple[int, ConnectionPassages]], those: int, passage: ConnectionPassage
) -> list[tuple[int, ConnectionPassages]]:
    """Give some sources one more passage, cutting sets that only partly have it."""
    out: list[tuple[int, ConnectionPassages]] = []
    for mask, passages in pieces:
        inside = mask & those
        if inside:
            out.append((inside, (*passages, passage)))
            those ^= inside
            mask ^= inside
        if mask:
            out.append((mask, passages))
    if those:
        out.append((those, (passage,)))
    return out


def _joined(passages: ConnectionPassages) -> ConnectionPassages:
    """Passages settled alike become one; by lowest port."""
    found: dict[tuple[Outcome, Outcome], int] = {}
    for ports, egress, ingress in passages:
        found[egress, ingress] = found.get((egress, ingress), 0) | ports
    joined = (ConnectionPassage(ports, *settled) for settled, ports in found.items())
    return tuple(sorted(joined, key=lambda one: one.ports & -one.ports))
