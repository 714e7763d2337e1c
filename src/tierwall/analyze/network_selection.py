"""Checks of what network policies select: pods, namespaces, nodes and named ports that are not there.

Manifests rarely hold a whole cluster. A selector that selects nothing is a mistake only if what it could select was
given: a repository of policies alone, or a peer in a namespace of another team, is not judged by pods that nobody gave.
One note (TW211) says of what no pods were given (docs/network.md#checks).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol, assert_never

from tierwall.core.diagnostics import Diagnostic, near_miss
from tierwall.core.labels import Selector
from tierwall.core.words import join_names
from tierwall.network.model.endpoints import NAMESPACE_NAME
from tierwall.network.model.model import NetworkModel
from tierwall.network.model.rules import (
    INGRESS,
    AddressPeer,
    DomainPeer,
    NamedPort,
    NetworkRule,
    NodePeer,
    Peer,
    PodPeer,
    Related,
    Relation,
    TieredPolicy,
    TierName,
)
from tierwall.network.reach.spaces import union

NO_SUBJECT, NO_PEER, NO_PODS, NO_PORT, SAME_NAME = "TW204", "TW205", "TW211", "TW213", "TW214"
MAX_NAMED = 5
_UNCHECKED = "so it was not checked whether policies select any"


class SelectedObjects(Protocol):
    """The objects of a cluster that selectors select. A set of pods is an integer."""

    # All pods that policies can select.
    under_policy: int
    has_nodes: bool

    @property
    def namespaces(self) -> Mapping[str, Mapping[str, str]]:
        """All namespaces, with their labels."""

    @property
    def populated(self) -> Collection[str]:
        """The namespaces that have pods."""

    def subjects(self, policy: TieredPolicy) -> int:
        """Return the pods that a policy selects."""

    def matching(self, peer: Peer, subjects: int) -> int:
        """Return the ends that a peer of a rule selects for some of its subjects."""

    def namespaces_selected(self, selector: Selector) -> Collection[str]:
        """Return the namespaces that a selector selects."""

    def have_port(self, pods: int, port: NamedPort) -> bool:
        """Whether one of some pods has a port by a name."""

    def port_names(self, pods: int) -> frozenset[str]:
        """Return the names of all ports of some pods."""


class SelectionCheck:
    """The check of some policies that are understood.

    With `alone`, the objects of other namespaces are hidden from the owner of this one, so nothing is said about them.
    `declared` are the namespaces whose labels are known.
    """

    def __init__(
        self,
        cluster: SelectedObjects,
        policies: Sequence[TieredPolicy],
        declared: Collection[str],
        alone: str | None = None,
    ) -> None:
        self._cluster = cluster
        self._policies = policies
        self._alone = alone
        self._declared = declared
        self._with_port: dict[tuple[int, NamedPort], bool] = {}
        self._names: dict[int, frozenset[str]] = {}
        # What policies are about and nobody gave: namespaces without pods, selectors of unknown namespaces, nodes.
        self._not_given: dict[str, None] = {}

    def findings(self) -> Iterator[Diagnostic]:
        """Yield everything that is selected in vain."""
        for policy in self._policies:
            yield from _repeated_names(policy)
        if not self._cluster.populated:
            if self._policies:
                yield Diagnostic(NO_PODS, f"no pods were given, {_UNCHECKED}", hint="add the workloads to the input")
            return
        for policy in self._policies:
            # The owner of a namespace cannot change cluster-scoped policies, nor see what they select.
            if self._alone is None or policy.tier is TierName.NAMESPACE:
                yield from self._policy(policy)
        if self._not_given:
            names = tuple(sorted(self._not_given))
            message = f"{join_names(names, MAX_NAMED)} were not given, {_UNCHECKED}"
            yield Diagnostic(NO_PODS, message, related_objects=names)

    def _policy(self, policy: TieredPolicy) -> Iterator[Diagnostic]:
        selected = self._cluster.subjects(policy)
        if not selected:
            if self._were_given(policy.namespaces):
                path = ("spec", "podSelector" if policy.tier is TierName.NAMESPACE else "subject")
                yield policy.resource.diagnostic(NO_SUBJECT, f"{policy.reference} selects no pod that exists", path)
            return
        for rule in policy.all_rules:
            selects_all = True
            for number, peer in enumerate(rule.peers or ()):
                if isinstance(peer, AddressPeer | DomainPeer) or self._cluster.matching(peer, selected):
                    # Addresses and names may be those of something outside the cluster.
                    continue
                selects_all = False
                hint = self._missing(peer)
                if hint is not None:
                    side = rule.direction.peers_key
                    message = f"{side}[{number}] of {rule} selects no pod or node that exists"
                    yield rule.resource.diagnostic(NO_PEER, message, (*rule.path, side, number), hint=hint)
            if rule.direction is INGRESS:
                yield from self._named_ports(rule, selected)
            elif selects_all and self._alone is None:
                yield from self._named_ports(rule, self._destinations(rule, selected))

    def _missing(self, peer: Peer) -> str | None:
        """Return a hint if what a peer could select was given and is not there; otherwise None."""
        match peer:
            case NodePeer():
                if self._cluster.has_nodes:
                    return ""
                self._not_given["nodes"] = None
                return None
            case PodPeer(namespaces=Related(relation=relation)):
                return "" if relation is Relation.SELF or self._alone is None else None
            case PodPeer(namespaces=Selector() as namespaces):
                return self._missing_namespaces(namespaces)
            case _:
                return None

    def _missing_namespaces(self, namespaces: Selector) -> str | None:
        named = _named_namespaces(namespaces)
        if self._alone is not None:
            return "" if named == {self._alone} else None
        if named and not named & self._cluster.namespaces.keys():
            for name in sorted(named):
                if hint := near_miss(name, self._cluster.namespaces):
                    return hint
            self._not_given |= dict.fromkeys(f"pods of {name}" for name in named)
            return None
        return "" if self._were_given(namespaces) else None

    def _were_given(self, namespaces: Selector) -> bool:
        """Whether pods were given of the namespaces that a selector selects. If not, this is noted."""
        selected = self._cluster.namespaces_selected(namespaces)
        if selected and not any(name in self._cluster.populated for name in selected):
            self._not_given |= dict.fromkeys(f"pods of {name}" for name in selected)
            return False
        if not selected and not self._declared:
            # Labels of namespaces are unknown where no Namespace was given.
            self._not_given[f"namespaces with {namespaces}"] = None
            return False
        return True

    def _destinations(self, rule: NetworkRule, subjects: int) -> int:
        """Return the pods that the peers of an egress rule with a named port select."""
        if not any(isinstance(port, NamedPort) for port in rule.ports or ()):
            return 0
        if rule.peers is None:
            return self._cluster.under_policy
        return union(self._cluster.matching(peer, subjects) for peer in rule.peers) & self._cluster.under_policy

    def _named_ports(self, rule: NetworkRule, destinations: int) -> Iterator[Diagnostic]:
        for number, port in enumerate(rule.ports or ()):
            if not isinstance(port, NamedPort) or not destinations or self._have_port(destinations, port):
                continue
            whose = "its subject" if rule.direction is INGRESS else "its peers"
            kind = f"{port.protocol} port" if port.protocol else "port"
            message = f"{rule} matches nothing on `{port.name}`: no pod of {whose} has a {kind} of this name"
            key = "protocols" if rule.resource.kind == "ClusterNetworkPolicy" else "ports"
            hint = near_miss(port.name, self._port_names(destinations) - {port.name})
            yield rule.resource.diagnostic(NO_PORT, message, (*rule.path, key, number), hint=hint)

    def _have_port(self, destinations: int, port: NamedPort) -> bool:
        known = self._with_port.get((destinations, port))
        if known is None:
            known = self._with_port[destinations, port] = self._cluster.have_port(destinations, port)
        return known

    def _port_names(self, destinations: int) -> frozenset[str]:
        names = self._names.get(destinations)
        if names is None:
            names = self._names[destinations] = self._cluster.port_names(destinations)
        return names


def _named_namespaces(namespaces: Selector) -> set[str]:
    """Return the only namespaces that a selector can select, if it gives their names."""
    for requirement in namespaces.requirements:
        if requirement.key == NAMESPACE_NAME and requirement.operator == "In":
            return set(requirement.values)
    return set()


def _repeated_names(policy: TieredPolicy) -> Iterator[Diagnostic]:
    """Find rules of one policy that share a name, which answers and logs then cannot tell apart."""
    first: dict[str, NetworkRule] = {}
    for rule in policy.all_rules:
        earlier = first.setdefault(rule.name, rule)
        if rule.name and earlier is not rule:
            message = f"{rule.place} of {policy.reference} has the name `{rule.name}`, as {earlier.place} has"
            yield rule.resource.diagnostic(
                SAME_NAME,
                message,
                (*rule.path, "name"),
                hint="give each rule a name of its own",
                related=(("the other rule", earlier.resource.position((*earlier.path, "name"))),),
            )


def _compared_keys(peer: Peer) -> tuple[str, ...]:
    """Return the labels that `notSameLabels` of a peer compares; none for other peers."""
    match peer:
        case PodPeer(Related(Relation.NOT_SAME_LABELS, keys)):
            return keys
        case PodPeer() | NodePeer() | AddressPeer() | DomainPeer():
            return ()
        case _:
            assert_never(peer)


def without_tenancy_label(model: NetworkModel) -> Iterator[Diagnostic]:
    """Find namespaces that `notSameLabels` never selects, and those that the KEP's other wording would select."""
    for policy in model.policies:
        for rule in policy.all_rules:
            for number, peer in enumerate(rule.peers or ()):
                keys = _compared_keys(peer)
                if not keys:
                    continue
                lacking = sorted(
                    name for name, labels in model.namespaces.items() if any(key not in labels for key in keys)
                )
                bare = [name for name in lacking if not any(key in model.namespaces[name] for key in keys)]
                if lacking:
                    side = rule.direction.peers_key
                    shown = ", ".join(f"`{key}`" for key in keys)
                    named = join_names(lacking, MAX_NAMED)
                    message = f"notSameLabels of {rule} never selects namespaces without {shown}: {named}"
                    hint = f"label every namespace with {shown}, or add a rule for those that lack it"
                    if bare:
                        bare_named = join_names(bare, MAX_NAMED)
                        hint += f"; by the KEP's other wording (none of the labels) it would select {bare_named}"
                    yield rule.resource.diagnostic("TW206", message, (*rule.path, side, number), hint=hint)
