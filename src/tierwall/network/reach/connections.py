"""The connections of a snapshot, all of them or those of some endpoints and ports, as a value that can be reused.

An endpoint is written as `namespace`, `namespace/name` (a pod or a workload), with `*` for any part of a name, as an IP
address, as `node:NAME`, or as `outside`, which is every address outside the cluster. A port is written as `80`,
`53/UDP` or `8000-8080/TCP`; without a protocol it means that port of every protocol.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from tierwall.core.answer import Omission
from tierwall.core.diagnostics import Diagnostic, input_error, near_miss, unknown_name_diagnostic
from tierwall.core.reference import Reference
from tierwall.network.model.endpoints import LAST_PORT, PROTOCOLS, Endpoint
from tierwall.network.model.model import NetworkModel, network_model
from tierwall.network.model.rules import PortRange
from tierwall.network.reach.classes import EndpointClasses
from tierwall.network.reach.listing import ConnectionEntry, Picture, connection_entries, pair_entries, picture
from tierwall.network.reach.matrix import ReachMatrix, reach_matrix
from tierwall.network.reach.naming import OUTSIDE, EndpointNames
from tierwall.network.reach.spaces import mask_of, union
from tierwall.network.reach.unprotected import UnprotectedPods, unprotected_pods
from tierwall.network.reach.ways_in import JudgedWay, judge_ways
from tierwall.resources.foreign import omissions
from tierwall.resources.gaps import missing
from tierwall.resources.snapshot import Snapshot
from tierwall.values.addresses import Block, Span, parse_address
from tierwall.values.pattern import pattern

if TYPE_CHECKING:
    from tierwall.core.protocols import Progress

_PORT = pattern(r"(\d{1,5})(?:-(\d{1,5}))?(?:/([A-Za-z]+))?", re.ASCII)


class Connections(Struct, frozen=True, eq=False):
    """The connections of a snapshot. Iterate over it for groups of endpoints that are decided alike."""

    matrix: ReachMatrix
    # Whether entries name the deciders of each direction.
    explain: bool = False
    not_considered: tuple[Omission, ...] = ()
    # Names of groups, each with its members. Given once, because names may be numbered.
    names: EndpointNames | None = None

    def __iter__(self) -> Iterator[ConnectionEntry]:
        return connection_entries(self.matrix, self.explain, self.names)

    def members(self, name: str) -> list[str] | None:
        """Return the members of a group in an entry that was iterated over; None for the name of one endpoint."""
        return None if self.names is None else self.names.members(name)

    def parts(self, name: str) -> list[str] | None:
        """Return the members of a group as names, of which some may again be groups; None for one endpoint."""
        return None if self.names is None else self.names.parts(name)

    def picture(self) -> Picture:
        """Return the picture of the connections. Raise TooManyBlocks if it would be too large to read."""
        return picture(self.matrix, self.explain, self.names)

    def pairs(self) -> Iterator[ConnectionEntry]:
        """Yield one entry per pair of endpoints."""
        return pair_entries(self.matrix, self.explain)

    def unprotected(self) -> tuple[UnprotectedPods, ...]:
        """Return the pods that no policy protects, by direction, and pods on their host's network."""
        return unprotected_pods(self.matrix.classes, self.names)


def connections(
    snapshot: Snapshot,
    sources: Sequence[str] = (),
    destinations: Sequence[str] = (),
    ports: Sequence[str] = (),
    focus: Sequence[str] = (),
    *,
    explain: bool = False,
    denied: bool = False,
    names: bool = False,
    progress: Progress | None = None,
) -> Connections:
    """Return the connections between some endpoints, or all of them; with a focus, those that begin or end there.

    With `names`, entries name every endpoint of a group. InputError lists every endpoint that does not exist and every
    port that is not valid.
    """
    network = network_model(snapshot)
    problems: list[Diagnostic] = []
    given = {"from": sources, "to": destinations, "focus": focus}
    selected = [_select_endpoints(snapshot, endpoints, key, problems) for key, endpoints in given.items()]
    ranges = [numbers for text in ports for numbers in _port_ranges(text, problems)]
    if problems:
        raise input_error(problems)
    classes = EndpointClasses(
        network,
        (lambda endpoint: tuple([endpoint in part.endpoints for part in selected])) if any(given.values()) else None,
        [block for part in selected for block in part.blocks],
        ranges,
    )
    senders, receivers, focused = (
        _mask(classes, part) if endpoints else -1 for part, endpoints in zip(selected, given.values(), strict=True)
    )
    matrix = reach_matrix(
        classes,
        explain=explain,
        denied=denied,
        sources=senders,
        destinations=receivers,
        focus=focused,
        ports=ranges or None,
        progress=progress,
    )
    namespaces, addresses = None, True  # If one end is not named, it may be in any namespace.
    if sources and destinations:
        ends = [end for part in selected for end in part.endpoints]
        namespaces = {end.namespace for end in ends if end.kind == "pod"}
        addresses = any(part.blocks or part.outside for part in selected) or not all(end.under_policy for end in ends)
    left_out = omissions(snapshot, "network", namespaces, is_about_addresses=addresses)
    return Connections(matrix, explain, left_out, EndpointNames(classes, names))


