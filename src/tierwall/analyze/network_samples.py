"""Sample connections: for each rule a few that it matches, judged all at once on the circuit of a model.

Most rules count, and one connection shows it; a solver is asked about the others alone. A bit of each number stands for
one connection, so a gate judges all connections in one step. A connection that cannot be is left out by the clauses
that hold for every connection, so that the samples need not be chosen with care.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tierwall.core.labels import EVERYTHING, Requirement, Selector
from tierwall.logic.circuit import TRUE
from tierwall.network.model.endpoints import NAMESPACE_NAME
from tierwall.network.model.rules import (
    EGRESS,
    AddressPeer,
    DomainPeer,
    NamedPort,
    NetworkRule,
    NodePeer,
    Peer,
    PodPeer,
    PortRange,
    Related,
    Relation,
    TieredPolicy,
    TierName,
)
from tierwall.network.reach.spaces import bits
from tierwall.proofs.network.connection import SymbolicConnection
from tierwall.proofs.network.end import End, Family
from tierwall.proofs.network.vocabulary import ABSENT, OTHER

# How often the labels that a rule does not look at are chosen.
SAMPLES = 4
_Labels = Mapping[str, str]


class _Fitting(NamedTuple):
    """The values of a label that a selector selects, and those that the first and the second sample of a rule have."""

    key: str
    absent: str
    other: str
    atoms: Sequence[str]


class SampleIndex:
    """Sample connections of rules, by number."""

    def __init__(self, connection: SymbolicConnection, rules: Iterable[tuple[TieredPolicy, NetworkRule]]) -> None:
        self._connection = connection
        self._random = random.Random(0)  # the same samples for the same rules
        self._values: dict[int, int] = {}
        self._fitting: dict[tuple[End, Family, Selector], list[_Fitting]] = {}
        self._count = 0
        for policy, rule in rules:
            # Of NetworkPolicies there are thousands, and nobody asks what settles their rules, only whether all of it.
            for number in range(1 if policy.tier is TierName.NAMESPACE else SAMPLES):
                for literals in self._samples(policy, rule, number):
                    for literal in literals:
                        self._values[literal] = self._values.get(literal, 0) | 1 << self._count
                    self._count += 1
        self._everything = (1 << self._count) - 1
        self._values[TRUE] = self._everything
        self._possible: int | None = None

    def meet(self, literals: Sequence[int]) -> bool:
        """Whether some sample is as all these literals say."""
        return self._met(literals) != 0

    def of(self, literals: Sequence[int]) -> Iterator[int]:
        """Yield the numbers of the samples that are as all these literals say."""
        return bits(self._met(literals))

    def _met(self, literals: Sequence[int]) -> int:
        if self._possible is None:
            self._possible = self._everything
            for clause in self._connection.circuit.clauses():
                holds = 0
                for literal in clause:
                    holds |= self._value(literal)
                self._possible &= holds
        met = self._possible
        for literal in literals:
            met &= self._value(literal)
        return met

    def _value(self, literal: int) -> int:
        """Return the samples for which a literal is true; what is neither chosen nor a gate is false."""
        values, circuit = self._values, self._connection.circuit
        waiting = [abs(literal)]
        while waiting:
            node = waiting[-1]
            if node in values:
                waiting.pop()
                continue
            inputs = circuit.inputs(node)
            missing = [abs(part) for part in inputs if abs(part) not in values]
            if missing:
                waiting += missing
                continue
            value = self._everything if circuit.is_conjunction(node) else 0
            for part in inputs:
                of_part = values[abs(part)] if part > 0 else self._everything & ~values[abs(part)]
                value = value & of_part if circuit.is_conjunction(node) else value | of_part
            values[node] = value
        return values[abs(literal)] if literal > 0 else self._everything & ~values[abs(literal)]

    def _samples(self, policy: TieredPolicy, rule: NetworkRule, number: int) -> Iterator[list[int]]:
        connection = self._connection
        subject, other = (
            (connection.source, connection.to) if rule.direction is EGRESS else (connection.to, connection.source)
        )
        peers: Sequence[Peer | None] = rule.peers[:SAMPLES] if rule.peers is not None else (None,)
        for peer in peers:
            spaces = self._labels(subject, "namespaces", policy.namespaces, number)
            literals = [subject.new_pod, *self._written(subject, "pods", policy.pods, number)]
            literals += self._port(rule, number)
            related = peer.namespaces if isinstance(peer, PodPeer) else None
            wanted = related if isinstance(related, Selector) else EVERYTHING
            theirs = self._labels(other, "namespaces", wanted, number)
            if isinstance(related, Related):
                spaces, theirs = _as_related(related, spaces, theirs)
                if related.relation is Relation.SELF:
                    literals += connection.other_equal.values()
            literals += (subject.labels["namespaces"][key][value] for key, value in spaces.items())
            literals += (other.labels["namespaces"][key][value] for key, value in theirs.items())
            literals += self._peer(other, peer, number)
            yield literals

    def _peer(self, end: End, peer: Peer | None, number: int) -> Iterator[int]:
        pods = peer.pods if isinstance(peer, PodPeer) else EVERYTHING
        yield from self._written(end, "pods", pods, number)
        nodes = peer.nodes if isinstance(peer, NodePeer) else EVERYTHING
        yield from self._written(end, "nodes", nodes, number)
        pieces = range(len(end.new_address))
        match peer:
            case AddressPeer(blocks=blocks):
                addresses = self._connection.vocabulary.addresses
                pieces_of = {piece for block in blocks for span in block.ranges() for piece in addresses.inside(span)}
                chosen = sorted(pieces_of)
                yield end.outside if number % 2 else end.new_pod
                if chosen:
                    yield end.new_address[chosen[number % len(chosen)]]
            case NodePeer():
                yield end.new_node
                yield end.node_address[number % len(pieces)]
            case DomainPeer(names=names):
                yield end.outside
                yield end.new_address[number % len(pieces)]
                yield from (end.domain[name] for name in names)
            case _:
                yield end.new_pod

    def _port(self, rule: NetworkRule, number: int) -> Iterator[int]:
        connection = self._connection
        everything = list(range(len(connection.ports)))
        if rule.ports is None or not rule.ports:
            yield connection.ports[self._random.choice(everything)]
            return
        port = rule.ports[number % len(rule.ports)]
        if isinstance(port, PortRange):
            pieces = list(bits(connection.vocabulary.ports.mask(port)))
            yield connection.ports[self._random.choice(pieces)]
        elif isinstance(port, NamedPort):
            yield connection.ports[self._random.choice(everything)]
            yield connection.to.new_name[port.name]

    def _written(self, end: End, family: Family, selector: Selector, number: int) -> Iterator[int]:
        for key, value in self._labels(end, family, selector, number).items():
            yield end.labels[family][key][value]

    def _labels(self, end: End, family: Family, selector: Selector, number: int) -> _Labels:
        """Choose labels that a selector selects: absent, other, or any."""
        fitting = self._fitting.get((end, family, selector))
        if fitting is None:
            fitting = self._fitting[end, family, selector] = list(_fitting(end.labels[family], selector))
        chosen: dict[str, str] = {}
        for key, absent, other, atoms in fitting:
            if number > 1 and len(atoms) > 1:
                chosen[key] = self._random.choice(atoms)
            else:
                chosen[key] = absent if number == 0 else other
        return chosen


def _fitting(labels: Mapping[str, Mapping[str, int]], selector: Selector) -> Iterator[_Fitting]:
    """Yield the keys of labels, each with the values that a selector selects, or with all if it selects none."""
    for key, atoms in labels.items():
        wanted = [requirement for requirement in selector.requirements if requirement.key == key]
        fitting = [atom for atom in atoms if all(_fits(part, atom) for part in wanted)] or list(atoms)
        absent, other = (
            next((atom for atom in order if atom in fitting), fitting[0])
            for order in ((ABSENT, OTHER), (OTHER, ABSENT))
        )
        # Without need, a namespace has another name than those that policies mention.
        yield _Fitting(key, absent, other, fitting if wanted or key != NAMESPACE_NAME else [other])


def _fits(requirement: Requirement, atom: str) -> bool:
    match requirement.operator:
        case "In":
            return atom in requirement.values
        case "NotIn":
            return atom not in requirement.values
        case "Exists":
            return atom != ABSENT
    return atom == ABSENT


def _as_related(wanted: Related, spaces: _Labels, theirs: _Labels) -> tuple[_Labels, _Labels]:
    """Return labels of both namespaces that are related as a rule wants it, as far as that is simple."""
    match wanted.relation:
        case Relation.SELF:
            return spaces, spaces
        case Relation.SAME_LABELS:
            return spaces, {**theirs, **{key: spaces[key] for key in wanted.keys}}
    return spaces, theirs
