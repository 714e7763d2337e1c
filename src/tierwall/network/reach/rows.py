"""Rows of the matrix: the egress or ingress of one class, for all other classes and all ports at once.

The loop over the tiers is the same as in `decide`, but on sets of classes. Results that many classes share are computed
once: if the rules of a tier see no difference between two subjects, they have the same result.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
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
from tierwall.network.reach.membership import Membership, RuleEffects, joined_rules, rule_cells
from tierwall.network.reach.spaces import union

# Rows with more pairs of cells than this are not compared.
MAX_CELL_PAIRS = 4096


class RowCell(NamedTuple):
    """Ports with the same outcomes, and the outcomes of the other classes; the parts add up to everybody."""

    ports: int
    parts: OutcomeSets


class Row(Struct, frozen=True, eq=False, gc=False):
    """Cells with disjoint ports, which add up to all ports.

    INVARIANT: equal rows of one matrix are the same object, so they can be compared by identity.
    """

    cells: tuple[RowCell, ...]


class Rows:
    """Computes the rows of a model, and caches them.

    With `explain`, outcomes name the deciding rules; otherwise they differ only by verdict and domain names.
    """

    def __init__(self, classes: EndpointClasses, explain: bool, membership: Membership | None = None) -> None:
        """`membership`: that of the classes, if it is known."""
        self.classes = classes
        self.membership = Membership(classes) if membership is None else membership
        self.explain = explain
        self.ports = self.membership.ports
        self._rows: dict[tuple[Any, ...], Row] = {}
        self._by_cells: dict[tuple[RowCell, ...], Row] = {}
        self._below: dict[tuple[Any, ...], list[RowCell]] = {}
        self._attributes: dict[Any, list[tuple[str, str]]] = {}
        self._results: dict[Any, list[tuple[int, TierResult]]] = {}
        everything, everybody = self.ports.everything, classes.everybody
        default, free = (DEFAULT_ALLOW, NOT_APPLICABLE) if explain else (Outcome(ALLOW, None), Outcome(ALLOW, None))
        self._default = [RowCell(everything, ((default, everybody),))]
        self._free = Row((RowCell(everything, ((free, everybody),)),))

    def of_model(self, membership: Membership) -> Rows:
        """Return the rows of another model, which has the same classes. They begin with all that is known of these.

        INVARIANT: results are kept by policies, and a policy that both models have is the same object.
        """
        rows = copy(self)
        rows.classes, rows.membership = membership.classes, membership
        rows._rows, rows._by_cells, rows._below = self._rows.copy(), self._by_cells.copy(), self._below.copy()
        rows._attributes, rows._results = self._attributes.copy(), self._results.copy()
        return rows

    def row(self, endpoint_class: EndpointClass, direction: Direction) -> Row:
        """Return the row of one class in one direction."""
        subject = endpoint_class.representative
        if not subject.under_policy:
            return self._free
        stack = reachable(self.classes.model.stack(subject, direction))
        keys = tuple([(direction, tier.policies, self.seen_by(tier.policies, subject, direction)) for tier in stack])
        row = self._rows.get(keys)
        if row is None:
            ports_by_parts: dict[OutcomeSets, int] = {}
            for ports, parts in self._cells(stack, keys, subject, direction):
                ordered = _in_order(parts)
                ports_by_parts[ordered] = ports_by_parts.get(ordered, 0) | ports
            row_cells = tuple(sorted(RowCell(ports, parts) for parts, ports in ports_by_parts.items()))
            row = self._rows[keys] = self._by_cells.setdefault(row_cells, Row(row_cells))
        return row

    def _cells(
        self, stack: Stack[TieredPolicy], keys: tuple[Any, ...], subject: Endpoint, direction: Direction
    ) -> list[RowCell]:
        """Return the cells of a stack: its first tier joined with the tiers below, which many stacks share."""
        if not stack:
            return self._default
        key, further = keys[0], keys[1:]
        results = self._results.get(key)
        if results is None:
            results = self._results[key] = self._tier_results(stack[0], subject, direction)
        below = self._below.get(further)
        if below is None:
            below = self._below[further] = self._cells(stack[1:], further, subject, direction)
        return [
            RowCell(common, with_tier_below(result, parts, self.explain))
            for ports, result in results
            for lower, parts in below
            if (common := ports & lower)
        ]

    def _tier_results(
        self, tier: Tier[TieredPolicy], subject: Endpoint, direction: Direction
    ) -> list[tuple[int, TierResult]]:
        """Return the results of a tier by cell. Equal cells are joined, unless the tier isolates."""
        matched = self.membership.matched(tier, subject, direction)
        everybody, explain = self.classes.everybody, self.explain
        if not explain and tier_isolates(tier):
            matched = {policy: joined_rules(rules) for policy, rules in matched.items()}
        results = [
            (ports, combine_tier(tier, everybody, RuleEffects(rules, ports), explain))
            for ports, rules in rule_cells(self.ports.everything, matched)
        ]
        if len(results) == 1 or tier_isolates(tier):
            return results
        ports_by_result: dict[TierResult, int] = {}
        for ports, result in results:
            ports_by_result[result] = ports_by_result.get(result, 0) | ports
        return [(ports, result) for result, ports in ports_by_result.items()]

    def seen_by(self, policies: tuple[TieredPolicy, ...], subject: Endpoint, direction: Direction) -> Any:
        """Return the attributes of a subject that policies read: its namespace, namespace labels, and named ports."""
        key = direction, policies
        attributes = self._attributes.get(key)
        if attributes is None:
            attributes = self._attributes[key] = sorted(set(_attributes_seen(policies, direction)))
        return tuple([_value(subject, kind, name) for kind, name in attributes])


def decided_differently(before: Row, after: Row) -> int:
    """Return the classes that two rows decide differently on some port; everybody if that takes long to find."""
    if before is after:
        return 0
    if len(before.cells) * len(after.cells) > MAX_CELL_PAIRS:
        return -1
    different = 0
    for ports, parts in before.cells:
        for other_ports, other_parts in after.cells:
            if ports & other_ports and parts != other_parts:
                for outcome, mask in parts:
                    different |= union(mask & other for now, other in other_parts if now != outcome)
    return different


def reachable(stack: Stack[TieredPolicy]) -> Stack[TieredPolicy]:
    """Return the tiers that can be reached: a tier that isolates is the last one."""
    for number, tier in enumerate(stack, 1):
        if tier_isolates(tier):
            return stack[:number]
    return stack


def _value(subject: Endpoint, kind: str, name: str) -> Any:
    if kind == "namespace":
        return subject.namespace
    return subject.namespace_labels.get(name) if kind == "label" else subject.named_ports.get(name)


def _attributes_seen(policies: tuple[TieredPolicy, ...], direction: Direction) -> Iterable[tuple[str, str]]:
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
    """Yield the attributes of the subject's namespace that peers are compared with."""
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
    """Sort parts by verdict and first member, so that equal parts have the same order."""
    if len(parts) < 2:
        return parts
    return tuple(sorted(parts, key=lambda part: (part[0].verdict, part[1] & -part[1])))
