"""Exposure: what pods that do not exist yet could reach, and be reached by, said by label.

Policies apply to pods and namespaces created later, so what a cluster allows is more than what its pods can do
today. Each selector that some policy has is met by a stand-in with just the labels it demands, alone and together
with each other selector, as long as that is not too many; so is every namespace that exists, for a new pod most likely
comes there; and one stand-in has no labels at all, in a namespace that has none. Stand-ins are asked as if they were
there; their rows and columns of the matrix are the exposure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any, NamedTuple, assert_never

from msgspec import Struct

from tierwall.core.labels import EVERYTHING, Requirement, Selector
from tierwall.network.model.endpoints import NAMESPACE_NAME
from tierwall.network.model.model import NetworkModel, network_model
from tierwall.network.model.rules import Related, Relation, TieredPolicy, peers_by_kind
from tierwall.network.reach.classes import EndpointClasses, RelevantAttributes
from tierwall.network.reach.listing import ConnectionEntry, FlowDescriber
from tierwall.network.reach.matrix import reach_matrix
from tierwall.network.reach.naming import EndpointNames, NamedEndpoints
from tierwall.network.reach.spaces import bits, mask_of
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

# With more sorts than this the stand-ins for pairs of selectors are left out, and with ten times as many those for
# further selectors are.
MOST_SORTS = 24
_PREFIX = "tierwall-any-"
_UNUSED_PORT = 64_999


class HypotheticalPod(NamedTuple):
    """A sort of pods by label: of its namespace (or the namespace's name), and its own.

    `rest` says that other sorts of the same namespace have labels, so that this one stands for the remaining pods.
    """

    namespace: tuple[tuple[str, str], ...]
    pod: tuple[tuple[str, str], ...]
    rest: bool = False

    def __str__(self) -> str:
        if not self.namespace and not self.pod:
            return "any other pod"
        pods = f"any pod with {_labels(self.pod)}" if self.pod else "any other pod" if self.rest else "any pod"
        named = dict(self.namespace).get(NAMESPACE_NAME)
        if named is not None:
            return f"{pods} in {named}"
        return f"{pods} in a namespace with {_labels(self.namespace)}" if self.namespace else f"{pods} in any namespace"


class HypotheticalSnapshot(Struct, frozen=True):
    """A snapshot with stand-ins added, and what each stands for by namespace and name."""

    snapshot: Snapshot
    sorts: Mapping[tuple[str, str], HypotheticalPod]


def exposure(snapshot: Snapshot, why: bool = False) -> Iterator[ConnectionEntry]:
    """Connections between the pods that exist and sorts of pods that may come, both ways."""
    hypothetical = with_stand_ins(snapshot)
    sorts = hypothetical.sorts
    classes = EndpointClasses(network_model(hypothetical.snapshot), lambda end: sorts.get((end.namespace, end.name)))
    stand_ins = {
        one.bit: sort for one in classes.all if (sort := sorts.get((one.one.namespace, one.one.name))) is not None
    }
    to_come = mask_of(sorted(stand_ins))
    real = classes.under_policy & ~to_come
    names = EndpointNames(classes)

    def named(mask: int) -> NamedEndpoints:
        some = mask & to_come
        return NamedEndpoints((), (), tuple(str(stand_ins[bit]) for bit in bits(some))) if some else names.spelled(mask)

    for sources, destinations in ((to_come, real), (real, to_come)):
        found = reach_matrix(classes, why=why, sources=sources, destinations=destinations)
        flows = FlowDescriber(found.ports, why)
        for group in found.groups:
            for those, passages in group.sources:
                yield ConnectionEntry(named(those), named(group.destinations), flows.of(passages))


def with_stand_ins(snapshot: Snapshot, named_ports: bool = False) -> HypotheticalSnapshot:
    """The snapshot as it would be with one pod of every sort; if asked for, with all ports that policies name."""
    network = network_model(snapshot)
    names = sorted(RelevantAttributes(network).named_ports) if named_ports else []
    # Numbers that hardly any rule gives, so that the name makes a difference.
    ports = [{"name": name, "containerPort": _UNUSED_PORT - number} for number, name in enumerate(names[:100])]
    added: list[Resource] = []
    sorts: dict[tuple[str, str], HypotheticalPod] = {}
    for number, sort in enumerate(_sorts(network)):
        named = dict(sort.namespace).get(NAMESPACE_NAME)
        namespace = named or f"{_PREFIX}{number}"
        if named is None:
            added.append(_resource("Namespace", "", namespace, sort.namespace))
        elif named not in network.namespaces:
            added.append(_resource("Namespace", "", named, ()))
        spec = {"containers": [{"name": "any", "ports": ports}]}
        pod = _resource("Pod", namespace, f"{_PREFIX}{number}", sort.pod, spec=spec)
        added.append(pod)
        sorts[pod.namespace, pod.name] = sort
    return HypotheticalSnapshot(snapshot.with_changes(put=added), sorts)


def _resource(kind: str, namespace: str, name: str, labels: Iterable[tuple[str, str]], **more: Any) -> Resource:
    metadata = {"name": name, "labels": dict(labels)} | ({"namespace": namespace} if namespace else {})
    value = {"apiVersion": "v1", "kind": kind, "metadata": metadata, **more}
    return Resource("", "v1", kind, namespace, name, value)


def _sorts(network: NetworkModel) -> list[HypotheticalPod]:
    pairs = dict.fromkeys(pair for policy in network.policies for pair in _selectors(policy))
    if pairs and len(pairs) + len(network.namespaces) <= MOST_SORTS:
        pairs |= {(_called(name), EVERYTHING): None for name in sorted(network.namespaces)}
    met = (sort for pair in pairs if (sort := _sort(network, [pair])) is not None)
    single = list(dict.fromkeys(met))[: 10 * MOST_SORTS]
    sorts = dict.fromkeys([HypotheticalPod((), ()), *single])
    if len(pairs) <= MOST_SORTS:
        for two in combinations(pairs, 2):
            sort = _sort(network, two)
            if sort is not None:
                sorts[sort] = None
    labelled = {sort.namespace for sort in sorts if sort.pod}
    rest = {sort: not sort.pod and bool(labelled & {sort.namespace, ()}) for sort in sorts}
    marked = (sort._replace(rest=rest[sort]) for sort in sorts)
    return sorted(marked, key=lambda sort: (len(sort.namespace) + len(sort.pod), sort))


def _called(namespace: str) -> Selector:
    return Selector((Requirement(NAMESPACE_NAME, "In", (namespace,)),))


def _selectors(policy: TieredPolicy) -> Iterator[tuple[Selector, Selector]]:
    yield policy.namespaces, policy.pods
    for rule in (*(policy.ingress or ()), *(policy.egress or ())):
        pods, _addresses, _nodes, _domains = peers_by_kind(rule.peers)
        for peer in pods:
            yield _namespaces(peer.namespaces, policy), peer.pods


def _namespaces(wanted: Selector | Related, policy: TieredPolicy) -> Selector:
    """Where a peer's pods may be: by a selector, beside the subject, or in a namespace with the labels compared."""
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


def _sort(network: NetworkModel, pairs: Iterable[tuple[Selector, Selector]]) -> HypotheticalPod | None:
    """The sort of pods that just meets all selectors; None if no pod can."""
    pairs = list(pairs)
    namespace = _meeting([namespaces for namespaces, _ in pairs])
    pod = _meeting([pods for _, pods in pairs])
    if namespace is None or pod is None:
        return None
    if NAMESPACE_NAME in namespace:
        # A namespace that exists has the labels it has.
        name = namespace[NAMESPACE_NAME]
        labels = network.namespaces.get(name, {NAMESPACE_NAME: name})
        if not all(namespaces.matches(labels) for namespaces, _ in pairs):
            return None
        namespace = {NAMESPACE_NAME: name}
    return HypotheticalPod(tuple(sorted(namespace.items())), tuple(sorted(pod.items())))


def _meeting(selectors: list[Selector]) -> dict[str, str] | None:
    """The fewest labels that meet all selectors, or None."""
    requirements = [requirement for selector in selectors for requirement in selector.requirements]
    labels: dict[str, str] = {}
    for key in sorted({demand.key for demand in requirements if demand.operator in ("In", "Exists")}):
        about = [requirement for requirement in requirements if requirement.key == key]
        wanted = [set(requirement.values) for requirement in about if requirement.operator == "In"]
        barred = {value for requirement in about if requirement.operator == "NotIn" for value in requirement.values}
        values = set.intersection(*wanted) - barred if wanted else {_fresh(barred)}
        if not values:
            return None
        labels[key] = min(values)
    return labels if all(selector.matches(labels) for selector in selectors) else None


def _fresh(barred: set[str]) -> str:
    value = "any"
    while value in barred:
        value += "-other"
    return value


def _labels(labels: Iterable[tuple[str, str]]) -> str:
    return ",".join(key if value == "any" else f"{key}={value}" for key, value in labels)
