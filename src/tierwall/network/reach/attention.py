"""What the policies of a model look at: label keys and values, named ports, address blocks, nodes, domains.

Two ends that agree in all of it are treated alike by every policy, so they belong to one class.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import assert_never

from tierwall.core.labels import Selector
from tierwall.network.model.ends import NAMESPACE_NAME
from tierwall.network.model.model import Model
from tierwall.network.model.rules import (
    AddressPeer,
    DomainPeer,
    NamedPort,
    NodePeer,
    PodPeer,
    PortRange,
    Related,
    Relation,
    Rule,
)
from tierwall.values.addresses import Block

# Stands for any value of a key that no policy names.
OTHER = None


def compares_names(relation: Relation) -> bool:
    """Whether a relation asks which namespace it is, rather than what labels it has."""
    match relation:
        case Relation.SELF | Relation.NOT_SELF:
            return True
        case Relation.SAME_LABELS | Relation.NOT_SAME_LABELS:
            return False
        case _:
            assert_never(relation)


class Labels:
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


class Attention:
    """Everything that some policy of a model looks at."""

    def __init__(self, model: Model, blocks: Iterable[Block] = (), ports: Iterable[PortRange] = ()) -> None:
        self.namespaces, self.pods, self.nodes = Labels(), Labels(), Labels()
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
            if any(map(compares_names, relations)):
                self._by_name(policy.namespaces, model)

    def _rule(self, rule: Rule) -> Iterator[Relation]:
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

    def _by_name(self, subjects: Selector, model: Model) -> None:
        """Namespaces that a policy compares with others by identity count by name."""
        for name in model.namespaces_selected(subjects):
            self.namespaces.name(NAMESPACE_NAME, name)
