"""Judges the ways in from outside: from where policies let connections through, and to which pods.

docs/network.md#ways-in-from-outside.

Where a controller is not known, it may be any pod, with any labels in any namespace, or any address: it may run on a
node's network or outside the cluster. So the way is judged for the hypothetical pods of `exposure`, which stand for
every sort of pod that policies tell apart, and for all addresses outside. What remains says under which condition the
way is open. Where the pods of the controller are known, the way is judged for these; a Service that nodes or load
balancers offer is judged for all addresses outside and for the nodes, whose addresses many of them use as the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from tierwall.core.outcome import DENY, Outcome
from tierwall.core.verdict import Verdict
from tierwall.network.detail import NOT_APPLICABLE
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.model import network_model
from tierwall.network.model.rules import PortRange
from tierwall.network.model.ways import IncomingWay, WayTarget, incoming_ways
from tierwall.network.reach.classes import EndpointClasses
from tierwall.network.reach.exposure import HypotheticalPod, HypotheticalSnapshot, future_pods
from tierwall.network.reach.listing import Arrow, ConnectionFlow, FlowDescriber, Picture, endpoint_blocks
from tierwall.network.reach.matrix import (
    ConnectionPassage,
    ConnectionPassages,
    DestinationGroup,
    ReachMatrix,
    reach_matrix,
)
from tierwall.network.reach.naming import EndpointNames, NamedEndpoints
from tierwall.network.reach.spaces import bits, mask_of, union
from tierwall.resources.snapshot import Snapshot


class WayConnection(Struct, frozen=True):
    """Pods that a way reaches from the same places.

    `pods` and `addresses` name the places; both are empty if it is open from wherever it may come.
    """

    destinations: NamedEndpoints
    flows: tuple[ConnectionFlow, ...]
    pods: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()


class JudgedWay(Struct, frozen=True):
    """A way in and the connections that it makes, or that policies deny from wherever it may come."""

    way: IncomingWay
    connections: tuple[WayConnection, ...] = ()


def judge_ways(
    snapshot: Snapshot,
    explain: bool = False,
    destinations: frozenset[Endpoint] | None = None,
    ports: Sequence[PortRange] = (),
) -> tuple[JudgedWay, ...]:
    """Return the ways in, by kind and name; if asked for, only those to some pods and on some ports.

    With `explain`, flows name the rules that decide.
    """
    ways = list(_narrowed(incoming_ways(snapshot), destinations, ports))
    unknown = [way for way in ways if way.targets and way.controller_is_unknown]
    known = [way for way in ways if way.targets and not way.controller_is_unknown]
    judged: dict[IncomingWay, JudgedWay] = {}
    if unknown:
        future = future_pods(snapshot)
        judged |= _Judge(future.snapshot, unknown, explain, future).judged
    if known:
        judged |= _Judge(snapshot, known, explain).judged
    return tuple(judged.get(way) or JudgedWay(way) for way in ways)


def _narrowed(
    ways: Iterable[IncomingWay], destinations: frozenset[Endpoint] | None, ports: Sequence[PortRange]
) -> Iterator[IncomingWay]:
    if destinations is None and not ports:
        yield from ways
        return
    for way in ways:
        targets = tuple(
            WayTarget(protocol, port, pods)
            for protocol, port, reached in way.targets
            if not ports or any(protocol == among and low <= port <= high for among, low, high in ports)
            if (pods := reached if destinations is None else tuple(pod for pod in reached if pod in destinations))
        )
        if targets:
            yield replace(way, targets=targets)


# Pods of one snapshot are told apart by namespace and name, which they also have in the snapshot with stand-ins.
_PodKey: TypeAlias = tuple[str, str]
# Who cannot come in if not all sorts of future pods were tried: the way may be open for another sort.
TRIED = "any pod that was tried, as policies tell too many sorts of pods apart to try all"
# Passages with their sources.
_Passing: TypeAlias = tuple[ConnectionPassages, int]


def _key(pod: Endpoint) -> _PodKey:
    return pod.namespace, pod.name


class _Judge:
    """Judges some ways, all of them from known places or all of them from hypothetical pods as well."""

    def __init__(
        self,
        snapshot: Snapshot,
        ways: Sequence[IncomingWay],
        explain: bool,
        future: HypotheticalSnapshot | None = None,
    ) -> None:
        self._explain = explain
        self._future = {} if future is None else future.pods
        self._denied_for = () if future is None or future.is_complete else (TRIED,)
        # The sets of pods that ways end at or start from; a class of endpoints is in such a set or outside it.
        sets = dict.fromkeys(frozenset(map(_key, pods)) for way in ways for pods in _sets_of_pods(way))
        self._in_sets: dict[_PodKey, list[int]] = {}
        for number, pods in enumerate(sets):
            for pod in pods:
                self._in_sets.setdefault(pod, []).append(number)
        ranges = {PortRange(protocol, port, port) for way in ways for protocol, port, _ in way.targets}
        blocks = dict.fromkeys(block for way in ways for block in way.ranges)
        self._classes = classes = EndpointClasses(network_model(snapshot), self._refine, blocks, ranges)
        self._bit_of: dict[_PodKey, int] = {
            _key(pod): endpoint_class.bit
            for endpoint_class in classes.all
            for pod in endpoint_class.members
            if endpoint_class.representative.kind == "pod"
        }
        self._outside = mask_of(endpoint_class.bit for endpoint_class in classes.all if endpoint_class.spans)
        self._nodes = mask_of(
            endpoint_class.bit for endpoint_class in classes.all if endpoint_class.representative.kind == "node"
        )
        self._stand_ins = mask_of(sorted({self._bit_of[key] for key in self._future}))
        self._names = EndpointNames(classes)
        sources, destinations = union(map(self._sources, ways)), union(map(self._destinations, ways))
        self._matrix = reach_matrix(
            classes, explain=explain, denied=explain, sources=sources, destinations=destinations, ports=list(ranges)
        )
        self._named_places: dict[int, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        self._flows = FlowDescriber(self._matrix.ports, explain)
        self._groups: dict[int, DestinationGroup] = {
            bit: group for group in self._matrix.groups for bit in bits(group.destinations)
        }
        self.judged = {way: self._judge(way) for way in ways}

    def _refine(self, endpoint: Endpoint) -> tuple[int, ...] | HypotheticalPod:
        key = _key(endpoint)
        return self._future.get(key) or tuple(self._in_sets.get(key, ()))

    def _mask(self, pods: Iterable[Endpoint]) -> int:
        return mask_of(sorted({self._bit_of[_key(pod)] for pod in pods}))

    def _sources(self, way: IncomingWay) -> int:
        """Return everyone who may open connections on behalf of a way."""
        if way.controller_is_unknown:
            return self._stand_ins | self._outside
        if way.by_controller:
            return self._mask(way.controllers)
        if not way.ranges:
            return self._nodes | self._outside
        wanted = union(self._classes.space.blocks[block] for block in way.ranges)
        return self._nodes | mask_of(
            bit
            for bit in bits(self._outside)
            if self._classes.space.signature(self._classes.all[bit].spans[0].low) & wanted
        )

    def _destinations(self, way: IncomingWay) -> int:
        return union(self._mask(pods) for _, _, pods in way.targets)

    def _judge(self, way: IncomingWay) -> JudgedWay:
        """Group the pods of a way by the places from which policies let connections through."""
        sources = self._sources(way)
        reached: dict[tuple[int, ConnectionPassages], int] = {}
        for protocol, port, pods in way.targets:
            ports = self._matrix.ports.mask(PortRange(protocol, port, port))
            for bit in bits(self._mask(pods)):
                passing = self._passing(bit, sources, ports) or self._denied(bit, sources, ports)
                for passages, among in passing:
                    reached[among, passages] = reached.get((among, passages), 0) | 1 << bit
        connections = tuple(
            WayConnection(
                self._names.spelled(destinations),
                self._flows.of(passages),
                *(self._places(among) if among != sources else (self._all_denied(passages), ())),
            )
            for (among, passages), destinations in reached.items()
        )
        return JudgedWay(way, connections)

    def _passing(
        self, bit: int, sources: int, ports: int, denied: bool = False
    ) -> list[tuple[ConnectionPassages, int]]:
        """Return the passages on some ports to a class, each with its sources."""
        merged: dict[ConnectionPassages, int] = {}
        group = self._groups.get(bit)
        for among, passages in group.sources if group is not None else ():
            kept = tuple(
                passage._replace(ports=ports)
                for passage in passages
                if passage.ports & ports and (denied or passage.verdict is not Verdict.DENY)
            )
            if kept and among & sources:
                merged[kept] = merged.get(kept, 0) | among & sources
        free = sources & ~self._classes.under_policy
        if free and not self._classes.all[bit].representative.under_policy:
            # Policies apply to neither end, and so the matrix leaves them out.
            kept = (ConnectionPassage(ports, NOT_APPLICABLE, NOT_APPLICABLE),)
            merged[kept] = merged.get(kept, 0) | free
        return list(merged.items())

    def _denied(self, bit: int, sources: int, ports: int) -> list[_Passing]:
        """Return the passages to a class that policies deny; without reasons they are all alike."""
        denial = Outcome(DENY, None)
        alike: list[_Passing] = [((ConnectionPassage(ports, denial, denial),), sources)]
        return (self._passing(bit, sources, ports, True) or alike) if self._explain else alike

    def _all_denied(self, passages: ConnectionPassages) -> tuple[str, ...]:
        """Name the sources of a way that is closed for all that were tried, if others could come in."""
        return self._denied_for if all(passage.verdict is Verdict.DENY for passage in passages) else ()

    def _places(self, sources: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Name the pods and the addresses of a set of sources."""
        known = self._named_places.get(sources)
        if known is None:
            known = self._named_places[sources] = self._name_places(sources)
        return known

    def _name_places(self, sources: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        pods = list(self._names.spelled(sources & ~self._stand_ins & ~self._outside & ~self._nodes).parts)
        if sorts := [
            self._future[_key(self._classes.all[bit].representative)] for bit in bits(sources & self._stand_ins)
        ]:
            pods += sorts[0].space.names(sorts)
        return tuple(pods), self._names.spelled(sources & (self._outside | self._nodes)).parts


def _sets_of_pods(way: IncomingWay) -> Iterator[tuple[Endpoint, ...]]:
    yield way.controllers
    yield from (pods for _, _, pods in way.targets)


def with_ways(picture: Picture, matrix: ReachMatrix, ways: Iterable[JudgedWay]) -> Picture:
    """Return a picture with a node for each way in that is open, and arrows to the blocks that it reaches."""
    classes, blocks = matrix.classes, endpoint_blocks(matrix)
    number_of = {bit: number for number, block in enumerate(blocks) for bit in bits(block)}
    sizes = [sum(len(member.members) for member in classes.members(block)) for block in blocks]
    nodes, arrows = list(picture.nodes), list(picture.arrows)
    numbers: dict[str, int] = {}
    for judged in ways:
        reached: dict[int, set[Endpoint]] = {}
        for _, _, pods in judged.way.targets:
            for pod in pods:
                reached.setdefault(number_of.get(classes.of(pod).bit, -1), set()).add(pod)
        flows = tuple(_flows_under_conditions(judged))
        if flows and reached.keys() - {-1}:
            name = ", ".join(judged.way.through)
            number = numbers.setdefault(name, len(nodes))
            if number == len(nodes):
                nodes.append(NamedEndpoints((), (), (name,)))
            arrows += [
                Arrow(number, block, flows if len(reached[block]) == sizes[block] else tuple(map(_to_some, flows)))
                for block in sorted(reached.keys() - {-1})
            ]
    return Picture(tuple(nodes), tuple(arrows), len(numbers))


def _flows_under_conditions(judged: JudgedWay) -> Iterator[ConnectionFlow]:
    for connection in judged.connections:
        condition = way_condition(judged.way, connection).removeprefix("if ")
        for flow in connection.flows:
            if flow.verdict is not Verdict.DENY:
                yield replace(flow, verdict=Verdict.CONDITIONAL, domains=(condition,)) if condition else flow


def _to_some(flow: ConnectionFlow) -> ConnectionFlow:
    return replace(flow, ports=f"{flow.ports} of some")


def way_condition(way: IncomingWay, connection: WayConnection) -> str:
    """Say from where a way is open; nothing if that is wherever it may come from."""
    if not connection.pods and not connection.addresses:
        return ""
    if not way.controller_is_unknown:
        return f"from {', '.join((*connection.pods, *connection.addresses))}"
    may_be = [f"is {' or '.join(connection.pods)}"] if connection.pods else []
    if connection.addresses:
        may_be.append(f"has an address in {', '.join(connection.addresses)}")
    return f"if the controller {' or '.join(may_be)}"
