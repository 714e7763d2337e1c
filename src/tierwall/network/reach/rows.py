"""One row of the matrix: what a class may send (egress) or take (ingress), for all other classes and all ports at once.

The same fall through the tiers as `decide`, on sets. Whatever is the same for many classes (what a tier says to a
subject of which its rules see the same) is worked out once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

from tierwall.network.model.ends import End
from tierwall.network.model.model import Stack
from tierwall.network.model.rules import (
    Direction,
    DomainPeer,
    NamedPort,
    PodPeer,
    Policy,
    PortRange,
    Related,
    Relation,
    Rule,
    Tier,
)
from tierwall.network.outcome import DEFAULT_ALLOW, NOT_APPLICABLE
from tierwall.network.reach.classes import Classes, EndClass
from tierwall.network.reach.membership import Membership
from tierwall.network.reach.portspace import PortSpace
from tierwall.network.reach.tiers import ALLOW, Matched, Parts, Shares, cells, first_match, onward, union


class Cell(NamedTuple):
    """Ports that are treated alike, and how each class fares on them; together the parts are everybody."""

    ports: int
    parts: Parts


# Cells with disjoint ports that together are all ports.
Row: TypeAlias = tuple[Cell, ...]


class Rows:
    """All rows of a model; equal rows are the same object.

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
        self._rows: dict[Any, Row] = {}
        self._own: dict[Row, Row] = {}
        self._looked: dict[Any, frozenset[Any]] = {}
        self._admin: dict[Any, list[tuple[int, Shares]]] = {}
        self._below: dict[Any, Row] = {}
        everything, everybody = self.ports.everything, classes.everybody
        self._default: Parts = ((DEFAULT_ALLOW if why else ALLOW, everybody),)
        self._free: Row = (Cell(everything, ((NOT_APPLICABLE if why else ALLOW, everybody),)),)

    def row(self, one: EndClass, direction: Direction) -> Row:
        """The row of one class in one direction."""
        subject = one.one
        if not subject.under_policy:
            return self._free
        stack = self.classes.model.stack(subject, direction)
        below_policies = stack.namespace or stack.baseline
        # INVARIANT: the model keeps equal lists of policies as one object, so identity will do.
        admin_key = direction, id(stack.admin), self.seen(stack.admin, subject, direction)
        below_key = direction, id(below_policies), self.seen(below_policies, subject, direction)
        found = self._rows.get((admin_key, below_key))
        if found is None:
            if admin_key not in self._admin:
                self._admin[admin_key] = self._shares(self.matched(stack.admin, subject, direction), Tier.ADMIN)
            if below_key not in self._below:
                self._below[below_key] = self._below_cells(stack, subject, direction)
            row = self._put_together(self._admin[admin_key], self._below[below_key])
            found = self._rows[admin_key, below_key] = self._own.setdefault(row, row)
        return found

    def _put_together(self, admin: list[tuple[int, Shares]], below: Row) -> Row:
        found: dict[Parts, int] = {}
        for ports, shares in admin:
            for lower, parts in below:
                if ports & lower:
                    whole = onward(shares, parts, self.why)
                    found[whole] = found.get(whole, 0) | ports & lower
        return tuple(sorted(Cell(ports, parts) for parts, ports in found.items()))

    def _below_cells(self, stack: Stack, subject: End, direction: Direction) -> Row:
        """What the tiers below Admin say: the NetworkPolicies if they isolate, else the Baseline and the default."""
        everybody, why = self.classes.everybody, self.why
        if not stack.namespace:
            shares = self._shares(self.matched(stack.baseline, subject, direction), Tier.BASELINE)
            return tuple(Cell(ports, onward(one, self._default, why)) for ports, one in shares)
        rules = self.matched(stack.namespace, subject, direction)
        pieces = cells(self.ports.everything, rules)
        return tuple(Cell(ports, union(rules, stack.namespace, ports, everybody, why)) for ports in pieces)

    def _shares(self, rules: list[Matched], tier: Tier) -> list[tuple[int, Shares]]:
        """A first-match tier cell by cell; cells that fare alike become one."""
        found: dict[Shares, int] = {}
        for ports in cells(self.ports.everything, rules):
            shares = first_match(rules, tier, ports, self.classes.everybody, self.why)
            found[shares] = found.get(shares, 0) | ports
        return [(ports, shares) for shares, ports in found.items()]

    def seen(self, policies: tuple[Policy, ...], subject: End, direction: Direction) -> Any:
        """What policies see of a subject.

        Its namespace, labels of that, and (as destination) what port names stand for.
        """
        key = direction, id(policies)
        looked = self._looked.get(key)
        if looked is None:
            looked = self._looked[key] = frozenset(_looked_at(policies, direction))
        if not looked:
            return ()
        return tuple(sorted(((what, name, _value(subject, what, name)) for what, name in looked), key=str))

    def matched(self, policies: tuple[Policy, ...], subject: End, direction: Direction) -> list[Matched]:
        """What the rules of some policies about a subject match, in order."""
        return [self._match(rule, subject) for policy in policies for rule in policy.rules(direction) or ()]

    def _match(self, rule: Rule, subject: End) -> Matched:
        surely, maybe = 0, 0
        if rule.peers is None:
            surely = self.classes.everybody
        for peer in rule.peers or ():
            if isinstance(peer, DomainPeer):
                maybe = self.classes.addressed
            else:
                surely |= self.membership.matching(peer, subject)
        ports, named = (self.ports.everything, ()) if rule.ports is None else self._ports(rule, subject)
        return Matched(rule, ports, named, surely, maybe & ~surely)

    def _ports(self, rule: Rule, subject: End) -> tuple[int, tuple[tuple[int, int], ...]]:
        ports, named = 0, []
        for entry in rule.ports or ():
            if not isinstance(entry, NamedPort):
                ports |= self.ports.mask(entry)
            elif rule.direction is Direction.INGRESS:
                ports |= self._resolved(entry, subject.named_ports.get(entry.name, ()))
            else:
                if entry.name not in self._named_ports:
                    self._named_ports[entry.name] = list(self.membership.named_ports(entry.name).items())
                for pairs, classes in self._named_ports[entry.name]:
                    if resolved := self._resolved(entry, pairs):
                        named.append((resolved, classes))
        return ports, tuple(named)

    def _resolved(self, entry: NamedPort, pairs: Iterable[tuple[str, int]]) -> int:
        out = 0
        for protocol, number in pairs:
            if entry.protocol in ("", protocol):
                out |= self.ports.mask(PortRange(protocol, number, number))
        return out


def _value(subject: End, what: str, name: str) -> Any:
    if what == "namespace":
        return subject.namespace
    return subject.namespace_labels.get(name) if what == "label" else subject.named_ports.get(name)


def _looked_at(policies: tuple[Policy, ...], direction: Direction) -> Iterable[tuple[str, str]]:
    for policy in policies:
        for rule in policy.rules(direction) or ():
            for peer in rule.peers or ():
                if isinstance(peer, PodPeer) and isinstance(peer.namespaces, Related):
                    if peer.namespaces.relation in (Relation.SELF, Relation.NOT_SELF):
                        yield "namespace", ""
                    for key in peer.namespaces.keys:
                        yield "label", key
            for port in rule.ports or ():
                if isinstance(port, NamedPort) and direction is Direction.INGRESS:
                    yield "port", port.name
