"""When a network rule matches and when it does not, as conditions on a case, and the search for a case that meets some.

The search takes a conjunction apart and tries the alternatives one by one, those that leave no choice first. It is
bounded: where it would take too long, a case passes for possible.
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


class AllOf(Struct, frozen=True):
    """Every part holds."""

    parts: tuple[Formula, ...]


class AnyOf(Struct, frozen=True):
    """Some part holds."""

    parts: tuple[Formula, ...]


Formula: TypeAlias = AllOf | AnyOf | CaseCondition

ALWAYS, NEVER = AllOf(()), AnyOf(())


class SearchTooLong(Exception):
    """The search would take too long."""


class RuleFormulas:
    """The rules of a model as formulas; ports and addresses are bits over the pieces that its rules tell apart."""

    def __init__(self, model: NetworkModel) -> None:
        attention = RelevantAttributes(model)
        self._ports = PortSpace(attention.port_ranges)
        self._addresses = AddressSpace(attention.blocks)

    def anything(self) -> ConnectionCase:
        """The case about which nothing is known."""
        return ConnectionCase({}, self._ports.everything, {})

    def may_match(self, policy: TieredPolicy, rule: NetworkRule) -> AllOf:
        """The rule is about the subject and matches the connection, or may if DNS says so."""
        return self._matches(policy, rule, rule.peers)

    def matches(self, policy: TieredPolicy, rule: NetworkRule) -> AllOf:
        """The rule is about the subject and matches the connection, whatever DNS says."""
        sure = None if rule.peers is None else tuple(peer for peer in rule.peers if not isinstance(peer, DomainPeer))
        return self._matches(policy, rule, sure)

    def _matches(self, policy: TieredPolicy, rule: NetworkRule, sorts: tuple[Peer, ...] | None) -> AllOf:
        peers = ALWAYS if sorts is None else AnyOf(tuple(self._peer(peer, True) for peer in sorts))
        ports = ALWAYS if rule.ports is None else AnyOf(tuple(self._port(port, True) for port in rule.ports))
        return AllOf((selects_subject(policy), peers, ports))

    def misses(self, policy: TieredPolicy, rule: NetworkRule) -> AnyOf:
        """The rule is not about the subject, or does not surely match the connection."""
        peers = NEVER if rule.peers is None else AllOf(tuple(self._peer(peer, False) for peer in rule.peers))
        ports = NEVER if rule.ports is None else AllOf(tuple(self._port(port, False) for port in rule.ports))
        return AnyOf((*does_not_select_subject(policy).parts, peers, ports))

    def _peer(self, peer: Peer, holds: bool) -> Formula:
        """The other end is such a peer, or surely is not."""
        match peer:
            case PodPeer(wanted, pods):
                if isinstance(wanted, Related):
                    where = _related(wanted, holds)
                else:
                    where = _selected("other's namespace", wanted, holds)
                labels = where, _selected("other", pods, holds)
                if holds:
                    return AllOf((partial(ConnectionCase.selectable, pod=True), *labels))
                return _any_of(*labels, AllOf((partial(ConnectionCase.selectable, pod=False), self._somewhere())))
            case AddressPeer():
                addresses = union(map(self._addresses.mask, peer.blocks))
                return partial(
                    ConnectionCase.has_address if holds else ConnectionCase.has_no_address, addresses=addresses
                )
            case NodePeer():
                if holds:
                    return AllOf((self._somewhere(), partial(ConnectionCase.at_node, selector=peer.nodes)))
                return partial(ConnectionCase.at_no_node, selector=peer.nodes)
            case DomainPeer():
                return self._somewhere() if holds else ALWAYS
            case _:
                assert_never(peer)

    def _somewhere(self) -> CaseCondition:
        return partial(ConnectionCase.has_address, addresses=self._addresses.everything)

    def _port(self, port: Port, holds: bool) -> Formula:
        """The port is one of these, or is not."""
        match port:
            case PortRange():
                return self._on(self._ports.mask(port), holds)
            case NamedPort():
                protocol = PortRange(port.protocol, 1, LAST_PORT) if port.protocol else None
                ports = self._ports.everything if protocol is None else self._ports.mask(protocol)
                parts = partial(ConnectionCase.called, name=port.name, holds=holds), self._on(ports, holds)
                return AllOf(parts) if holds else AnyOf(parts)
            case _:
                assert_never(port)

    def _on(self, ports: int, holds: bool) -> CaseCondition:
        return partial(ConnectionCase.on, ports=ports if holds else self._ports.everything & ~ports)


def selects_subject(policy: TieredPolicy) -> AllOf:
    """The policy selects the subject."""
    return AllOf(tuple(_about(policy, True)))


def does_not_select_subject(policy: TieredPolicy) -> AnyOf:
    """The policy does not select the subject."""
    return _any_of(*_about(policy, False))


def _about(policy: TieredPolicy, holds: bool) -> Iterator[Formula]:
    yield _selected("subject's namespace", policy.namespaces, holds)
    yield _selected("subject", policy.pods, holds)


def _selected(whose: Whose, selector: Selector, holds: bool) -> Formula:
    """A selector selects these labels, or does not."""
    wanted = selector.requirements if holds else map(opposite, selector.requirements)
    parts = tuple(partial(ConnectionCase.label, whose=whose, key=one.key, values=allowed_values(one)) for one in wanted)
    return AllOf(parts) if holds else AnyOf(parts)


def _related(wanted: Related, holds: bool) -> Formula:
    """The namespace of the other end is so related to the subject's, or is not."""
    match wanted.relation:
        case Relation.SELF:
            return partial(ConnectionCase.together, same=holds)
        case Relation.NOT_SELF:
            return partial(ConnectionCase.together, same=not holds)
        case Relation.SAME_LABELS:
            if not wanted.keys:
                return NEVER if holds else ALWAYS
            compared = _compared(wanted, equal=holds)
            return AllOf(compared) if holds else AnyOf((*_labelled(wanted, ABSENT), *compared))
        case Relation.NOT_SAME_LABELS:
            compared = _compared(wanted, equal=not holds)
            if holds:
                return AllOf((*_labelled(wanted, PRESENT), AnyOf(compared)))
            return AnyOf((*_labelled(wanted, ABSENT), AllOf(compared)))
        case _:
            assert_never(wanted.relation)


