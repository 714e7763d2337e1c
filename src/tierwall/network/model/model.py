"""The network model of a snapshot: all endpoints, all policies in order, and the policies that select each pod.

Policies are indexed by one label that their selector requires. So in a cluster with a policy in every namespace, only
the policies of its own namespace are checked for a pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tierwall.core.labels import Selector
from tierwall.core.reference import Reference
from tierwall.core.stack import Stack, Tier
from tierwall.network.model.endpoints import NAMESPACE_NAME, Endpoint, namespace_labels, node_endpoint, pods
from tierwall.network.model.matching import NodeAddresses
from tierwall.network.model.policies import (
    DEFINITION,
    NETWORK_POLICY,
    closed_policy,
    in_order,
    read_policies,
    read_policy,
    shadow_policies,
    without_shadow_policies,
)
from tierwall.network.model.policies import KINDS as POLICY_KINDS
from tierwall.network.model.rules import EGRESS, INGRESS, TIERS, Direction, TieredPolicy, TierName
from tierwall.resources.once import per_snapshot, provide
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.workloads import WORKLOADS
from tierwall.values.addresses import Address

# The kinds that endpoints are made of.
_OF_ENDPOINTS = frozenset((*WORKLOADS, *(("", kind) for kind in ("Namespace", "Node", "Pod"))))


class ModelEndpoints:
    """All endpoints of a snapshot, and the labels of its namespaces. Models whose policies differ may share them."""

    def __init__(self, snapshot: Snapshot, before: ModelEndpoints | None = None) -> None:
        """`before`: those of an earlier snapshot. Pods that did not change are taken over."""
        self.namespaces = _namespaces(snapshot)
        # The pods by the objects that they were read from.
        self.of: dict[Resource, Endpoint] = {}
        every_pod = tuple(pods(snapshot, self.namespaces, self.of, before.of if before is not None else {}))
        self.pods = tuple(pod for pod in every_pod if not pod.ended)
        self.nodes = tuple(node_endpoint(node) for node in snapshot.of_kind("", "Node"))
        self.node_addresses = NodeAddresses(self.nodes)
        self.by_name = {(pod.namespace, pod.name): pod for pod in self.pods}
        self.ended = {(pod.namespace, pod.name): pod for pod in every_pod if pod.ended}
        self.nodes_by_name = {node.name: node for node in self.nodes}


class NetworkModel:
    """Everything that a decision of the network plane needs, derived from one snapshot.

    INVARIANT: an index that is built on first use is assigned only when complete, so threads may share a model.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        refused: Mapping[Reference, str] | None = None,
        policies: Iterable[TieredPolicy] | None = None,
        endpoints: ModelEndpoints | None = None,
        before: NetworkModel | None = None,
    ) -> None:
        """`refused`: policies that an engine cannot enforce, each with the reason. They fail closed.

        `policies` and `endpoints`: those of the snapshot, if they were read before. `before`: a model with the same
        policies, whose namespaces have the same labels here.
        """
        self.endpoints = ModelEndpoints(snapshot) if endpoints is None else endpoints
        self.namespaces, self.pods = self.endpoints.namespaces, self.endpoints.pods
        self.nodes, self.node_addresses = self.endpoints.nodes, self.endpoints.node_addresses
        read = read_policies(snapshot) if policies is None else in_order(policies)
        if refused:
            read = [
                closed_policy(policy, refused[policy.reference]) if policy.reference in refused else policy
                for policy in read
            ]
        # All policies by tier, in order of precedence.
        self.tiers: Stack[TieredPolicy] = tuple(
            Tier(str(name), tuple(policy for policy in read if policy.tier is name), combining)
            for name, combining in TIERS.items()
        )
        self._by_address: dict[Address, Endpoint] | None = None
        self._by_workload: dict[Reference, list[Endpoint]] | None = None
        self._namespaces_by_label: dict[tuple[str, str], list[str]] | None = None
        self._index = _SubjectIndex(tuple(policy for tier in self.tiers for policy in tier.policies))
        # The policies that share their tier and priority with others. Implementations may ask these in any order.
        self.tied_policies = _tied_policies(self._index.policies)
        self._tiers: dict[Tier[TieredPolicy], Tier[TieredPolicy]] = {}
        # The stacks of a pod: egress, ingress. Pods of a namespace with equal labels share them.
        self._stacks: dict[Endpoint, tuple[Stack[TieredPolicy], Stack[TieredPolicy]]] = {}
        self._stacks_by_labels: dict[
            tuple[str, frozenset[tuple[str, str]]], tuple[Stack[TieredPolicy], Stack[TieredPolicy]]
        ] = {}
        if before is not None:
            self._tiers, self._stacks_by_labels = before._tiers.copy(), before._stacks_by_labels.copy()

    @property
    def policies(self) -> tuple[TieredPolicy, ...]:
        """All policies, tier by tier, in order of precedence."""
        return self._index.policies

    def pod(self, namespace: str, name: str) -> Endpoint | None:
        """Return a pod by name."""
        return self.endpoints.by_name.get((namespace, name))

    def ended_pod(self, namespace: str, name: str) -> Endpoint | None:
        """Return a pod by name that has ended."""
        return self.endpoints.ended.get((namespace, name))

    def pods_of(self, workload: Reference) -> Sequence[Endpoint]:
        """Return the pods of a workload that no other workload owns."""
        if self._by_workload is None:
            by_workload: dict[Reference, list[Endpoint]] = {}
            for pod in self.pods:
                if pod.workload is not None:
                    by_workload.setdefault(pod.workload, []).append(pod)
            self._by_workload = by_workload
        return self._by_workload.get(workload, ())

    def node(self, name: str) -> Endpoint | None:
        """Return a node by name."""
        return self.endpoints.nodes_by_name.get(name)

    def pod_at(self, address: Address) -> Endpoint | None:
        """Return the pod that has an address: one under policy before one on its host's network, then by name."""
        if self._by_address is None:
            order = sorted(self.pods, key=lambda pod: (not pod.under_policy, pod.namespace, pod.name), reverse=True)
            self._by_address = {address: pod for pod in order for address in pod.addresses}
        return self._by_address.get(address)

    def namespaces_selected(self, selector: Selector) -> Iterable[str]:
        """Return the names of the namespaces that a selector selects."""
        required = _required_labels(selector)
        if not required:
            return [name for name, labels in self.namespaces.items() if selector.matches(labels)]
        if self._namespaces_by_label is None:
            self._namespaces_by_label = _by_label(self.namespaces)
        by_label = self._namespaces_by_label
        candidates = (name for label in required for name in by_label.get(label, ()))
        return [name for name in candidates if selector.matches(self.namespaces[name])]

    def stack(self, subject: Endpoint, direction: Direction) -> Stack[TieredPolicy]:
        """Return the tiers that apply to a pod in one direction. Tiers without policies are left out.

        INVARIANT: equal tiers of one model are the same object, so they may be compared by identity.
        """
        stacks = self._stacks.get(subject)
        if stacks is None:
            key = subject.namespace, frozenset(subject.labels.items())
            stacks_of_labels = self._stacks_by_labels.get(key)
            if stacks_of_labels is None:
                selecting = self._index.selecting(subject)
                both = self._stack(selecting, EGRESS), self._stack(selecting, INGRESS)
                stacks_of_labels = self._stacks_by_labels.setdefault(key, both)
            stacks = self._stacks.setdefault(subject, stacks_of_labels)
        egress, ingress = stacks
        return egress if direction is EGRESS else ingress

    def _stack(self, selecting: Iterable[TieredPolicy], direction: Direction) -> Stack[TieredPolicy]:
        by_tier: dict[TierName, list[TieredPolicy]] = {}
        for policy in selecting:
            if policy.rules(direction) is not None:
                by_tier.setdefault(policy.tier, []).append(policy)
        tiers = (
            Tier(str(name), tuple(by_tier[name]), combining) for name, combining in TIERS.items() if name in by_tier
        )
        return tuple(self._tiers.setdefault(tier, tier) for tier in tiers)


