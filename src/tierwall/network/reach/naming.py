"""Names sets of endpoints: by their own names if these are few, else by selectors, else by a count and two examples.

docs/network.md#names-of-groups. `ns/*` means every pod of a namespace, `ns/name[Deployment]` every pod of a workload,
`ns/db-[0-19]` twenty pods, `[env=prod]/[app=web]` the pods that these selectors select, `*/*` every pod, `outside`
every address outside the cluster, `*` everyone. A name means exactly the set, except for a count.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import islice

from msgspec import Struct

from tierwall.network.model.endpoints import Endpoint
from tierwall.network.reach.classes import EndpointClasses
from tierwall.network.reach.selection import SelectorFinder, SelectorSet
from tierwall.network.reach.spaces import mask_of
from tierwall.values.addresses import IPV6, Span, merge_ranges

EVERYONE, EVERY_POD, EVERY_NODE, OUTSIDE = "*", "*/*", "node:*", "outside"
HOST_NETWORK = "host-network pods"
_WORDS = {EVERYONE: "everyone", EVERY_POD: "every pod", EVERY_NODE: "every node"}
# A set with at most FEW names is spelled out, and so is one with at most MANY that no selector names.
FEW, MANY = 4, 12
# The most classes of addresses that are tried as exceptions.
MAX_TRIED = 1000
# The shortest run of numbers that is written as one name.
MIN_RUN = 3


class NamedEndpoints(Struct, frozen=True):
    """The name of a set of endpoints: everything in `all` except `excepts`, and also `ends`."""

    all: tuple[str, ...]
    excepts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()

    def __str__(self) -> str:
        sets, ends, excepts = (
            [_WORDS.get(name, name) for name in part] for part in (self.all, self.ends, self.excepts)
        )
        if not excepts:
            return ", ".join((*sets, *ends)) or "nobody"
        name = f"{', '.join(sets)} except {', '.join(excepts)}"
        return f"{name}; also {', '.join(ends)}" if ends else name

    def __add__(self, other: NamedEndpoints) -> NamedEndpoints:
        """Return the name of both sets together. INVARIANT: no exception of one is a member of the other."""
        return NamedEndpoints(self.all + other.all, self.excepts + other.excepts, self.ends + other.ends)

    @property
    def parts(self) -> tuple[str, ...]:
        """All names in it."""
        return (*self.all, *self.excepts, *self.ends)


class EndpointNames:
    """Names sets of a model's classes, and knows the members of the sets that it has named."""

    def __init__(self, classes: EndpointClasses, spell_out: bool = False) -> None:
        """With `spell_out`, every pod and node is named, however many there are."""
        self._classes = classes
        self._spell_out = spell_out
        self.pods, self._nodes, self._outside = (_of_kind(classes, kind) for kind in ("pod", "node", "address"))
        self._on_host = self.pods & ~classes.under_policy
        in_ipv6 = mask_of(each.bit for each in classes.all if each.spans and each.spans[0].low >= IPV6)
        self._families = {"outside IPv4": self._outside & ~in_ipv6, "outside IPv6": in_ipv6}
        by_size: dict[int, list[int]] = {}
        self._ranges: dict[int, tuple[int, int]] = {}
        for each in classes.all:
            by_size.setdefault(len(each.members), []).append(each.bit)
            self._ranges[each.unit] = self._ranges.get(each.unit, (each.bit, 0))[0], each.bit + 1
        # The classes by number of members, and the range of bits of each unit.
        self._sizes = [(size, mask_of(numbers)) for size, numbers in by_size.items()]
        self._workloads: dict[str, list[Endpoint]] = {}
        self._namespaces: dict[str, list[Endpoint]] = {}
        for pod in classes.model.pods:
            self._namespaces.setdefault(f"{pod.namespace}/*", []).append(pod)
            if pod.workload is not None:
                self._workloads.setdefault(_workload(pod), []).append(pod)
        self._known: dict[tuple[int, int, int], NamedEndpoints] = {}
        self._unit_names: dict[tuple[int, int], tuple[str, ...]] = {}
        # What names stand for: classes, or numbered pods.
        self._masks = {EVERYONE: classes.everybody, EVERY_POD: self.pods, EVERY_NODE: self._nodes}
        self._masks[HOST_NETWORK] = self._on_host
        self._numbers: dict[str, list[str]] = {}
        self._counts: set[str] = set()
        self._known_parts: dict[tuple[int, int], tuple[str, ...]] = {}

    @cached_property
    def _finder(self) -> SelectorFinder:
        return SelectorFinder(self._classes)

    def describe(self, mask: int, possible: int = -1, near: int = 0) -> NamedEndpoints:
        """Name a set. `possible` are the endpoints that could be in it; others are not named as exceptions.

        `near` are endpoints that may well differ from all others, such as the namespace that a rule is about.
        """
        if self._spell_out:
            return self.spelled(mask)
        everybody = self._classes.everybody
        possible &= everybody
        key = mask, possible, near & self.pods if near & mask else 0
        named = self._known.get(key)
        if named is None:
            if mask == everybody and mask & (mask - 1):
                named = NamedEndpoints((EVERYONE,))
            else:
                named = self._name_pods(mask & self.pods, possible & self.pods, key[2]) + self._name_others(mask)
            self._known[key] = named
        return named

    def unit(self, mask: int) -> int:
        """Return the unit of a set of pods: all pods of the namespaces like its own. Empty if there are several."""
        unit = self._classes.all[mask.bit_length() - 1].unit if mask else 0
        begin, end = self._ranges[unit]
        return (1 << end) - (1 << begin) if mask and not mask & ((1 << begin) - 1) else 0

    def spelled(self, mask: int) -> NamedEndpoints:
        """Name a set without selectors and exceptions: by the names of its members, or by a count."""
        if self._spell_out:
            return NamedEndpoints((), (), tuple(self._each(mask)))
        return self._spell_pods(mask & self.pods) + self._name_others(mask, with_exceptions=False)

    def members(self, name: str) -> list[str] | None:
        """Return the members of a set that was named; None for the name of one endpoint or of a range of addresses."""
        pods = self._namespaces.get(name) or self._workloads.get(name)
        if pods is not None:
            return sorted(map(str, pods))
        if name not in self._masks:
            return self._numbers.get(name)
        members = self._each(self._masks[name])
        namespace = name.partition("/")[0]
        if f"{namespace}/*" in self._namespaces:
            return [member for member in members if member.startswith(f"{namespace}/")]
        return list(members)

    def parts(self, name: str) -> list[str] | None:
        """Return the members of a set as names, those of a counted set namespace by namespace; None as `members`."""
        if name not in self._counts:
            return self.members(name)
        pods = self._masks[name]
        names: list[str] = []
        while pods:
            unit = self._classes.all[(pods & -pods).bit_length() - 1].unit
            begin, end = self._ranges[unit]
            names += self._unit_parts(unit, pods >> begin & ((1 << end - begin) - 1))
            pods = pods >> end << end
        return names

    def _unit_parts(self, unit: int, value: int) -> tuple[str, ...]:
        """Return the names of all pods of a set in one unit: its few names, a selector, or every pod."""
        key = unit, value
        if key not in self._known_parts:
            pods = value << self._ranges[unit][0]
            names = self._few(pods, FEW)
            if names is None:
                named = self._finder.exact(pods, pods)
                names = self._noted(named) if named is not None else tuple(self._each(pods))
            self._known_parts[key] = names
        return self._known_parts[key]

    def _name_pods(self, pods: int, possible: int, near: int) -> NamedEndpoints:
        """Name a set of pods: by few names, by selectors, by more names, or by a count, whichever is first possible."""
        names = self._few(pods, FEW)
        if names is not None and (pods != possible or len(names) < 2 or self._count(pods) <= 2):
            return NamedEndpoints((), (), names)
        if pods == possible:
            return NamedEndpoints((EVERY_POD,))
        return (
            self._name_by_selector(pods, pods | ~possible)
            or self._name_apart(pods, possible, near)
            or self._name_by_exceptions(pods, possible)
            or self._name_by_union(pods, possible)
            or self._spell_pods(pods)
        )

    def _spell_pods(self, pods: int) -> NamedEndpoints:
        names = self._few(pods, MANY)
        return NamedEndpoints((), (), names) if names is not None else NamedEndpoints((self._counted(pods),))

    def _name_by_selector(self, pods: int, allowed: int) -> NamedEndpoints | None:
        named = self._finder.exact(pods, allowed)
        return None if named is None else NamedEndpoints(self._noted(named))

    def _name_apart(self, pods: int, possible: int, near: int) -> NamedEndpoints | None:
        """Name the pods far away by a selector, and then those nearby that it lacks or has too many."""
        far = pods & ~near
        if not near or not far:
            return None
        named = self._finder.exact(far, far | near | ~possible)
        if named is None:
            return None
        lacking, too_many = pods & near & ~named.mask, named.mask & near & possible & ~pods
        also, excepts = self._parts(lacking, pods), self._parts(too_many, ~pods)
        if also is None or excepts is None:
            return None
        return NamedEndpoints(self._noted(named), excepts, also)

    def _name_by_exceptions(self, pods: int, possible: int) -> NamedEndpoints | None:
        """Name a set as a wider one except for the members that it lacks."""
        whole = self._finder.hull(pods)
        lacking = whole.mask & possible & ~pods
        excepts: tuple[str, ...] = ()
        if lacking & self._on_host and not pods & self._on_host:
            excepts = (HOST_NETWORK,)
            lacking &= ~self._on_host
        others = self._parts(lacking, ~pods)
        return None if others is None else NamedEndpoints(self._noted(whole), excepts + others)

    def _name_by_union(self, pods: int, possible: int) -> NamedEndpoints | None:
        cover = self._finder.cover(pods, pods | ~possible)
        rest = self._few(cover.rest, FEW)
        return None if rest is None else NamedEndpoints(self._noted(*cover.sets), (), rest)

    def _parts(self, pods: int, allowed: int) -> tuple[str, ...] | None:
        """Name some pods, and any that are allowed besides, by few names and selectors; None if that is too long."""
        names = self._few(pods, 2)
        if names is not None:
            return names
        whole = self._finder.exact(pods, allowed)
        if whole is not None:
            return self._noted(whole)
        cover = self._finder.cover(pods, allowed)
        rest = self._few(cover.rest, FEW)
        return None if rest is None or len(cover.sets) + len(rest) > FEW else self._noted(*cover.sets) + rest

    def _noted(self, *sets: SelectorSet) -> tuple[str, ...]:
        """Return the names of some sets, and remember what they mean."""
        for each in sets:
            self._masks.update(dict.fromkeys(each.names, each.mask))
        return tuple(name for each in sets for name in each.names)

    def _counted(self, mask: int) -> str:
        """Return a count of pods with two examples."""
        first, last = (mask & -mask).bit_length() - 1, mask.bit_length() - 1
        examples = self._classes.all[first].members[0], self._classes.all[last].members[-1]
        name = self._alias(f"{self._count(mask):,} pods ({examples[0]}, {examples[1]}, …)", mask)
        self._counts.add(name)
        return name

    def _alias(self, text: str, mask: int) -> str:
        """Return a text as the name of a set; a number tells apart sets with the same text."""
        number, name = 1, text
        while self._masks.setdefault(name, mask) != mask:
            number += 1
            name = f"{text} #{number}"
        return name

    def _count(self, mask: int) -> int:
        return sum(size * (mask & classes).bit_count() for size, classes in self._sizes)

    def _few(self, pods: int, limit: int) -> tuple[str, ...] | None:
        """Return the names of some pods; None if there are more than `limit`."""
        # Units, each with its share of the set, counted from the first bit of the unit: such numbers are short.
        parts: list[tuple[int, int]] = []
        while pods:
            if len(parts) == limit:
                return None  # Each unit has at least one name.
            unit = self._classes.all[(pods & -pods).bit_length() - 1].unit
            begin, end = self._ranges[unit]
            parts.append((unit, pods >> begin & ((1 << end - begin) - 1)))
            pods = pods >> end << end
        names: tuple[str, ...] = ()
        for part in parts:
            if part not in self._unit_names:
                unit, value = part
                self._unit_names[part] = tuple(islice(self._pod_names(value << self._ranges[unit][0]), MANY + 1))
            names += self._unit_names[part]
            if len(names) > limit:
                return None
        return names

    def _pod_names(self, mask: int) -> Iterator[str]:
        """Yield the shortest names for some pods of one unit: whole namespaces, then whole workloads, then pods."""
        namespaces: dict[str, list[Endpoint]] = {}
        for pod in self._pods_of(mask):
            namespaces.setdefault(f"{pod.namespace}/*", []).append(pod)
        for namespace, members in namespaces.items():
            workloads: dict[str, list[Endpoint]] = {}
            for pod in members:
                workloads.setdefault(_workload(pod) or str(pod), []).append(pod)
            if len(members) == len(self._namespaces[namespace]) and len(workloads) > 1:
                yield namespace
                continue
            alone: list[Endpoint] = []
            for name, replicas in workloads.items():
                if len(replicas) == len(self._workloads.get(name, ())):
                    yield name
                else:
                    alone += replicas
            yield from self._numbered(alone)

    def _numbered(self, pods: list[Endpoint]) -> Iterator[str]:
        """Yield the names of some pods of a namespace; pods with consecutive numbers share one, such as `db-[0-19]`."""
        stems: dict[str, list[int]] = {}
        for pod in pods:
            stem, number = _stem(pod)
            stems.setdefault(stem, []).append(number)
        for stem, numbers in stems.items():
            for run in _runs(sorted(numbers)):
                names = [stem if number < 0 else f"{stem}{number}" for number in run]
                if len(names) < MIN_RUN:
                    yield from names
                else:
                    name = f"{stem}[{run[0]}-{run[-1]}]"
                    self._numbers[name] = names
                    yield name

    def _pods_of(self, mask: int) -> list[Endpoint]:
        pods = [pod for pod_class in self._classes.members(mask) for pod in pod_class.members]
        return sorted(pods, key=lambda pod: (pod.namespace, pod.name))

    def _each(self, mask: int) -> Iterator[str]:
        """Yield the name of every member of a set."""
        yield from map(str, self._pods_of(mask & self.pods))
        yield from sorted(str(node) for each in self._classes.members(mask & self._nodes) for node in each.members)
        outside = mask & self._outside
        yield from (OUTSIDE,) if outside and outside == self._outside else map(str, self._spans(outside))

    def _name_others(self, mask: int, with_exceptions: bool = True) -> NamedEndpoints:
        """Name nodes and outside addresses."""
        return self._name_nodes(mask & self._nodes) + self._name_outside(mask & self._outside, with_exceptions)

    def _name_nodes(self, mask: int) -> NamedEndpoints:
        count = self._count(mask)
        if count > FEW and mask == self._nodes:
            return NamedEndpoints((EVERY_NODE,))
        names = list(self._each(mask)) if mask else []
        if count <= MANY:
            return NamedEndpoints((), (), tuple(names))
        return NamedEndpoints((self._alias(f"{count} nodes ({names[0]}, {names[-1]}, …)", mask),))

    def _name_outside(self, mask: int, with_exceptions: bool) -> NamedEndpoints:
        """Name addresses as ranges, or as all of a family with exceptions if that is shorter."""
        if not mask:
            return NamedEndpoints(())
        if mask == self._outside:
            return NamedEndpoints((), (), (OUTSIDE,))
        named = NamedEndpoints(())
        for family, whole in self._families.items():
            others = whole & ~mask
            inside = self._spans(mask & whole)
            # Exceptions are looked for only where they can be shorter, and not among thousands of classes.
            tried = not others or (with_exceptions and len(inside) > 1 and others.bit_count() <= MAX_TRIED)
            lacking = self._spans(others) if tried else []
            if tried and len(lacking) <= MANY and len(lacking) < len(inside):
                named += NamedEndpoints((family,), tuple(map(str, lacking)))
            elif len(inside) <= MANY:
                named += NamedEndpoints((), (), tuple(map(str, inside)))
            else:
                text = f"{len(inside)} address ranges ({inside[0]}, {inside[-1]}, …)"
                named += NamedEndpoints((self._alias(text, mask & whole),))
        if named.all == tuple(self._families):
            named = NamedEndpoints((OUTSIDE,), named.excepts, named.ends)
        return named

    def _spans(self, mask: int) -> list[Span]:
        return merge_ranges(span for outside in self._classes.members(mask) for span in outside.spans)


def _of_kind(classes: EndpointClasses, kind: str) -> int:
    return mask_of(each.bit for each in classes.all if each.representative.kind == kind)


def _workload(pod: Endpoint) -> str:
    if pod.workload is None:
        return ""
    return f"{pod.workload.namespace}/{pod.workload.name}[{pod.workload.kind}]"


def _stem(pod: Endpoint) -> tuple[str, int]:
    """Divide `shop/db-7` into `shop/db-` and 7; the number is -1 if the name ends in none."""
    name = str(pod)
    digits = name[len(name.rstrip("0123456789")) :]
    if not digits or len(digits) > 9 or not name.removesuffix(digits).endswith("-") or str(int(digits)) != digits:
        return name, -1
    return name.removesuffix(digits), int(digits)


def _runs(numbers: list[int]) -> Iterator[list[int]]:
    run: list[int] = []
    for number in numbers:
        if run and number != run[-1] + 1:
            yield run
            run = []
        run.append(number)
    if run:
        yield run
