"""Names sets of endpoints: the shortest exact list of namespaces, workloads, pods, nodes and address ranges.

`ns/*` means every pod of a namespace, `ns/name[Deployment]` every pod of a workload, `*/*` every pod, `*` everyone. A
large set is named by sets that have a name in some policy (`[team=red]/[app=db]`: the pods under policy that those
selectors select), except for members it lacks, and then the rest one by one. Names are built unit by unit and cached,
because in a large cluster most sets agree in most units.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from tierwall.network.model.endpoints import Endpoint
from tierwall.network.reach.classes import EndpointClass, EndpointClasses
from tierwall.network.reach.spaces import mask_of, union
from tierwall.values.addresses import merge_ranges

EVERYONE, EVERY_POD = "*", "*/*"
# The fewest bits of a chunk; names are cached by chunk.
CHUNK = 256
# A set with more classes than this may be named by selectors; a smaller one is always spelled out.
LARGE = 32
# The most selectors of each kind that are tried for a name, and the number of other names that is few enough to stop.
MAX_SELECTORS, FEW_ENOUGH = 4, 12


class NamedEndpoints(Struct, frozen=True):
    """The name of a set of endpoints: everything in `all` except `excepts`, and also `ends`."""

    all: tuple[str, ...]
    excepts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = {EVERYONE: "everyone", EVERY_POD: "every pod"}
        sets = [words.get(name, name) for name in self.all]
        if not self.excepts:
            return ", ".join((*sets, *self.ends)) or "nobody"
        name = f"{', '.join(sets)} except {', '.join(self.excepts)}"
        return f"{name}; also {', '.join(self.ends)}" if self.ends else name


class NamedMask(Struct, frozen=True):
    """A set of classes that a rule or a subject of a policy selects, with its name."""

    name: str
    mask: int


class EndpointNames:
    """Names sets of a model's classes."""

    def __init__(self, classes: EndpointClasses) -> None:
        self._classes = classes
        self.pods = mask_of(
            endpoint_class.bit for endpoint_class in classes.all if endpoint_class.representative.kind == "pod"
        )
        self._in_workload: dict[str, int] = {}
        self._in_namespace: dict[str, int] = {}
        for pod in classes.model.pods:
            self._in_namespace[pod.namespace] = self._in_namespace.get(pod.namespace, 0) + 1
            workload = _workload(pod)
            if workload:
                self._in_workload[workload] = self._in_workload.get(workload, 0) + 1
        # Chunks of whole units: the first bit and the length of each, and the chunk of each bit.
        self._chunks: list[tuple[int, int]] = []
        self._chunk_of: list[int] = []
        self._divide_into_chunks()
        self._known: dict[tuple[int, int], tuple[str, ...]] = {}

    def describe(
        self, mask: int, possible: int = -1, hints: Sequence[NamedMask] = (), cuts: Sequence[NamedMask] = ()
    ) -> NamedEndpoints:
        """Name a set. `possible` are the endpoints that could be in it; others are not named as exceptions.

        `hints` and `cuts` are sets with names. A hint may name a large part of the set, and cuts its exceptions.
        """
        everybody = self._classes.everybody
        possible &= everybody
        if mask == everybody and mask & (mask - 1):
            return NamedEndpoints((EVERYONE,))
        pods = mask & self.pods
        every_pod = NamedMask(EVERY_POD, possible & self.pods)
        if pods.bit_count() <= LARGE:
            # Spell the set out, unless naming the exceptions is shorter.
            lacking = every_pod.mask & ~pods
            if not pods & (pods - 1) or lacking.bit_count() * 4 >= pods.bit_count():
                return NamedEndpoints((), (), tuple(self._names(mask)))
            return NamedEndpoints((EVERY_POD,), tuple(self._names(lacking)), tuple(self._names(mask & ~self.pods)))
        included, excluded = self._choose(pods, (*hints, every_pod, *cuts), (*hints, *cuts))
        named = union(hint.mask for hint in included) & ~union(hint.mask for hint in excluded)
        # INVARIANT: the name is exact, whatever was chosen: the set is (named - surplus) + rest.
        surplus = named & ~mask
        rest = mask & ~named
        excepts = (*(hint.name for hint in excluded), *self._names(surplus))
        return NamedEndpoints(tuple(hint.name for hint in included), excepts, tuple(self._names(rest)))

    def spelled(self, mask: int) -> NamedEndpoints:
        """Name a set by its own members only."""
        return NamedEndpoints((), (), tuple(self._names(mask)))

    def _choose(
        self, pods: int, known: Sequence[NamedMask], cuts: Sequence[NamedMask]
    ) -> tuple[list[NamedMask], list[NamedMask]]:
        """Choose the known set, and the cuts from it, that leave the least to spell out."""
        best: tuple[list[NamedMask], list[NamedMask]] = [], []
        least = pods.bit_count()
        for hint in known:
            if (hint.mask & pods).bit_count() <= LARGE:
                continue
            surplus, missing, chosen = hint.mask & ~pods, pods & ~hint.mask, []
            for cut in cuts:
                removed = cut.mask & surplus
                if removed and removed.bit_count() > 4 * (cut.mask & hint.mask & pods).bit_count() + 2:
                    chosen.append(cut)
                    surplus ^= removed
                    missing |= cut.mask & pods
            remaining = surplus.bit_count() + missing.bit_count()
            if remaining * 2 < least:
                best, least = ([hint], chosen), remaining
                if remaining <= FEW_ENOUGH:
                    break
        return best

    def _divide_into_chunks(self) -> None:
        begin, unit = 0, 0
        for endpoint_class in self._classes.all:
            bit = endpoint_class.bit
            if endpoint_class.unit != unit and bit - begin >= CHUNK:
                self._chunks.append((begin, bit - begin))
                begin = bit
            unit = endpoint_class.unit
            self._chunk_of.append(len(self._chunks))
        self._chunks.append((begin, len(self._classes.all) - begin))

    def _names(self, mask: int) -> Iterator[str]:
        while mask:
            chunk = self._chunk_of[(mask & -mask).bit_length() - 1]
            begin, length = self._chunks[chunk]
            value = mask >> begin & ((1 << length) - 1)
            names = self._known.get((chunk, value))
            if names is None:
                names = self._known[chunk, value] = tuple(self._chunk_names(begin, value))
            yield from names
            mask = mask >> (begin + length) << (begin + length)

    def _chunk_names(self, begin: int, value: int) -> Iterator[str]:
        units: dict[int, list[EndpointClass]] = {}
        for endpoint_class in self._classes.members(value << begin):
            units.setdefault(endpoint_class.unit, []).append(endpoint_class)
        for classes in units.values():
            if classes[0].representative.kind == "pod":
                yield from self._pod_names([pod for pod_class in classes for pod in pod_class.members])
            elif classes[0].spans:
                yield from map(str, merge_ranges(span for outside in classes for span in outside.spans))
            else:
                yield from sorted(str(node) for node_class in classes for node in node_class.members)

    def _pod_names(self, pods: list[Endpoint]) -> Iterator[str]:
        """Yield the shortest names for some pods of one unit: whole namespaces, then whole workloads, then pods."""
        namespaces: dict[str, list[Endpoint]] = {}
        for pod in sorted(pods, key=lambda pod: (pod.namespace, pod.name)):
            namespaces.setdefault(pod.namespace, []).append(pod)
        for namespace, members in namespaces.items():
            workloads: dict[str, list[Endpoint]] = {}
            for pod in members:
                workloads.setdefault(_workload(pod) or str(pod), []).append(pod)
            if len(members) == self._in_namespace[namespace] and len(workloads) > 1:
                yield f"{namespace}/*"
                continue
            for name, replicas in workloads.items():
                if len(replicas) == self._in_workload.get(name):
                    yield name
                else:
                    yield from map(str, replicas)


def _workload(pod: Endpoint) -> str:
    if pod.workload is None:
        return ""
    return f"{pod.workload.namespace}/{pod.workload.name}[{pod.workload.kind}]"