@per_snapshot
def network_model(snapshot: Snapshot) -> NetworkModel:
    """Return the network model of the policies in force."""
    return NetworkModel(without_shadow_policies(snapshot))


def provide_network_model(before: Snapshot, after: Snapshot) -> None:
    """Derive the model of a snapshot from that of an earlier one: what did not change is not read again."""
    changed = {
        (resource.group, resource.kind) for sides in after.changes(before) for resource in sides if resource is not None
    }
    if DEFINITION in changed:
        return  # A definition decides what can be understood of every policy.
    model = network_model(before)
    known = {policy.resource: policy for policy in model.policies}
    in_force = without_shadow_policies(after)
    read = [
        known.get(resource) or read_policy(after, resource)
        for kind in POLICY_KINDS
        for resource in in_force.of_kind(*kind)
    ]
    # A policy may be all that there is of a namespace.
    is_same = not changed & _OF_ENDPOINTS and _namespaces(after) == model.namespaces
    endpoints = model.endpoints if is_same else ModelEndpoints(in_force, model.endpoints)
    keeps_stacks = changed.isdisjoint(POLICY_KINDS) and model.namespaces.items() <= endpoints.namespaces.items()
    derived = NetworkModel(in_force, policies=read, endpoints=endpoints, before=model if keeps_stacks else None)
    provide(derived, network_model, after)


