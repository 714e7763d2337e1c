"""Names for sets of ends: the shortest exact list of namespaces, workloads, pods, nodes and address ranges.

`ns/*` is every pod of a namespace, `ns/name[Deployment]` every pod of a workload, `*/*` every pod, `*` everyone. A
large set is named by sets that policies name already (`[team=red]/[app=db]`: the pods under policy that those
selectors select), less what it lacks of them, and the rest one by one. Names are put together unit by unit, and
what was named once is remembered, because in a large cluster most sets agree in most units.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from tierwall.network.model.endpoints import Endpoint
from tierwall.network.reach.classes import EndpointClass, EndpointClasses
from tierwall.network.reach.spaces import mask_of, union
from tierwall.values.addresses import merge_ranges

EVERYONE, EVERY_POD = "*", "*/*"
# Bits a chunk has at least: what is remembered is remembered by chunk.
CHUNK = 256
# A set of more classes than this may be named by selectors; a small one is always spelled out.
LARGE = 32
# At most so many selectors of each sort are tried for naming, until one leaves no more than a few names.
MOST_SELECTORS, FEW = 4, 12


class NamedEndpoints(Struct, frozen=True):
    """A set of ends in words: all of `all` but `excepts`, and also `ends`."""

    all: tuple[str, ...]
    excepts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = {EVERYONE: "everyone", EVERY_POD: "every pod"}
        whole = [words.get(name, name) for name in self.all]
        if not self.excepts:
            return ", ".join((*whole, *self.ends)) or "nobody"
        out = f"{', '.join(whole)} except {', '.join(self.excepts)}"
        return f"{out}; also {', '.join(self.ends)}" if self.ends else out


class NamedMask(Struct, frozen=True):
    """A set that has a name already: what a rule or a subject selects."""

    name: str
    mask: int


class EndpointNames:
    """The names of the sets of a model's classes."""

    def __init__(self, classes: EndpointClasses) -> None:
        self._classes = classes
        self.pods = mask_of(one.bit for one in classes.all if one.one.kind == "pod")
        self._in_workload: dict[str, int] = {}
        self._in_namespace: dict[str, int] = {}
        for pod in classes.model.pods:
            self._in_namespace[pod.namespace] = self._in_namespace.get(pod.namespace, 0) + 1
            workload = _workload(pod)
            if workload:
                self._in_workload[workload] = self._in_workload.get(workload, 0) + 1
        # Chunks of whole units: where each begins and how long it is, and the chunk of each bit.
        self._chunks: list[tuple[int, int]] = []
        self._chunk_of: list[int] = []
        self._cut()
        self._known: dict[tuple[int, int], tuple[str, ...]] = {}

    def describe(
        self, mask: int, possible: int = -1, hints: Sequence[NamedMask] = (), cuts: Sequence[NamedMask] = ()
    ) -> NamedEndpoints:
        """A set in words. `possible` are the ends it could have had; whoever cannot be in it is not named as lacking.

        `hints` and `cuts` are sets with names: one may name a large part of it, others what that part has too many of.
        """
        everybody = self._classes.everybody
        possible &= everybody
        if mask == everybody and mask & (mask - 1):
            return NamedEndpoints((EVERYONE,))
        pods = mask & self.pods
        every_pod = NamedMask(EVERY_POD, possible & self.pods)
        if pods.bit_count() <= LARGE:
            # Spelled out, unless fewer names say who is lacking.
            lacking = every_pod.mask & ~pods
            if not pods & (pods - 1) or lacking.bit_count() * 4 >= pods.bit_count():
                return NamedEndpoints((), (), tuple(self._names(mask)))
            return NamedEndpoints((EVERY_POD,), tuple(self._names(lacking)), tuple(self._names(mask & ~self.pods)))
        whole, cut = self._chosen(pods, (*hints, every_pod, *cuts), (*hints, *cuts))
        big, less = (union(hint.mask for hint in hints) for hints in (whole, cut))
        # INVARIANT: exact, whatever was chosen: (big - less - over) + rest is the set.
        over = big & ~less & ~mask
        rest = mask & ~(big & ~less)
        excepts = (*(one.name for one in cut), *self._names(over))
        return NamedEndpoints(tuple(one.name for one in whole), excepts, tuple(self._names(rest)))

    def spelled(self, mask: int) -> NamedEndpoints:
        """A set by the names of its own members alone."""
        return NamedEndpoints((), (), tuple(self._names(mask)))

    def _chosen(
        self, pods: int, known: Sequence[NamedMask], cuts: Sequence[NamedMask]
    ) -> tuple[list[NamedMask], list[NamedMask]]:
        """The known sets, and the cuts from them, that leave least to spell out."""
        best: tuple[list[NamedMask], list[NamedMask]] = [], []
        least = pods.bit_count()
        for hint in known:
            if (hint.mask & pods).bit_count() <= LARGE:
                continue
            over, added, chosen = hint.mask & ~pods, pods & ~hint.mask, []
            for cut in cuts:
                gone = cut.mask & over
                if gone and gone.bit_count() > 4 * (cut.mask & hint.mask & pods).bit_count() + 2:
                    chosen.append(cut)
                    over ^= gone
                    added |= cut.mask & pods
            left = over.bit_count() + added.bit_count()
            if left * 2 < least:
                best, least = ([hint], chosen), left
                if left <= FEW:
                    break
        return best

    def _cut(self) -> None:
        begin, unit = 0, 0
        for one in self._classes.all:
            if one.unit != unit and one.bit - begin >= CHUNK:
                self._chunks.append((begin, one.bit - begin))
                begin = one.bit
            unit = one.unit
            self._chunk_of.append(len(self._chunks))
        self._chunks.append((begin, len(self._classes.all) - begin))

    def _names(self, mask: int) -> Iterator[str]:
        while mask:
            chunk = self._chunk_of[(mask & -mask).bit_length() - 1]
            begin, length = self._chunks[chunk]
            value = mask >> begin & ((1 << length) - 1)
            found = self._known.get((chunk, value))
            if found is None:
                found = self._known[chunk, value] = tuple(self._chunk_names(begin, value))
            yield from found
            mask = mask >> (begin + length) << (begin + length)

    def _chunk_names(self, begin: int, value: int) -> Iterator[str]:
        units: dict[int, list[EndpointClass]] = {}
        for one in self._classes.members(value << begin):
            units.setdefault(one.unit, []).append(one)
        for classes in units.values():
            if classes[0].one.kind == "pod":
                yield from self._pod_names([pod for one in classes for pod in one.members])
            elif classes[0].spans:
                yield from map(str, merge_ranges(span for one in classes for span in one.spans))
            else:
                yield from sorted(str(node) for one in classes for node in one.members)

    def _pod_names(self, pods: list[Endpoint]) -> Iterator[str]:
        """The shortest names for some pods of one unit: whole namespaces, then whole workloads, then the rest."""
        namespaces: dict[str, list[Endpoint]] = {}
        for pod in sorted(pods, key=lambda one: (one.namespace, one.name)):
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
