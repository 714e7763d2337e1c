"""Connections folded: one cell for each pair of units, which are namespaces, nodes and the outside.

A unit can be unfolded: then its groups of equal ends are units by themselves, and all other namespaces that differ in
nothing towards them share one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from tierwall.core.verdict import Verdict
from tierwall.network.reach.classes import EndpointClasses
from tierwall.network.reach.matrix import ReachMatrix
from tierwall.network.reach.naming import OUTSIDE, EndpointNames
from tierwall.network.reach.spaces import cut

NODES = "nodes"


class Unit(Struct, frozen=True):
    """A set of classes with a name; `focus` is how `?focus=` names it, empty if it cannot."""

    name: str
    classes: int
    focus: str = ""


class Cell(Struct, frozen=True):
    """The ports that pass from a unit to another, whether they are all ports of all members, or conditional."""

    ports: int
    label: str
    is_whole: bool
    is_conditional: bool
    # The share of pairs of members that may connect on some port.
    share: float = 1.0

    @property
    def shown(self) -> str:
        """The label of an arrow; it says if not all members are meant."""
        return "all, some ends" if self.label == "all" and not self.is_whole else self.label

    @property
    def kind(self) -> str:
        """The kind at a glance: `all`, `some` or `conditional`."""
        return "conditional" if self.is_conditional else "all" if self.is_whole else "some"


class Fold(Struct, frozen=True):
    """Units and the cells between them, by number."""

    units: tuple[Unit, ...]
    cells: dict[tuple[int, int], Cell]


def namespaces(classes: EndpointClasses) -> tuple[Unit, ...]:
    """Return a unit for each namespace with pods, then one for nodes, then one for the outside."""
    masks: dict[str, int] = {}
    nodes = outside = 0
    for each in classes.all:
        bit = 1 << each.bit
        if each.spans:
            outside |= bit
            continue
        for member in each.members:
            if member.kind == "pod":
                masks[member.namespace] = masks.get(member.namespace, 0) | bit
            elif member.kind == "node":
                nodes |= bit
    units = [Unit(name, masks[name], name) for name in sorted(masks)]
    units += [Unit(NODES, nodes, "node:*")] if nodes else []
    units += [Unit(OUTSIDE, outside, OUTSIDE)] if outside else []
    return tuple(units)


def fold(matrix: ReachMatrix, units: Sequence[Unit]) -> Fold:
    """Fold a matrix into cells between units."""
    everything = matrix.ports.everything
    ports: dict[tuple[int, int], int] = {}
    sure: dict[tuple[int, int], int] = {}
    area: dict[tuple[int, int], int] = {}
    met: dict[tuple[int, int], int] = {}
    shares: dict[int, list[tuple[int, int]]] = {}

    def share(mask: int) -> list[tuple[int, int]]:
        """Return the units that a set meets, each with the number of their classes in it."""
        if mask not in shares:
            met = ((number, (mask & unit.classes).bit_count()) for number, unit in enumerate(units))
            shares[mask] = [(number, count) for number, count in met if count]
        return shares[mask]

    for group in matrix.groups:
        there = share(group.destinations)
        for sources, passages in group.sources:
            allowed = certain = 0
            for passage in passages:
                if passage.verdict is not Verdict.DENY:
                    allowed |= passage.ports
                if passage.verdict is Verdict.ALLOW:
                    certain |= passage.ports
            if not allowed:
                continue
            for source, count in share(sources):
                for destination, number in there:
                    pair = source, destination
                    ports[pair] = ports.get(pair, 0) | allowed
                    sure[pair] = sure.get(pair, 0) | certain
                    met[pair] = met.get(pair, 0) + count * number
                    if certain == everything:
                        area[pair] = area.get(pair, 0) + count * number
    labels: dict[int, str] = {}
    cells: dict[tuple[int, int], Cell] = {}
    sizes = [unit.classes.bit_count() for unit in units]
    for pair, mask in ports.items():
        if mask not in labels:
            labels[mask] = matrix.ports.show(mask)
        pairs = sizes[pair[0]] * sizes[pair[1]]
        is_whole = area.get(pair, 0) == pairs
        if pair[0] != pair[1] or _has_several(matrix.classes, units[pair[0]]):
            cells[pair] = Cell(mask, labels[mask], is_whole, not sure[pair], met[pair] / pairs)
    return Fold(tuple(units), cells)


def _has_several(classes: EndpointClasses, unit: Unit) -> bool:
    """Whether a unit has more than one endpoint: one has no connection with itself."""
    return sum(len(each.members) for each in classes.members(unit.classes)) > 1


def unfold(matrix: ReachMatrix, names: EndpointNames, opened: Iterable[Unit], others: Sequence[Unit]) -> Fold:
    """Unfold some units into groups of equal ends, and join the others that do not differ towards them."""
    pieces: list[Unit] = []
    for unit in opened:
        parts = [unit.classes]
        for group in matrix.groups:
            parts = cut(parts, group.destinations & unit.classes) if group.destinations & unit.classes else parts
            for sources, _ in group.sources:
                if sources & unit.classes:
                    parts = cut(parts, sources & unit.classes)
        pieces += [Unit(str(names.describe(part)), part) for part in sorted(parts, key=lambda part: part & -part)]
    folded = fold(matrix, [*pieces, *others])
    inner = range(len(pieces))
    alike: dict[tuple[object, ...], list[int]] = {}
    for number in range(len(pieces), len(folded.units)):
        key = tuple((folded.cells.get((each, number)), folded.cells.get((number, each))) for each in inner)
        if any(cell is not None for pair in key for cell in pair):
            is_namespace = folded.units[number].focus == folded.units[number].name != OUTSIDE
            alike.setdefault((is_namespace or number, key), []).append(number)
    units, cells = list(pieces), {pair: cell for pair, cell in folded.cells.items() if max(pair) < len(pieces)}
    for members in alike.values():
        first, new = members[0], len(units)
        units.append(folded.units[first] if len(members) == 1 else _joined([folded.units[each] for each in members]))
        for each in inner:
            for old, pair in (((each, first), (each, new)), ((first, each), (new, each))):
                if old in folded.cells:
                    cells[pair] = folded.cells[old]
    return Fold(tuple(units), cells)


def _joined(units: Sequence[Unit]) -> Unit:
    classes = 0
    for unit in units:
        classes |= unit.classes
    few = ", ".join(unit.name for unit in units[:3])
    name = few if len(units) <= 3 else f"{len(units)} namespaces ({units[0].name}, {units[-1].name}, …)"
    return Unit(name, classes)