@per_snapshot
def network_model_with_shadow(snapshot: Snapshot) -> NetworkModel:
    """Return the network model of all policies, including those in shadow mode."""
    return NetworkModel(snapshot) if shadow_policies(snapshot) else network_model(snapshot)


def _tied_policies(policies: Iterable[TieredPolicy]) -> frozenset[Reference]:
    by_priority: dict[tuple[TierName, int], list[Reference]] = {}
    for policy in policies:
        if policy.has_priority:
            by_priority.setdefault((policy.tier, policy.priority), []).append(policy.reference)
    return frozenset(reference for tied in by_priority.values() if len(tied) > 1 for reference in tied)


def _by_label(namespaces: Mapping[str, Mapping[str, str]]) -> dict[tuple[str, str], list[str]]:
    index: dict[tuple[str, str], list[str]] = {}
    for name, labels in namespaces.items():
        for label in labels.items():
            index.setdefault(label, []).append(name)
    return index


def _namespaces(snapshot: Snapshot) -> Mapping[str, Mapping[str, str]]:
    labels = {
        namespace.name: namespace_labels(namespace.name, namespace) for namespace in snapshot.of_kind("", "Namespace")
    }
    for group, kind in (("", "Pod"), *WORKLOADS, NETWORK_POLICY):
        for resource in snapshot.of_kind(group, kind):
            if resource.namespace not in labels:
                labels[resource.namespace] = namespace_labels(resource.namespace, None)
    return labels


class _SubjectIndex:
    """An index of policies by one label of a namespace or pod that their subject requires."""

    def __init__(self, policies: tuple[TieredPolicy, ...]) -> None:
        self.policies = policies
        self._by_namespace: dict[tuple[str, str], list[int]] = {}
        self._by_pod: dict[tuple[str, str], list[int]] = {}
        self._others: list[int] = []
        self._always: list[int] = []
        for number, policy in enumerate(policies):
            for selector, index in ((policy.namespaces, self._by_namespace), (policy.pods, self._by_pod)):
                required = _required_labels(selector)
                if required:
                    for label in required:
                        index.setdefault(label, []).append(number)
                    break
            else:
                everybody = not policy.namespaces.requirements and not policy.pods.requirements
                (self._always if everybody else self._others).append(number)

    def selecting(self, subject: Endpoint) -> list[TieredPolicy]:
        """Return the policies whose subject selects a pod, in order."""
        numbers = list(self._others)
        for labels, index in ((subject.namespace_labels, self._by_namespace), (subject.labels, self._by_pod)):
            for label in labels.items():
                numbers += index.get(label, ())
        selected = [
            number
            for number in numbers
            if (policy := self.policies[number]).namespaces.matches(subject.namespace_labels)
            and policy.pods.matches(subject.labels)
        ]
        return [self.policies[number] for number in sorted(self._always + selected)]


def _required_labels(selector: Selector) -> list[tuple[str, str]]:
    """Return labels of which every selected object has one.

    They come from the requirement with the fewest values; a namespace's name is preferred.
    """
    requirements = [requirement for requirement in selector.requirements if requirement.operator == "In"]
    if not requirements:
        return []
    narrowest = min(requirements, key=lambda wanted: (len(wanted.values), wanted.key != NAMESPACE_NAME, wanted.key))
    return [(narrowest.key, value) for value in narrowest.values]
