"""The matrix as it is shown: as entries, and as a picture.

An entry says which sources reach which destinations on which ports, with what verdict and why. A picture, for graphs
and the page, has the fewest blocks of ends such that every pair of blocks fares as one, and arrows between them.
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
from tierwall.network.reach.naming import LARGE, MOST_SELECTORS, EndpointNames, NamedEndpoints, NamedMask
from tierwall.network.reach.spaces import PortSpace, bits, cut, union

# A picture with more blocks than this shows nothing.
MOST_BLOCKS = 400


class ConnectionFlow(Struct, frozen=True):
    """Ports that fare alike.

    The verdict, the domain names it hangs on, and (if asked for) who settled each direction.
    """

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

    def because(self) -> str:
        """Who settled each direction, in words."""
        parts = [
            f"{name} {', '.join(map(str, settled)) or 'not under policy'}"
            for name, settled in (("egress", self.egress), ("ingress", self.ingress))
            if settled is not None
        ]
        return "; ".join(parts)

    def before(self) -> str:
        """Who settled each direction before a change, in words; nothing in a list."""
        return ""


class ConnectionEntry(Struct, frozen=True):
    """Some sources, some destinations, and what passes from every one of the first to every one of the second.

    `change` is for comparisons: "added", "removed" or "changed"; a list has none.
    """

    sources: NamedEndpoints
    destinations: NamedEndpoints
    flows: tuple[ConnectionFlow, ...]
    change: str = ""

    @property
    def ports(self) -> str:
        """All flows on one line; what is denied comes last, so that the word holds to the end of the line."""
        return ", ".join(map(str, sorted(self.flows, key=lambda flow: flow.verdict is Verdict.DENY)))


class FlowDescriber:
    """Passages in words, each once."""

    def __init__(self, ports: PortSpace, why: bool) -> None:
        self._ports = ports
        self._why = why
        self._known: dict[ConnectionPassages, tuple[ConnectionFlow, ...]] = {}

    def of(self, passages: ConnectionPassages) -> tuple[ConnectionFlow, ...]:
        """The flows of some passages, in order."""
        found = self._known.get(passages)
        if found is None:
            found = self._known[passages] = tuple(self._flow(*one) for one in passages)
        return found

    def _flow(self, ports: int, egress: Outcome, ingress: Outcome) -> ConnectionFlow:
        return ConnectionFlow(
            whole_verdict(egress.verdict, ingress.verdict),
            self._ports.show(ports),
            tuple(self._ports.ranges(ports)),
            tuple(sorted({*egress.conditions, *ingress.conditions})),
            decided_by(egress) if self._why else None,
            decided_by(ingress) if self._why else None,
        )


def connection_entries(found: ReachMatrix, why: bool = False) -> Iterator[ConnectionEntry]:
    """The groups of a matrix, destination by destination; grows with groups, not with pairs."""
    names, flows, by_selector = EndpointNames(found.classes), FlowDescriber(found.ports, why), _cuts(found)
    cuts = tuple(by_selector.values())
    for group in found.groups:
        destinations = names.describe(group.destinations, cuts=cuts)
        hints = _hints(found, group, by_selector)
        for sources, passages in group.sources:
            if not only_itself(found, group.destinations, sources):
                named = names.describe(sources, group.possible, hints, cuts)
                yield ConnectionEntry(named, destinations, flows.of(passages))


def _cuts(found: ReachMatrix) -> dict[Selector, NamedMask]:
    """The pods that most policies are about, by selector and under its name.

    What they cannot do, they all cannot.
    """
    counted = Counter(policy.pods for policy in found.classes.model.policies if policy.pods.requirements)
    common = sorted(counted.items(), key=lambda item: (-item[1], item[0]))[:MOST_SELECTORS]
    return {pods: NamedMask(_name(EVERYTHING, pods), found.membership.pods(pods)) for pods, _ in common}


def _hints(found: ReachMatrix, group: DestinationGroup, cuts: dict[Selector, NamedMask]) -> list[NamedMask]:
    """What the ingress rules about a group select, under the names the rules give it, whole and met with the cuts."""
    if max(sources.bit_count() for sources, _ in group.sources) <= LARGE:
        return []
    (bit,) = bits(group.destinations & -group.destinations)
    subject = found.classes.all[bit].one
    if not subject.under_policy:
        return []
    stack = found.classes.model.stack(subject, Direction.INGRESS)
    rules = (rule for tier in stack for policy in tier.policies for rule in policy.rules(Direction.INGRESS) or ())
    # Only pods can be so many, and only their peers have names to offer.
    pods, _addresses, _nodes, _domains = peers_by_kind(peer for rule in rules for peer in rule.peers or ())
    peers = dict.fromkeys(pods)
    out: list[NamedMask] = []
    for peer in list(peers)[:MOST_SELECTORS]:
        namespaces = _namespaces(peer, subject)
        mask = found.membership.matching(peer, subject) & group.possible
        if namespaces is not None and mask.bit_count() > LARGE:
            out.append(NamedMask(_name(namespaces, peer.pods), mask))
            if peer.pods == EVERYTHING:
                out += [NamedMask(_name(namespaces, pods), mask & cut.mask) for pods, cut in cuts.items()]
    return out


def _namespaces(peer: PodPeer, subject: Endpoint) -> Selector | None:
    """The namespaces of a peer as a selector; None for a relation that no selector says."""
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
    """`[team=red]/*`."""
    return "/".join(f"[{selector}]" if selector.requirements else "*" for selector in (namespaces, pods))


def pair_entries(found: ReachMatrix, why: bool = False) -> Iterator[ConnectionEntry]:
    """Every pair of ends, one entry each; an end and itself are left out."""
    flows = FlowDescriber(found.ports, why)
    for group in found.groups:
        targets = list(_ends(found, group.destinations))
        for destination, destination_name in targets:
            for sources, passages in group.sources:
                for source, source_name in _ends(found, sources):
                    if source is not destination or source is None:
                        yield ConnectionEntry(
                            NamedEndpoints((), (), (source_name,)),
                            NamedEndpoints((), (), (destination_name,)),
                            flows.of(passages),
                        )


def _ends(found: ReachMatrix, mask: int) -> Iterable[tuple[Endpoint | None, str]]:
    for bit in bits(mask):
        one = found.classes.all[bit]
        if one.spans:
            yield from ((None, str(span)) for span in one.spans)
        else:
            yield from ((end, str(end)) for end in one.members)


def only_itself(found: ReachMatrix, destinations: int, sources: int) -> bool:
    """Whether an entry says no more than that an end reaches itself, which no policy is about."""
    if sources != destinations or sources & (sources - 1):
        return False
    (bit,) = bits(sources)
    one = found.classes.all[bit]
    return len(one.members) == 1 and not one.spans


class TooManyBlocks(ValueError):
    """There are too many different blocks for a picture."""

    def __init__(self) -> None:
        super().__init__(f"more than {MOST_BLOCKS} groups of ends differ")


class Arrow(NamedTuple):
    """From one node to another, by number."""

    source: int
    destination: int
    flows: tuple[ConnectionFlow, ...]
    change: str = ""


class Picture(NamedTuple):
    """Named nodes and arrows between them. Nodes that are one end have no arrow to themselves."""

    nodes: tuple[NamedEndpoints, ...]
    arrows: tuple[Arrow, ...]


def picture(found: ReachMatrix, why: bool = False) -> Picture:
    """The picture of a matrix; TooManyBlocks if it would be too large to read."""
    names, flows = EndpointNames(found.classes), FlowDescriber(found.ports, why)
    blocks = _blocks(found)
    arrows = [
        Arrow(source, destination, flows.of(passages))
        for source, destination, passages in sorted(_edges(found, blocks), key=lambda edge: edge[:2])
        if not only_itself(found, blocks[destination], blocks[source])
    ]
    return Picture(tuple(map(names.spelled, blocks)), tuple(arrows))


def _blocks(found: ReachMatrix) -> list[int]:
    """Disjoint sets of ends, in order, such that each group of the matrix has all of one or nothing."""
    sets = dict.fromkeys(group.destinations for group in found.groups)
    sets |= dict.fromkeys(sources for group in found.groups for sources, _ in group.sources)
    pieces = [everybody] if (everybody := union(sets)) else []
    for mask in sets:
        pieces = cut(pieces, mask)
        if len(pieces) > MOST_BLOCKS:
            raise TooManyBlocks
    return sorted(pieces, key=lambda piece: piece & -piece)


def _edges(found: ReachMatrix, blocks: list[int]) -> Iterator[tuple[int, int, ConnectionPassages]]:
    """How blocks reach blocks, by number."""
    for group in found.groups:
        destinations = [number for number, block in enumerate(blocks) if block & group.destinations]
        for sources, passages in group.sources:
            for source in (number for number, block in enumerate(blocks) if block & sources):
                for destination in destinations:
                    yield source, destination, passages


def picture_of_changes(entries: Iterable[ConnectionEntry]) -> Picture:
    """The picture of a comparison: the sets of ends its entries name, and an arrow for each way things change."""
    nodes: dict[NamedEndpoints, int] = {}
    arrows: dict[tuple[int, int, str], list[ConnectionFlow]] = {}
    for entry in entries:
        source, destination = (nodes.setdefault(named, len(nodes)) for named in (entry.sources, entry.destinations))
        arrows.setdefault((source, destination, entry.change), []).extend(entry.flows)
        if len(nodes) > MOST_BLOCKS:
            raise TooManyBlocks
    drawn = (Arrow(source, to, tuple(flows), change) for (source, to, change), flows in arrows.items())
    return Picture(tuple(nodes), tuple(drawn))
