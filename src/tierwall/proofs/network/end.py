"""One end of a connection as variables: whatever it is, whatever labels and addresses it has (docs/prove.md).

An end is a pod that may come, a node that may come, an address outside, or a group of what exists. Labels of a pod and
of its namespace are one of the named values, another value, or absent. What exists has its labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias

from tierwall.core.labels import Selector
from tierwall.logic.circuit import FALSE, Circuit
from tierwall.network.model.endpoints import NAMESPACE_NAME
from tierwall.network.model.matching import is_covered_domain
from tierwall.proofs.network.ground import EndGroup, Ground
from tierwall.proofs.network.vocabulary import ABSENT, OTHER, Vocabulary
from tierwall.proofs.proof import Assumptions
from tierwall.values.addresses import Span
from tierwall.values.names import dns_label, label_key, label_value
from tierwall.values.names import port_name as port_name_problems

Family: TypeAlias = Literal["namespaces", "pods", "nodes"]


class End:
    """The variables of one end. `number` tells the models of a change apart."""

    def __init__(
        self,
        circuit: Circuit,
        vocabulary: Vocabulary,
        ground: Ground,
        groups: Sequence[EndGroup],
        assume: Assumptions,
    ) -> None:
        self._circuit = circuit
        self._vocabulary = vocabulary
        self.groups = groups
        self.new_pod, self.new_host_pod, self.new_node, self.outside = circuit.variables(4)
        self.group = circuit.variables(len(groups))
        circuit.require_one([self.new_pod, self.new_host_pod, self.new_node, self.outside, *self.group])
        if not assume.host_network or assume.existing_only:
            circuit.require(-self.new_host_pod)
        if assume.existing_only:
            circuit.require(-self.new_pod)
            circuit.require(-self.new_node)
        self.labels: dict[Family, dict[str, dict[str, int]]] = {"namespaces": {}, "pods": {}, "nodes": {}}
        # Where models differ: a literal, and the atoms of each model by key.
        self._changed: dict[Family, list[tuple[int, list[dict[str, str]]]]] = {
            "namespaces": [],
            "pods": [],
            "nodes": [],
        }
        self._selected: dict[tuple[Family, Selector, int], int] = {}
        # What policies ask again and again, by what they ask.
        self._asked: dict[tuple[object, ...], int] = {}
        self._make_pod_labels()
        self._make_namespace_labels(ground, assume)
        self._make_labels("nodes", circuit.any_of((self.new_node, self.new_host_pod)))
        self._make_addresses(assume)
        # The port of the connection has this name; the address is one of this domain.
        self.new_name = {name: self._new_name(name) for name in sorted(vocabulary.port_names)}
        self.domain = dict(zip(sorted(vocabulary.domains), circuit.variables(len(vocabulary.domains)), strict=True))
        for name, literal in self.domain.items():
            for pattern, other in self.domain.items():
                if name != pattern and is_covered_domain(name, (pattern,)):
                    circuit.require(-literal, other)

    # Labels

    def _make_labels(self, family: Family, may_come: int) -> None:
        """Make the atoms of a family; what may come has only labels that an API server accepts."""
        circuit, atoms = self._circuit, getattr(self._vocabulary, family)
        for key in atoms.keys:
            values = [*([] if key == NAMESPACE_NAME else [ABSENT]), OTHER, *atoms.values(key)]
            variables = dict(zip(values, circuit.variables(len(values)), strict=True))
            circuit.require_one(list(variables.values()))
            self.labels[family][key] = variables
            if key != NAMESPACE_NAME and label_key(key):
                circuit.require(-may_come, variables[ABSENT])
            for value in atoms.values(key):
                if key != NAMESPACE_NAME and label_value(value):
                    circuit.require(-may_come, -variables[value])

    def _make_pod_labels(self) -> None:
        circuit = self._circuit
        self._make_labels("pods", circuit.any_of((self.new_pod, self.new_host_pod)))
        keys = self._vocabulary.pods.keys
        for literal, group in zip(self.group, self.groups, strict=True):
            if group.kind != "pod":
                continue
            first = group.versions[0].labels
            if any(version.labels != first for version in group.versions):
                versions = [dict(zip(keys, version.labels, strict=True)) for version in group.versions]
                self._changed["pods"].append((literal, versions))
                continue
            for key, atom in zip(keys, first, strict=True):
                circuit.require(-literal, self.labels["pods"][key][atom])

    def _make_namespace_labels(self, ground: Ground, assume: Assumptions) -> None:
        circuit, atoms = self._circuit, self._vocabulary.namespaces
        names = atoms.values(NAMESPACE_NAME)
        inhabited = {group.namespace for group in self.groups if group.kind == "pod"}
        self._make_labels("namespaces", FALSE)
        of_name = self.labels["namespaces"][NAMESPACE_NAME]
        others = [key for key in atoms.keys if key != NAMESPACE_NAME]
        for name in names:
            if name in ground.declared:
                versions = [{key: atoms.atom(key, labels) for key in others} for labels in ground.declared[name]]
                if any(version != versions[0] for version in versions):
                    self._changed["namespaces"].append((of_name[name], versions))
                else:
                    for key, atom in versions[0].items():
                        circuit.require(-of_name[name], self.labels["namespaces"][key][atom])
            elif name not in inhabited and (dns_label(name) or assume.existing_only):
                circuit.require(-of_name[name])
        # Any namespace that no object declares may come, with any labels that an API server accepts.
        self.declared = circuit.any_of([of_name[name] for name in names if name in ground.declared])
        for key in others:
            variables = self.labels["namespaces"][key]
            if label_key(key) or assume.existing_only:
                circuit.require(self.declared, variables[ABSENT])
            for value in atoms.values(key):
                if label_value(value):
                    circuit.require(self.declared, -variables[value])
        # Nodes and addresses outside are in no namespace: what none fulfils leaves them.
        in_namespace = self.is_pod(True)
        for selector in assume.namespaces:
            circuit.require(-in_namespace, self.declared, self.selected("namespaces", selector, 0))
        for literal, group in zip(self.group, self.groups, strict=True):
            if group.kind == "pod":
                circuit.require(-literal, of_name[group.namespace])

    def has(self, family: Family, key: str, value: str, number: int) -> int:
        """Return the literal that says that a label has this value, is OTHER or is ABSENT."""
        variable = self.labels[family][key].get(value, FALSE)
        changed = [entry for entry in self._changed[family] if key in entry[1][0]]
        if not changed:
            return variable
        circuit = self._circuit
        unchanged = circuit.all_of([variable, *(-literal for literal, _ in changed)])
        return circuit.any_of(
            [unchanged, *(literal for literal, versions in changed if versions[number][key] == value)]
        )

    def selected(self, family: Family, selector: Selector, number: int) -> int:
        """Return the literal that says that a selector selects the labels."""
        known = self._selected.get((family, selector, number))
        if known is None:
            circuit = self._circuit
            parts = []
            for key, operator, values in selector.requirements:
                if operator in ("In", "NotIn"):
                    one_of = circuit.any_of([self.has(family, key, value, number) for value in values])
                    parts.append(one_of if operator == "In" else -one_of)
                else:
                    absent = self.has(family, key, ABSENT, number)
                    parts.append(absent if operator == "DoesNotExist" else -absent)
            known = self._selected[family, selector, number] = circuit.all_of(parts)
        return known

    def under_policy(self, number: int) -> int:
        """Return the literal that says that the end is a pod that policies are about."""
        known = self._asked.get(("under policy", number))
        if known is None:
            groups = self._groups(lambda group: group.versions[number].under_policy)
            known = self._asked["under policy", number] = self._circuit.any_of([self.new_pod, *groups])
        return known

    def is_pod(self, host_network: bool) -> int:
        """Return the literal that says that labels of a region select the end, at most."""
        groups = self._groups(lambda group: group.kind == "pod" and (host_network or group.versions[-1].under_policy))
        return self._circuit.any_of([self.new_pod, self.new_host_pod, *groups])

    def _groups(self, wanted: Callable[[EndGroup], bool]) -> list[int]:
        return [literal for literal, group in zip(self.group, self.groups, strict=True) if wanted(group)]

    # Addresses

    def _make_addresses(self, assume: Assumptions) -> None:
        """Make a variable for each piece: a new pod has at most one address of a family, a new node at least one.

        An address belongs to one end, so that what may come has none of those that are taken.
        """
        circuit, pieces = self._circuit, self._vocabulary.addresses
        numbers = range(len(pieces.free))
        self.new_address = circuit.variables(len(numbers))
        self.node_address = circuit.variables(len(numbers))
        # A host-network pod has the addresses of a node: of a new one, or of one of these groups.
        self.on_node = {number: circuit.variable() for number, group in enumerate(self.groups) if group.kind == "node"}
        unaddressed = [] if assume.existing_only else self._groups(lambda group: group.may_get_address)
        self.may_get_address = circuit.any_of([self.new_pod, self.new_host_pod, *unaddressed])
        holder = circuit.any_of([self.may_get_address, self.outside])
        allowed = None
        if assume.pod_addresses is not None:
            allowed = {piece for span in assume.pod_addresses for piece in pieces.inside(span)}
        for piece in numbers:
            new, of_node = self.new_address[piece], self.node_address[piece]
            circuit.require(-new, holder)
            circuit.require(-of_node, self.new_node)
            if pieces.free[piece] < 1:
                circuit.require(-new)
                circuit.require(-of_node)
            if allowed is not None and piece not in allowed:
                circuit.require(-new, self.outside, self.new_host_pod)
        families = [[self.new_address[p] for p in numbers if pieces.is_ipv6[p] is ipv6] for ipv6 in (False, True)]
        for family in families:
            circuit.require_at_most_one(family)
        ipv4, ipv6 = map(circuit.any_of, families)
        self.has_new_address = circuit.any_of((ipv4, ipv6))
        circuit.require(-self.outside, self.has_new_address)
        circuit.require(-self.outside, -ipv4, -ipv6)
        circuit.require(-self.new_node, *self.node_address)
        circuit.require_at_most_one(list(self.on_node.values()))
        for literal in self.on_node.values():
            circuit.require(-literal, self.new_host_pod)
            circuit.require(-literal, -self.has_new_address)
        self._present = [
            circuit.any_of((literal, self.on_node[number])) if number in self.on_node else literal
            for number, literal in enumerate(self.group)
        ]
        self._at_piece: dict[int, list[list[int]]] = {}

    def at(self, pieces: Iterable[int], number: int) -> int:
        """Return the literal that says that the end has an address in one of these pieces."""
        by_piece = self._at_piece.get(number)
        if by_piece is None:
            by_piece = [list(pair) for pair in zip(self.new_address, self.node_address, strict=True)]
            for literal, group in zip(self._present, self.groups, strict=True):
                for piece in group.versions[number].pieces:
                    by_piece[piece].append(literal)
            self._at_piece[number] = by_piece
        return self._circuit.any_of([literal for piece in set(pieces) for literal in by_piece[piece]])

    def within(self, spans: Iterable[Span], number: int) -> int:
        """Return the literal that says that the end has an address in one of these ranges, which divide the pieces."""
        addresses = self._vocabulary.addresses
        return self.at([piece for span in spans for piece in addresses.inside(span)], number)

    def has_address(self, number: int) -> int:
        """Return the literal that says that the end has an address."""
        known = self._asked.get(("address", number))
        if known is None:
            existing = [
                literal
                for literal, group in zip(self._present, self.groups, strict=True)
                if group.versions[number].pieces
            ]
            known = self._circuit.any_of([self.has_new_address, self.new_node, *existing])
            self._asked["address", number] = known
        return known

    def on_selected_node(self, selector: Selector, number: int) -> int:
        """Return the literal that says that the end has an address of a node that a selector selects."""
        known = self._asked.get(("node", selector, number))
        if known is not None:
            return known
        circuit = self._circuit
        place = sorted(self._vocabulary.node_selectors).index(selector)
        existing = [
            literal
            for literal, group in zip(self._present, self.groups, strict=True)
            if place in group.versions[number].nodes
        ]
        on_new_node = circuit.any_of((self.new_node, circuit.all_of((self.new_host_pod, self.has_new_address))))
        known = circuit.any_of([circuit.all_of((on_new_node, self.selected("nodes", selector, 0))), *existing])
        self._asked["node", selector, number] = known
        return known

    # Names of ports

    def _new_name(self, name: str) -> int:
        variable = self._circuit.variable()
        self._circuit.require(-variable, self.new_pod, self.new_host_pod)
        if port_name_problems(name):
            self._circuit.require(-variable)
        return variable

    def called(self, name: str, number: int, on: Callable[[Iterable[tuple[str, int]]], int]) -> int:
        """Return the literal that says that the end, a destination, has this name for the port; `on` knows ports."""
        known = self._asked.get(("name", name, number))
        if known is not None:
            return known
        circuit = self._circuit
        literals = [self.new_name[name]]
        by_ports: dict[tuple[tuple[str, int], ...], list[int]] = {}
        for literal, group in zip(self.group, self.groups, strict=True):
            for port_name, ports in group.versions[number].named_ports:
                if port_name == name:
                    by_ports.setdefault(ports, []).append(literal)
        for ports, groups in by_ports.items():
            literals.append(circuit.all_of((circuit.any_of(groups), on(ports))))
        known = self._asked["name", name, number] = circuit.any_of(literals)
        return known
