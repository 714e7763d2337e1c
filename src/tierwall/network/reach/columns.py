"""Egress seen from the destination: for every class, who may send to it. The rows of all sources, turned around.

A row differs from one of a few bases (nobody, everybody, a tenant …) in few classes, so it is kept as a base and a
list of differences. A column is then the sources of the bases that hold the class, corrected by the rows that
differ there; every source is in one row, so a correction is a symmetric difference and the order does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct

from tierwall.core.outcome import DENY, Outcome
from tierwall.network.reach.classes import bits
from tierwall.network.reach.rows import Row


class Sender(NamedTuple):
    """Sources that may (or may not) send on these ports with this outcome."""

    ports: int
    outcome: Outcome
    sources: int


class Column(Struct, frozen=True, eq=False, gc=False):
    """Who may send to a class.

    INVARIANT: equal columns of one matrix are one object, so that they are told apart without looking at their senders.
    """

    senders: tuple[Sender, ...]


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
        self._own: dict[tuple[Sender, ...], Column] = {}

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

    def _compute(self, signature: tuple[int, ...]) -> tuple[Sender, ...]:
        senders = dict(self._always)
        for number in signature:
            key, sources = self._corrections[number]
            senders[key] = senders.get(key, 0) ^ sources
        return tuple(Sender(ports, outcome, sources) for (ports, outcome), sources in senders.items() if sources)
