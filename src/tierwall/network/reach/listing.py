"""Shows the matrix of connections: as a list of entries, and as a picture.

An entry says which sources reach which destinations on which ports, with what verdict and why. A picture, for graphs
and the HTML page, has the fewest blocks of endpoints such that all pairs between two blocks are decided alike, with an
arrow for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec import Struct

from tierwall.core.answer import Decider
from tierwall.core.outcome import Outcome
from tierwall.core.verdict import Verdict
from tierwall.network.detail import decided_by, whole_verdict
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.rules import PortRange
from tierwall.network.reach.matrix import ConnectionPassages, ReachMatrix
from tierwall.network.reach.naming import OUTSIDE, EndpointNames, NamedEndpoints
from tierwall.network.reach.spaces import PortSpace, bits, cut, union

# A picture with more blocks than this would be unreadable.
MAX_BLOCKS = 400


class ConnectionFlow(Struct, frozen=True):
    """Ports with the same decision: the verdict, the domain names it depends on, and the deciders if asked for."""

    verdict: Verdict
    ports: str
    ranges: tuple[PortRange, ...]
    domains: tuple[str, ...] = ()
    egress: tuple[Decider, ...] | None = None
    ingress: tuple[Decider, ...] | None = None

    def __str__(self) -> str:
        if self.verdict is Verdict.DENY:
            return f"denied {self.ports}"
        return f"{self.ports} if {' or '.join(self.domains)}" if self.verdict is Verdict.CONDITIONAL else self.ports

    def name_deciders(self) -> str:
        """Name the deciders of each direction."""
        parts = [
            f"{name} {', '.join(map(str, deciders)) or 'not under policy'}"
            for name, deciders in (("egress", self.egress), ("ingress", self.ingress))
            if deciders is not None
        ]
        return "; ".join(parts)

    def before(self) -> str:
        """Name the deciders of each direction before a change; empty if nothing is compared."""
        return ""


class ConnectionEntry(Struct, frozen=True):
    """Some sources, some destinations, and the flows from every source to every destination.

    In a comparison `change` is "added", "removed" or "changed"; otherwise it is empty. `partial` says that something
    passes both before and after, so that the endpoints gain or lose ports only.
    """

    sources: NamedEndpoints
    destinations: NamedEndpoints
    flows: tuple[ConnectionFlow, ...]
    change: str = ""
    partial: bool = False

    @property
    def ports(self) -> str:
        """All flows on one line. Denied ones come last, so that "denied" applies up to the end of the line."""
        return ", ".join(dict.fromkeys(map(str, sorted(self.flows, key=lambda flow: flow.verdict is Verdict.DENY))))


class FlowDescriber:
    """Turns passages into flows, and caches them."""

    def __init__(self, ports: PortSpace, explain: bool) -> None:
        self._ports = ports
        self._explain = explain
        self._known: dict[ConnectionPassages, tuple[ConnectionFlow, ...]] = {}
        self._described: dict[int, tuple[str, tuple[PortRange, ...]]] = {}

    def of(self, passages: ConnectionPassages) -> tuple[ConnectionFlow, ...]:
        """Return the flows of some passages, in order."""
        flows = self._known.get(passages)
        if flows is None:
            flows = self._known[passages] = tuple(self._flow(*passage) for passage in passages)
        return flows

    def _shown(self, ports: int) -> tuple[str, tuple[PortRange, ...]]:
        known = self._described.get(ports)
        if known is None:
            known = self._described[ports] = self._ports.show(ports), tuple(self._ports.ranges(ports))
        return known

    def _flow(self, ports: int, egress: Outcome, ingress: Outcome) -> ConnectionFlow:
        return ConnectionFlow(
            whole_verdict(egress.verdict, ingress.verdict),
            *self._shown(ports),
            tuple(sorted({*egress.conditions, *ingress.conditions})),
            decided_by(egress) if self._explain else None,
            decided_by(ingress) if self._explain else None,
        )


def connection_entries(
    matrix: ReachMatrix, explain: bool = False, names: EndpointNames | None = None
) -> Iterator[ConnectionEntry]:
    """Yield the groups of a matrix, destination by destination, however many pairs they have."""
    return (placed.entry for placed in masked_entries(matrix, explain, names))


class MaskedEntry(NamedTuple):
    """An entry with the classes that it is about, as sets of bits."""

    entry: ConnectionEntry
    sources: int
    destinations: int


def masked_entries(
    matrix: ReachMatrix, explain: bool = False, names: EndpointNames | None = None
) -> Iterator[MaskedEntry]:
    """Yield the entries of a matrix, each with its classes."""
    names, flows = names or EndpointNames(matrix.classes), FlowDescriber(matrix.ports, explain)
    for group in matrix.groups:
        destinations, near = names.describe(group.destinations), names.unit(group.destinations)
        for sources, passages in group.sources:
            if not only_itself(matrix, group.destinations, sources):
                # Pairs that policies do not affect are left out. They are allowed, so an entry may seem to include
                # them, unless it says that something is denied.
                is_denied = any(passage.verdict is Verdict.DENY for passage in passages)
                named = names.describe(sources, -1 if is_denied else group.possible, near)
                entry = ConnectionEntry(named, destinations, flows.of(passages))
                yield MaskedEntry(entry, sources, group.destinations)


def pair_entries(matrix: ReachMatrix, explain: bool = False) -> Iterator[ConnectionEntry]:
    """Yield one entry per pair of endpoints, except for an endpoint and itself."""
    flows = FlowDescriber(matrix.ports, explain)
    for group in matrix.groups:
        targets = list(_members(matrix, group.destinations))
        for destination, destination_name in targets:
            for sources, passages in group.sources:
                for source, source_name in _members(matrix, sources):
                    if source is not destination or source is None:
                        yield ConnectionEntry(
                            NamedEndpoints((), (), (source_name,)),
                            NamedEndpoints((), (), (destination_name,)),
                            flows.of(passages),
                        )


def _members(matrix: ReachMatrix, mask: int) -> Iterable[tuple[Endpoint | None, str]]:
    outside = matrix.classes.outside
    is_everything = mask & outside == outside
    for endpoint_class in matrix.classes.members(mask & ~outside if is_everything else mask):
        if endpoint_class.spans:
            yield from ((None, str(span)) for span in endpoint_class.spans)
        else:
            yield from ((endpoint, str(endpoint)) for endpoint in endpoint_class.members)
    if is_everything:
        yield None, OUTSIDE


def only_itself(matrix: ReachMatrix, destinations: int, sources: int) -> bool:
    """Whether an entry is only about one endpoint and itself, to which policies do not apply."""
    if sources != destinations or sources & (sources - 1):
        return False
    (bit,) = bits(sources)
    endpoint_class = matrix.classes.all[bit]
    return len(endpoint_class.members) == 1 and not endpoint_class.spans


class TooManyBlocks(ValueError):
    """A picture would have too many blocks."""

    def __init__(self) -> None:
        super().__init__(f"more than {MAX_BLOCKS} groups of endpoints differ")


class Arrow(NamedTuple):
    """An arrow from one node to another, by number."""

    source: int
    destination: int
    flows: tuple[ConnectionFlow, ...]
    change: str = ""
    partial: bool = False


class Picture(NamedTuple):
    """Named nodes and arrows between them. A node that is a single endpoint has no arrow to itself.

    The last nodes are ways in from outside; `ways` counts them.
    """

    nodes: tuple[NamedEndpoints, ...]
    arrows: tuple[Arrow, ...]
    ways: int = 0


def picture(matrix: ReachMatrix, explain: bool = False, names: EndpointNames | None = None) -> Picture:
    """Return the picture of a matrix. Raise TooManyBlocks if it would be too large to read."""
    names, flows = names or EndpointNames(matrix.classes), FlowDescriber(matrix.ports, explain)
    blocks = endpoint_blocks(matrix)
    arrows = [
        Arrow(source, destination, flows.of(passages))
        for source, destination, passages in sorted(_edges(matrix, blocks), key=lambda edge: edge[:2])
        if not only_itself(matrix, blocks[destination], blocks[source])
    ]
    return Picture(tuple(map(names.describe, blocks)), tuple(arrows))


def endpoint_blocks(matrix: ReachMatrix) -> list[int]:
    """Return disjoint sets of endpoints, in order, such that a group of the matrix has all of a set or none of it."""
    sets = dict.fromkeys(group.destinations for group in matrix.groups)
    sets |= dict.fromkeys(sources for group in matrix.groups for sources, _ in group.sources)
    pieces = [everybody] if (everybody := union(sets)) else []
    for mask in sets:
        pieces = cut(pieces, mask)
        if len(pieces) > MAX_BLOCKS:
            raise TooManyBlocks
    return sorted(pieces, key=lambda piece: piece & -piece)


def _edges(matrix: ReachMatrix, blocks: list[int]) -> Iterator[tuple[int, int, ConnectionPassages]]:
    """Yield the passages from block to block, by number."""
    for group in matrix.groups:
        destinations = [number for number, block in enumerate(blocks) if block & group.destinations]
        for sources, passages in group.sources:
            for source in (number for number, block in enumerate(blocks) if block & sources):
                for destination in destinations:
                    yield source, destination, passages


def picture_of_changes(entries: Iterable[ConnectionEntry]) -> Picture:
    """Return the picture of a comparison: the endpoints of its entries, and one arrow per kind of change."""
    nodes: dict[NamedEndpoints, int] = {}
    arrows: dict[tuple[int, int, str, bool], list[ConnectionFlow]] = {}
    for entry in entries:
        source, destination = (nodes.setdefault(named, len(nodes)) for named in (entry.sources, entry.destinations))
        arrows.setdefault((source, destination, entry.change, entry.partial), []).extend(entry.flows)
        if len(nodes) > MAX_BLOCKS:
            raise TooManyBlocks
    drawn = (
        Arrow(source, to, tuple(flows), change, partial) for (source, to, change, partial), flows in arrows.items()
    )
    return Picture(tuple(nodes), tuple(drawn))