def _labelled(wanted: Related, values: LabelValues) -> tuple[CaseCondition, ...]:
    """Each key has such values on each of the two namespaces."""
    return tuple(
        partial(ConnectionCase.label, whose=whose, key=key, values=values)
        for key in wanted.keys
        for whose in NAMESPACES
    )


def _compared(wanted: Related, equal: bool) -> tuple[CaseCondition, ...]:
    return tuple(partial(ConnectionCase.compared, key=key, equal=equal) for key in wanted.keys)


def _any_of(*formulas: Formula) -> AnyOf:
    """Some of these holds; the parts of an alternative are alternatives themselves."""
    nested = (formula.parts if isinstance(formula, AnyOf) else (formula,) for formula in formulas)
    return AnyOf(tuple(part for parts in nested for part in parts))


class CaseSearch:
    """Whether some case meets formulas; `steps` is how many conditions may still be tried."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def meets(self, case: ConnectionCase, formulas: Iterable[Formula]) -> bool:
        """Whether a case can be made to meet all formulas; TooMuch if that takes too long."""
        found = self.narrowed(case, formulas)
        if found is None:
            return False
        case, choices = found
        while choices:
            fewest: list[Formula] | None = None
            rest: list[AnyOf] = []
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
                return any(self.meets(case, (part, *rest)) for part in fewest)
            found = self.narrowed(case, (fewest[0],))
            if found is None:
                return False
            case, more = found
            choices = [*more, *rest]
        return True

    def narrowed(self, case: ConnectionCase, formulas: Iterable[Formula]) -> tuple[ConnectionCase, list[AnyOf]] | None:
        """The case with every condition that must hold, and the choices that remain."""
        choices: list[AnyOf] = []
        todo = list(formulas)
        for one in todo:
            if isinstance(one, AllOf):
                todo += one.parts
            elif isinstance(one, AnyOf):
                choices.append(one)
            else:
                found = self._tried(case, one)
                if found is None:
                    return None
                case = found
        return case, choices

    def fits(self, case: ConnectionCase, formula: Formula) -> bool:
        """Whether a case may meet a formula, at a glance."""
        found = self.narrowed(case, (formula,))
        return found is not None and all(any(self.fits(found[0], part) for part in one.parts) for one in found[1])

    def _open(self, case: ConnectionCase, choice: AnyOf) -> list[Formula] | None:
        """The alternatives that are left; None if the case already meets one."""
        out: list[Formula] = []
        for part in choice.parts:
            found = self.narrowed(case, (part,))
            if found is None:
                continue
            if found[0] is case and not found[1]:
                return None
            out.append(part)
        return out

    def _tried(self, case: ConnectionCase, condition: CaseCondition) -> ConnectionCase | None:
        if self.steps <= 0:
            raise SearchTooLong
        self.steps -= 1
        return condition(case)
