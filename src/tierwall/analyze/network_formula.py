"""Formulas that say when a network rule matches, as conditions on a case, and the search for a case that meets them.

The search splits a conjunction and tries the alternatives in turn, those that leave no choice first. It has a limit: if
it would take too long, a case counts as possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeAlias, assert_never

from msgspec import Struct

from tierwall.analyze.network_case import (
    ABSENT,
    NAMESPACES,
    PRESENT,
    ConnectionCase,
    LabelValues,
    Whose,
    allowed_values,
    opposite,
)
from tierwall.core.labels import Selector
from tierwall.network.model.endpoints import LAST_PORT
from tierwall.network.model.model import NetworkModel
from tierwall.network.model.rules import (
    AddressPeer,
    DomainPeer,
    NamedPort,
    NetworkRule,
    NodePeer,
    Peer,
    PodPeer,
    Port,
    PortRange,
    Related,
    Relation,
    TieredPolicy,
)
from tierwall.network.reach.classes import RelevantAttributes
from tierwall.network.reach.spaces import AddressSpace, PortSpace, union

CaseCondition: TypeAlias = Callable[[ConnectionCase], ConnectionCase | None]


class Conjunction(Struct, frozen=True):
    """All parts hold."""

    parts: tuple[Formula, ...]


class Disjunction(Struct, frozen=True):
    """At least one part holds."""

    parts: tuple[Formula, ...]


Formula: TypeAlias = Conjunction | Disjunction | CaseCondition

ALWAYS, NEVER = Conjunction(()), Disjunction(())


class SearchTooLong(Exception):
    """The search takes too long."""


class RuleFormulas:
    """The rules of a model as formulas. Ports and addresses are bits over the ranges that its rules distinguish."""

    def __init__(self, model: NetworkModel) -> None:
        attributes = RelevantAttributes(model)
        self._ports = PortSpace(attributes.port_ranges)
        self._addresses = AddressSpace(attributes.blocks)

    def anything(self) -> ConnectionCase:
        """Return the case without any condition."""
        return ConnectionCase({}, self._ports.everything, {})

    def may_match(self, policy: TieredPolicy, rule: NetworkRule) -> Conjunction:
        """The policy selects the subject and the rule matches the connection, perhaps depending on DNS."""
        return self._matches(policy, rule, rule.peers)

    def matches(self, policy: TieredPolicy, rule: NetworkRule) -> Conjunction:
        """The policy selects the subject and the rule matches the connection, whatever DNS says."""
        sure = None if rule.peers is None else tuple(peer for peer in rule.peers if not isinstance(peer, DomainPeer))
        return self._matches(policy, rule, sure)

    def _matches(self, policy: TieredPolicy, rule: NetworkRule, selectors: tuple[Peer, ...] | None) -> Conjunction:
        peers = ALWAYS if selectors is None else Disjunction(tuple(self._peer(peer, True) for peer in selectors))
        ports = ALWAYS if rule.ports is None else Disjunction(tuple(self._port(port, True) for port in rule.ports))
        return Conjunction((selects_subject(policy), peers, ports))

    def misses(self, policy: TieredPolicy, rule: NetworkRule) -> Disjunction:
        """The policy does not select the subject, or the rule may not match the connection."""
        peers = NEVER if rule.peers is None else Conjunction(tuple(self._peer(peer, False) for peer in rule.peers))
        ports = NEVER if rule.ports is None else Conjunction(tuple(self._port(port, False) for port in rule.ports))
        return Disjunction((*does_not_select_subject(policy).parts, peers, ports))

    def _peer(self, peer: Peer, holds: bool) -> Formula:
        """The rule selects the peer of the connection, or certainly does not."""
        match peer:
            case PodPeer(wanted, pods):
                if isinstance(wanted, Related):
                    where = _related(wanted, holds)
                else:
                    where = _selected("peer's namespace", wanted, holds)
                labels = where, _selected("peer", pods, holds)
                if holds:
                    return Conjunction((partial(ConnectionCase.selectable, pod=True), *labels))
                return _any_of(*labels, Conjunction((partial(ConnectionCase.selectable, pod=False), self._somewhere())))
            case AddressPeer():
                addresses = union(map(self._addresses.mask, peer.blocks))
                return partial(
                    ConnectionCase.has_address if holds else ConnectionCase.has_no_address, addresses=addresses
                )
            case NodePeer():
                if holds:
                    return Conjunction((self._somewhere(), partial(ConnectionCase.at_node, selector=peer.nodes)))
                return partial(ConnectionCase.at_no_node, selector=peer.nodes)
            case DomainPeer():
                return self._somewhere() if holds else ALWAYS
            case _:
                assert_never(peer)

    def _somewhere(self) -> CaseCondition:
        return partial(ConnectionCase.has_address, addresses=self._addresses.everything)

    def _port(self, port: Port, holds: bool) -> Formula:
        """The port is selected, or is not."""
        match port:
            case PortRange():
                return self._on_ports(self._ports.mask(port), holds)
            case NamedPort():
                protocol = PortRange(port.protocol, 1, LAST_PORT) if port.protocol else None
                ports = self._ports.everything if protocol is None else self._ports.mask(protocol)
                parts = partial(ConnectionCase.called, name=port.name, holds=holds), self._on_ports(ports, holds)
                return Conjunction(parts) if holds else Disjunction(parts)
            case _:
                assert_never(port)

    def _on_ports(self, ports: int, holds: bool) -> CaseCondition:
        return partial(ConnectionCase.on, ports=ports if holds else self._ports.everything & ~ports)


def selects_subject(policy: TieredPolicy) -> Conjunction:
    """The policy selects the subject."""
    return Conjunction(tuple(_subject(policy, True)))


def does_not_select_subject(policy: TieredPolicy) -> Disjunction:
    """The policy does not select the subject."""
    return _any_of(*_subject(policy, False))


def _subject(policy: TieredPolicy, holds: bool) -> Iterator[Formula]:
    yield _selected("subject's namespace", policy.namespaces, holds)
    yield _selected("subject", policy.pods, holds)


def _selected(whose: Whose, selector: Selector, holds: bool) -> Formula:
    """The selector selects these labels, or does not."""
    wanted = selector.requirements if holds else map(opposite, selector.requirements)
    parts = tuple(
        partial(ConnectionCase.label, whose=whose, key=requirement.key, values=allowed_values(requirement))
        for requirement in wanted
    )
    return Conjunction(parts) if holds else Disjunction(parts)


def _related(wanted: Related, holds: bool) -> Formula:
    """The namespaces of peer and subject have this relation, or do not."""
    match wanted.relation:
        case Relation.SELF:
            return partial(ConnectionCase.together, same=holds)
        case Relation.NOT_SELF:
            return partial(ConnectionCase.together, same=not holds)
        case Relation.SAME_LABELS:
            if not wanted.keys:
                return NEVER if holds else ALWAYS
            compared = _compared(wanted, equal=holds)
            return Conjunction(compared) if holds else Disjunction((*_labelled(wanted, ABSENT), *compared))
        case Relation.NOT_SAME_LABELS:
            compared = _compared(wanted, equal=not holds)
            if holds:
                return Conjunction((*_labelled(wanted, PRESENT), Disjunction(compared)))
            return Disjunction((*_labelled(wanted, ABSENT), Conjunction(compared)))
        case _:
            assert_never(wanted.relation)


def _labelled(wanted: Related, values: LabelValues) -> tuple[CaseCondition, ...]:
    """Each key has one of these values on each of the two namespaces."""
    return tuple(
        partial(ConnectionCase.label, whose=whose, key=key, values=values)
        for key in wanted.keys
        for whose in NAMESPACES
    )


def _compared(wanted: Related, equal: bool) -> tuple[CaseCondition, ...]:
    return tuple(partial(ConnectionCase.compared, key=key, equal=equal) for key in wanted.keys)


def _any_of(*formulas: Formula) -> Disjunction:
    """Join alternatives; the parts of an alternative are alternatives themselves."""
    nested = (formula.parts if isinstance(formula, Disjunction) else (formula,) for formula in formulas)
    return Disjunction(tuple(part for parts in nested for part in parts))


class CaseSearch:
    """Searches for a case that meets formulas. `steps` is how many conditions may still be tried."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def can_meet(self, case: ConnectionCase, formulas: Iterable[Formula]) -> bool:
        """Whether a case can be narrowed to meet all formulas. Raises SearchTooLong."""
        narrowed = self.narrow(case, formulas)
        if narrowed is None:
            return False
        case, choices = narrowed
        while choices:
            fewest: list[Formula] | None = None
            rest: list[Disjunction] = []
            for choice in choices:
                open_parts = self._open(case, choice)
                if open_parts is None:
                    continue
                rest.append(choice)
                if fewest is None or len(open_parts) < len(fewest):
                    fewest, chosen = open_parts, choice
                if not open_parts:
                    return False
            if fewest is None:
                return True
            rest = [choice for choice in rest if choice is not chosen]
            if len(fewest) > 1:
                return any(self.can_meet(case, (part, *rest)) for part in fewest)
            narrowed = self.narrow(case, (fewest[0],))
            if narrowed is None:
                return False
            case, more = narrowed
            choices = [*more, *rest]
        return True

    def narrow(
        self, case: ConnectionCase, formulas: Iterable[Formula]
    ) -> tuple[ConnectionCase, list[Disjunction]] | None:
        """Return the case with every condition that must hold, and the remaining choices; None if it is impossible."""
        choices: list[Disjunction] = []
        todo = list(formulas)
        for formula in todo:
            if isinstance(formula, Conjunction):
                todo += formula.parts
            elif isinstance(formula, Disjunction):
                choices.append(formula)
            else:
                narrowed = self._try(case, formula)
                if narrowed is None:
                    return None
                case = narrowed
        return case, choices

    def may_meet(self, case: ConnectionCase, formula: Formula) -> bool:
        """Whether a case may meet a formula. Choices are checked one by one, not together."""
        narrowed = self.narrow(case, (formula,))
        if narrowed is None:
            return False
        case, choices = narrowed
        return all(any(self.may_meet(case, part) for part in choice.parts) for choice in choices)

    def _open(self, case: ConnectionCase, choice: Disjunction) -> list[Formula] | None:
        """Return the alternatives that are still possible; None if the case already meets one."""
        out: list[Formula] = []
        for part in choice.parts:
            narrowed = self.narrow(case, (part,))
            if narrowed is None:
                continue
            if narrowed[0] is case and not narrowed[1]:
                return None
            out.append(part)
        return out

    def _try(self, case: ConnectionCase, condition: CaseCondition) -> ConnectionCase | None:
        if self.steps <= 0:
            raise SearchTooLong
        self.steps -= 1
        return condition(case)
