"""Equivalence classes of ends: ends of one class are treated alike by every policy, as subject, source or destination.

Two ends are alike if they agree in all that policies look at: label keys and values, named ports, address blocks,
nodes, domains. Each class has one bit; sets of ends are whole numbers. The classes of namespaces that no policy tells
apart stand side by side (a unit), so that sets can be named namespace by namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, assert_never

from msgspec import Struct

from tierwall.core.labels import Selector
from tierwall.network.model.endpoints import NAMESPACE_NAME, Endpoint, address_endpoint
from tierwall.network.model.model import NetworkModel
from tierwall.network.model.rules import (
    AddressPeer,
    DomainPeer,
    NamedPort,
    NetworkRule,
    NodePeer,
    PodPeer,
    PortRange,
    Related,
    Relation,
)
from tierwall.network.reach.spaces import AddressSpace, bits, mask_of
from tierwall.values.addresses import Block, Span

# Stands for any value of a key that no policy names.
OTHER = None


class RelevantLabels:
    """The keys and values that selectors of one sort of object look at."""

    def __init__(self) -> None:
        self._values: dict[str, set[str]] = {}
        self._exact: set[str] = set()

    def look(self, selector: Selector) -> None:
        """Take in what a selector looks at."""
        for requirement in selector.requirements:
            self._values.setdefault(requirement.key, set()).update(requirement.values)

    def tell_apart(self, keys: Iterable[str]) -> None:
        """Every value of these keys counts, because policies compare them with each other."""
        for key in keys:
            self._values.setdefault(key, set())
            self._exact.add(key)

    def name(self, key: str, value: str) -> None:
        """One value of a key counts."""
        self._values.setdefault(key, set()).add(value)

    def seen(self, labels: Mapping[str, str]) -> tuple[tuple[str, str | None], ...]:
        """What of some labels is looked at; a value that nobody names is OTHER."""
        values, exact = self._values, self._exact
        found = [
            (key, value if key in exact or value in values[key] else OTHER)
            for key, value in labels.items()
            if key in values
        ]
        found.sort()  # INVARIANT: keys are unique, so values (of which one may be None) are never compared
        return tuple(found)


class RelevantAttributes:
    """Everything that some policy of a model looks at."""

    def __init__(self, model: NetworkModel, blocks: Iterable[Block] = (), ports: Iterable[PortRange] = ()) -> None:
        self.namespaces, self.pods, self.nodes = RelevantLabels(), RelevantLabels(), RelevantLabels()
        self.named_ports: set[str] = set()
        self.port_ranges: set[PortRange] = set(ports)
        self.blocks: dict[Block, None] = dict.fromkeys(blocks)
        self.by_node = self.by_domain = False
        for policy in model.policies:
            self.namespaces.look(policy.namespaces)
            self.pods.look(policy.pods)
            relations: set[Relation] = set()
            for rule in policy.all_rules:
                relations.update(self._rule(rule))
            if any(relation.compares_names for relation in relations):
                self._by_name(policy.namespaces, model)

    def _rule(self, rule: NetworkRule) -> Iterator[Relation]:
        for port in rule.ports or ():
            match port:
                case PortRange():
                    self.port_ranges.add(port)
                case NamedPort():
                    self.named_ports.add(port.name)
                case _:
                    assert_never(port)
        for peer in rule.peers or ():
            match peer:
                case PodPeer():
                    self.pods.look(peer.pods)
                    match peer.namespaces:
                        case Selector():
                            self.namespaces.look(peer.namespaces)
                        case Related():
                            self.namespaces.tell_apart(peer.namespaces.keys)
                            yield peer.namespaces.relation
                        case _:
                            assert_never(peer.namespaces)
                case AddressPeer():
                    self.blocks.update(dict.fromkeys(peer.blocks))
                case NodePeer():
                    self.by_node = True
                    self.nodes.look(peer.nodes)
                case DomainPeer():
                    self.by_domain = True
                case _:
                    assert_never(peer)

    def _by_name(self, subjects: Selector, model: NetworkModel) -> None:
        """Namespaces that a policy compares with others by identity count by name."""
        for name in model.namespaces_selected(subjects):
            self.namespaces.name(NAMESPACE_NAME, name)


class EndpointClass(Struct, frozen=True, eq=False):
    """Ends that no policy tells apart. A class of addresses outside the cluster has spans instead of members."""

    bit: int
    unit: int
    key: tuple[Any, ...]
    members: tuple[Endpoint, ...]
    spans: tuple[Span, ...] = ()

    @property
    def one(self) -> Endpoint:
        """Any member stands for all."""
        return self.members[0]


class EndpointClasses:
    """All classes of a model, in the order of their first members' names: pods, then nodes, then outside addresses.

    `refine`, `blocks` and `ports` may tell ends, addresses and ports apart that policies do not: classes of two
    models line up if each is refined by the other's keys and blocks, and a question about some ends gets classes
    that do not straddle them.
    """

    def __init__(
        self,
        model: NetworkModel,
        refine: Callable[[Endpoint], Hashable] | None = None,
        blocks: Iterable[Block] = (),
        ports: Iterable[PortRange] = (),
    ) -> None:
        self.model = model
        self.attention = RelevantAttributes(model, blocks, ports)
        self.space = AddressSpace(self.attention.blocks)
        self.all: list[EndpointClass] = []
        self.units: list[tuple[str, ...]] = []
        self._of: dict[Endpoint, EndpointClass] = {}
        self._nodes_at: dict[int, list[Endpoint]] = {}
        for node in model.nodes:
            for address in node.addresses:
                self._nodes_at.setdefault(address, []).append(node)
        self._pods(refine or (lambda end: None))
        self._nodes(refine or (lambda end: None))
        self._outside(refine or (lambda end: None))
        self.everybody = mask_of(one.bit for one in self.all)
        self.under_policy = mask_of(one.bit for one in self.all if one.one.under_policy)
        self.addressed = mask_of(one.bit for one in self.all if one.one.addresses)

    def of(self, end: Endpoint) -> EndpointClass:
        """The class of a pod or node of the model."""
        return self._of[end]

    def members(self, mask: int) -> Iterator[EndpointClass]:
        """The classes of a set, in order."""
        for bit in bits(mask):
            yield self.all[bit]

    def _pods(self, refine: Callable[[Endpoint], Hashable]) -> None:
        attention = self.attention
        namespaces = {name: attention.namespaces.seen(labels) for name, labels in self.model.namespaces.items()}
        units: dict[tuple[Any, ...], dict[tuple[Any, ...], list[Endpoint]]] = {}
        names: dict[tuple[Any, ...], dict[str, None]] = {}
        for pod in sorted(self.model.pods, key=lambda one: (one.namespace, one.name)):
            namespace = namespaces[pod.namespace]
            key = (
                namespace,
                attention.pods.seen(pod.labels) if pod.under_policy else (),
                pod.under_policy,
                self._ports(pod),
                self._addresses(pod),
                refine(pod),
            )
            units.setdefault(namespace, {}).setdefault(key, []).append(pod)
            names.setdefault(namespace, {})[pod.namespace] = None
        for namespace, classes in units.items():
            self.units.append(tuple(names[namespace]))
            for key, members in classes.items():
                self._add(key, members)

    def _nodes(self, refine: Callable[[Endpoint], Hashable]) -> None:
        found: dict[tuple[Any, ...], list[Endpoint]] = {}
        for node in sorted(self.model.nodes, key=lambda one: one.name):
            found.setdefault(("node", self._addresses(node), refine(node)), []).append(node)
        self.units.append(())
        for key, members in found.items():
            self._add(key, members)

    def _outside(self, refine: Callable[[Endpoint], Hashable]) -> None:
        self.units.append(())
        for signature, is_ipv6, spans in self.space.pieces():
            stand_in = address_endpoint(spans[0].low)
            self._add(("outside", is_ipv6, signature, refine(stand_in)), [stand_in], tuple(spans))

    def _add(self, key: tuple[Any, ...], members: Iterable[Endpoint], spans: tuple[Span, ...] = ()) -> None:
        one = EndpointClass(len(self.all), len(self.units) - 1, key, tuple(members), spans)
        self.all.append(one)
        self._of.update(dict.fromkeys(one.members, one))

    def _ports(self, pod: Endpoint) -> tuple[Any, ...]:
        """The named ports that policies ask for."""
        wanted = self.attention.named_ports
        if not wanted or not pod.named_ports:
            return ()
        return tuple(sorted((name, pairs) for name, pairs in pod.named_ports.items() if name in wanted))

    def _addresses(self, end: Endpoint) -> tuple[Any, ...]:
        """What policies see of an end's addresses.

        The blocks and nodes they belong to, or that there are any at all.
        """
        attention = self.attention
        out: list[Any] = []
        if attention.blocks:
            out.append(tuple(sorted({found for one in end.addresses if (found := self.space.signature(one))})))
        if attention.by_node:
            nodes = [node for address in end.addresses for node in self._nodes_at.get(address, ())]
            out.append(frozenset(attention.nodes.seen(node.labels) for node in nodes))
        if attention.by_domain:
            out.append(bool(end.addresses))
        return tuple(out)
