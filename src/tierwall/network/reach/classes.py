"""Equivalence classes of endpoints: every policy treats the endpoints of a class alike, in every role.

Two endpoints are alike if they agree in everything that policies look at: label keys and values, named ports, address
blocks, nodes and domains. Each class has one bit, and a set of classes is an integer. Classes of namespaces that no
policy distinguishes are adjacent and form a unit, so that sets can be named namespace by namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from copy import copy
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

# Stands for every value of a key that no policy mentions.
OTHER = None


class RelevantLabels:
    """The label keys and values that the selectors for one kind of object look at."""

    def __init__(self) -> None:
        self._values: dict[str, set[str]] = {}
        # Keys of which every value counts.
        self._exact: set[str] = set()

    def add_selector(self, selector: Selector) -> None:
        """Add the keys and values of a selector."""
        for requirement in selector.requirements:
            self._values.setdefault(requirement.key, set()).update(requirement.values)

    def copy(self) -> RelevantLabels:
        """Return a copy that can be added to."""
        copied = RelevantLabels()
        copied._values = {key: values.copy() for key, values in self._values.items()}
        copied._exact = self._exact.copy()
        return copied

    def add_all_values(self, keys: Iterable[str]) -> None:
        """Add all values of some keys, because policies compare them with each other."""
        for key in keys:
            self._values.setdefault(key, set())
            self._exact.add(key)

    def add_value(self, key: str, value: str) -> None:
        """Add one value of a key."""
        self._values.setdefault(key, set()).add(value)

    def covers(self, other: RelevantLabels) -> bool:
        """Whether these are all labels that others look at, and maybe more."""
        values = self._values
        return self._exact >= other._exact and all(
            key in values and values[key] >= wanted for key, wanted in other._values.items()
        )

    def relevant(self, labels: Mapping[str, str]) -> tuple[tuple[str, str | None], ...]:
        """Return the relevant part of some labels; a value that no policy mentions becomes OTHER."""
        values, exact = self._values, self._exact
        relevant = [
            (key, value if key in exact or value in values[key] else OTHER)
            for key, value in labels.items()
            if key in values
        ]
        relevant.sort()  # INVARIANT: keys are unique, so values (one of which may be None) are never compared
        return tuple(relevant)


class RelevantAttributes:
    """Every attribute of an endpoint that some policy of a model looks at."""

    def __init__(self, model: NetworkModel) -> None:
        self.namespaces, self.pods, self.nodes = RelevantLabels(), RelevantLabels(), RelevantLabels()
        self.named_ports: set[str] = set()
        self.port_ranges: set[PortRange] = set()
        self.blocks: dict[Block, None] = {}
        self.by_node = self.by_domain = False
        # What selects the namespaces whose names policies compare with other names.
        self._compared: dict[Selector, None] = {}
        for policy in model.policies:
            self.namespaces.add_selector(policy.namespaces)
            self.pods.add_selector(policy.pods)
            relations: set[Relation] = set()
            for rule in policy.all_rules:
                relations.update(self._add_rule(rule))
            if any(relation.compares_names for relation in relations):
                self._compared[policy.namespaces] = None
        self._add_names(model)

    def covers_labels(self, other: RelevantAttributes) -> bool:
        """Whether these tell apart all endpoints that others tell apart, if their blocks are the same."""
        return (
            self.named_ports >= other.named_ports
            and (self.by_node, self.by_domain) == (other.by_node, other.by_domain)
            and self.namespaces.covers(other.namespaces)
            and self.pods.covers(other.pods)
            and self.nodes.covers(other.nodes)
        )

    def covers(self, other: RelevantAttributes) -> bool:
        """Whether these tell apart all endpoints and ports that others tell apart."""
        return (
            self.covers_labels(other)
            and self.blocks.keys() >= other.blocks.keys()
            and self.port_ranges >= other.port_ranges
        )

    def with_more(self, blocks: Iterable[Block], ports: Iterable[PortRange]) -> RelevantAttributes:
        """Return these attributes with more blocks and ports, for the same model."""
        extended = copy(self)
        extended.port_ranges = {*ports, *self.port_ranges}
        extended.blocks = {**dict.fromkeys(blocks), **self.blocks}
        return extended

    def of_larger_model(self, model: NetworkModel) -> RelevantAttributes:
        """Return these attributes for a model with the same policies and more namespaces."""
        extended = copy(self)
        extended.namespaces = self.namespaces.copy()
        extended._add_names(model)
        return extended

    def _add_rule(self, rule: NetworkRule) -> Iterator[Relation]:
        """Add the attributes that a rule looks at, and yield its relations between namespaces."""
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
                    self.pods.add_selector(peer.pods)
                    match peer.namespaces:
                        case Selector():
                            self.namespaces.add_selector(peer.namespaces)
                        case Related():
                            self.namespaces.add_all_values(peer.namespaces.keys)
                            yield peer.namespaces.relation
                        case _:
                            assert_never(peer.namespaces)
                case AddressPeer():
                    self.blocks.update(dict.fromkeys(peer.blocks))
                case NodePeer():
                    self.by_node = True
                    self.nodes.add_selector(peer.nodes)
                case DomainPeer():
                    self.by_domain = True
                case _:
                    assert_never(peer)

    def _add_names(self, model: NetworkModel) -> None:
        """Add the names of namespaces that policies compare with other names."""
        for subjects in self._compared:
            for name in model.namespaces_selected(subjects):
                self.namespaces.add_value(NAMESPACE_NAME, name)


class EndpointClass(Struct, frozen=True, eq=False):
    """Endpoints that no policy distinguishes.

    A class of addresses outside the cluster has all of them in `spans`, and one of them as its only member.
    """

    bit: int
    unit: int
    key: tuple[Any, ...]
    members: tuple[Endpoint, ...]
    spans: tuple[Span, ...] = ()

    @property
    def representative(self) -> Endpoint:
        """A member that stands for all of them."""
        return self.members[0]


class EndpointClasses:
    """All classes of a model, in the order of their first members' names: pods, then nodes, then outside addresses.

    `refine`, `blocks` and `ports` may split endpoints, addresses and ports more finely than policies do. So the classes
    of two models line up if each is refined by the keys and blocks of the other, and a question about some endpoints
    gets classes that lie either wholly inside or wholly outside them.
    """

    def __init__(
        self,
        model: NetworkModel,
        refine: Callable[[Endpoint], Hashable] | None = None,
        blocks: Iterable[Block] = (),
        ports: Iterable[PortRange] = (),
        attributes: RelevantAttributes | None = None,
        known: EndpointClasses | None = None,
    ) -> None:
        """`attributes`: those of the model, if they are known.

        `known`: the classes by these attributes of some of the pods, with the same namespaces, nodes and refinement.
        """
        self.model = model
        self.attributes = (attributes or RelevantAttributes(model)).with_more(blocks, ports)
        self.space = AddressSpace(self.attributes.blocks)
        self.all: list[EndpointClass] = []
        self.units: list[tuple[str, ...]] = []
        self._of: dict[Endpoint, EndpointClass] = {}
        self._nodes_at: dict[int, list[Endpoint]] = {}
        for node in model.nodes:
            for address in node.addresses:
                self._nodes_at.setdefault(address, []).append(node)
        self._add_pods(refine or (lambda endpoint: None), known._of if known is not None else {})
        self._add_nodes(refine or (lambda endpoint: None))
        self._add_outside(refine or (lambda endpoint: None))
        self.everybody = mask_of(endpoint_class.bit for endpoint_class in self.all)
        self.under_policy = mask_of(
            endpoint_class.bit for endpoint_class in self.all if endpoint_class.representative.under_policy
        )
        self.outside = mask_of(endpoint_class.bit for endpoint_class in self.all if endpoint_class.spans)
        self.addressed = mask_of(
            endpoint_class.bit for endpoint_class in self.all if endpoint_class.representative.addresses
        )

    def of_model(self, model: NetworkModel) -> EndpointClasses:
        """Return the same classes for another model, which has the same endpoints and tells the same ones apart."""
        classes = copy(self)
        classes.model = model
        return classes

    def of(self, endpoint: Endpoint) -> EndpointClass:
        """Return the class of a pod or node of the model."""
        return self._of[endpoint]

    def members(self, mask: int) -> Iterator[EndpointClass]:
        """Yield the classes of a set, in order."""
        for bit in bits(mask):
            yield self.all[bit]

    def _add_pods(self, refine: Callable[[Endpoint], Hashable], known: Mapping[Endpoint, EndpointClass]) -> None:
        attributes = self.attributes
        namespaces = {name: attributes.namespaces.relevant(labels) for name, labels in self.model.namespaces.items()}
        units: dict[tuple[Any, ...], dict[tuple[Any, ...], list[Endpoint]]] = {}
        names: dict[tuple[Any, ...], dict[str, None]] = {}
        for pod in sorted(self.model.pods, key=lambda pod: (pod.namespace, pod.name)):
            namespace = namespaces[pod.namespace]
            of_pod = known.get(pod)
            key = (
                of_pod.key
                if of_pod is not None
                else (
                    namespace,
                    attributes.pods.relevant(pod.labels),
                    pod.under_policy,
                    self._ports(pod),
                    self._addresses(pod),
                    refine(pod),
                )
            )
            units.setdefault(namespace, {}).setdefault(key, []).append(pod)
            names.setdefault(namespace, {})[pod.namespace] = None
        for namespace, classes in units.items():
            self.units.append(tuple(names[namespace]))
            for key, members in classes.items():
                self._add(key, members)

    def _add_nodes(self, refine: Callable[[Endpoint], Hashable]) -> None:
        by_key: dict[tuple[Any, ...], list[Endpoint]] = {}
        for node in sorted(self.model.nodes, key=lambda node: node.name):
            by_key.setdefault(("node", self._addresses(node), refine(node)), []).append(node)
        self.units.append(())
        for key, members in by_key.items():
            self._add(key, members)

    def _add_outside(self, refine: Callable[[Endpoint], Hashable]) -> None:
        self.units.append(())
        for signature, is_ipv6, spans in self.space.pieces():
            stand_in = address_endpoint(spans[0].low)
            self._add(("outside", is_ipv6, signature, refine(stand_in)), [stand_in], tuple(spans))

    def _add(self, key: tuple[Any, ...], members: Iterable[Endpoint], spans: tuple[Span, ...] = ()) -> None:
        added = EndpointClass(len(self.all), len(self.units) - 1, key, tuple(members), spans)
        self.all.append(added)
        self._of.update(dict.fromkeys(added.members, added))

    def _ports(self, pod: Endpoint) -> tuple[Any, ...]:
        """Return the named ports of a pod that policies mention."""
        wanted = self.attributes.named_ports
        if not wanted or not pod.named_ports:
            return ()
        return tuple(sorted((name, pairs) for name, pairs in pod.named_ports.items() if name in wanted))

    def _addresses(self, endpoint: Endpoint) -> tuple[Any, ...]:
        """Return the relevant part of an endpoint's addresses: their blocks, their nodes, and whether it has any."""
        attributes = self.attributes
        parts: list[Any] = []
        if attributes.blocks:
            signatures = {self.space.signature(address) for address in endpoint.addresses}
            parts.append(tuple(sorted(signatures - {0})))
        if attributes.by_node:
            nodes = [node for address in endpoint.addresses for node in self._nodes_at.get(address, ())]
            parts.append(frozenset(attributes.nodes.relevant(node.labels) for node in nodes))
        if attributes.by_domain:
            parts.append(bool(endpoint.addresses))
        return tuple(parts)
