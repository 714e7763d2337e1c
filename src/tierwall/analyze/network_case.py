"""A case: a conjunction of conditions on a future connection, and whether any connection can meet it.

Pods, namespaces and nodes come and go, so their labels, addresses and port names are free; only the policies are fixed.
A case is called impossible only if that is certain. It is exact for labels, ports and addresses, each on their own;
any other case counts as possible.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from tierwall.core.labels import Requirement, Selector
from tierwall.network.model.endpoints import NAMESPACE_NAME

# Whose labels: those of the subject's namespace, the subject, the peer's namespace or the peer.
Whose: TypeAlias = Literal["subject's namespace", "subject", "peer's namespace", "peer"]
NAMESPACES: tuple[Whose, Whose] = ("subject's namespace", "peer's namespace")

# With more combinations of refused node selectors than this, some node counts as possible.
_MAX_WAYS = 1000
_OPPOSITE = {"In": "NotIn", "NotIn": "In", "Exists": "DoesNotExist", "DoesNotExist": "Exists"}


class LabelValues(Struct, frozen=True):
    """The values that a label may have: perhaps absent, and either only the named values or all others."""

    absent: bool
    named: frozenset[str]
    only: bool

    def meet(self, other: LabelValues) -> LabelValues:
        """Return the values that both allow."""
        absent = self.absent and other.absent
        if self.only and other.only:
            return LabelValues(absent, self.named & other.named, True)
        if self.only or other.only:
            only, excluding = (self, other) if self.only else (other, self)
            return LabelValues(absent, only.named - excluding.named, True)
        return LabelValues(absent, self.named | other.named, False)

    @property
    def possible(self) -> bool:
        """Whether any value is left."""
        return self.absent or not self.only or bool(self.named)

    @property
    def single(self) -> str | None:
        """The value, if only one is left."""
        return next(iter(self.named)) if self.only and not self.absent and len(self.named) == 1 else None


ANY = LabelValues(True, frozenset(), False)
PRESENT = LabelValues(False, frozenset(), False)
ABSENT = LabelValues(True, frozenset(), True)


def allowed_values(requirement: Requirement) -> LabelValues:
    """Return the values that meet a requirement."""
    values = frozenset(requirement.values)
    return {
        "In": LabelValues(False, values, True),
        "NotIn": LabelValues(True, values, False),
        "Exists": PRESENT,
        "DoesNotExist": ABSENT,
    }[requirement.operator]


def opposite(requirement: Requirement) -> Requirement:
    """Return the requirement that holds exactly if this one does not."""
    return requirement._replace(operator=_OPPOSITE[requirement.operator])


class ConnectionCase(Struct, frozen=True):
    """The conditions so far. Every method adds a condition and returns None if no connection is left."""

    labels: Mapping[tuple[Whose, str], LabelValues]
    ports: int
    named: Mapping[str, bool]
    # Whether subject and peer are in one namespace; label keys that both namespaces have, with equal values or not.
    same: bool | None = None
    equal: frozenset[str] = frozenset()
    differ: frozenset[str] = frozenset()
    # Whether the peer is a pod that labels can select.
    pod: bool | None = None
    # Sets of addresses, as bits over ranges: the peer has an address of each of `hits` and none of `barred`.
    hits: frozenset[int] = frozenset()
    barred: int = 0
    # The peer has an address of a node that `nodes` select, and of none that `no_nodes` select.
    nodes: frozenset[Selector] = frozenset()
    no_nodes: frozenset[Selector] = frozenset()

    def label(self, whose: Whose, key: str, values: LabelValues) -> ConnectionCase | None:
        """A label has one of these values."""
        before = self.labels.get((whose, key)) or _anything(key)
        after = before.meet(values)
        if after == before:
            return self
        return replace(self, labels={**self.labels, (whose, key): after})._settled() if after.possible else None

    def together(self, same: bool) -> ConnectionCase | None:
        """Subject and peer are in the same namespace, or are not."""
        if self.same is not None:
            return self if self.same is same else None
        return replace(self, same=same)._settled()

    def compared(self, key: str, equal: bool) -> ConnectionCase | None:
        """Both namespaces have a label, with equal values or not."""
        if key == NAMESPACE_NAME:
            return self.together(equal)
        if key in (self.equal if equal else self.differ):
            return self
        if equal:
            return replace(self, equal=self.equal | {key})._settled()
        return replace(self, differ=self.differ | {key})._settled()

    def on(self, ports: int) -> ConnectionCase | None:
        """The port is in one of these ranges."""
        left = self.ports & ports
        return self if left == self.ports else replace(self, ports=left) if left else None

    def called(self, name: str, holds: bool) -> ConnectionCase | None:
        """The destination has this name for the port, or does not."""
        known = self.named.get(name)
        if known is not None:
            return self if known is holds else None
        return replace(self, named={**self.named, name: holds})

    def selectable(self, pod: bool) -> ConnectionCase | None:
        """Labels can select the peer, or the peer has only an address."""
        if self.pod is not None:
            return self if self.pod is pod else None
        return replace(self, pod=pod)

    def has_address(self, addresses: int) -> ConnectionCase | None:
        """The peer has one of these addresses."""
        if any(not hit & ~addresses for hit in self.hits):
            return self
        return replace(self, hits=self.hits | {addresses})._addressed()

    def has_no_address(self, addresses: int) -> ConnectionCase | None:
        """The peer has none of these addresses."""
        return self if not addresses & ~self.barred else replace(self, barred=self.barred | addresses)._addressed()

    def at_node(self, selector: Selector) -> ConnectionCase | None:
        """The peer has an address of a selected node."""
        return self if selector in self.nodes else replace(self, nodes=self.nodes | {selector})._addressed()

    def at_no_node(self, selector: Selector) -> ConnectionCase | None:
        """The peer has no address of a selected node."""
        return self if selector in self.no_nodes else replace(self, no_nodes=self.no_nodes | {selector})._addressed()

    def _addressed(self) -> ConnectionCase | None:
        if not all(hit & ~self.barred for hit in self.hits):
            return None
        # A peer may have many addresses, each of a different node, so each selector can be met on its own.
        refused = [selector.requirements for selector in sorted(self.no_nodes)]
        if prod(map(len, refused)) > _MAX_WAYS:
            return self
        return self if all(_some_node(selector.requirements, {}, refused) for selector in self.nodes) else None

    def _settled(self) -> ConnectionCase | None:
        """Return the case with what follows for the labels of the two namespaces. Equal names mean one namespace."""
        subject_values = self.labels.get(("subject's namespace", NAMESPACE_NAME), PRESENT)
        peer_values = self.labels.get(("peer's namespace", NAMESPACE_NAME), PRESENT)
        same = True if subject_values.single is not None and subject_values.single == peer_values.single else self.same
        if same and (self.same is False or self.differ):
            return None
        keys = {key for whose, key in self.labels if whose in NAMESPACES} if same else set()
        labels = dict(self.labels)
        for key in sorted(keys | self.equal | self.differ):
            subject_values = labels.get(("subject's namespace", key)) or _anything(key)
            peer_values = labels.get(("peer's namespace", key)) or _anything(key)
            if key in self.differ:
                subject_values, peer_values = subject_values.meet(PRESENT), peer_values.meet(PRESENT)
                if key in self.equal or (
                    subject_values.single is not None and subject_values.single == peer_values.single
                ):
                    return None
            else:
                both = subject_values.meet(peer_values)
                subject_values = peer_values = both.meet(PRESENT) if key in self.equal else both
            if not (subject_values.possible and peer_values.possible):
                return None
            labels["subject's namespace", key], labels["peer's namespace", key] = subject_values, peer_values
        return replace(self, labels=labels, same=same)


def _anything(key: str) -> LabelValues:
    return PRESENT if key == NAMESPACE_NAME else ANY


def _some_node(
    wanted: Iterable[Requirement], labels: Mapping[str, LabelValues], refused: list[tuple[Requirement, ...]]
) -> bool:
    """Whether a node can meet all requirements, and not all of any refused group."""
    narrowed = dict(labels)
    for requirement in wanted:
        narrowed[requirement.key] = narrowed.get(requirement.key, ANY).meet(allowed_values(requirement))
        if not narrowed[requirement.key].possible:
            return False
    return not refused or any(_some_node([opposite(requirement)], narrowed, refused[1:]) for requirement in refused[0])
