"""Two ends and one connection between them as a circuit, and the verdict of policies about it (KEP-2091).

In each direction Admin, then NetworkPolicy, then Baseline, then the default; `network.decide` says the same for one
connection. Two models of a change read the same variables, so gates of unchanged policies are shared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import assert_never

from tierwall.core.labels import Selector
from tierwall.core.stack import CombiningRule
from tierwall.logic.circuit import FALSE, TRUE, Circuit
from tierwall.network.model.endpoints import LAST_PORT, NAMESPACE_NAME
from tierwall.network.model.model import NetworkModel
from tierwall.network.model.rules import (
    EGRESS,
    INGRESS,
    AddressPeer,
    Direction,
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
    RuleAction,
    TieredPolicy,
)
from tierwall.network.reach.spaces import bits
from tierwall.proofs.network.end import End
from tierwall.proofs.network.ground import Ground
from tierwall.proofs.network.region import EndRegion, NetworkRegion
from tierwall.proofs.network.vocabulary import ABSENT, OTHER, Vocabulary
from tierwall.proofs.proof import Assumptions


class SymbolicConnection:
    """Any connection between any two ends. `number` is that of a model of the ground."""

    def __init__(self, vocabulary: Vocabulary, ground: Ground, assume: Assumptions, region: NetworkRegion) -> None:
        self.circuit = circuit = Circuit()
        self.vocabulary = vocabulary
        self.ground = ground
        self.groups = ground.groups(vocabulary)
        self._host_network = assume.host_network
        self.source = End(circuit, vocabulary, ground, self.groups, assume)
        self.to = End(circuit, vocabulary, ground, self.groups, assume)
        self.ports = circuit.variables(vocabulary.ports.everything.bit_length())
        circuit.require_one(self.ports)
        self.same_pod = FALSE if region.other else circuit.variable()
        self._equal_labels: dict[tuple[str, int], int] = {}
        self._make_same_namespace()
        self._keep_apart()
        if not region.other:
            self._make_same_pod()

    # What relates the two ends

    def _make_same_namespace(self) -> None:
        """Two ends may be in one namespace, which has one set of labels; other values may be equal or not."""
        circuit, here, there = self.circuit, self.source.labels["namespaces"], self.to.labels["namespaces"]
        self.other_equal = {key: circuit.variable() for key in sorted(self.vocabulary.compared | {NAMESPACE_NAME})}
        self.same_namespace = self._equal(NAMESPACE_NAME, 0)
        for key in here:
            if key != NAMESPACE_NAME:
                for value, literal in here[key].items():
                    circuit.require(-self.same_namespace, -literal, there[key][value])
        for literal in self.other_equal.values():
            circuit.require(-self.same_namespace, literal)

    def _equal(self, key: str, number: int) -> int:
        """Return the literal that says that both namespaces have a label with the same value."""
        known = self._equal_labels.get((key, number))
        if known is not None:
            return known
        circuit = self.circuit

        def both(value: str) -> list[int]:
            return [end.has("namespaces", key, value, number) for end in (self.source, self.to)]

        named = [circuit.all_of(both(value)) for value in self.vocabulary.namespaces.values(key)]
        known = circuit.any_of([*named, circuit.all_of([*both(OTHER), self.other_equal[key]])])
        self._equal_labels[key, number] = known
        return known

    def _keep_apart(self) -> None:
        """An address belongs to one end, and a pod or node alone in its group is not both ends."""
        circuit, here, there = self.circuit, self.source, self.to
        for piece, free in enumerate(self.vocabulary.addresses.free):
            if free == 1:
                for mine in (here.new_address[piece], here.node_address[piece]):
                    for other in (there.new_address[piece], there.node_address[piece]):
                        circuit.require(-mine, -other, self.same_pod)
        for number, group in enumerate(self.groups):
            if len(group.members) == 1:
                circuit.require(-here.group[number], -there.group[number], self.same_pod)

    def _make_same_pod(self) -> None:
        """Both ends may be one pod, which agrees with itself in everything."""
        circuit, here, there, same = self.circuit, self.source, self.to, self.same_pod
        circuit.require(-same, self.same_namespace)
        circuit.require(-same, here.is_pod(True))
        pairs = [(here.new_pod, there.new_pod), (here.new_host_pod, there.new_host_pod)]
        pairs += zip(here.group, there.group, strict=True)
        pairs += zip(here.new_address, there.new_address, strict=True)
        pairs += [(literal, there.on_node[number]) for number, literal in here.on_node.items()]
        for key, variables in here.labels["pods"].items():
            pairs += [(literal, there.labels["pods"][key][value]) for value, literal in variables.items()]
        for mine, other in pairs:
            circuit.require(-same, -mine, other)
            circuit.require(-same, mine, -other)

    # Regions

    def inside(self, region: NetworkRegion) -> int:
        """Return the literal that says that the connection is in a region."""
        ports = self.on(region.ports)
        return self.circuit.all_of(
            (self._end_inside(self.source, region.source, "from"), self._end_inside(self.to, region.to, "to"), ports)
        )

    def _end_inside(self, end: End, region: EndRegion, key: str) -> int:
        circuit, last = self.circuit, len(self.ground.models) - 1
        if region.labels is not None:
            namespaces, pods = region.labels
            selected = end.selected("namespaces", namespaces, last), end.selected("pods", pods, last)
            return circuit.all_of((end.is_pod(self._host_network), *selected))
        if region.name is not None:
            return circuit.any_of(
                [literal for literal, group in zip(end.group, self.groups, strict=True) if key in group.named]
            )
        if region.spans is not None:
            return end.within(region.spans, last)
        return TRUE

    # Verdicts

    def allowed(self, number: int) -> int:
        """Return the literal that says that a model allows the connection."""
        circuit, model = self.circuit, self.ground.models[number]
        directions = [
            circuit.any_of((-end.under_policy(number), self.direction_allowed(number, model, direction)))
            for end, direction in ((self.source, EGRESS), (self.to, INGRESS))
        ]
        return circuit.any_of((self.same_pod, circuit.all_of(directions)))

    def direction_allowed(self, number: int, model: NetworkModel, direction: Direction) -> int:
        """Return the literal that says that one direction is allowed, if its subject is under policy."""
        verdict = TRUE
        for tier in reversed(model.tiers):
            if tier.combining is CombiningRule.UNION_WITH_ISOLATION:
                verdict = self._union(number, tier.policies, direction, verdict)
            else:
                verdict = self._first_match(number, tier.policies, direction, verdict)
        return verdict

    def _union(self, number: int, policies: Sequence[TieredPolicy], direction: Direction, below: int) -> int:
        isolated, allowed = [], []
        for policy in policies:
            rules = policy.rules(direction)
            if rules is not None:
                selects = self.selects(number, policy, direction)
                isolated.append(selects)
                matches = self.circuit.any_of([self._matches(number, rule) for rule in rules])
                allowed.append(self.circuit.all_of((selects, matches)))
        return self.circuit.choose(self.circuit.any_of(isolated), self.circuit.any_of(allowed), below)

    def _first_match(self, number: int, policies: Sequence[TieredPolicy], direction: Direction, below: int) -> int:
        """Build the verdict from the last rule to the first: each comes before those already in it."""
        circuit, verdict = self.circuit, below
        for policy in reversed(policies):
            selects = self.selects(number, policy, direction)
            for rule in reversed(policy.rules(direction) or ()):
                matches = circuit.all_of((selects, self._matches(number, rule)))
                match rule.action:
                    case RuleAction.ALLOW:
                        verdict = circuit.any_of((matches, verdict))
                    case RuleAction.DENY:
                        verdict = circuit.all_of((-matches, verdict))
                    case RuleAction.PASS:
                        verdict = circuit.choose(matches, below, verdict)
                    case _:
                        assert_never(rule.action)
        return verdict

    def subject(self, direction: Direction) -> End:
        """Return the end that policies of a direction are about."""
        return self.source if direction is EGRESS else self.to

    def selects_and_matches(self, number: int, policy: TieredPolicy, rule: NetworkRule) -> int:
        """Return the literal that says that a policy selects the subject and its rule matches the connection."""
        return self.circuit.all_of((self.selects(number, policy, rule.direction), self._matches(number, rule)))

    def selects(self, number: int, policy: TieredPolicy, direction: Direction) -> int:
        """Return the literal that says that a policy selects the subject of a direction."""
        subject = self.subject(direction)
        namespaces = subject.selected("namespaces", policy.namespaces, number)
        return self.circuit.all_of((namespaces, subject.selected("pods", policy.pods, number)))

    def _matches(self, number: int, rule: NetworkRule) -> int:
        """Return the literal that says that a rule matches the connection of its subject."""
        peers = ports = TRUE
        other = self.to if rule.direction is EGRESS else self.source
        if rule.peers is not None:
            peers = self.circuit.any_of([self._peer(number, peer, other) for peer in rule.peers])
        if rule.ports is not None and peers != FALSE:
            ports = self.circuit.any_of([self._port(number, port) for port in rule.ports])
        return self.circuit.all_of((peers, ports))

    def _peer(self, number: int, peer: Peer, other: End) -> int:
        circuit = self.circuit
        match peer:
            case PodPeer(namespaces, pods):
                labels = other.selected("pods", pods, number)
                match namespaces:
                    case Selector():
                        where = other.selected("namespaces", namespaces, number)
                    case Related():
                        where = self._related(number, namespaces)
                    case _:
                        assert_never(namespaces)
                return circuit.all_of((other.under_policy(number), labels, where))
            case AddressPeer(blocks):
                return other.within([span for block in blocks for span in block.ranges()], number)
            case NodePeer(nodes):
                return other.on_selected_node(nodes, number)
            case DomainPeer(names):
                domains = circuit.any_of([other.domain[name] for name in names])
                return circuit.all_of((other.has_address(number), domains))
            case _:
                assert_never(peer)

    def _related(self, number: int, wanted: Related) -> int:
        circuit = self.circuit
        match wanted.relation:
            case Relation.SELF:
                return self.same_namespace
            case Relation.NOT_SELF:
                return -self.same_namespace
            case Relation.SAME_LABELS | Relation.NOT_SAME_LABELS:
                if not wanted.keys:
                    return FALSE
                equal = circuit.all_of([self._equal(key, number) for key in wanted.keys])
                if wanted.relation is Relation.SAME_LABELS:
                    return equal
                present = [
                    -end.has("namespaces", key, ABSENT, number) for key in wanted.keys for end in (self.source, self.to)
                ]
                return circuit.all_of([*present, -equal])
            case _:
                assert_never(wanted.relation)

    def _port(self, number: int, port: Port) -> int:
        match port:
            case PortRange():
                return self.on([port])
            case NamedPort(name, protocol):
                called = self.to.called(name, number, self._on_numbers)
                if not protocol:
                    return called
                return self.circuit.all_of((called, self.on_protocol(protocol)))
            case _:
                assert_never(port)

    def _on_numbers(self, ports: Iterable[tuple[str, int]]) -> int:
        return self.on([PortRange(protocol, port, port) for protocol, port in ports])

    def on_protocol(self, protocol: str) -> int:
        """Return the literal that says that the connection has a protocol."""
        whole = PortRange(protocol, 1, LAST_PORT)
        return self.on([whole])

    def on(self, ranges: Iterable[PortRange]) -> int:
        """Return the literal that says that the port is in one of these ranges, which divide the ports."""
        pieces = {piece for ports in ranges for piece in bits(self.vocabulary.ports.mask(ports))}
        return self.circuit.any_of([self.ports[piece] for piece in sorted(pieces)])
