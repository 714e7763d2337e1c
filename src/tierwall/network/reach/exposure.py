"""Exposure: what future pods could reach, and what could reach them, by label.

Policies also apply to pods and namespaces created later, so a cluster allows more than what its pods can do today. A
hypothetical pod stands in for each selector of a policy, with exactly the labels that the selector requires. Others
stand in for pairs of selectors, unless there are too many, and for each existing namespace, because new pods most
likely go there. One more has no labels, in a namespace without labels. The connections of the hypothetical pods, as if
they existed, are the exposure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any, NamedTuple, assert_never

from msgspec import Struct

from tierwall.core.labels import EVERYTHING, Requirement, Selector
from tierwall.network.model.endpoints import NAMESPACE_NAME, Endpoint
from tierwall.network.model.model import NetworkModel, network_model
from tierwall.network.model.rules import Related, Relation, TieredPolicy, peers_by_kind
from tierwall.network.reach.classes import EndpointClasses, RelevantAttributes
from tierwall.network.reach.listing import ConnectionEntry, FlowDescriber
from tierwall.network.reach.matrix import reach_matrix
from tierwall.network.reach.naming import EndpointNames, NamedEndpoints
from tierwall.network.reach.spaces import bits, mask_of
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

# If there are more selectors than this, pairs of selectors get no hypothetical pod. Single selectors get at most ten
# times as many.
MAX_SELECTORS = 24
_PREFIX = "tierwall-any-"
_UNUSED_PORT = 64_999


class HypotheticalPod(NamedTuple):
    """A hypothetical pod: the labels of its namespace (or the namespace's name) and its own labels.

    `is_rest` says that another hypothetical pod of the same namespace has labels, so this one stands for the rest.
    """

    namespace: tuple[tuple[str, str], ...]
    pod: tuple[tuple[str, str], ...]
    is_rest: bool = False

    def __str__(self) -> str:
        if not self.namespace and not self.pod:
            return "any other pod"
        pods = f"any pod with {_labels(self.pod)}" if self.pod else "any other pod" if self.is_rest else "any pod"
        named = dict(self.namespace).get(NAMESPACE_NAME)
        if named is not None:
            return f"{pods} in {named}"
        return f"{pods} in a namespace with {_labels(self.namespace)}" if self.namespace else f"{pods} in any namespace"


class HypotheticalSnapshot(Struct, frozen=True):
    """A snapshot with hypothetical pods added, which are listed by namespace and name."""

    snapshot: Snapshot
    pods: Mapping[tuple[str, str], HypotheticalPod]


def exposure(snapshot: Snapshot, explain: bool = False) -> Iterator[ConnectionEntry]:
    """Yield the connections between existing pods and hypothetical pods, in both directions."""
    hypothetical = with_stand_ins(snapshot)
    pods = hypothetical.pods
    model = network_model(hypothetical.snapshot)

    def pod_of(endpoint: Endpoint) -> HypotheticalPod | None:
        return pods.get((endpoint.namespace, endpoint.name))

    classes = EndpointClasses(model, pod_of)
    pod_of_bit = {
        endpoint_class.bit: pod
        for endpoint_class in classes.all
        if (pod := pod_of(endpoint_class.representative)) is not None
    }
    future = mask_of(sorted(pod_of_bit))
    existing = classes.under_policy & ~future
    names = EndpointNames(classes)

    def named(mask: int) -> NamedEndpoints:
        if not mask & future:
            return names.spelled(mask)
        return NamedEndpoints((), (), tuple(str(pod_of_bit[bit]) for bit in bits(mask & future)))

    for sources, destinations in ((future, existing), (existing, future)):
        matrix = reach_matrix(classes, explain=explain, sources=sources, destinations=destinations)
        flows = FlowDescriber(matrix.ports, explain)
        for group in matrix.groups:
            for group_sources, passages in group.sources:
                yield ConnectionEntry(named(group_sources), named(group.destinations), flows.of(passages))


def with_stand_ins(snapshot: Snapshot, named_ports: bool = False) -> HypotheticalSnapshot:
    """Return the snapshot with all hypothetical pods; with `named_ports`, they have every port that policies name."""
    network = network_model(snapshot)
    names = sorted(RelevantAttributes(network).named_ports) if named_ports else []
    # Hardly any rule has these port numbers, so only the name matters.
    ports = [{"name": name, "containerPort": _UNUSED_PORT - number} for number, name in enumerate(names[:100])]
    added: list[Resource] = []
    pods: dict[tuple[str, str], HypotheticalPod] = {}
    for number, hypothetical in enumerate(_hypothetical_pods(network)):
        named = dict(hypothetical.namespace).get(NAMESPACE_NAME)
        namespace = named or f"{_PREFIX}{number}"
        if named is None:
            added.append(_resource("Namespace", "", namespace, hypothetical.namespace))
        elif named not in network.namespaces:
            added.append(_resource("Namespace", "", named, ()))
        spec = {"containers": [{"name": "any", "ports": ports}]}
        pod = _resource("Pod", namespace, f"{_PREFIX}{number}", hypothetical.pod, spec=spec)
        added.append(pod)
        pods[pod.namespace, pod.name] = hypothetical
    return HypotheticalSnapshot(snapshot.with_changes(put=added), pods)


def _resource(kind: str, namespace: str, name: str, labels: Iterable[tuple[str, str]], **more: Any) -> Resource:
    metadata = {"name": name, "labels": dict(labels)} | ({"namespace": namespace} if namespace else {})
    value = {"apiVersion": "v1", "kind": kind, "metadata": metadata, **more}
    return Resource("", "v1", kind, namespace, name, value)


def _hypothetical_pods(network: NetworkModel) -> list[HypotheticalPod]:
    pairs = dict.fromkeys(pair for policy in network.policies for pair in _selectors(policy))
    if pairs and len(pairs) + len(network.namespaces) <= MAX_SELECTORS:
        pairs |= {(_namespace_selector(name), EVERYTHING): None for name in sorted(network.namespaces)}
    selected = (pod for pair in pairs if (pod := _selected_by_all(network, [pair])) is not None)
    singles = list(dict.fromkeys(selected))[: 10 * MAX_SELECTORS]
    pods = dict.fromkeys([HypotheticalPod((), ()), *singles])
    if len(pairs) <= MAX_SELECTORS:
        for two_pairs in combinations(pairs, 2):
            pod = _selected_by_all(network, two_pairs)
            if pod is not None:
                pods[pod] = None
    labelled = {pod.namespace for pod in pods if pod.pod}
    is_rest = {pod: not pod.pod and bool(labelled & {pod.namespace, ()}) for pod in pods}
    marked = (pod._replace(is_rest=is_rest[pod]) for pod in pods)
    return sorted(marked, key=lambda pod: (len(pod.namespace) + len(pod.pod), pod))


def _namespace_selector(namespace: str) -> Selector:
    return Selector((Requirement(NAMESPACE_NAME, "In", (namespace,)),))


def _selectors(policy: TieredPolicy) -> Iterator[tuple[Selector, Selector]]:
    yield policy.namespaces, policy.pods
    for rule in (*(policy.ingress or ()), *(policy.egress or ())):
        pods, _addresses, _nodes, _domains = peers_by_kind(rule.peers)
        for peer in pods:
            yield _namespaces(peer.namespaces, policy), peer.pods


def _namespaces(wanted: Selector | Related, policy: TieredPolicy) -> Selector:
    """Return a selector of namespaces for a peer: its own, the subject's, or one that requires the compared labels."""
    if isinstance(wanted, Selector):
        return wanted
    match wanted.relation:
        case Relation.SELF:
            return policy.namespaces
        case Relation.NOT_SELF:
            return EVERYTHING
        case Relation.SAME_LABELS | Relation.NOT_SAME_LABELS:
            return Selector(tuple(Requirement(key, "Exists") for key in sorted(set(wanted.keys))))
        case _:
            assert_never(wanted.relation)


def _selected_by_all(network: NetworkModel, pairs: Iterable[tuple[Selector, Selector]]) -> HypotheticalPod | None:
    """Return the pod with exactly the labels that all selectors require, or None if they exclude each other."""
    pairs = list(pairs)
    namespace = _fewest_labels([namespaces for namespaces, _ in pairs])
    pod = _fewest_labels([pods for _, pods in pairs])
    if namespace is None or pod is None:
        return None
    if NAMESPACE_NAME in namespace:
        # An existing namespace keeps its labels.
        name = namespace[NAMESPACE_NAME]
        labels = network.namespaces.get(name, {NAMESPACE_NAME: name})
        if not all(namespaces.matches(labels) for namespaces, _ in pairs):
            return None
        namespace = {NAMESPACE_NAME: name}
    return HypotheticalPod(tuple(sorted(namespace.items())), tuple(sorted(pod.items())))


def _fewest_labels(selectors: list[Selector]) -> dict[str, str] | None:
    """Return the fewest labels that all selectors select, or None if no labels fit."""
    requirements = [requirement for selector in selectors for requirement in selector.requirements]
    labels: dict[str, str] = {}
    for key in sorted({required.key for required in requirements if required.operator in ("In", "Exists")}):
        about = [requirement for requirement in requirements if requirement.key == key]
        wanted = [set(requirement.values) for requirement in about if requirement.operator == "In"]
        excluded = {value for requirement in about if requirement.operator == "NotIn" for value in requirement.values}
        values = set.intersection(*wanted) - excluded if wanted else {_other_value(excluded)}
        if not values:
            return None
        labels[key] = min(values)
    return labels if all(selector.matches(labels) for selector in selectors) else None


def _other_value(excluded: set[str]) -> str:
    value = "any"
    while value in excluded:
        value += "-other"
    return value


def _labels(labels: Iterable[tuple[str, str]]) -> str:
    return ",".join(key if value == "any" else f"{key}={value}" for key, value in labels)