def ways_in(
    snapshot: Snapshot, destinations: Sequence[str] = (), ports: Sequence[str] = (), explain: bool = False
) -> tuple[JudgedWay, ...]:
    """Return the ways in from outside, all of them or those to some endpoints and ports.

    InputError lists every endpoint that does not exist and every port that is not valid.
    """
    problems: list[Diagnostic] = []
    selected = _select_endpoints(snapshot, destinations, "to", problems)
    ranges = [numbers for text in ports for numbers in _port_ranges(text, problems)]
    if problems:
        raise input_error(problems)
    return judge_ways(snapshot, explain, frozenset(selected.endpoints) if destinations else None, ranges)


def left_out_of_ways(snapshot: Snapshot, destinations: Sequence[str] = ()) -> tuple[Omission, ...]:
    """Return what could change the ways in from outside, all of them or those to some endpoints."""
    selected = _select_endpoints(snapshot, destinations, "to", [])
    namespaces = {end.namespace for end in selected.endpoints if end.kind == "pod"} if destinations else None
    return omissions(snapshot, "ways", namespaces)


class _SelectedEndpoints(NamedTuple):
    """The selected endpoints: pods and nodes, plain addresses as blocks, and whether all addresses outside are."""

    endpoints: set[Endpoint]
    blocks: list[Block]
    outside: bool


def _select_endpoints(
    snapshot: Snapshot, names: Sequence[str], key: str, problems: list[Diagnostic]
) -> _SelectedEndpoints:
    network = network_model(snapshot)
    endpoints: set[Endpoint] = set()
    blocks: list[Block] = []
    for name in names:
        address = parse_address(name)
        if address is not None:
            pod = network.pod_at(address)
            if pod is not None:
                endpoints.add(pod)
            else:
                blocks.append(Block(Span(address, address)))
            continue
        if name == OUTSIDE:
            continue
        named = set(_named(network, name))
        if not named:
            what = f"namespace, pod, workload or node `{name}` for `{key}`"
            kind = ("", "Node") if name.startswith("node:") else ("", "Pod")
            namespace = name.partition("/")[0] if kind[1] == "Pod" else ""
            unknown = missing(snapshot, what, _hint(network, name), (kind,), namespace)
            problems.append(unknown_name_diagnostic(*unknown))
        endpoints |= named
    return _SelectedEndpoints(endpoints, blocks, OUTSIDE in names)


def _port_ranges(text: str, problems: list[Diagnostic]) -> list[PortRange]:
    """Return the ranges that a string such as `80`, `53/UDP` or `8000-8080/TCP` means."""
    match = _PORT.fullmatch(text)
    if match is not None:
        first, last = int(match[1]), int(match[2] or match[1])
        given = (match[3] or "").upper()
        if 1 <= first <= last <= LAST_PORT and given in ("", *PROTOCOLS):
            return [PortRange(protocol, first, last) for protocol in ([given] if given else PROTOCOLS)]
    message = f"expected a port such as `80`, `53/UDP` or `8000-8080/TCP` from 1 to {LAST_PORT}, found `{text}`"
    problems.append(Diagnostic("TW703", message))
    return []


def _named(network: NetworkModel, name: str) -> Iterator[Endpoint]:
    if name.startswith("node:"):
        yield from (node for node in network.nodes if fnmatchcase(node.name, name.removeprefix("node:")))
        return
    if name.count("/") == 2:
        kind, namespace, pattern = name.split("/")
        for pod in network.pods:
            reference = Reference("Pod", pod.namespace, pod.name) if kind == "Pod" else pod.workload
            if reference is None or reference.kind != kind:
                continue
            if fnmatchcase(pod.namespace, namespace) and fnmatchcase(reference.name, pattern):
                yield pod
        return
    namespace, _, rest = name.partition("/")
    pattern = rest or "*"
    for pod in network.pods:
        if fnmatchcase(pod.namespace, namespace) and (
            fnmatchcase(pod.name, pattern) or (pod.workload is not None and fnmatchcase(pod.workload.name, pattern))
        ):
            yield pod


def _hint(network: NetworkModel, name: str) -> str:
    if name.startswith("node:"):
        return near_miss(name, (f"node:{node.name}" for node in network.nodes))
    namespace, slash, rest = name.partition("/")
    if network.ended_pod(namespace, rest) is not None:
        return "it has ended, so it reaches nothing and nothing reaches it"
    namespaces = {pod.namespace for pod in network.pods}
    if not slash or namespace not in namespaces:
        return near_miss(namespace, namespaces)
    siblings = [pod for pod in network.pods if pod.namespace == namespace]
    names = {str(pod) for pod in siblings}
    names |= {f"{namespace}/{pod.workload.name}" for pod in siblings if pod.workload is not None}
    return near_miss(name, names)


def _mask(classes: EndpointClasses, selected: _SelectedEndpoints) -> int:
    wanted = union(classes.space.blocks[block] for block in selected.blocks)
    return mask_of(
        endpoint_class.bit
        for endpoint_class in classes.all
        if (
            selected.outside or classes.space.signature(endpoint_class.spans[0].low) & wanted
            if endpoint_class.spans
            else endpoint_class.representative in selected.endpoints
        )
    )
