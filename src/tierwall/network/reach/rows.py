"""One row of the matrix: what a class may send (egress) or take (ingress), for all other classes and all ports at once.

The same loop through the tiers as `decide`, on sets of classes. Whatever is the same for many classes (what a tier says
to a subject of which its rules see the same) is worked out once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, assert_never

from msgspec import Struct

from tierwall.core.labels import Selector
from tierwall.core.outcome import ALLOW, Outcome, Parts, Shares, joined
from tierwall.core.stack import DEFAULT_ALLOW, Stack, Tier, combine
from tierwall.network.detail import NOT_APPLICABLE
from tierwall.network.model.ends import End
from tierwall.network.model.rules import (
    AddressPeer,
    Direction,
    DomainPeer,
    NamedPort,
    NodePeer,
    PodPeer,
    Policy,
    PortRange,
    Related,
    Rule,
    isolates,
)
from tierwall.network.reach.attention import compares_names
from tierwall.network.reach.claims import Claims, Matched, cells, in_order
from tierwall.network.reach.classes import Classes, EndClass
from tierwall.network.reach.membership import Membership
from tierwall.network.reach.portspace import PortSpace


class Cell(NamedTuple):
    """Ports that are treated alike, and how each class fares on them; together the parts are everybody."""

    ports: int
    parts: Parts


class Row(Struct, frozen=True, eq=False, gc=False):
    """Cells with disjoint ports that together are all ports.

    INVARIANT: equal rows of one matrix are one object, so that they are told apart without looking at their cells.
    """

    cells: tuple[Cell, ...]


class Rows:
    """All rows of a model.

    With `why`, outcomes name the deciding rules; without, only verdicts (and domain names) are told apart.
    """

    def __init__(self, classes: Classes, why: bool) -> None:
        self.classes = classes
        self.membership = Membership(classes)
        self.why = why
        attention = classes.attention
        named = {
            PortRange(protocol, number, number)
            for one in classes.all
            for name, pairs in one.one.named_ports.items()
            if name in attention.named_ports
            for protocol, number in pairs
        }
        self.ports = PortSpace(attention.port_ranges | named)
        self._named_ports: dict[str, list[tuple[tuple[tuple[str, int], ...], int]]] = {}
        self._rows: dict[tuple[Any, ...], Row] = {}
        self._own: dict[tuple[Cell, ...], Row] = {}
        self._below: dict[tuple[Any, ...], list[Cell]] = {}
        self._looked: dict[Any, frozenset[Any]] = {}
        self._tiers: dict[Any, list[tuple[int, Shares]]] = {}
        everything, everybody = self.ports.everything, classes.everybody
        default, free = (DEFAULT_ALLOW, NOT_APPLICABLE) if why else (Outcome(ALLOW, None), Outcome(ALLOW, None))
        self._default = [Cell(everything, ((default, everybody),))]
        self._free = Row((Cell(everything, ((free, everybody),)),))

    def row(self, one: EndClass, direction: Direction) -> Row:
        """The row of one class in one direction."""
        subject = one.one
        if not subject.under_policy:
            return self._free
        stack = reachable(self.classes.model.stack(subject, direction))
        keys = tuple([(direction, tier.policies, self.seen(tier.policies, subject, direction)) for tier in stack])
        row = self._rows.get(keys)
        if row is None:
            found: dict[Parts, int] = {}
            for ports, parts in self._cells(stack, keys, subject, direction):
                alike = in_order(parts)
                found[alike] = found.get(alike, 0) | ports
            whole = tuple(sorted(Cell(ports, parts) for parts, ports in found.items()))
            row = self._rows[keys] = self._own.setdefault(whole, Row(whole))
        return row

    def _cells(self, stack: Stack[Policy], keys: tuple[Any, ...], subject: End, direction: Direction) -> list[Cell]:
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
            Cell(common, joined(shares, parts, self.why))
            for ports, shares in tier
            for lower, parts in below
            if (common := ports & lower)
        ]

    def _shares(self, tier: Tier[Policy], subject: End, direction: Direction) -> list[tuple[int, Shares]]:
        """A tier cell by cell; cells that fare alike become one where other tiers lie below them."""
        matched = self.matched(tier, subject, direction)
        everybody, why = self.classes.everybody, self.why
        pieces = cells(self.ports.everything, [rule for rules in matched.values() for rule in rules])
        shares = [(ports, combine(tier, everybody, Claims(matched, ports), why)) for ports in pieces]
        if len(shares) == 1 or isolates(tier):
            return shares
        found: dict[Shares, int] = {}
        for ports, share in shares:
            found[share] = found.get(share, 0) | ports
        return [(ports, share) for share, ports in found.items()]

    def seen(self, policies: tuple[Policy, ...], subject: End, direction: Direction) -> Any:
        """What policies see of a subject.

        Its namespace, labels of that, and (as destination) what port names stand for.
        """
        key = direction, policies
        looked = self._looked.get(key)
        if looked is None:
            looked = self._looked[key] = frozenset(_looked_at(policies, direction))
        if not looked:
            return ()
        return tuple(sorted(((what, name, _value(subject, what, name)) for what, name in looked), key=str))

    def matched(self, tier: Tier[Policy], subject: End, direction: Direction) -> dict[Policy, list[Matched]]:
        """What the rules of a tier about a subject match, policy by policy, in order."""
        return {
            policy: [self._match(rule, subject) for rule in policy.rules(direction) or ()] for policy in tier.policies
        }

    def _match(self, rule: Rule, subject: End) -> Matched:
        surely, maybe = 0, 0
        if rule.peers is None:
            surely = self.classes.everybody
        for peer in rule.peers or ():
            match peer:
                case PodPeer() | AddressPeer() | NodePeer():
                    surely |= self.membership.matching(peer, subject)
                case DomainPeer():
                    maybe = self.classes.addressed
                case _:
                    assert_never(peer)
        ports, named = (self.ports.everything, ()) if rule.ports is None else self._ports(rule, subject)
        return Matched.of(rule, ports, named, surely, maybe & ~surely)

    def _ports(self, rule: Rule, subject: End) -> tuple[int, tuple[tuple[int, int], ...]]:
        ports = 0
        named: list[tuple[int, int]] = []
        for entry in rule.ports or ():
            match entry:
                case PortRange():
                    ports |= self.ports.mask(entry)
                case NamedPort() if rule.direction is Direction.INGRESS:
                    ports |= self._resolved(entry, subject.named_ports.get(entry.name, ()))
                case NamedPort():
                    named += self._named(entry)
                case _:
                    assert_never(entry)
        return ports, tuple(named)

    def _named(self, entry: NamedPort) -> Iterable[tuple[int, int]]:
        """The ports that a name stands for, and on which classes of destinations."""
        if entry.name not in self._named_ports:
            self._named_ports[entry.name] = list(self.membership.named_ports(entry.name).items())
        for pairs, classes in self._named_ports[entry.name]:
            if resolved := self._resolved(entry, pairs):
                yield resolved, classes

    def _resolved(self, entry: NamedPort, pairs: Iterable[tuple[str, int]]) -> int:
        out = 0
        for protocol, number in pairs:
            if entry.protocol in ("", protocol):
                out |= self.ports.mask(PortRange(protocol, number, number))
        return out


def reachable(stack: Stack[Policy]) -> Stack[Policy]:
    """The tiers that a question can get to: isolation lets nothing through to those below it."""
    for number, tier in enumerate(stack, 1):
        if isolates(tier):
            return stack[:number]
    return stack


def _value(subject: End, what: str, name: str) -> Any:
    if what == "namespace":
        return subject.namespace
    return subject.namespace_labels.get(name) if what == "label" else subject.named_ports.get(name)


def _looked_at(policies: tuple[Policy, ...], direction: Direction) -> Iterable[tuple[str, str]]:
    for policy in policies:
        for rule in policy.rules(direction) or ():
            for peer in rule.peers or ():
                match peer:
                    case PodPeer():
                        yield from _compared(peer.namespaces)
                    case AddressPeer() | NodePeer() | DomainPeer():
                        pass
                    case _:
                        assert_never(peer)
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
            if compares_names(relation):
                yield "namespace", ""
            for key in keys:
                yield "label", key
        case _:
            assert_never(namespaces)
