"""Tells which pods can reach which ports of the pods of Gateways and backends.

One matrix of `network.reach` is built for all of them, from classes of endpoints, so the work does not grow with the
number of pairs of pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tierwall.core.answer import Decider
from tierwall.core.verdict import Verdict
from tierwall.network.detail import decided_by
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.model import network_model
from tierwall.network.model.rules import PortRange
from tierwall.network.reach.classes import EndpointClasses
from tierwall.network.reach.matrix import DestinationGroup, reach_matrix
from tierwall.network.reach.spaces import bits, mask_of, union
from tierwall.resources.snapshot import Snapshot


class PortOfPod(NamedTuple):
    """A TCP port of a pod."""

    pod: Endpoint
    port: int


class PathMatrix:
    """The pods that can reach some ports of pods; sets of pods are integers with a bit for each class."""

    def __init__(self, snapshot: Snapshot, targets: Iterable[PortOfPod], sets: Iterable[Sequence[Endpoint]]) -> None:
        """Build the matrix. A class of endpoints lies inside or outside each of the `sets`."""
        model = network_model(snapshot)
        self._in_sets: dict[Endpoint, list[int]] = {}
        for number, pods in enumerate(sets):
            for pod in pods:
                self._in_sets.setdefault(pod, []).append(number)
        wanted = dict.fromkeys(targets)
        ranges = {_range(target.port) for target in wanted}
        self._classes = EndpointClasses(model, lambda end: tuple(self._in_sets.get(end, ())), (), ranges)
        self._pods = mask_of(sorted({self._classes.of(pod).bit for pod in model.pods}))
        destinations = mask_of(sorted({self._classes.of(target.pod).bit for target in wanted}))
        self._matrix = reach_matrix(
            self._classes, explain=True, sources=self._pods, destinations=destinations, ports=sorted(ranges)
        )
        self._owners: dict[int, frozenset[str]] = {}
        self._sources: dict[tuple[int, int, tuple[Verdict, ...]], int] = {}
        self._groups: dict[int, DestinationGroup] = {
            bit: group for group in self._matrix.groups for bit in bits(group.destinations)
        }

    @property
    def under_policy(self) -> int:
        """All pods that are not on the network of their node."""
        return self._pods & self._classes.under_policy

    def mask(self, pods: Iterable[Endpoint]) -> int:
        """Return some pods, which must be one of the sets, as a set."""
        return mask_of(sorted({self._classes.of(pod).bit for pod in pods}))

    def count(self, mask: int) -> int:
        """Return how many pods a set has."""
        return sum(len(endpoint_class.members) for endpoint_class in self._classes.members(mask))

    def examples(self, mask: int) -> Iterator[Endpoint]:
        """Yield one pod of each class of a set."""
        return (endpoint_class.representative for endpoint_class in self._classes.members(mask))

    def owners(self, mask: int) -> list[str]:
        """Return the workloads of the pods of a set, and the pods that have none, by name."""
        return sorted(set().union(*(self._owners_of(bit) for bit in bits(mask))))

    def _owners_of(self, bit: int) -> frozenset[str]:
        owners = self._owners.get(bit)
        if owners is None:
            members = self._classes.all[bit].members
            owners = self._owners[bit] = frozenset(str(pod.workload or f"Pod/{pod}") for pod in members)
        return owners

    def sources(self, target: PortOfPod, verdicts: tuple[Verdict, ...]) -> int:
        """Return the pods whose connections to a target have one of these verdicts, Deny not being one of them."""
        bit = self._classes.of(target.pod).bit
        key = bit, target.port, verdicts
        if key not in self._sources:
            self._sources[key] = self._find_sources(target, bit, verdicts)
        return self._sources[key]

    def _find_sources(self, target: PortOfPod, bit: int, verdicts: tuple[Verdict, ...]) -> int:
        ports = self._matrix.ports.mask(_range(target.port))
        group = self._groups.get(bit)
        reached = 0
        if group is not None:
            reached = union(
                sources
                for sources, passages in group.sources
                if any(passage.ports & ports and passage.verdict in verdicts for passage in passages)
            )
        if not target.pod.under_policy:
            # Policies apply to neither end, and the matrix has no such pairs.
            reached |= self._pods & ~self._classes.under_policy
        return reached

    def deciders(self, target: PortOfPod, sources: int) -> Iterator[Decider]:
        """Yield what lets some pods in at a target, where they are allowed; nothing if policies do not apply to it."""
        group = self._groups.get(self._classes.of(target.pod).bit)
        ports = self._matrix.ports.mask(_range(target.port))
        for among, passages in group.sources if group is not None else ():
            if among & sources:
                for passage in passages:
                    if passage.ports & ports and passage.verdict is Verdict.ALLOW:
                        yield from decided_by(passage.ingress)


def _range(port: int) -> PortRange:
    return PortRange("TCP", port, port)
