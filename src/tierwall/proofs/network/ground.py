"""The ground of a proof: namespaces with their labels, and pods and nodes, in groups that nothing tells apart.

A proof has one model, or two if it is about a change: the old one and the new one. What exists on one side only counts
as something that may come on the other, with the same labels. What exists on both may differ between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from tierwall.core.labels import Selector
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.model import NetworkModel
from tierwall.network.model.rules import PortRange
from tierwall.proofs.network.vocabulary import Vocabulary
from tierwall.resources.snapshot import Snapshot


class EndVersion(Struct, frozen=True):
    """The view that one model has of the members of a group: atoms of labels, pieces of addresses, ports by name."""

    labels: tuple[str, ...]
    pieces: frozenset[int]
    named_ports: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
    under_policy: bool
    # The numbers of the node selectors that select a node with an address of these.
    nodes: frozenset[int]


class EndGroup(Struct, frozen=True, eq=False):
    """Pods or nodes that nothing tells apart; `versions` has one entry for each model.

    `named` are the ends of the region that name them: `from`, `to`. A pod of a file has no address, and may get any.
    """

    kind: str
    namespace: str
    versions: tuple[EndVersion, ...]
    named: frozenset[str]
    may_get_address: bool
    members: tuple[Endpoint, ...]


class Ground:
    """Everything that exists."""

    def __init__(
        self,
        snapshots: Sequence[Snapshot],
        models: Sequence[NetworkModel],
        named: Mapping[str, Iterable[Endpoint]],
        *,
        is_empty: bool = False,
    ) -> None:
        """`named`: the pods that each end of the region names. Where `is_empty`, nothing exists yet."""
        self.models = models
        # The labels of each namespace that an object declares, as each model has them.
        self.declared: dict[str, tuple[Mapping[str, str], ...]] = {}
        names = {resource.name for snapshot in snapshots for resource in snapshot.of_kind("", "Namespace")}
        for name in sorted(names):
            of_sides = [
                model.namespaces[name] if snapshot.get("", "Namespace", "", name) is not None else None
                for snapshot, model in zip(snapshots, models, strict=True)
            ]
            known = next(labels for labels in of_sides if labels is not None)
            self.declared[name] = tuple(labels if labels is not None else known for labels in of_sides)
        existing: Sequence[NetworkModel] = () if is_empty else models
        self.pods = _versions([{(pod.namespace, pod.name): pod for pod in model.pods} for model in existing])
        self.nodes = _versions([{("", node.name): node for node in model.nodes} for model in existing])
        self._named = {key: {(pod.namespace, pod.name) for pod in pods} for key, pods in named.items()}
        self.is_live = all(snapshot.is_live for snapshot in snapshots)

    @property
    def ends(self) -> Iterable[tuple[Endpoint, ...]]:
        """All pods and nodes, one version for each model."""
        return (*self.pods.values(), *self.nodes.values())

    def add_to(self, vocabulary: Vocabulary) -> None:
        """Add what must be told apart because of what exists; then settle the pieces."""
        for name, versions in self.declared.items():
            vocabulary.namespaces.add("kubernetes.io/metadata.name", name)
            for labels in versions:
                for key in vocabulary.compared & labels.keys():
                    vocabulary.namespaces.add(key, labels[key])
        taken: set[int] = set()
        ranges: set[PortRange] = set()
        for ends in self.ends:
            for end in ends:
                taken.update(end.addresses)
                if end.kind == "pod":
                    vocabulary.namespaces.add("kubernetes.io/metadata.name", end.namespace)
                for name in vocabulary.port_names & end.named_ports.keys():
                    ranges.update(PortRange(protocol, port, port) for protocol, port in end.named_ports[name])
        vocabulary.add_ports(ranges)
        vocabulary.settle(taken)

    def groups(self, vocabulary: Vocabulary) -> list[EndGroup]:
        """Sort what exists into groups, in the order of the first names."""
        selectors = sorted(vocabulary.node_selectors)
        keys = vocabulary.pods.keys
        addresses_of_nodes = [
            [frozenset(self._node_addresses(selector, number)) for selector in selectors]
            for number in range(len(self.models))
        ]
        members: dict[tuple[str, str, tuple[EndVersion, ...], frozenset[str], bool], list[Endpoint]] = {}
        for identity, versions in (*sorted(self.pods.items()), *sorted(self.nodes.items())):
            described = tuple(
                EndVersion(
                    tuple(vocabulary.pods.atom(key, end.labels) for key in keys) if end.kind == "pod" else (),
                    frozenset(map(vocabulary.addresses.number, end.addresses)),
                    tuple(
                        (name, end.named_ports[name]) for name in sorted(vocabulary.port_names & end.named_ports.keys())
                    ),
                    end.under_policy,
                    frozenset(
                        place
                        for place, addresses in enumerate(addresses_of_nodes[number])
                        if not addresses.isdisjoint(end.addresses)
                    ),
                )
                for number, end in enumerate(versions)
            )
            last = versions[-1]
            named = frozenset(key for key, pods in self._named.items() if last.kind == "pod" and identity in pods)
            may_get_address = last.kind == "pod" and not any(end.addresses for end in versions) and not self.is_live
            kind = last.kind, last.namespace, described, named, may_get_address
            members.setdefault(kind, []).append(last)
        return [EndGroup(*kind, tuple(ends)) for kind, ends in members.items()]

    def _node_addresses(self, selector: Selector, number: int) -> Iterable[int]:
        for versions in self.nodes.values():
            node = versions[number]
            if selector.matches(node.labels):
                yield from node.addresses


def _versions(
    sides: Sequence[Mapping[tuple[str, str], Endpoint]],
) -> dict[tuple[str, str], tuple[Endpoint, ...]]:
    """Return every endpoint of some models as each of them has it; where one lacks it, as another has it."""
    everyone: dict[tuple[str, str], tuple[Endpoint, ...]] = {}
    for identity in {identity: None for side in sides for identity in side}:
        known = next(side[identity] for side in sides if identity in side)
        everyone[identity] = tuple(side.get(identity, known) for side in sides)
    return everyone
