"""One row of the matrix: what a class may send (egress) or take (ingress), for all other classes and all ports at once.

The same loop through the tiers as `decide`, on sets of classes. Whatever is the same for many classes (what a tier says
to a subject of which its rules see the same) is worked out once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, assert_never

from msgspec import Struct

from tierwall.core.labels import Selector
from tierwall.core.outcome import ALLOW, Outcome, OutcomeSets, TierResult, with_tier_below
from tierwall.core.stack import DEFAULT_ALLOW, Stack, Tier, combine_tier
from tierwall.network.detail import NOT_APPLICABLE
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.rules import (
    Direction,
    NamedPort,
    PortRange,
    Related,
    TieredPolicy,
    peers_by_kind,
    tier_isolates,
)
from tierwall.network.reach.classes import EndpointClass, EndpointClasses
from tierwall.network.reach.membership import Membership, RuleEffects, port_cells


class RowCell(NamedTuple):
    """Ports that are treated alike, and how each class fares on them; together the parts are everybody."""

    ports: int
    parts: OutcomeSets


class Row(Struct, frozen=True, eq=False, gc=False):
    """Cells with disjoint ports that together are all ports.

    INVARIANT: equal rows of one matrix are one object, so that they are told apart without looking at their cells.
    """

    cells: tuple[RowCell, ...]


class Rows:
    """All rows of a model.

    With `why`, outcomes name the deciding rules; without, only verdicts (and domain names) are told apart.
    """

    def __init__(self, classes: EndpointClasses, why: bool) -> None:
        self.classes = classes
        self.membership = Membership(classes)
        self.why = why
        self.ports = self.membership.ports
        self._rows: dict[tuple[Any, ...], Row] = {}
        self._own: dict[tuple[RowCell, ...], Row] = {}
        self._below: dict[tuple[Any, ...], list[RowCell]] = {}
        self._looked: dict[Any, list[tuple[str, str]]] = {}
        self._tiers: dict[Any, list[tuple[int, TierResult]]] = {}
        everything, everybody = self.ports.everything, classes.everybody
        default, free = (DEFAULT_ALLOW, NOT_APPLICABLE) if why else (Outcome(ALLOW, None), Outcome(ALLOW, None))
        self._default = [RowCell(everything, ((default, everybody),))]
        self._free = Row((RowCell(everything, ((free, everybody),)),))

    def row(self, one: EndpointClass, direction: Direction) -> Row:
        """The row of one class in one direction."""
        subject = one.one
        if not subject.under_policy:
            return self._free
        stack = reachable(self.classes.model.stack(subject, direction))
        keys = tuple([(direction, tier.policies, self.seen(tier.policies, subject, direction)) for tier in stack])
        row = self._rows.get(keys)
        if row is None:
            found: dict[OutcomeSets, int] = {}
            for ports, parts in self._cells(stack, keys, subject, direction):
                alike = _in_order(parts)
                found[alike] = found.get(alike, 0) | ports
            whole = tuple(sorted(RowCell(ports, parts) for parts, ports in found.items()))
            row = self._rows[keys] = self._own.setdefault(whole, Row(whole))
        return row

    def _cells(
        self, stack: Stack[TieredPolicy], keys: tuple[Any, ...], subject: Endpoint, direction: Direction
    ) -> list[RowCell]:
        """What a stack says: its first tier with the cells of the tiers below it, which many stacks share."""
        if not stack:
            return self._default
        key, further = keys[0], keys[1:]
        tier = self._tiers.get(key)
        if tier is None:
            tier = self._tiers[key] = self._shares(stack[0], subject, direction)
        below = self._below.get(further)
        if below is None:
            below = self._below[further] = self._cells(stack[1:], further, subject, direction)
        return [
            RowCell(common, with_tier_below(shares, parts, self.why))
            for ports, shares in tier
            for lower, parts in below
            if (common := ports & lower)
        ]

    def _shares(
        self, tier: Tier[TieredPolicy], subject: Endpoint, direction: Direction
    ) -> list[tuple[int, TierResult]]:
        """A tier cell by cell; cells that fare alike become one where other tiers lie below them."""
        matched = self.membership.matched(tier, subject, direction)
        everybody, why = self.classes.everybody, self.why
        pieces = port_cells(self.ports.everything, [rule for rules in matched.values() for rule in rules])
        shares = [(ports, combine_tier(tier, everybody, RuleEffects(matched, ports), why)) for ports in pieces]
        if len(shares) == 1 or tier_isolates(tier):
            return shares
        found: dict[TierResult, int] = {}
        for ports, share in shares:
            found[share] = found.get(share, 0) | ports
        return [(ports, share) for share, ports in found.items()]

    def seen(self, policies: tuple[TieredPolicy, ...], subject: Endpoint, direction: Direction) -> Any:
        """What policies see of a subject.

        Its namespace, labels of that, and (as destination) what port names stand for.
        """
        key = direction, policies
        looked = self._looked.get(key)
        if looked is None:
            looked = self._looked[key] = sorted(set(_looked_at(policies, direction)))
        return tuple([_value(subject, what, name) for what, name in looked])


def reachable(stack: Stack[TieredPolicy]) -> Stack[TieredPolicy]:
    """The tiers that a question can get to: isolation lets nothing through to those below it."""
    for number, tier in enumerate(stack, 1):
        if tier_isolates(tier):
            return stack[:number]
    return stack


def _value(subject: Endpoint, what: str, name: str) -> Any:
    if what == "namespace":
        return subject.namespace
    return subject.namespace_labels.get(name) if what == "label" else subject.named_ports.get(name)


def _looked_at(policies: tuple[TieredPolicy, ...], direction: Direction) -> Iterable[tuple[str, str]]:
    for policy in policies:
        for rule in policy.rules(direction) or ():
            pods, _addresses, _nodes, _domains = peers_by_kind(rule.peers)
            for peer in pods:
                yield from _compared(peer.namespaces)
            for port in rule.ports or ():
                match port:
                    case NamedPort() if direction is Direction.INGRESS:
                        yield "port", port.name
                    case NamedPort() | PortRange():
                        pass
                    case _:
                        assert_never(port)


def _compared(namespaces: Selector | Related) -> Iterable[tuple[str, str]]:
    """What of the subject's namespace peers are compared with."""
    match namespaces:
        case Selector():
            pass
        case Related(relation, keys):
            if relation.compares_names:
                yield "namespace", ""
            for key in keys:
                yield "label", key
        case _:
            assert_never(namespaces)


def _in_order(parts: OutcomeSets) -> OutcomeSets:
    """Parts by verdict and first member, so that what is equal is written alike."""
    if len(parts) < 2:
        return parts
    return tuple(sorted(parts, key=lambda part: (part[0].verdict, part[1] & -part[1])))
