"""Shows the matrix of connections: as a list of entries, and as a picture.

An entry says which sources reach which destinations on which ports, with what verdict and why. A picture, for graphs
and the HTML page, has the fewest blocks of endpoints such that all pairs between two blocks are decided alike, with an
arrow for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple, assert_never

from msgspec import Struct

from tierwall.core.answer import Decider
from tierwall.core.labels import EVERYTHING, Requirement, Selector
from tierwall.core.outcome import Outcome
from tierwall.core.verdict import Verdict
from tierwall.network.detail import decided_by, whole_verdict
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.rules import Direction, PodPeer, PortRange, Relation, peers_by_kind
from tierwall.network.reach.matrix import ConnectionPassages, DestinationGroup, ReachMatrix
from tierwall.network.reach.naming import LARGE, MAX_SELECTORS, EndpointNames, NamedEndpoints, NamedMask
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

    def of(self, passages: ConnectionPassages) -> tuple[ConnectionFlow, ...]:
        """Return the flows of some passages, in order."""
        flows = self._known.get(passages)
        if flows is None:
            flows = self._known[passages] = tuple(self._flow(*passage) for passage in passages)
        return flows

    def _flow(self, ports: int, egress: Outcome, ingress: Outcome) -> ConnectionFlow:
        return ConnectionFlow(
            whole_verdict(egress.verdict, ingress.verdict),
            self._ports.show(ports),
            tuple(self._ports.ranges(ports)),
            tuple(sorted({*egress.conditions, *ingress.conditions})),
            decided_by(egress) if self._explain else None,
            decided_by(ingress) if self._explain else None,
        )


def connection_entries(matrix: ReachMatrix, explain: bool = False) -> Iterator[ConnectionEntry]:
    """Yield the groups of a matrix, destination by destination, however many pairs they have."""
    names, flows, by_selector = EndpointNames(matrix.classes), FlowDescriber(matrix.ports, explain), _cuts(matrix)
    cuts = tuple(by_selector.values())
    for group in matrix.groups:
        destinations = names.describe(group.destinations, cuts=cuts)
        hints = _hints(matrix, group, by_selector)
        for sources, passages in group.sources:
            if not only_itself(matrix, group.destinations, sources):
                named = names.describe(sources, group.possible, hints, cuts)
                yield ConnectionEntry(named, destinations, flows.of(passages))


def _cuts(matrix: ReachMatrix) -> dict[Selector, NamedMask]:
    """Return the sets of pods that most policies select, by selector. Exceptions often consist of such sets."""
    counted = Counter(policy.pods for policy in matrix.classes.model.policies if policy.pods.requirements)
    common = sorted(counted.items(), key=lambda item: (-item[1], item[0]))[:MAX_SELECTORS]
    return {pods: NamedMask(_name(EVERYTHING, pods), matrix.membership.pods(pods)) for pods, _ in common}


def _hints(matrix: ReachMatrix, group: DestinationGroup, cuts: dict[Selector, NamedMask]) -> list[NamedMask]:
    """Return the sets that ingress rules of a group select, named by their selectors, alone and within the cuts."""
    if max(sources.bit_count() for sources, _ in group.sources) <= LARGE:
        return []
    (bit,) = bits(group.destinations & -group.destinations)
    subject = matrix.classes.all[bit].representative
    if not subject.under_policy:
        return []
    stack = matrix.classes.model.stack(subject, Direction.INGRESS)
    rules = (rule for tier in stack for policy in tier.policies for rule in policy.rules(Direction.INGRESS) or ())
    # Only sets of pods are that large, and only pod peers have selectors that can name them.
    pods, _addresses, _nodes, _domains = peers_by_kind(peer for rule in rules for peer in rule.peers or ())
    peers = dict.fromkeys(pods)
    hints: list[NamedMask] = []
    for peer in list(peers)[:MAX_SELECTORS]:
        namespaces = _namespaces(peer, subject)
        mask = matrix.membership.matching(peer, subject) & group.possible
        if namespaces is not None and mask.bit_count() > LARGE:
            hints.append(NamedMask(_name(namespaces, peer.pods), mask))
            if peer.pods == EVERYTHING:
                hints += [NamedMask(_name(namespaces, pods), mask & cut.mask) for pods, cut in cuts.items()]
    return hints


def _namespaces(peer: PodPeer, subject: Endpoint) -> Selector | None:
    """Return the namespaces of a peer as a selector, or None if a selector cannot express them."""
    namespaces = peer.namespaces
    if isinstance(namespaces, Selector):
        return namespaces
    match namespaces.relation:
        case Relation.SAME_LABELS if namespaces.keys:
            labels = subject.namespace_labels
            return Selector(tuple(Requirement(key, "In", (labels.get(key, ""),)) for key in namespaces.keys))
        case Relation.SAME_LABELS | Relation.SELF | Relation.NOT_SELF | Relation.NOT_SAME_LABELS:
            return None
        case _:
            assert_never(namespaces.relation)


def _name(namespaces: Selector, pods: Selector) -> str:
    """Return a name such as `[team=red]/*`."""
    return "/".join(f"[{selector}]" if selector.requirements else "*" for selector in (namespaces, pods))


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
    for bit in bits(mask):
        endpoint_class = matrix.classes.all[bit]
        if endpoint_class.spans:
            yield from ((None, str(span)) for span in endpoint_class.spans)
        else:
            yield from ((endpoint, str(endpoint)) for endpoint in endpoint_class.members)


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
    """Named nodes and arrows between them. A node that is a single endpoint has no arrow to itself."""

    nodes: tuple[NamedEndpoints, ...]
    arrows: tuple[Arrow, ...]


def picture(matrix: ReachMatrix, explain: bool = False) -> Picture:
    """Return the picture of a matrix. Raise TooManyBlocks if it would be too large to read."""
    names, flows = EndpointNames(matrix.classes), FlowDescriber(matrix.ports, explain)
    blocks = _blocks(matrix)
    arrows = [
        Arrow(source, destination, flows.of(passages))
        for source, destination, passages in sorted(_edges(matrix, blocks), key=lambda edge: edge[:2])
        if not only_itself(matrix, blocks[destination], blocks[source])
    ]
    return Picture(tuple(map(names.spelled, blocks)), tuple(arrows))


def _blocks(matrix: ReachMatrix) -> list[int]:
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
