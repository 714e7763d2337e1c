"""What is known of a connection that may come: a conjunction of conditions, and whether any connection meets it.

Pods, namespaces and nodes come and go, so their labels, addresses and port names are free; only the policies stand
still. A case that no connection meets is said to be impossible only where that is certain (for labels, ports and
addresses each taken alone it always is); everything else passes for possible.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from tierwall.core.labels import Requirement, Selector
from tierwall.network.model.endpoints import NAMESPACE_NAME

# Whose labels: the subject's namespace, the subject, the other end's namespace, the other end.
Whose: TypeAlias = Literal["subject's namespace", "subject", "other's namespace", "other"]
NAMESPACES: tuple[Whose, Whose] = ("subject's namespace", "other's namespace")

# With more ways than this to be none of the nodes that selectors refuse, some node passes for possible.
_MOST_WAYS = 1000
_OPPOSITE = {"In": "NotIn", "NotIn": "In", "Exists": "DoesNotExist", "DoesNotExist": "Exists"}


class LabelValues(Struct, frozen=True):
    """What a label may be: absent or not, and only some values or all but some."""

    absent: bool
    named: frozenset[str]
    only: bool

    def meet(self, other: LabelValues) -> LabelValues:
        """What both allow."""
        absent = self.absent and other.absent
        if self.only and other.only:
            return LabelValues(absent, self.named & other.named, True)
        if self.only or other.only:
            some, but = (self, other) if self.only else (other, self)
            return LabelValues(absent, some.named - but.named, True)
        return LabelValues(absent, self.named | other.named, False)

    @property
    def possible(self) -> bool:
        """Whether anything is left."""
        return self.absent or not self.only or bool(self.named)

    @property
    def single(self) -> str | None:
        """The value, where only one is left."""
        return next(iter(self.named)) if self.only and not self.absent and len(self.named) == 1 else None


ANY = LabelValues(True, frozenset(), False)
PRESENT = LabelValues(False, frozenset(), False)
ABSENT = LabelValues(True, frozenset(), True)


def allowed_values(requirement: Requirement) -> LabelValues:
    """The values that meet a requirement."""
    values = frozenset(requirement.values)
    return {
        "In": LabelValues(False, values, True),
        "NotIn": LabelValues(True, values, False),
        "Exists": PRESENT,
        "DoesNotExist": ABSENT,
    }[requirement.operator]


def opposite(requirement: Requirement) -> Requirement:
    """The requirement that holds just where this one does not."""
    return requirement._replace(operator=_OPPOSITE[requirement.operator])


class ConnectionCase(Struct, frozen=True):
    """The conditions so far; every method adds one and gives None where no connection is left."""

    labels: Mapping[tuple[Whose, str], LabelValues]
    ports: int
    named: Mapping[str, bool]
    # Whether the two ends are in one namespace, and label keys that both namespaces have, with equal values or not.
    same: bool | None = None
    equal: frozenset[str] = frozenset()
    differ: frozenset[str] = frozenset()
    # Whether the other end is a pod that labels can select.
    pod: bool | None = None
    # Sets of addresses, as bits over pieces: the other end has one of each of these, and none of those.
    hits: frozenset[int] = frozenset()
    barred: int = 0
    # The other end has an address of a node that these select, and of none that those select.
    nodes: frozenset[Selector] = frozenset()
    no_nodes: frozenset[Selector] = frozenset()

    def label(self, whose: Whose, key: str, values: LabelValues) -> ConnectionCase | None:
        """A label is one of these."""
        before = self.labels.get((whose, key)) or _anything(key)
        found = before.meet(values)
        if found == before:
            return self
        return replace(self, labels={**self.labels, (whose, key): found})._settled() if found.possible else None

    def together(self, same: bool) -> ConnectionCase | None:
        """The two ends are in one namespace, or are not."""
        if self.same is not None:
            return self if self.same is same else None
        return replace(self, same=same)._settled()

    def compared(self, key: str, equal: bool) -> ConnectionCase | None:
        """Both namespaces have a label, with one value or with two."""
        if key == NAMESPACE_NAME:
            return self.together(equal)
        if key in (self.equal if equal else self.differ):
            return self
        if equal:
            return replace(self, equal=self.equal | {key})._settled()
        return replace(self, differ=self.differ | {key})._settled()

    def on(self, ports: int) -> ConnectionCase | None:
        """The port is one of these pieces."""
        found = self.ports & ports
        return self if found == self.ports else replace(self, ports=found) if found else None

    def called(self, name: str, holds: bool) -> ConnectionCase | None:
        """The destination has this name for the port, or does not."""
        known = self.named.get(name)
        if known is not None:
            return self if known is holds else None
        return replace(self, named={**self.named, name: holds})

    def selectable(self, pod: bool) -> ConnectionCase | None:
        """Labels can select the other end, or it is something that has only an address."""
        if self.pod is not None:
            return self if self.pod is pod else None
        return replace(self, pod=pod)

    def has_address(self, addresses: int) -> ConnectionCase | None:
        """The other end has one of these addresses."""
        if any(not hit & ~addresses for hit in self.hits):
            return self
        return replace(self, hits=self.hits | {addresses})._addressed()

    def has_no_address(self, addresses: int) -> ConnectionCase | None:
        """The other end has none of these addresses."""
        return self if not addresses & ~self.barred else replace(self, barred=self.barred | addresses)._addressed()

    def at_node(self, selector: Selector) -> ConnectionCase | None:
        """The other end has an address of a selected node."""
        return self if selector in self.nodes else replace(self, nodes=self.nodes | {selector})._addressed()

    def at_no_node(self, selector: Selector) -> ConnectionCase | None:
        """The other end has no address of a selected node."""
        return self if selector in self.no_nodes else replace(self, no_nodes=self.no_nodes | {selector})._addressed()

    def _addressed(self) -> ConnectionCase | None:
        if not all(hit & ~self.barred for hit in self.hits):
            return None
        # An end may have any number of addresses, each of a node of its own, so each selector may be met alone.
        refused = [no_node.requirements for no_node in sorted(self.no_nodes)]
        if prod(map(len, refused)) > _MOST_WAYS:
            return self
        return self if all(_some_node(node.requirements, {}, refused) for node in self.nodes) else None

    def _settled(self) -> ConnectionCase | None:
        """The case with what follows for the labels of the two namespaces, which are one if they have one name."""
        mine = self.labels.get(("subject's namespace", NAMESPACE_NAME), PRESENT)
        theirs = self.labels.get(("other's namespace", NAMESPACE_NAME), PRESENT)
        same = True if mine.single is not None and mine.single == theirs.single else self.same
        if same and (self.same is False or self.differ):
            return None
        keys = {key for whose, key in self.labels if whose in NAMESPACES} if same else set()
        labels = dict(self.labels)
        for key in sorted(keys | self.equal | self.differ):
            mine = labels.get(("subject's namespace", key)) or _anything(key)
            theirs = labels.get(("other's namespace", key)) or _anything(key)
            if key in self.differ:
                mine, theirs = mine.meet(PRESENT), theirs.meet(PRESENT)
                if key in self.equal or (mine.single is not None and mine.single == theirs.single):
                    return None
            else:
                both = mine.meet(theirs)
                mine = theirs = both.meet(PRESENT) if key in self.equal else both
            if not (mine.possible and theirs.possible):
                return None
            labels["subject's namespace", key], labels["other's namespace", key] = mine, theirs
        return replace(self, labels=labels, same=same)


def _anything(key: str) -> LabelValues:
    return PRESENT if key == NAMESPACE_NAME else ANY


def _some_node(
    wanted: Iterable[Requirement], labels: Mapping[str, LabelValues], refused: list[tuple[Requirement, ...]]
) -> bool:
    """Whether a node can meet all requirements and, of each group that is refused, not all."""
    found = dict(labels)
    for requirement in wanted:
        found[requirement.key] = found.get(requirement.key, ANY).meet(allowed_values(requirement))
        if not found[requirement.key].possible:
            return False
    return not refused or any(_some_node([opposite(one)], found, refused[1:]) for one in refused[0])
